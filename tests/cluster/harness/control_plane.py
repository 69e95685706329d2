"""etcd, kube-apiserver, kube-controller-manager and kube-schedulers on loopback, ports and files of their own.

The API server authorises with Node and RBAC, so every component has exactly the rights
that a real cluster gives it.
"""

import json
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.harness.api import Api
from tests.cluster.harness.credentials import Authority, TokenFile, service_account_keys, write_kubeconfig
from tests.cluster.harness.process import Supervised, wait_until

LOOPBACK = "127.0.0.1"
ADMIN = "gpuslice-test-admin"
SERVICE_RANGE = "10.96.0.0/16"
START_SECONDS = 60.0


def free_port() -> int:
    """Return a loopback TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


class ControlPlane:
    """The processes of one control plane.

    Args:
        folder: Everything is written below it.
        binaries: Folder with the programs (build.py makes it).
        nodes: Names of the nodes that will join; each gets a token of its own.
        api_flags: Further flags of the API server.
    """

    def __init__(
        self, folder: Path, binaries: Path, nodes: Sequence[str] = (), *, api_flags: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self._binaries = binaries
        self._api_flags = list(api_flags)
        self._logs = folder / "logs"
        self._processes: dict[str, Supervised] = {}
        self._clients: list[Api] = []
        self._etcd_port, self._etcd_peer_port, self.port = free_port(), free_port(), free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(folder / "pki")
        self._serving = self.authority.issue(
            "kube-apiserver", [LOOPBACK, "localhost", "kubernetes", "kubernetes.default.svc"]
        )
        self._accounts = service_account_keys(folder / "pki")
        self.tokens = TokenFile(folder / "tokens.csv")
        self.tokens.add(ADMIN, "system:masters")
        self.tokens.add("system:kube-scheduler")
        self.tokens.add("system:kube-controller-manager")
        for node in nodes:
            self.tokens.add(f"system:node:{node}", "system:nodes")
        self.admin = self.api_for(self.tokens.token(ADMIN))
        self.admin_kubeconfig = self.kubeconfig("admin", self.tokens.token(ADMIN))

    @property
    def url(self) -> str:
        """Base URL of the API server."""
        return f"https://{LOOPBACK}:{self.port}"

    def api_for(self, token: str) -> Api:
        """Return a client that speaks as the owner of this token; it is closed with the control plane."""
        api = Api(host=LOOPBACK, port=self.port, authority=self.authority.certificate, token=token)
        self._clients.append(api)
        return api

    def kubeconfig(self, name: str, token: str, namespace: str = "default", *, port: int = 0) -> Path:
        """Write a kubeconfig for a token and return its path.

        Args:
            name: Name of the file.
            token: Of the user or service account.
            namespace: Of its context.
            port: Of a relay in front of the API server; 0 for the server itself.
        """
        path = self.folder / "kubeconfig" / f"{name}.json"
        return write_kubeconfig(
            path,
            server=f"https://{LOOPBACK}:{port or self.port}",
            authority=self.authority.certificate,
            token=token,
            namespace=namespace,
        )

    def start(self) -> None:
        """Start etcd and the API server; returns when /readyz is ok."""
        self.start_etcd()
        self.start_api_server()

    def start_etcd(self) -> None:
        """Start etcd without fsync: the data lives as long as the test."""
        url, peer = f"http://{LOOPBACK}:{self._etcd_port}", f"http://{LOOPBACK}:{self._etcd_peer_port}"
        self._run(
            "etcd",
            [
                "--unsafe-no-fsync", "--log-level=warn", "--name=default", f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls={url}", f"--advertise-client-urls={url}", f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
            ],
        )  # fmt: skip

    def start_api_server(self) -> None:
        """Start the API server on the same port as before and wait until it is ready."""
        process = self._run(
            "kube-apiserver",
            [
                f"--etcd-servers=http://{LOOPBACK}:{self._etcd_port}", f"--bind-address={LOOPBACK}",
                f"--advertise-address={LOOPBACK}", f"--secure-port={self.port}", "--endpoint-reconciler-type=none",
                f"--tls-cert-file={self._serving.certificate}", f"--tls-private-key-file={self._serving.key}",
                f"--cert-dir={self.folder / 'pki'}", f"--token-auth-file={self.tokens.path}",
                "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={self._accounts.certificate}",
                f"--service-account-signing-key-file={self._accounts.key}",
                f"--service-cluster-ip-range={SERVICE_RANGE}", "--allow-privileged=true", "--v=1",
                *self._api_flags,
            ],
        )  # fmt: skip
        wait_until(
            self.admin.ready,
            what="kube-apiserver ready",
            within_seconds=START_SECONDS,
            watched=[self._processes["etcd"], process],
        )

    def stop_api_server(self) -> None:
        """Stop the API server as a crash would: at once."""
        self._processes["kube-apiserver"].kill()

    def start_controller_manager(self, controllers: str = "*") -> None:
        """Start the controller manager; it lifts the not-ready taint and makes service accounts.

        Args:
            controllers: Its --controllers, such as "*,-node-lifecycle-controller".
        """
        kubeconfig = self.kubeconfig("kube-controller-manager", self.tokens.token("system:kube-controller-manager"))
        self._run(
            "kube-controller-manager",
            [
                f"--kubeconfig={kubeconfig}", "--use-service-account-credentials=true", "--leader-elect=false",
                f"--service-account-private-key-file={self._accounts.key}", "--secure-port=0",
                f"--root-ca-file={self.authority.certificate}", f"--cert-dir={self.folder / 'pki'}", "--v=1",
                f"--controllers={controllers}",
                "--kube-api-qps=100", "--kube-api-burst=200",
            ],
        )  # fmt: skip

    def start_scheduler(
        self, name: str, configuration: Mapping[str, Any], *, kubeconfig: Path | None = None, host: str = ""
    ) -> Supervised:
        """Start one stock kube-scheduler with a KubeSchedulerConfiguration.

        Args:
            name: Name of the process and its files.
            configuration: As in a ConfigMap; the client connection is filled in here.
            kubeconfig: Identity; default is the user system:kube-scheduler.
            host: Host name that it sees, as a pod sees its own; its name in a Lease begins with it. Needs root.
        """
        identity = kubeconfig or self.kubeconfig(name, self.tokens.token("system:kube-scheduler"))
        client = dict(configuration.get("clientConnection") or {}) | {"kubeconfig": str(identity)}
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(dict(configuration) | {"clientConnection": client}, indent=1))
        port = free_port()
        process = self._run(
            name,
            [
                f"--config={path}", f"--secure-port={port}", f"--bind-address={LOOPBACK}", "--v=2",
                f"--cert-dir={self.folder / 'pki' / name}", "--authentication-skip-lookup=true",
            ],
            program="kube-scheduler",
            before=["unshare", "--uts", "--", "sh", "-c", 'hostname "$0" && exec "$@"', host] if host else [],
        )  # fmt: skip
        wait_until(lambda: _listens(port), what=f"{name} listens", within_seconds=START_SECONDS, watched=[process])
        return process

    def process(self, name: str) -> Supervised:
        """Return the latest process of this name."""
        return self._processes[name]

    def stop(self) -> None:
        """Stop everything, clients of the API server first."""
        clients = [name for name in self._processes if name not in ("etcd", "kube-apiserver")]
        for name in [*clients, "kube-apiserver", "etcd"]:
            if process := self._processes.get(name):
                process.kill()
        for client in self._clients:
            client.close()

    def remove_data(self) -> None:
        """Remove etcd's data; the logs stay."""
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)

    def _run(self, name: str, flags: Sequence[str], *, program: str = "", before: Sequence[str] = ()) -> Supervised:
        argv = [*before, str(self._binaries / (program or name)), *flags]
        process = Supervised(name, argv, log=self._logs / f"{name}.log")
        self._processes[name] = process
        return process


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0
