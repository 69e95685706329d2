"""A serving certificate that is exchanged on disk while we run."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from gpuslice.devices.errors import BadConfiguration

log = structlog.get_logger(__name__)

POLL_SECONDS = 10.0
"""The kubelet exchanges a mounted Secret by renaming a symbolic link, which file watchers miss; looking is cheap."""


class ServingCertificate:
    """One TLS context whose certificate follows two files; connections accepted after a change get the new one."""

    def __init__(self, certificate: Path, key: Path, *, client_authority: Path | None = None) -> None:
        """Load the pair; with ``client_authority`` only clients certified by it are let in (mutual TLS).

        Raises:
            BadConfiguration: a file is missing, unreadable, or the two do not match.
        """
        self._certificate = certificate
        self._key = key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded = self._fingerprint()
        try:
            self.context.load_cert_chain(certificate, key)
            if client_authority is not None:
                self.context.load_verify_locations(client_authority)
                self.context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            raise BadConfiguration(
                str(certificate), "TLS certificate", str(error), "give a matching PEM pair"
            ) from error

    def reload_if_changed(self) -> bool:
        """Load the pair again if a file changed; a broken pair is logged, and the last good one stays in use."""
        found = self._fingerprint()
        if found == self._loaded:
            return False
        try:
            # A throw-away context first: a mismatched pair must not damage the one in use.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key)
            self.context.load_cert_chain(self._certificate, self._key)
        except (OSError, ssl.SSLError) as error:
            log.warning("certificate_not_loaded", file=str(self._certificate), error=str(error))
            return False
        self._loaded = found
        log.info("certificate_reloaded", file=str(self._certificate))
        return True

    async def follow(self, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Reload on change until cancelled."""
        while True:
            await sleep(POLL_SECONDS)
            self.reload_if_changed()

    def _fingerprint(self) -> tuple[bytes, bytes]:
        try:
            return self._certificate.read_bytes(), self._key.read_bytes()
        except OSError:
            return b"", b""
