"""A certificate authority of our own and one serving certificate, where neither cert-manager nor an admin gives one."""

import datetime as dt
import ipaddress
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpuslice.devices.errors import BadConfiguration

VALID_DAYS = 3650
_SKEW = dt.timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Issued:
    """PEM texts; ``authority`` goes into the webhook configuration's caBundle."""

    authority: bytes
    certificate: bytes
    key: bytes


def issue(hosts: Sequence[str], *, now: dt.datetime, days: int = VALID_DAYS) -> Issued:
    """Make an authority and a serving certificate for DNS names and IP addresses.

    The authority's key is thrown away: nobody can sign anything else with it.
    """
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpuslice-webhook-ca")])
    until = now + dt.timedelta(days=days)
    authority = (
        _builder(authority_name, authority_name, authority_key.public_key(), now, until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpuslice-webhook")])
    certificate = (
        _builder(subject, authority_name, key.public_key(), now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return Issued(
        authority=authority.public_bytes(serialization.Encoding.PEM),
        certificate=certificate.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )


def ensure_self_signed(folder: Path, hosts: Sequence[str]) -> None:
    """Write ca.crt, tls.crt and tls.key into a folder unless a pair is there already.

    Raises:
        BadConfiguration: No host was given, or the folder cannot be written.
    """
    if (folder / "tls.crt").exists() and (folder / "tls.key").exists():
        return
    if not hosts:
        raise BadConfiguration(
            "command line",
            "--self-signed-host",
            "is required with --self-signed",
            "give the names by which the API server calls, such as gpuslice-webhook.gpuslice-system.svc",
        )
    issued = issue(hosts, now=dt.datetime.now(dt.UTC))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "ca.crt", issued.authority, 0o644)
        _write(folder / "tls.key", issued.key, 0o600)
        _write(folder / "tls.crt", issued.certificate, 0o644)
    except OSError as error:
        raise BadConfiguration(str(folder), "--self-signed", str(error), "give a folder that can be written") from error


def _write(path: Path, content: bytes, mode: int) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.replace(path)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: dt.datetime,
    until: dt.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(until)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def main(argv: Sequence[str]) -> int:
    """``python -m webhook.certificates FOLDER HOST…``: make a pair; gives 2 and says why when it cannot."""
    try:
        ensure_self_signed(Path(argv[0]), argv[1:])
    except BadConfiguration as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
