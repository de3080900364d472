"""Whether a call may run, decided before its first byte: ranges, lengths, and the way back.

Everything here is arithmetic on values; nothing reads the wire. Next:
headrace_gateway.inference.service
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from headrace_contracts.limits import (
    MAX_CHOICES,
    MAX_LOGIT_BIAS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOP_LOGPROBS,
)
from headrace_contracts.pb.queue_pb2 import ModelCard, Sampling

from headrace_gateway.errors import ContextLengthExceeded, InvalidRequest, PromptNeverFits
from headrace_gateway.inference.calls import Call, SamplingCall

MAX_STOPS: Final = 4
MAX_STOP_CHARS: Final = 1024
"""Longest stop string: text is held back for as long as it might begin one."""
MAX_SALT_BYTES: Final = 256
MAX_MAX_TOKENS: Final = 2**63 - 1
"""More is no number of tokens; what is too much for the model is told with the numbers."""
GREEDY_BELOW: Final = 1e-3
"""Temperatures below it are greedy: two logits 0.01 apart would differ e^10-fold, and dividing by
less leaves float32's range."""
SEED_MASK: Final = 2**64 - 1
RETRY_MIN_S: Final = 1
RETRY_MAX_S: Final = 120
"""OpenAI's client gives up when it is advised to wait longer; Anthropic's would really wait."""


def plan_sampling(call: Call, card: ModelCard) -> Sampling:
    """The wire's sampling fields, filled but for ``max_new_tokens``, which ``fit`` tells.

    Raises ``InvalidRequest`` that names the parameter.
    """
    asked = call.sampling
    check_stops(asked)
    top = asked.logprobs
    if top is not None:
        name = "top_logprobs" if call.kind == "chat" else "logprobs"
        _check_int(name, top, 0, MAX_TOP_LOGPROBS)
    min_tokens = _or(asked.min_tokens, 0)
    _check_int("min_tokens", min_tokens, 0, card.context_tokens)
    if asked.max_tokens is not None:
        if asked.max_tokens < 1:
            raise InvalidRequest("max_tokens must be at least 1.", param="max_tokens")
        _check_int("max_tokens", asked.max_tokens, 1, MAX_MAX_TOKENS)
        if min_tokens > asked.max_tokens:
            raise InvalidRequest(
                f"min_tokens ({min_tokens}) is above max_tokens ({asked.max_tokens}).",
                param="min_tokens",
            )
    bias = _bias(asked.logit_bias, card.vocabulary)
    planned = Sampling(
        min_new_tokens=min_tokens,
        temperature=_temperature(asked, card),
        top_k=_top_k(asked, card),
        top_p=_top_p(asked, card),
        min_p=_number("min_p", _or(asked.min_p, 0.0), 0.0, 1.0),
        presence_penalty=_number("presence_penalty", _or(asked.presence_penalty, 0.0), -2.0, 2.0),
        frequency_penalty=_number(
            "frequency_penalty", _or(asked.frequency_penalty, 0.0), -2.0, 2.0
        ),
        repetition_penalty=_repetition(asked),
        bias_ids=list(bias),
        bias_values=list(bias.values()),
        seed=secrets.randbits(63) if asked.seed is None else asked.seed & SEED_MASK,
        stop_token_ids=stop_token_ids(asked, card),
    )
    if top is not None:
        planned.logprobs = top
    return planned


def choices(asked: SamplingCall) -> int:
    """``n``, checked."""
    n = _or(asked.n, 1)
    _check_int("n", n, 1, MAX_CHOICES)
    return n


def check_stops(asked: SamplingCall) -> None:
    """At most four stop strings, none of them empty or endless."""
    if len(asked.stop) > MAX_STOPS:
        raise InvalidRequest(
            f"stop takes at most {MAX_STOPS} strings, not {len(asked.stop)}.", param="stop"
        )
    for text in asked.stop:
        if not text:
            raise InvalidRequest("stop must not contain an empty string.", param="stop")
        if len(text) > MAX_STOP_CHARS:
            raise InvalidRequest(
                f"A stop string has at most {MAX_STOP_CHARS} characters, not {len(text)}.",
                param="stop",
            )


def stop_token_ids(asked: SamplingCall, card: ModelCard) -> list[int]:
    """The caller's stop ids, and the model's own unless they are to be ignored."""
    if len(asked.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            f"stop_token_ids takes at most {MAX_STOP_TOKEN_IDS} ids.", param="stop_token_ids"
        )
    for token in asked.stop_token_ids:
        _check_int("stop_token_ids", token, 0, card.vocabulary - 1)
    own = () if asked.ignore_eos else tuple(card.end_token_ids)
    return sorted({*own, *asked.stop_token_ids})


def check_salt(salt: bytes) -> None:
    """A cache salt is short."""
    if len(salt) > MAX_SALT_BYTES:
        raise InvalidRequest(f"cache_salt has at most {MAX_SALT_BYTES} bytes.", param="cache_salt")


def fit(
    prompt: Sequence[int], asked: SamplingCall, card: ModelCard, *, cap: int | None, param: str
) -> int:
    """Tokens that a prompt may generate: what was asked for, else what the context leaves.

    ``asked`` has been through ``plan_sampling``. ``cap`` is the operator's bound. ``param`` names
    the prompt in errors.
    """
    if not prompt:
        raise InvalidRequest("The prompt is empty: it has no tokens.", param=param)
    for token in prompt:
        if not 0 <= token < card.vocabulary:
            raise InvalidRequest(
                f"Token id {_shown(token)} is out of range: the vocabulary has {card.vocabulary} tokens.",
                param=param,
            )
    length = len(prompt)
    most = _or(asked.max_tokens, 0)
    if cap is not None and most > cap:
        raise InvalidRequest(f"max_tokens is at most {cap} here, not {most}.", param="max_tokens")
    output = max(most, _or(asked.min_tokens, 0), 1)
    if length + output > card.context_tokens:
        raise ContextLengthExceeded(
            prompt_tokens=length,
            output_tokens=output,
            limit_tokens=card.context_tokens,
            param=param,
        )
    if card.pool_tokens and length + 1 > card.pool_tokens:  # what outgrows it later ends as length
        raise PromptNeverFits(prompt_tokens=length, pool_tokens=card.pool_tokens, param=param)
    room = card.context_tokens - length
    return most or (room if cap is None else min(room, cap))


class DrainRate:
    """How fast one model's queue empties, as far as this gateway can see.

    It watches its own requests begin to run. Requests of other gateways empty the same queue,
    and compete for the same places, in proportion.
    """

    def __init__(self, *, window_s: float = 30.0) -> None:
        self._window_s = window_s
        self._begun: deque[float] = deque(maxlen=4096)
        self._refused: deque[float] = deque(maxlen=4096)

    def began(self, now: float) -> None:
        """A request left the queue and runs."""
        self._begun.append(now)

    def advise(self, now: float) -> int:
        """Whole seconds until a place should be free for a call refused ``now``, 1..120.

        Those who were refused just before come back first, so they count.
        """
        interval = self._interval_s(now)
        while self._refused and self._refused[0] < now - max(interval, 1.0):
            self._refused.popleft()
        self._refused.append(now)
        wait = math.ceil(interval * len(self._refused))
        return max(RETRY_MIN_S, min(RETRY_MAX_S, wait))

    def _interval_s(self, now: float) -> float:
        """Mean seconds between two beginnings; longer when the last one is long ago."""
        while self._begun and self._begun[0] < now - self._window_s:
            if len(self._begun) == 1:
                break  # the last one still says how long nothing has begun
            self._begun.popleft()
        if not self._begun:
            return 1.0
        span = now - self._begun[0]
        return max(span / len(self._begun), now - self._begun[-1])


Number = TypeVar("Number", int, float)


def _or(value: Number | None, default: Number) -> Number:
    return default if value is None else value


def _number(name: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:  # also false for NaN
        raise InvalidRequest(
            f"{name} must be between {low:g} and {high:g}, not {value:g}.", param=name
        )
    return float(value)


def _check_int(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidRequest(
            f"{name} must be between {low} and {high}, not {_shown(value)}.", param=name
        )


def _shown(value: int) -> str:
    """An integer for a message; a caller may send one with a million digits."""
    return str(value) if -(10**20) < value < 10**20 else "a number of more than 20 digits"


def _temperature(asked: SamplingCall, card: ModelCard) -> float:
    default = card.temperature if card.HasField("temperature") else 1.0
    value = _number("temperature", _or(asked.temperature, default), 0.0, 2.0)
    return 0.0 if value < GREEDY_BELOW else value


def _top_p(asked: SamplingCall, card: ModelCard) -> float:
    default = card.top_p if card.HasField("top_p") else 1.0
    value = _or(asked.top_p, default)
    if value == 0:
        raise InvalidRequest("top_p must be above 0 and at most 1, not 0.", param="top_p")
    return _number("top_p", value, 0.0, 1.0)


def _top_k(asked: SamplingCall, card: ModelCard) -> int:
    value = asked.top_k
    if value is None:
        value = card.top_k if card.HasField("top_k") else 0
    if value == -1:  # as other servers spell "off"
        return 0
    if value < 0:
        raise InvalidRequest(
            f"top_k must be at least 0 (0 or -1: off), not {_shown(value)}.", param="top_k"
        )
    return 0 if value >= card.vocabulary else value


def _repetition(asked: SamplingCall) -> float:
    value = _or(asked.repetition_penalty, 1.0)
    if not 0 < value <= 2:
        raise InvalidRequest(
            f"repetition_penalty must be above 0 and at most 2, not {value:g}.",
            param="repetition_penalty",
        )
    return float(value)


def _bias(asked: Mapping[int, float] | None, vocabulary: int) -> dict[int, float]:
    bias = dict(asked or {})
    if len(bias) > MAX_LOGIT_BIAS:
        raise InvalidRequest(
            f"logit_bias has at most {MAX_LOGIT_BIAS} entries, not {len(bias)}.",
            param="logit_bias",
        )
    for token, value in bias.items():
        if not 0 <= token < vocabulary:
            raise InvalidRequest(
                f"logit_bias names token {_shown(token)}; the model's ids are 0 to {vocabulary - 1}.",
                param="logit_bias",
            )
        _number("logit_bias", value, -100.0, 100.0)
    return bias
