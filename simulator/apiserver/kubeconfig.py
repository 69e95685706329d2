"""Kubeconfig files for the server's users."""

import base64
from pathlib import Path

import msgspec

from simulator.apiserver.identity import User


def write_kubeconfig(path: Path, *, server_url: str, user: User, ca_pem: bytes | None) -> Path:
    """Write a kubeconfig with one context; readable by the owner only.

    Args:
        path: File to write.
        server_url: `http://host:port` or `https://host:port`.
        user: Whose token it carries.
        ca_pem: Certificate authority of an https server.
    """
    cluster: dict[str, str] = {"server": server_url}
    if ca_pem is not None:
        cluster["certificate-authority-data"] = base64.b64encode(ca_pem).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "embedded", "cluster": cluster}],
        "users": [{"name": user.name, "user": {"token": user.token}}],
        "contexts": [{"name": "embedded", "context": {"cluster": "embedded", "user": user.name}}],
        "current-context": "embedded",
        "preferences": {},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(msgspec.yaml.encode(config))
    return path
