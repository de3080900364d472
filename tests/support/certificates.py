"""Certificates for loopback, made with the openssl program."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_EXTENSIONS = """
subjectAltName={names}
basicConstraints=critical,CA:FALSE
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
"""
"""What RFC 5280 asks for: Python 3.13 verifies strictly."""
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True)
class Certificates:
    """An authority and a certificate that it signed."""

    ca: Path
    cert: Path
    key: Path


def make_certificates(folder: Path, names: Sequence[str] = ()) -> Certificates:
    """New ones, for ``localhost`` and ``127.0.0.1``, and for other names in the DNS."""
    folder.mkdir(parents=True, exist_ok=True)
    _openssl(
        *("req", "-x509", *_CURVE, "-keyout", folder / "ca.key", "-out", folder / "ca.crt"),
        *("-days", "2", "-subj", "/CN=test authority"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
    )
    return renew_certificate(folder, names)


def renew_certificate(folder: Path, names: Sequence[str] = ()) -> Certificates:
    """A new certificate of the authority in ``folder``, in place of the one that is there."""
    made = Certificates(folder / "ca.crt", folder / "tls.crt", folder / "tls.key")
    request = folder / "tls.csr"
    extension = folder / "names"
    all_names = ["DNS:localhost", "IP:127.0.0.1", *(f"DNS:{name}" for name in names)]
    extension.write_text(_EXTENSIONS.format(names=",".join(all_names)))
    _openssl("req", *_CURVE, "-keyout", made.key, "-out", request, "-subj", "/CN=localhost")
    _openssl(
        *("x509", "-req", "-in", request, "-CA", made.ca, "-CAkey", folder / "ca.key"),
        *("-CAcreateserial", "-days", "2", "-extfile", extension, "-out", made.cert),
    )
    return made


def _openssl(*arguments: str | Path) -> None:
    command = ["openssl", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
