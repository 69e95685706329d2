"""Pods as a kubelet needs them: commands, environment, life cycle."""

from collections.abc import Iterator

import msgspec

from gpuslice.devices.pods import Metadata, Resources


class FieldRef(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A field of the pod, by path."""

    field_path: str = ""


class ValueFrom(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Where a variable's value comes from; only the pod's own fields are supported."""

    field_ref: FieldRef | None = None


class EnvVar(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """One variable."""

    name: str
    value: str | None = None
    value_from: ValueFrom | None = None


class ContainerSpec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A container."""

    name: str
    image: str = ""
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[EnvVar, ...] | None = None
    resources: Resources | None = None
    restart_policy: str | None = None

    @property
    def is_sidecar(self) -> bool:
        """Whether this (as an init container) keeps running beside the app containers."""
        return self.restart_policy == "Always"

    def limits(self) -> Iterator[tuple[str, int]]:
        """Yield the limits that are whole numbers."""
        for name, quantity in (self.resources.limits if self.resources else {}).items():
            text = str(quantity)
            if text.isdecimal():
                yield name, int(text)


class Spec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """spec of a pod."""

    containers: tuple[ContainerSpec, ...] = ()
    init_containers: tuple[ContainerSpec, ...] | None = None
    node_name: str = ""
    restart_policy: str = "Always"
    termination_grace_period_seconds: int | None = None

    @property
    def admission_order(self) -> tuple[ContainerSpec, ...]:
        """All containers in the order in which the kubelet allocates for them."""
        return (*(self.init_containers or ()), *self.containers)


class Status(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """status of a pod, as far as a restarted kubelet looks at it."""

    phase: str = ""


class PodObject(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A pod."""

    metadata: Metadata = Metadata()
    spec: Spec = Spec()
    status: Status = Status()

    @property
    def uid(self) -> str:
        """The pod's identity."""
        return self.metadata.uid

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.metadata.namespace, self.metadata.name

    def requests(self, resource: str) -> int:
        """Return how many devices the pod takes: its app containers and sidecars together, or its largest init."""
        counts = {c.name: dict(c.limits()).get(resource, 0) for c in self.spec.admission_order}
        init = self.spec.init_containers or ()
        together = sum(counts[c.name] for c in (*self.spec.containers, *init) if c not in init or c.is_sidecar)
        return max([together, *(counts[c.name] for c in init if not c.is_sidecar)])

    @property
    def grace_seconds(self) -> float:
        """How long containers have between SIGTERM and SIGKILL."""
        for seconds in (self.metadata.deletion_grace_period_seconds, self.spec.termination_grace_period_seconds):
            if seconds is not None:
                return float(seconds)
        return 30.0


def variables(pod: PodObject, container: ContainerSpec) -> dict[str, str]:
    """Return the container's own environment."""
    fields = {
        "metadata.name": pod.metadata.name,
        "metadata.namespace": pod.metadata.namespace,
        "metadata.uid": pod.metadata.uid,
        "spec.nodeName": pod.spec.node_name,
    }
    found = {}
    for variable in container.env or ():
        reference = variable.value_from.field_ref if variable.value_from else None
        found[variable.name] = fields.get(reference.field_path, "") if reference else variable.value or ""
    return found
