"""The certificate of both APIs: what cannot be used is refused; a new one is taken up."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

import pytest
from headrace_gateway.tls import Certificate
from headrace_kit.errors import SettingsError
from support.certificates import Certificates, make_certificates


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Certificates, Certificates]:
    folder = tmp_path_factory.mktemp("two")
    return make_certificates(folder / "a"), make_certificates(folder / "b")


def accepted(made: Certificate, authority: Path) -> bool:
    """Whether a client that trusts an authority finishes its handshake, without a socket."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = ssl.create_default_context(cafile=str(authority))
    client = trusting.wrap_bio(to_client, to_server, server_hostname="localhost")
    server = made.context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(6):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return True


def test_without_files_there_is_no_tls_and_half_of_them_is_refused() -> None:
    assert Certificate.of(None, None) is None
    with pytest.raises(SettingsError, match="only one is set"):
        Certificate.of("/cert", None)


def test_files_that_cannot_be_used_are_named(
    tmp_path: Path, two: tuple[Certificates, Certificates]
) -> None:
    with pytest.raises(SettingsError, match=r"tls_cert_file /absent.*No such file"):
        Certificate("/absent", str(two[0].key))
    with pytest.raises(SettingsError, match=r"tls_cert_file .*key"):
        Certificate(str(two[0].cert), str(two[1].key))


def test_a_new_certificate_is_taken_up_and_a_broken_one_is_not(
    tmp_path: Path, two: tuple[Certificates, Certificates]
) -> None:
    first, second = two
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    shutil.copy(first.cert, cert)
    shutil.copy(first.key, key)
    made = Certificate(str(cert), str(key))
    assert accepted(made, first.ca)
    assert not made.refresh()
    shutil.copy(second.cert, cert)  # half of the new one is there
    assert not made.refresh()
    assert accepted(made, first.ca)
    shutil.copy(second.key, key)
    assert made.refresh()
    assert accepted(made, second.ca)
    assert not accepted(made, first.ca)
