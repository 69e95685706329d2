"""What every operation works on: the server's state, and the call that is being answered."""

import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, Protocol

from simulator.apiserver.failures import Object
from simulator.apiserver.paths import Target
from simulator.apiserver.resources import Registry, Resource
from simulator.apiserver.store import Entry, Store

Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


@dataclass(slots=True, eq=False)
class Call:
    """One request on one resource type."""

    resource: Resource
    target: Target
    user: str
    groups: tuple[str, ...]
    dry_run: bool = False
    field_manager: str = ""
    applying: bool = False
    """Server-side apply: managedFields are already what they shall be."""
    options: Object = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def storage(self) -> tuple[str, str]:
        """Collection of the resource."""
        return self.resource.storage

    @property
    def namespace(self) -> str:
        """Namespace in the path; empty for cluster-scoped types."""
        return self.target.namespace if self.resource.namespaced else ""

    @property
    def name(self) -> str:
        """Name in the path; empty for collections."""
        return self.target.name

    def show(self, entry: Entry) -> Object:
        """Decode a stored object at this call's version."""
        return {"kind": self.resource.kind, "apiVersion": self.resource.api_version, **entry.decode()}


class Admission(Protocol):
    """The chain that may change or refuse a write."""

    async def mutate(self, call: Call, operation: Operation, new: Object | None, old: Object | None) -> Object | None:
        """Return the object as the mutating plugins and webhooks leave it."""

    async def validate(self, call: Call, operation: Operation, new: Object | None, old: Object | None) -> None:
        """Raise StatusError when a validating plugin or webhook refuses."""


def utc_now() -> datetime:
    """Read the system's clock."""
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """Write a time as metav1.Time: RFC 3339, whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(slots=True, eq=False)
class State:
    """Everything that outlives a request."""

    store: Store
    registry: Registry
    clock: Callable[[], datetime] = utc_now
    dice: random.Random = field(default_factory=random.Random)
    admission: Admission | None = None
    protect_namespaces: bool = True
    after_write: Callable[[Resource, Object | None, Object | None], Awaitable[None]] | None = None

    def now(self) -> str:
        """Return the present as an object's timestamp."""
        return timestamp(self.clock())

    def new_uid(self) -> str:
        """Draw a UID."""
        return str(uuid.UUID(int=self.dice.getrandbits(128), version=4))

    def suffix(self) -> str:
        """Draw the five letters that generateName appends."""
        return "".join(self.dice.choices(_SUFFIX_LETTERS, k=5))
