"""Who is calling: a table of bearer tokens, as the real server's --token-auth-file."""

from collections.abc import Iterable
from dataclasses import dataclass

from simulator.apiserver.failures import unauthorized
from simulator.apiserver.wire import Request


@dataclass(frozen=True, slots=True)
class User:
    """One token and whom it stands for."""

    token: str
    name: str
    groups: tuple[str, ...] = ()


ADMIN = User("admin-token", "admin", ("system:masters",))

_SERVICE_ACCOUNT = "system:serviceaccount:"


def service_account(namespace: str, name: str) -> User:
    """Return the user that a service account's token stands for; the token is its name."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
    return User(f"sa-{namespace}-{name}", f"{_SERVICE_ACCOUNT}{namespace}:{name}", groups)


def node(name: str) -> User:
    """Return the user of a node's kubelet."""
    return User(f"node-{name}", f"system:node:{name}", ("system:nodes",))


class Tokens:
    """The token table."""

    def __init__(self, users: Iterable[User], *, anonymous: bool) -> None:
        self._users = {user.token: user for user in users}
        self._anonymous = anonymous

    def add(self, user: User) -> None:
        """Accept one more token."""
        self._users[user.token] = user

    def find(self, token: str) -> User | None:
        """Return the token's user."""
        return self._users.get(token)

    def authenticate(self, request: Request) -> None:
        """Note the caller in the request.

        Raises:
            StatusError: 401 for an unknown token, or none where anonymous calls are off.
        """
        header = request.headers.get("authorization", "")
        scheme, _, token = header.partition(" ")
        if not header and self._anonymous:
            request.user, request.groups = "system:anonymous", ("system:unauthenticated",)
            return
        user = self._users.get(token.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            raise unauthorized()
        request.user = user.name
        request.groups = (*user.groups, "system:authenticated")
