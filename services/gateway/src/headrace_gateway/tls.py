"""The certificate of both APIs: read from files, and read again when they change."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final

import grpc
from headrace_kit.errors import SettingsError
from headrace_kit.log import get_logger

log = get_logger(__name__)

LOOK_EVERY_S: Final = 30.0
"""Who renews certificates mounts the new ones long before the old ones end."""


class Certificate:
    """One certificate with its key, for HTTP and gRPC alike."""

    def __init__(self, cert_file: str, key_file: str) -> None:
        """Reads both. Raises ``SettingsError`` where they cannot be used."""
        self._files = Path(cert_file), Path(key_file)
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._context.set_alpn_protocols(["http/1.1"])
        self._content = b"", b""
        try:
            self._load()
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(
                [f"tls_cert_file {cert_file}, tls_key_file {key_file}: {error}"]
            ) from error

    @classmethod
    def of(cls, cert_file: str | None, key_file: str | None) -> Certificate | None:
        """As the settings have it: None without TLS. Raises ``SettingsError``."""
        if cert_file is None and key_file is None:
            return None
        if cert_file is None or key_file is None:
            raise SettingsError(["of tls_cert_file and tls_key_file only one is set"])
        return cls(cert_file, key_file)

    @property
    def context(self) -> ssl.SSLContext:
        """For the HTTP server. New connections get what was read last."""
        return self._context

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """For the gRPC server, which asks at every connection."""
        return grpc.dynamic_ssl_server_credentials(self._grpc(), self._grpc)

    async def watch(self) -> None:
        """Looks for new files, for ever. Those that cannot be used leave the old ones in place."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await asyncio.to_thread(self.refresh)

    def refresh(self) -> bool:
        """Reads the files again; whether they were new and can be used."""
        try:
            if self._read() == self._content:
                return False
            self._load()
        except (OSError, ssl.SSLError) as error:
            log.error("tls.certificate_not_usable", reason=str(error))
            return False
        log.info("tls.certificate_renewed")
        return True

    def _read(self) -> tuple[bytes, bytes]:
        cert, key = self._files
        return cert.read_bytes(), key.read_bytes()

    def _load(self) -> None:
        content = self._read()
        cert, key = self._files
        # Tried apart: a certificate without its key must not spoil the context that is in use.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key)
        self._context.load_cert_chain(cert, key)
        self._content = content

    def _grpc(self) -> grpc.ServerCertificateConfiguration:
        cert, key = self._content
        return grpc.ssl_server_certificate_configuration([(key, cert)])
