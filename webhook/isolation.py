"""What in a pod reaches around the share of a card: privileges, the node's devices, our own files, environment."""

from collections.abc import Iterator

from gpuslice.devices.families import Families
from webhook.pods import AdmittedContainer, AdmittedPod

OUR_PATHS = (
    "/etc/ld.so.preload",
    "/usr/local/gpuslice",
    "/usr/local/vgpu",
    "/var/run/gpuslice",
    "/run/gpuslice",
    "/var/run/nvidia-container-devices",
    "/run/nvidia-container-devices",
)
"""Mount points in a container that enforce its limits, and the one by which NVIDIA's runtime can be asked for cards."""
DEVICE_PATHS = (
    "/dev",
    "/proc",
    "/sys",
    "/run/nvidia",
    "/var/run/nvidia",
    "/var/lib/kubelet",
    "/var/lib/gpuslice",
    "/var/run/cdi",
    "/etc/cdi",
)
"""Paths of the node behind which cards, their control or our records lie."""
_STRONG_CAPABILITIES = frozenset({"ALL", "SYS_ADMIN", "SYS_RAWIO", "SYS_MODULE", "SYS_PTRACE", "MKNOD"})
_ENV_NAMES = frozenset(
    {
        "NVIDIA_VISIBLE_DEVICES",
        "CUDA_DEVICE_SM_LIMIT",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        "CUDA_DISABLE_CONTROL",
        "CUDA_OVERSUBSCRIBE",
        "GPU_CORE_UTILIZATION_POLICY",
        "CUDA_TASK_PRIORITY",
    }
)
_ENV_PREFIXES = ("CUDA_DEVICE_MEMORY_LIMIT", "GPUSLICE_")
_LIBRARY = "libvgpu.so"


def steering_names(families: Families) -> frozenset[str]:
    """Return the variables by which a container would pick its cards or limits itself."""
    return _ENV_NAMES | {family.visible_devices_env for family in families if family.visible_devices_env}


def steers(name: str, value: str | None, names: frozenset[str]) -> bool:
    """Tell whether a variable would override what the scheduler decided."""
    if name in names or name.startswith(_ENV_PREFIXES):
        return True
    return name == "LD_PRELOAD" and value is not None and _LIBRARY in value


def other_libraries(value: str) -> str:
    """Return an LD_PRELOAD without our library; the dynamic linker takes colons and blanks alike."""
    kept = [library for library in value.replace(":", " ").split() if _LIBRARY not in library]
    return ":".join(kept)


def privileged_containers(pod: AdmittedPod) -> tuple[str, ...]:
    """Return the names of privileged containers, of every list."""
    return tuple(c.name for _, containers in pod.groups() for c in containers if c.is_privileged)


def strong_capabilities(pod: AdmittedPod) -> Iterator[tuple[str, str]]:
    """Yield (container name, capability) for capabilities that come close to privileged."""
    for _, containers in pod.groups():
        for container in containers:
            context = container.security_context
            if context is None or context.capabilities is None:
                continue
            for capability in context.capabilities.add or ():
                if capability.removeprefix("CAP_") in _STRONG_CAPABILITIES:
                    yield container.name, capability


def device_volumes(pod: AdmittedPod) -> Iterator[tuple[str, str]]:
    """Yield (volume name, path) for volumes that bring in the node's devices or our records."""
    for volume in pod.spec.volumes or ():
        if volume.host_path is not None and _reaches(volume.host_path.path):
            yield volume.name, volume.host_path.path


def _normal(path: str) -> str:
    """Return an absolute path without doubled or closing slashes; API validation forbids ``..``."""
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _lies_in(path: str, place: str) -> bool:
    return path == place or path.startswith(place + "/") or place == "/"


def _reaches(path: str) -> bool:
    """Tell whether a path is, contains or lies within one of DEVICE_PATHS; /dev/shm holds no device."""
    wanted = _normal(path)
    if _lies_in(wanted, "/dev/shm"):  # noqa: S108  the node's path in a manifest, not a file of ours
        return False
    return any(_lies_in(wanted, place) or _lies_in(place, wanted) for place in DEVICE_PATHS)


def covering_mounts(container: AdmittedContainer) -> Iterator[str]:
    """Yield mount paths that would lie over the files which enforce the container's limits."""
    for mount in container.volume_mounts or ():
        path = _normal(mount.mount_path)
        if any(_lies_in(path, place) for place in OUR_PATHS):
            yield mount.mount_path
