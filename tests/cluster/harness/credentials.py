"""Certificates, tokens and kubeconfigs of the test cluster."""

import datetime as dt
import ipaddress
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_FOR = dt.timedelta(days=2)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Files of one certificate and its private key, PEM."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority that lives in one folder."""

    def __init__(self, folder: Path, name: str = "gpuslice-test-ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, hosts: Sequence[str]) -> KeyPair:
        """Issue a serving certificate for DNS names and IP addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(subject, self._name, key.public_key())
            .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        files = KeyPair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(_private_pem(key))
        return files


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + VALID_FOR)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def service_account_keys(folder: Path) -> KeyPair:
    """Write the key pair that signs service account tokens; `certificate` is the bare public key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    files = KeyPair(folder / "service-account.pub", folder / "service-account.key")
    files.certificate.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    files.key.write_bytes(_private_pem(key))
    return files


class TokenFile:
    """The API server's static token file: one random token per user, read by the server at its start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tokens: dict[str, str] = {}
        path.write_text("")
        path.chmod(0o600)

    def add(self, user: str, *groups: str) -> str:
        """Add a user and return its token."""
        token = secrets.token_hex(16)
        self._tokens[user] = token
        with self.path.open("a") as file:
            file.write(f'{token},{user},{user},"{",".join(groups)}"\n')
        return token

    def token(self, user: str) -> str:
        """Return the token of a user added before."""
        return self._tokens[user]


def write_kubeconfig(path: Path, *, server: str, authority: Path, token: str, namespace: str = "default") -> Path:
    """Write a kubeconfig with one user, one cluster and one context; JSON is YAML too."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user", "namespace": namespace}}],
        "current-context": "test",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))
    return path
