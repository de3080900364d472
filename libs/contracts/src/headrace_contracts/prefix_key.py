"""Cumulative keys of prompt prefixes, computed alike by gateways and engines.

A key is a hint that finds a block; identity also needs parent and tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NewType

PrefixKey = NewType("PrefixKey", bytes)
"""16 bytes: BLAKE2b over the parent's key, the block's tokens and its fingerprints."""

_BLOCK = blake2b(digest_size=16, person=b"headrace-block")
"""Before anything was hashed; only copied."""


def root_key(
    *, weights_version: str, kv_dtype: str, tenant: str, adapter: str, salt: bytes
) -> PrefixKey:
    """Key of the empty prefix. Whatever may not share cached blocks enters here.

    Each field is preceded by its length, so that no two different tuples are equal as bytes.
    """
    digest = blake2b(digest_size=16, person=b"headrace-root")
    for field in (
        weights_version.encode(),
        kv_dtype.encode(),
        tenant.encode(),
        adapter.encode(),
        salt,
    ):
        digest.update(len(field).to_bytes(4, "little"))
        digest.update(field)
    return PrefixKey(digest.digest())


def fold(parent: PrefixKey, tokens: bytes, fingerprints: Sequence[bytes] = ()) -> PrefixKey:
    """Key of ``parent`` followed by one block.

    ``tokens`` are the block's ids as little-endian int32; ``fingerprints`` those of media
    items whose first token lies in the block.
    """
    # One copy and one update: an engine folds a key for every block that a sequence fills.
    digest = _BLOCK.copy()
    if fingerprints:
        parts = [parent, len(tokens).to_bytes(4, "little"), tokens]
        for fingerprint in fingerprints:
            parts += (len(fingerprint).to_bytes(4, "little"), fingerprint)
        digest.update(b"".join(parts))
    else:
        digest.update(parent + len(tokens).to_bytes(4, "little") + tokens)
    return PrefixKey(digest.digest())
