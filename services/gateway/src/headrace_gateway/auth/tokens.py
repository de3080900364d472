"""API keys as people hold them: ``hr_<public id>_<secret><checksum>``.

The public id finds the stored key, the secret proves it, the checksum tells a mistyped key, or
a string that a scanner found, from a real one without asking anybody.
"""

from __future__ import annotations

import hmac
import secrets
import zlib
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PREFIX: Final = "hr_"
PUBLIC_CHARS: Final = 12
SECRET_BYTES: Final = 32
SECRET_CHARS: Final = 43
"""62^43 > 2^256."""
CHECK_CHARS: Final = 6
"""62^6 > 2^32."""
ADOPTED: Final = "own"
"""Begins the public id of a key that somebody chose himself."""
ADOPTED_MIN_CHARS: Final = 8
MAX_TOKEN_BYTES: Final = 512
MIN_PEPPER_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Token:
    """A key in two parts: what may be shown, and what may not."""

    public_id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"Token({self.public_id!r})"


def make_token() -> tuple[str, Token]:
    """A new key, as text and in parts."""
    public_id = "".join(secrets.choice(ALPHABET) for _ in range(PUBLIC_CHARS))
    number = int.from_bytes(secrets.token_bytes(SECRET_BYTES))
    body = f"{PREFIX}{public_id}_{base62(number, SECRET_CHARS)}"
    return body + _checksum(body), Token(public_id, body[-SECRET_CHARS:].encode())


def parse_token(token: bytes, pepper: bytes) -> Token | None:
    """The parts of a key. None: it cannot be one.

    A key that is not of our form may be one that its owner chose: its public id is then derived
    from it, under the pepper, so that stored ids tell nothing about weak ones.
    """
    if not token or len(token) > MAX_TOKEN_BYTES:
        return None
    try:
        text = token.decode("ascii")
    except UnicodeDecodeError:
        return None
    made = _parse_made(text)
    if made is not None:
        return made
    if text.startswith(PREFIX) or check_adopted(text) is not None:
        return None
    derived = hmac.digest(pepper, b"public id:" + token, sha256)
    return Token(ADOPTED + base62(int.from_bytes(derived[:10]), 14), token)


def check_adopted(text: str) -> str | None:
    """Why a key that somebody chose himself will not do, or None."""
    if len(text) < ADOPTED_MIN_CHARS:
        return f"it has {len(text)} characters; at least {ADOPTED_MIN_CHARS} are needed"
    if len(text) > MAX_TOKEN_BYTES:
        return f"it has {len(text)} characters; at most {MAX_TOKEN_BYTES} are possible"
    if not all("!" <= char <= "~" for char in text):
        return "it may hold printable ASCII characters only, and no space"
    if text.startswith(PREFIX):
        return f"{PREFIX!r} begins keys that are made here"
    return None


def digest(token: Token, pepper: bytes) -> bytes:
    """What is stored of a key: it cannot be turned back, or checked without the pepper."""
    return hmac.digest(pepper, token.public_id.encode() + b":" + token.secret, sha256)


def check_pepper(pepper: bytes) -> bytes:
    """The pepper, if it is long enough. Raises ``ValueError``."""
    if len(pepper) < MIN_PEPPER_BYTES:
        raise ValueError(
            f"the pepper has {len(pepper)} bytes; at least {MIN_PEPPER_BYTES} are needed"
        )
    return pepper


def base62(number: int, chars: int) -> str:
    """The lowest ``chars`` digits of a number."""
    digits: list[str] = []
    for _ in range(chars):
        number, digit = divmod(number, 62)
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))


def _parse_made(text: str) -> Token | None:
    length = len(PREFIX) + PUBLIC_CHARS + 1 + SECRET_CHARS + CHECK_CHARS
    if len(text) != length or not text.startswith(PREFIX):
        return None
    body, check = text[:-CHECK_CHARS], text[-CHECK_CHARS:]
    public_id, _, secret = body[len(PREFIX) :].partition("_")
    if len(public_id) != PUBLIC_CHARS or not hmac.compare_digest(_checksum(body), check):
        return None
    if not all(char in ALPHABET for char in public_id + secret):
        return None
    return Token(public_id, secret.encode())


def _checksum(body: str) -> str:
    return base62(zlib.crc32(body.encode()), CHECK_CHARS)
