"""Flags of the device plugin daemon."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import gpuslice
from gpuslice.service.settings import DaemonSettings, Flag

_LIBRARY = Path(gpuslice.__file__).parent / "lib" / "libvgpu.so"


@dataclass(frozen=True, kw_only=True)
class PluginSettings(DaemonSettings):
    """Device plugin of one node: hands each container exactly the slices that the scheduler chose."""

    node_name: Annotated[str, Flag("name of this node")]
    device_plugin_dir: Annotated[Path, Flag("the kubelet's directory of plugin sockets")] = Path(
        "/var/lib/kubelet/device-plugins"
    )
    pod_resources_socket: Annotated[Path, Flag("the kubelet's pod resources socket")] = Path(
        "/var/lib/kubelet/pod-resources/kubelet.sock"
    )
    state_dir: Annotated[Path, Flag("where grants are kept; the same path on the host and in this container")] = Path(
        "/var/lib/gpuslice"
    )
    cdi_dir: Annotated[Path, Flag("where the runtime reads CDI specifications")] = Path("/var/run/cdi")
    cgroup_root: Annotated[Path, Flag("the host's cgroup file system, read-only")] = Path("/sys/fs/cgroup")
    cgroup_prefix: Annotated[str, Flag("the kubelet's --cgroup-root, if it has one")] = ""
    library_path: Annotated[Path, Flag("libvgpu.so on the host")] = _LIBRARY
    driver_root: Annotated[Path | None, Flag("where the driver's libraries are, when not on the loader's path")] = None
    scheduler_names: Annotated[
        tuple[str, ...], Flag("schedulerName of pods whose reservations count; others are treated as unmanaged")
    ] = ("gpuslice-scheduler",)
    node_config: Annotated[Path | None, Flag("YAML file with the sharing rules of all nodes")] = None
    device_files: Annotated[tuple[Path, ...], Flag("YAML file that describes a generic device")] = ()
    gpus: Annotated[bool, Flag("serve the node's GPUs (off: generic devices only)")] = True
    missing_driver: Annotated[
        Literal["wait", "fail"], Flag("what to do while NVML is not usable: wait for it, or end with an error")
    ] = "wait"
    ignored_xids: Annotated[tuple[int, ...], Flag("XID that does not make a card unhealthy; replaces the list")] = ()
    quiet_seconds: Annotated[float, Flag("time without a bad sign before a card is used again")] = 60.0
    probe_seconds: Annotated[float, Flag("time between two probes of the cards")] = 5.0
    audit_seconds: Annotated[float, Flag("time between two audits of who holds what")] = 5.0
    mps_daemon: Annotated[str, Flag("command of the MPS control daemon")] = "nvidia-cuda-mps-control"
