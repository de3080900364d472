"""Checks of sampling, for the wire and for the loop alike.

Owner    functions only
Writes   nothing
Never    clamps: what is out of range is refused, with its name and its numbers
Rules    loop.validate-rejects-per-request, request.refused-before-it-is-queued
Next     headrace_engine.loop.validate
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Final

from headrace_contracts.codes import Code
from headrace_contracts.limits import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS, MAX_TOP_LOGPROBS

from headrace_engine.errors import RequestRejected
from headrace_engine.state.request import Sampling

REAL_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.0, math.inf),
}
"""Least and greatest value of the real fields, which are finite besides."""
_MOST: Final = (1 << 32) - 1
"""What the wire can say, and a device's columns can hold."""


def check_sampling(sampling: Sampling, vocabulary: int) -> None:
    """Raises ``RequestRejected`` for the first thing that is wrong."""
    check_counts(len(sampling.bias_ids), len(sampling.bias_values), len(sampling.stop_token_ids))
    within("max_new_tokens", sampling.max_new_tokens, 1, _MOST)
    within("min_new_tokens", sampling.min_new_tokens, 0, sampling.max_new_tokens)
    _check_reals(sampling)
    within("top_k", sampling.top_k, 0, _MOST)
    if sampling.logprobs is not None:
        within("logprobs", sampling.logprobs, 0, MAX_TOP_LOGPROBS)
    for token in sampling.stop_token_ids:
        within("an id of stop_token_ids", token, 0, vocabulary - 1)
    for token in sampling.bias_ids:
        within("an id of logit_bias", token, 0, vocabulary - 1)


def check_counts(bias_ids: int, bias_values: int, stop_token_ids: int) -> None:
    """Lengths of the lists, as somebody sent them."""
    within("the number of stop_token_ids", stop_token_ids, 0, MAX_STOP_TOKEN_IDS)
    within("the number of entries of logit_bias", bias_ids, 0, MAX_LOGIT_BIAS)
    if bias_ids != bias_values:
        raise invalid(f"logit_bias has {bias_ids} ids and {bias_values} values")


def within(what: str, value: int, least: int, most: int) -> None:
    """Raises ``RequestRejected`` with the bounds where ``value`` is outside them."""
    if not least <= value <= most:
        raise invalid(f"{what} is {value}, not between {least} and {most}")


def invalid(message: str) -> RequestRejected:
    """A refusal of what no engine can run."""
    return RequestRejected(Code.INVALID_REQUEST, message)


_reals_of = attrgetter(*REAL_BOUNDS)


def _check_reals(sampling: Sampling) -> None:
    _check_bounds(_reals_of(sampling))
    for value in sampling.bias_values:
        _finite("a value of logit_bias", value)


@lru_cache(maxsize=1024)
def _check_bounds(values: tuple[float, ...]) -> None:
    """Of the real fields. Remembered, as most requests of a service have the same."""
    for value, (name, (least, most)) in zip(values, REAL_BOUNDS.items(), strict=True):
        if not least <= value <= most or value == math.inf:
            _finite(name, value)
            bounds = (
                f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
            )
            raise invalid(f"{name} is {value:g}, not {bounds}")
        if value == 0 and name == "repetition_penalty":
            raise invalid("repetition_penalty is 0, not above it")


def _finite(what: str, value: float) -> None:
    if not math.isfinite(value):
        raise invalid(f"{what} is {value}, not a finite number")
