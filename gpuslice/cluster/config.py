"""Where the API server is and how to be believed there: a kubeconfig, or the pod's own service account."""

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from gpuslice.cluster.credentials import Credentials, ExternalProvider, FixedHeaders, TokenFile
from gpuslice.devices.errors import BadConfiguration

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Everything a connection needs. ``server`` has no trailing slash; ``tls`` is None for plain http."""

    server: str
    credentials: Credentials
    tls: ssl.SSLContext | None = None
    tls_server_name: str | None = None
    proxy: str | None = None
    namespace: str = "default"


def load_cluster_config(
    kubeconfig: Path | None = None, context: str | None = None, environ: Mapping[str, str] = os.environ
) -> ClusterConfig:
    """Find the cluster: the given file, ``$KUBECONFIG``, the pod's service account, ``~/.kube/config``, in this order.

    Raises:
        BadConfiguration: nothing was found, or what was found is not usable; names file and field.
    """
    if kubeconfig is not None:
        return from_kubeconfig([kubeconfig], context)
    if environ.get("KUBECONFIG"):
        return from_kubeconfig([Path(part) for part in environ["KUBECONFIG"].split(os.pathsep) if part], context)
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return from_service_account(environ)
    fallback = Path(environ.get("HOME", "/")) / ".kube" / "config"
    if fallback.is_file():
        return from_kubeconfig([fallback], context)
    raise BadConfiguration("cluster", "kubeconfig", "none was found", "pass --kubeconfig FILE or run inside a pod")


def from_service_account(environ: Mapping[str, str], directory: Path = SERVICE_ACCOUNT) -> ClusterConfig:
    """Use the service account mounted into our pod."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    namespace = directory / "namespace"
    return ClusterConfig(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        credentials=TokenFile(directory / "token"),
        tls=_tls_context(
            str(directory), (directory / "ca.crt").read_bytes() if (directory / "ca.crt").is_file() else None
        ),
        namespace=namespace.read_text(encoding="utf-8").strip() if namespace.is_file() else "default",
    )


def from_kubeconfig(paths: list[Path], context: str | None = None) -> ClusterConfig:
    """Read one kubeconfig, or several merged as kubectl does: the first file that names a thing wins."""
    merged, base = _merge(paths)
    source = str(base)
    chosen = context or merged.get("current-context")
    if not chosen:
        raise BadConfiguration(source, "current-context", "is empty", "set it or name a context")
    entry = _named(merged, "contexts", str(chosen), source)["context"]
    cluster = cast("_Document", _named(merged, "clusters", str(entry.get("cluster")), source).get("cluster") or {})
    user: _Document = {}
    if entry.get("user"):
        user = cast("_Document", _named(merged, "users", str(entry["user"]), source).get("user") or {})
    server = str(cluster.get("server", "")).rstrip("/")
    if not server.startswith(("http://", "https://")):
        raise BadConfiguration(
            source, f"cluster {entry.get('cluster')}: server", f"is {server!r}", "give an http(s) URL"
        )
    return ClusterConfig(
        server=server,
        credentials=_credentials(merged, user, str(chosen), base),
        tls=_cluster_tls(cluster, user, base) if server.startswith("https://") else None,
        tls_server_name=cluster.get("tls-server-name"),
        proxy=cluster.get("proxy-url"),
        namespace=str(entry.get("namespace") or "default"),
    )


def _merge(paths: list[Path]) -> tuple[dict[str, Any], Path]:
    merged: dict[str, Any] = {"clusters": [], "users": [], "contexts": []}
    base: Path | None = None
    for path in paths:
        if not path.is_file() and len(paths) > 1:
            continue
        try:
            document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise BadConfiguration(str(path), "kubeconfig", str(error), "give a readable kubeconfig file") from error
        if not isinstance(document, dict):
            raise BadConfiguration(str(path), "kubeconfig", "is not a mapping", "give a kubeconfig file")
        base = base or path
        merged.setdefault("current-context", document.get("current-context"))
        for kind in ("clusters", "users", "contexts"):
            known = {item["name"] for item in merged[kind]}
            merged[kind] += [item for item in document.get(kind) or [] if item.get("name") not in known]
    if base is None:
        raise BadConfiguration(os.pathsep.join(map(str, paths)), "KUBECONFIG", "names no existing file", "fix the path")
    return merged, base


def _named(config: _Document, kind: str, name: str, source: str) -> _Document:
    for item in config[kind]:
        if item.get("name") == name:
            return cast("_Document", item)
    raise BadConfiguration(source, kind, f"has no entry named {name!r}", "add it or choose another context")


def _credentials(config: _Document, user: _Document, context: str, base: Path) -> Credentials:
    if "exec" in user or "auth-provider" in user:
        return ExternalProvider(config, context, base.parent)
    if user.get("token"):
        return FixedHeaders(f"Bearer {user['token']}")
    if user.get("tokenFile"):
        return TokenFile(base.parent / str(user["tokenFile"]))
    if user.get("username"):
        pair = f"{user['username']}:{user.get('password', '')}".encode()
        return FixedHeaders(f"Basic {base64.b64encode(pair).decode()}")
    return FixedHeaders()


def _cluster_tls(cluster: _Document, user: _Document, base: Path) -> ssl.SSLContext:
    context = _tls_context(str(base), _bytes_of(cluster, "certificate-authority", base))
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = _bytes_of(user, "client-certificate", base), _bytes_of(user, "client-key", base)
    if certificate and key:
        _load_client_certificate(context, certificate, key, str(base))
    return context


def _tls_context(source: str, authority: bytes | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=authority.decode("ascii") if authority else None)
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise BadConfiguration(source, "certificate-authority", str(error), "give PEM certificates") from error
    # Python 3.13 turns strict RFC 5280 checks on; kubeadm's own certificate authorities fail them (no key identifier).
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _bytes_of(entry: _Document, field: str, base: Path) -> bytes | None:
    try:
        if entry.get(f"{field}-data"):
            return base64.b64decode(entry[f"{field}-data"], validate=True)
        return (base.parent / str(entry[field])).read_bytes() if entry.get(field) else None
    except (OSError, ValueError) as error:
        raise BadConfiguration(str(base), field, str(error), "fix the file name or the base64 data") from error


def _load_client_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes, source: str) -> None:
    """Load the pair through a file that is gone when we return: OpenSSL's loader takes nothing else."""
    with tempfile.NamedTemporaryFile(prefix="gpuslice-client-", suffix=".pem") as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        try:
            context.load_cert_chain(file.name)
        except ssl.SSLError as error:
            raise BadConfiguration(source, "client-certificate", str(error), "give a matching pair in PEM") from error
