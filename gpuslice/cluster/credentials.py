"""Who we are towards the API server, renewed while we run."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from gpuslice.devices.errors import BadConfiguration

TOKEN_REREAD_SECONDS = 60.0
"""Projected service account tokens are rotated by the kubelet well before they expire; client-go re-reads as often."""


class Credentials(Protocol):
    """Headers that prove who is asking."""

    async def headers(self) -> Mapping[str, str]:
        """Give the headers for the next request; cheap, called for every one."""

    def forget(self) -> None:
        """The API server answered 401: get fresh ones next time."""


class FixedHeaders:
    """A token or password written in the kubeconfig, or nothing at all (client certificate, anonymous)."""

    def __init__(self, authorization: str | None = None) -> None:
        self._headers: Mapping[str, str] = {"Authorization": authorization} if authorization else {}

    async def headers(self) -> Mapping[str, str]:
        """Give the same headers each time."""
        return self._headers

    def forget(self) -> None:
        """Nothing to renew."""


class TokenFile:
    """A bearer token in a file that somebody rotates."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._read_at: float | None = None
        self._headers: Mapping[str, str] = {}

    async def headers(self) -> Mapping[str, str]:
        """Re-read the file once a minute; a file with no token in it for a moment leaves the last one in use."""
        now = self._clock()
        if self._read_at is None or now - self._read_at >= TOKEN_REREAD_SECONDS:
            try:
                self._headers = {"Authorization": f"Bearer {self._token()}"}
                self._read_at = now
            except (OSError, ValueError) as error:
                if not self._headers:
                    raise BadConfiguration(
                        str(self._path), "token", str(error), "mount a service account token"
                    ) from error
        return self._headers

    def _token(self) -> str:
        words = self._path.read_text(encoding="ascii").split()
        if len(words) != 1:
            raise ValueError(f"is not one word but {len(words)}")
        return words[0]

    def forget(self) -> None:
        """Read the file again at once."""
        self._read_at = None


class ExternalProvider:
    """Exec plugins and auth providers of a kubeconfig, run by the official client's loader.

    The loader is imported here only: its models cost 30 MiB that a daemon with a plain token need not pay.
    """

    def __init__(
        self, config: Mapping[str, Any], context: str, base_path: Path, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        from kubernetes.aio.config.kube_config import KubeConfigLoader  # noqa: PLC0415  see the class docstring

        self._loader: Any = cast("Any", KubeConfigLoader)(
            dict(config), active_context=context, config_base_path=str(base_path)
        )
        self._user = context
        self._clock = clock
        self._read_at: float | None = None
        self._headers: Mapping[str, str] = {}

    async def headers(self) -> Mapping[str, str]:
        """Ask the provider at most once a minute; it decides itself whether its token is still good."""
        now = self._clock()
        if self._read_at is None or now - self._read_at >= TOKEN_REREAD_SECONDS:
            from kubernetes.aio.client import Configuration  # noqa: PLC0415  see the class docstring

            answer = Configuration()
            await self._loader.load_and_set(answer)
            token = answer.api_key.get("BearerToken")
            if not token:
                raise BadConfiguration(
                    "kubeconfig",
                    f"credentials of context {self._user}",
                    "the provider gave no token",
                    "run its command by hand",
                )
            self._headers = {"Authorization": token}
            self._read_at = now
        return self._headers

    def forget(self) -> None:
        """Ask the provider again at once."""
        self._read_at = None
