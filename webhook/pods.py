"""What admission looks at in a pod, beyond what the scheduler needs: environment, privileges, mounts."""

import msgspec

from gpuslice.devices.pods import Container, Metadata, PodSpec, PodStatus
from gpuslice.devices.pods import Pod as ScheduledPod


class _View(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base of the views; unknown fields are skipped."""


class EnvVar(_View, frozen=True):
    """One environment variable; ``value`` is None when it comes from elsewhere (valueFrom)."""

    name: str = ""
    value: str | None = None


class Capabilities(_View, frozen=True):
    """Linux capabilities asked for."""

    add: tuple[str, ...] | None = None


class SecurityContext(_View, frozen=True):
    """The parts of a container's SecurityContext that open the host's devices."""

    privileged: bool | None = None
    capabilities: Capabilities | None = None


class VolumeMount(_View, frozen=True):
    """Where a volume appears in a container."""

    name: str = ""
    mount_path: str = ""


class HostPath(_View, frozen=True):
    """A directory or file of the node."""

    path: str = ""


class Volume(_View, frozen=True):
    """A volume, as far as it comes from the node."""

    name: str = ""
    host_path: HostPath | None = None


class EnvSource(_View, frozen=True):
    """A ConfigMap or Secret whose keys become variables; its contents are not visible to admission."""

    prefix: str | None = None


class AdmittedContainer(Container, frozen=True):
    """A container with everything that could reach around its share."""

    env: tuple[EnvVar, ...] | None = None
    env_from: tuple[EnvSource, ...] | None = None
    security_context: SecurityContext | None = None
    volume_mounts: tuple[VolumeMount, ...] | None = None

    @property
    def is_privileged(self) -> bool:
        """Whether the container sees every device of the node."""
        return self.security_context is not None and bool(self.security_context.privileged)


class AdmittedSpec(PodSpec, frozen=True):
    """PodSpec as admission sees it."""

    containers: tuple[AdmittedContainer, ...] | None = None
    init_containers: tuple[AdmittedContainer, ...] | None = None
    ephemeral_containers: tuple[AdmittedContainer, ...] | None = None
    host_pid: bool | None = msgspec.field(name="hostPID", default=None)
    volumes: tuple[Volume, ...] | None = None
    runtime_class_name: str | None = None


class AdmittedPod(ScheduledPod, frozen=True):
    """A pod as admission sees it; everything that reads a scheduled pod reads this too."""

    metadata: Metadata = Metadata()
    spec: AdmittedSpec = AdmittedSpec()
    status: PodStatus = PodStatus()

    def groups(self) -> tuple[tuple[str, tuple[AdmittedContainer, ...]], ...]:
        """Return (JSON key, containers) of each list of containers that is present."""
        spec = self.spec
        lists = (
            ("initContainers", spec.init_containers),
            ("containers", spec.containers),
            ("ephemeralContainers", spec.ephemeral_containers),
        )
        return tuple((key, containers) for key, containers in lists if containers)
