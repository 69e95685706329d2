"""Configuration files of one test node: containerd, its base container spec, CNI and kubelet."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.harness.images import PAUSE


@dataclass(frozen=True, slots=True)
class NodePaths:
    """Files of one node, all below one folder; short, since the sockets' paths must stay under 108 bytes."""

    top: Path

    @property
    def containerd_socket(self) -> Path:
        """The container runtime's socket."""
        return self.top / "cri.sock"

    @property
    def kubelet_root(self) -> Path:
        """The kubelet's --root-dir."""
        return self.top / "kubelet"

    @property
    def pod_resources_socket(self) -> Path:
        """The kubelet's pod-resources socket."""
        return self.kubelet_root / "pod-resources" / "kubelet.sock"

    @property
    def device_plugins(self) -> Path:
        """What the node sees as /var/lib/kubelet/device-plugins."""
        return self.top / "dp"

    @property
    def checkpoint(self) -> Path:
        """The kubelet's record of allocated devices."""
        return self.device_plugins / "kubelet_internal_checkpoint"

    @property
    def cdi(self) -> Path:
        """CDI specifications that the runtime reads."""
        return self.top / "cdi"

    @property
    def pod_logs(self) -> Path:
        """Logs of containers: NAMESPACE_POD_UID/CONTAINER/N.log."""
        return self.top / "pod-logs"

    @property
    def logs(self) -> Path:
        """Logs of the node's own processes."""
        return self.top / "logs"


def containerd_config(paths: NodePaths, binaries: Path, base_spec: Path) -> str:
    """Return containerd's configuration (version 3): own folders and socket, nothing of the host's."""
    runtime = 'plugins."io.containerd.cri.v1.runtime"'
    disabled = [
        "io.containerd.differ.v1.erofs",
        "io.containerd.internal.v1.opt",
        "io.containerd.internal.v1.tracing",
        "io.containerd.nri.v1.nri",
        "io.containerd.tracing.processor.v1.otlp",
        *(f"io.containerd.snapshotter.v1.{name}" for name in ("blockfile", "btrfs", "devmapper", "erofs", "zfs")),
    ]
    return f"""version = 3
root = "{paths.top / "containerd"}"
state = "{paths.top / "state"}"
disabled_plugins = {json.dumps(disabled)}
[grpc]
  address = "{paths.containerd_socket}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE}"
[{runtime}]
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["{paths.cdi}"]
  disable_apparmor = true
[{runtime}.cni]
  conf_dir = "{paths.top / "cni"}"
  bin_dirs = ["{binaries}"]
[{runtime}.containerd]
  default_runtime_name = "runc"
[{runtime}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  base_runtime_spec = "{base_spec}"
[{runtime}.containerd.runtimes.runc.options]
  SystemdCgroup = false
"""


def base_spec(default: str, mounts: Mapping[str, Path]) -> str:
    """Return the spec that every container starts from: the runtime's default plus bind mounts.

    The mounts stand for what NVIDIA's container runtime injects on a real node: the driver is the machine's, not the
    image's.

    Args:
        default: Output of `ctr oci spec`.
        mounts: Path in the container -> path on the node, read-write.
    """
    spec: dict[str, Any] = json.loads(default)
    for destination, source in mounts.items():
        bind = {"destination": destination, "type": "bind", "source": str(source), "options": ["rbind", "rw"]}
        spec["mounts"].append(bind)
    return json.dumps(spec)


def network_config() -> str:
    """Return the CNI configuration: a bridge that exists in the node's own network namespace only."""
    bridge = {
        "type": "bridge",
        "bridge": "pods0",
        "isGateway": True,
        "ipMasq": False,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]})


def kubelet_config(
    paths: NodePaths, *, port: int, cgroup_root: str, extra: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the KubeletConfiguration of a test node.

    Args:
        paths: The node's files.
        port: The kubelet's own HTTPS port on loopback.
        cgroup_root: Sub-tree for its pods.
        extra: Fields that override these.
    """
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": port,
        "healthzPort": 0,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup_root,
        "enforceNodeAllocatable": ["none"],
        "failSwapOn": False,
        "failCgroupV1": False,
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        "containerRuntimeEndpoint": f"unix://{paths.containerd_socket}",
        "volumePluginDir": str(paths.top / "volume-plugins"),
        "podLogsDir": str(paths.pod_logs),
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "1s",
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "maxPods": 250,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
        **(extra or {}),
    }


def nsenter(init_pid: int, namespaces: Sequence[str], argv: Sequence[str]) -> list[str]:
    """Return the command that runs argv inside namespaces of a node and dies with its caller."""
    flags = [f"--{name}" for name in namespaces]
    return ["nsenter", f"--target={init_pid}", *flags, "--", "setpriv", "--pdeathsig", "KILL", "--", *argv]
