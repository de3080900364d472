"""Requests as the engine sees them: token ids and numbers, validated once, never changed.

Owner    whoever holds it; frozen
Writes   nothing
Never    knows text, tenants' keys, or the wire
Rules    request.one-terminal-status
Next     headrace_engine.intake.gateway
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NewType

import numpy as np
from numpy.typing import NDArray

RequestHandle = NewType("RequestHandle", int)
"""Engine-local name of one request: counts up from 1, never reused."""

Tokens = NDArray[np.int32]
"""``tokens[position]`` int32."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tokens of a request are chosen. Every field is set; there are no defaults behind it."""

    max_new_tokens: int
    """At least 1."""
    min_new_tokens: int = 0
    """Stop tokens are banned until this many tokens were generated."""
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    """Subtracted once from the logit of a token that was *generated* before."""
    frequency_penalty: float = 0.0
    """Subtracted once per earlier occurrence among *generated* tokens."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output. 1 is off."""
    bias_ids: tuple[int, ...] = ()
    bias_values: tuple[float, ...] = ()
    seed: int = 0
    """64 bits. A token's noise depends on (seed, choice, index of the token) alone."""
    stop_token_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    """None: not wanted. 0: of the chosen token. n: of the n most likely besides."""


FINGERPRINT_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Where an image or another media item stands in a prompt, and what it is."""

    first: int
    """Position of its first placeholder token."""
    end: int
    """Position after its last."""
    fingerprint: bytes
    """Digest of content, kind and preprocessing: ``FINGERPRINT_BYTES``, or empty, which is equal to
    nothing, not even to itself: blocks with it are not shared."""


@dataclass(frozen=True, slots=True)
class Request:
    """One accepted entry. The engine makes ``n`` sequences of it.

    Invariants
        len(generated) in (0, n)
    """

    id: str
    """Public id, for logs and reasons only."""
    handle: RequestHandle
    prompt: Tokens
    sampling: Sampling
    n: int = 1
    tenant: str = ""
    band: int = 1
    """Priority band, 0 the most urgent."""
    cache_salt: bytes = b""
    deadline_s: float | None = None
    """On the engine's monotonic clock."""
    attempt: int = 1
    """How many engines have claimed it, this one included. No decision depends on it."""
    generated: tuple[Tokens, ...] = field(default=())
    """Per choice, tokens that an earlier attempt delivered. They are prefilled, never decided again."""
    finished: frozenset[int] = frozenset()
    """Choices that had ended in an earlier attempt: no sequence is made for them."""
    media: tuple[MediaSpan, ...] = ()
    """In order of position, apart from each other, inside the prompt."""
