"""The product's own chart, rendered and installed with the real Helm."""

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.harness.api import Api
from tests.cluster.harness.process import run_checked

CHART = Path(__file__).resolve().parents[3] / "charts" / "gpuslice"
RELEASE = "gpuslice"
NAMESPACE = "gpuslice-system"
NO_NODE = {"gpuslice.invalid/no-such-node": "true"}


class Helm:
    """The helm program with a home of its own."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._program = str(binaries / "helm")
        self._folder = folder / "helm"
        self._folder.mkdir(parents=True, exist_ok=True)
        homes = {f"HELM_{kind}_HOME": str(self._folder / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        self._environment = {**os.environ, **homes}

    def template(self, values: Mapping[str, Any], *flags: str, release: str = RELEASE) -> list[dict[str, Any]]:
        """Render the chart without a cluster and return its objects."""
        return [item for item in yaml.safe_load_all(self.render(values, *flags, release=release)) if item]

    def render(self, values: Mapping[str, Any], *flags: str, release: str = RELEASE) -> str:
        """Render the chart without a cluster and return the text."""
        command = [
            "template",
            release,
            str(CHART),
            f"--namespace={NAMESPACE}",
            f"--values={self._file(values)}",
            *flags,
        ]
        return self._run(command)

    def lint(self, values: Mapping[str, Any]) -> str:
        """Run helm's own checks, the values schema among them."""
        return self._run(["lint", "--strict", str(CHART), f"--values={self._file(values)}"])

    def install(self, kubeconfig: Path, values: Mapping[str, Any], *, release: str = RELEASE) -> str:
        """Install or upgrade the chart in a cluster; the API server checks every object."""
        return self._run(
            [
                "upgrade", "--install", release, str(CHART), f"--namespace={NAMESPACE}", "--create-namespace",
                f"--kubeconfig={kubeconfig}", f"--values={self._file(values)}", "--server-side=true",
            ]
        )  # fmt: skip

    def uninstall(self, kubeconfig: Path, *, release: str = RELEASE) -> str:
        """Remove the release."""
        return self._run(["uninstall", release, f"--namespace={NAMESPACE}", f"--kubeconfig={kubeconfig}"])

    def _file(self, values: Mapping[str, Any]) -> Path:
        path = self._folder / "values.json"
        path.write_text(json.dumps(values))
        return path

    def _run(self, arguments: list[str]) -> str:
        return run_checked([self._program, *arguments], what="helm", environment=self._environment)


def values_for_host_processes(*, webhook_port: int, extender_port: int) -> dict[str, Any]:
    """Return values for daemons that run as processes of the host: everything installed, nothing to start."""
    return {
        "scheduler": {"replicas": 0, "extender": {"port": extender_port}},
        "webhook": {"url": f"https://127.0.0.1:{webhook_port}"},
        "node": {"nodeSelector": NO_NODE},
    }


def scheduler_configuration(api: Api) -> dict[str, Any]:
    """Return the kube-scheduler configuration that the installed chart holds."""
    data = api.get("configmaps", NAMESPACE, f"{RELEASE}-scheduler")["data"]
    configuration: dict[str, Any] = yaml.safe_load(data["kube-scheduler.yaml"])
    return configuration


def write_webhook_certificate(api: Api, folder: Path) -> tuple[Path, Path]:
    """Write the certificate and key that the installed chart made for the webhook; returns their paths."""
    data = api.get("secrets", NAMESPACE, f"{RELEASE}-webhook-tls")["data"]
    folder.mkdir(parents=True, exist_ok=True)
    certificate, key = folder / "tls.crt", folder / "tls.key"
    certificate.write_bytes(base64.b64decode(data["tls.crt"]))
    key.write_bytes(base64.b64decode(data["tls.key"]))
    return certificate, key
