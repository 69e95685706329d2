"""One real node: containerd, runc and a kubelet in namespaces of their own.

The node's first process owns a process, a mount and a network namespace. containerd lives in all three, the kubelet in
the first two and in the host's network (it must reach the API server on loopback). When the first process dies the
kernel ends every process of the node, unmounts everything and drops its network, so nothing can be left behind.
/var/lib, /var/log and /run are empty in there: neither program writes to the host's.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.cluster.harness import cgroups
from tests.cluster.harness.control_plane import ControlPlane, free_port
from tests.cluster.harness.images import Image, init_program, write_archive
from tests.cluster.harness.node_config import (
    NodePaths,
    base_spec,
    containerd_config,
    kubelet_config,
    network_config,
    nsenter,
)
from tests.cluster.harness.process import ClusterError, Supervised, children_of, run_checked, wait_until

START_SECONDS = 60.0
DEVICE_PLUGINS = "/var/lib/kubelet/device-plugins"
REQUIRED_TOOLS = {
    "runc": "runc",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "ip": "iproute2",
    "mount": "mount",
}
"""Program -> the Debian package that has it."""


def check_machine() -> None:
    """Check that this machine can run real nodes; install what Debian has and the machine lacks.

    Raises:
        ClusterError: Not root, or a program is missing and cannot be installed; the message names the remedy.
    """
    if os.geteuid() != 0:
        raise ClusterError("the cluster tests start real containers and need root: run `sudo make test-cluster`")
    packages = _missing_packages()
    if packages and shutil.which("apt-get"):
        print(f"installing {' '.join(packages)}", flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
            subprocess.run(["apt-get", *command], check=False, env=environment, stdout=subprocess.DEVNULL)
    if packages := _missing_packages():
        raise ClusterError(f"programs are missing on this machine: apt-get install {' '.join(packages)}")


def _missing_packages() -> list[str]:
    return sorted({package for tool, package in REQUIRED_TOOLS.items() if shutil.which(tool) is None})


class Node:
    """A node and its processes.

    Attributes:
        name: Name of the Node object.
        paths: Its files on the host.
    """

    def __init__(
        self,
        name: str,
        plane: ControlPlane,
        *,
        binaries: Path,
        images: Sequence[Image],
        mounts: Mapping[str, Path] | None = None,
        kubelet: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.paths = NodePaths(plane.folder / name)
        self._plane, self._binaries, self._images = plane, binaries, images
        self._mounts = dict(mounts or {})
        self._kubelet_extra = dict(kubelet or {})
        self.cgroup = f"{cgroups.PREFIX}{os.getpid()}-{plane.folder.name}/{name}"
        self._init_pid = 0
        self._processes: dict[str, Supervised] = {}

    # ---- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the namespaces, containerd with its images, and the kubelet; returns before the node is Ready."""
        for folder in (self.paths.device_plugins, self.paths.cdi, self.paths.top / "cni", self.paths.kubelet_root):
            folder.mkdir(parents=True, exist_ok=True)
        cgroups.create(self.cgroup)
        self._enter_namespaces()
        self.start_containerd()
        for image in self._images:
            self.load_image(image)
        self.start_kubelet()

    def _enter_namespaces(self) -> None:
        init = init_program(self._plane.folder)
        holder = Supervised(
            f"{self.name}-init",
            [
                "unshare", "--mount", "--pid", "--net", "--fork", "--kill-child=KILL", "--mount-proc",
                "--propagation", "private", "--", str(init),
            ],
            log=self.paths.logs / "init.log",
        )  # fmt: skip
        self._processes["init"] = holder

        def first_process() -> int:
            pids = [pid for pid in children_of(holder.pid) if Path(os.readlink(f"/proc/{pid}/exe")) == init]
            return pids[0] if pids else 0

        self._init_pid = wait_until(first_process, what=f"{self.name}: namespaces", within_seconds=10, watched=[holder])
        script = f"""set -eu
for folder in /var/lib /var/log /run; do mount -t tmpfs tmpfs "$folder"; done
mkdir -p {DEVICE_PLUGINS}
mount --bind {self.paths.device_plugins} {DEVICE_PLUGINS}
ip link set lo up"""
        self.run(["sh", "-c", script], namespaces=("mount", "pid", "net"))

    def start_containerd(self) -> None:
        """Start containerd and wait until its socket answers."""
        default = run_checked([str(self._binaries / "ctr"), "oci", "spec"], what="ctr oci spec")
        spec = self.paths.top / "base-spec.json"
        spec.write_text(base_spec(default, self._mounts))
        config = self.paths.top / "containerd.toml"
        config.write_text(containerd_config(self.paths, self._binaries, spec))
        (self.paths.top / "cni" / "10-pods.conflist").write_text(network_config())
        environment = dict(os.environ) | {"PATH": f"{self._binaries}:{os.environ['PATH']}"}
        process = self._supervise(
            "containerd",
            [str(self._binaries / "containerd"), "--config", str(config)],
            namespaces=("mount", "pid", "net"),
            environment=environment,
        )
        wait_until(self._containerd_answers, what="containerd answers", within_seconds=START_SECONDS, watched=[process])

    def _containerd_answers(self) -> bool:
        try:
            self.ctr("version")
        except ClusterError:
            return False
        return True

    def start_kubelet(self) -> Supervised:
        """Start the kubelet; returns at once."""
        token = self._plane.tokens.token(f"system:node:{self.name}")
        kubeconfig = self._plane.kubeconfig(f"kubelet-{self.name}", token)
        config = self.paths.top / "kubelet.json"
        port = free_port()
        config.write_text(
            json.dumps(kubelet_config(self.paths, port=port, cgroup_root=f"/{self.cgroup}", extra=self._kubelet_extra))
        )
        return self._supervise(
            "kubelet",
            [
                str(self._binaries / "kubelet"), f"--config={config}", f"--kubeconfig={kubeconfig}",
                f"--hostname-override={self.name}", f"--root-dir={self.paths.kubelet_root}",
                f"--cert-dir={self.paths.top / 'pki'}", "--v=2",
            ],
            namespaces=("mount", "pid"),
        )  # fmt: skip

    def stop_kubelet(self) -> None:
        """End the kubelet at once; containers run on."""
        self._processes["kubelet"].kill()

    def restart_kubelet(self) -> None:
        """Kill and start the kubelet."""
        self.stop_kubelet()
        self.start_kubelet()

    def reboot(self) -> None:
        """End everything on the node at once and start it again; disks stay, memory does not."""
        self.stop()
        shutil.rmtree(self.paths.top / "state", ignore_errors=True)
        cgroups.create(self.cgroup)
        self._enter_namespaces()
        self.start_containerd()
        self.start_kubelet()

    def stop(self) -> None:
        """End every process of the node; mounts and network vanish with it."""
        for name in ("kubelet", "containerd"):
            if process := self._processes.get(name):
                process.kill()
        if self._init_pid:
            try:
                os.kill(self._init_pid, signal.SIGKILL)
            except ProcessLookupError:
                self._init_pid = 0
        if holder := self._processes.get("init"):
            holder.kill()
        cgroups.remove(self.cgroup)

    # ---- state -----------------------------------------------------------------------------------

    def wait_ready(self) -> None:
        """Wait until the Node object says Ready and carries no taint."""
        wait_until(
            self._ready,
            what=f"node {self.name} ready",
            within_seconds=START_SECONDS,
            watched=[self._processes["containerd"], self._processes["kubelet"]],
        )

    def _ready(self) -> bool:
        node = self._plane.admin.find("nodes", None, self.name)
        if node is None or node["spec"].get("taints"):
            return False
        return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", []))

    @property
    def kubelet(self) -> Supervised:
        """The kubelet that runs now."""
        return self._processes["kubelet"]

    def allocatable(self, resource: str) -> int:
        """Return the node's allocatable count of an extended resource, 0 if it has none."""
        node = self._plane.admin.get("nodes", None, self.name)
        return int(node["status"].get("allocatable", {}).get(resource, "0"))

    def checkpoint_entries(self) -> list[dict[str, Any]]:
        """Return the kubelet's record of allocated devices: PodUID, ContainerName, DeviceIDs, AllocResp and more."""
        try:
            data = json.loads(self.paths.checkpoint.read_text())
        except FileNotFoundError:
            return []
        entries: list[dict[str, Any]] = data["Data"]["PodDeviceEntries"] or []
        return entries

    def container_log(self, pod: Mapping[str, Any], container: str) -> str:
        """Return everything a container of a pod has written, over its restarts, without the runtime's prefix."""
        meta = pod["metadata"]
        folder = self.paths.pod_logs / f"{meta['namespace']}_{meta['name']}_{meta['uid']}" / container
        files = sorted(folder.glob("*.log"), key=lambda file: int(file.stem.split(".")[0]))
        lines = [line for file in files for line in file.read_text(errors="replace").splitlines()]
        return "\n".join(line.split(" ", 3)[3] if line.count(" ") >= 3 else line for line in lines)

    def pod_cgroup(self, uid: str) -> Path | None:
        """Return the cgroup folder of a pod (pids or unified hierarchy); None once it is gone."""
        for root in cgroups.hierarchies():
            if root.name in ("pids", "cgroup"):
                # Folders of other pods may go while they are walked.
                with suppress(FileNotFoundError):
                    return next((root / self.cgroup).glob(f"**/pod{uid}"), None)
        return None

    def pod_processes(self, uid: str) -> list[int]:
        """Return the host's process ids of everything that runs in a pod, the sandbox included."""
        top = self.pod_cgroup(uid)
        if top is None:
            return []
        return [pid for folder in [top, *top.glob("**/")] for pid in cgroups.processes(folder)]

    def container_processes(self, pod: Mapping[str, Any], container: str) -> list[int]:
        """Return the host's process ids of one container, the first process first; none unless it runs."""
        top = self.pod_cgroup(pod["metadata"]["uid"])
        statuses = [*pod["status"].get("initContainerStatuses", []), *pod["status"].get("containerStatuses", [])]
        identity = next((s.get("containerID", "") for s in statuses if s["name"] == container), "")
        if top is None or not identity:
            return []
        return sorted(cgroups.processes(top / identity.removeprefix("containerd://")))

    # ---- commands --------------------------------------------------------------------------------

    def run(self, argv: Sequence[str], *, namespaces: Sequence[str] = ("mount", "pid")) -> str:
        """Run a short command inside the node and return its output."""
        return run_checked(nsenter(self._init_pid, namespaces, argv), what=f"{self.name}: {argv[0]}")

    def ctr(self, *arguments: str) -> str:
        """Run containerd's own client on the kubelet's containers."""
        address = f"--address={self.paths.containerd_socket}"
        return self.run([str(self._binaries / "ctr"), address, "--namespace=k8s.io", *arguments])

    def load_image(self, image: Image) -> None:
        """Put an image into the runtime's store."""
        archive = self._plane.folder / f"{image.name.replace('/', '_').replace(':', '_')}.tar"
        if not archive.exists():
            write_archive(image, archive)
        self.ctr("images", "import", str(archive))

    def _supervise(
        self,
        name: str,
        argv: Sequence[str],
        *,
        namespaces: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> Supervised:
        process = Supervised(
            f"{self.name}-{name}",
            nsenter(self._init_pid, namespaces, argv),
            log=self.paths.logs / f"{name}.log",
            environment=environment,
        )
        self._processes[name] = process
        return process
