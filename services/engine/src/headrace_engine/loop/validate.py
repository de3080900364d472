"""Checks of one request: everything the scheduler would otherwise meet in the middle of a pass.

Owner    engine thread
Writes   nothing
Never    raises for a user's mistake; looks at other requests
Rules    loop.validate-rejects-per-request, sched.never-fits
Next     headrace_engine.loop.lifecycle
"""

from __future__ import annotations

import math

from headrace_contracts.codes import Code
from headrace_contracts.limits import (
    MAX_CHOICES,
    MAX_LOGIT_BIAS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOP_LOGPROBS,
)

from headrace_engine.errors import RequestRejected
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.request import REAL_BOUNDS, Request, Sampling, Tokens


def check_request(request: Request, settings: SchedulerSettings, vocabulary: int) -> None:
    """Raises ``RequestRejected`` with code and numbers for the first thing that is wrong."""
    _check_choices(request)
    _check_tokens("prompt", request.prompt, vocabulary)
    if not len(request.prompt):
        raise RequestRejected(Code.INVALID_REQUEST, "the prompt has no tokens")
    for choice, tokens in enumerate(request.generated):
        _check_tokens(f"generated tokens of choice {choice}", tokens, vocabulary)
    _check_sampling(request.sampling, vocabulary)
    _check_lengths(len(request.prompt), settings)


def _check_choices(request: Request) -> None:
    _within("n", request.n, 1, MAX_CHOICES)
    if request.generated and len(request.generated) != request.n:
        raise RequestRejected(
            Code.INVALID_REQUEST,
            f"n is {request.n}, but generated tokens of {len(request.generated)} choices came",
        )
    for choice in request.finished:
        _within("a finished choice", choice, 0, request.n - 1)


def _check_tokens(what: str, tokens: Tokens, vocabulary: int) -> None:
    if tokens.ndim != 1:
        raise RequestRejected(Code.INVALID_REQUEST, f"the {what} is not a list of tokens")
    if len(tokens) and (tokens.min() < 0 or tokens.max() >= vocabulary):
        at = int(((tokens < 0) | (tokens >= vocabulary)).argmax())
        raise RequestRejected(
            Code.INVALID_REQUEST,
            f"token {int(tokens[at])} at position {at} of the {what} is outside the vocabulary "
            f"of {vocabulary}",
        )


def _check_sampling(sampling: Sampling, vocabulary: int) -> None:
    if sampling.max_new_tokens < 1:
        raise RequestRejected(
            Code.INVALID_REQUEST, f"max_new_tokens is {sampling.max_new_tokens}, not at least 1"
        )
    if sampling.min_new_tokens < 0:
        raise RequestRejected(
            Code.INVALID_REQUEST, f"min_new_tokens is {sampling.min_new_tokens}, below 0"
        )
    for name, (least, most) in REAL_BOUNDS.items():
        value: float = getattr(sampling, name)
        _finite(name, value, least, None if most == math.inf else most)
    _finite("repetition_penalty", sampling.repetition_penalty, 0.0, None)
    if sampling.repetition_penalty == 0:
        raise RequestRejected(Code.INVALID_REQUEST, "repetition_penalty is 0")
    if sampling.top_k < 0:
        raise RequestRejected(Code.INVALID_REQUEST, f"top_k is {sampling.top_k}, below 0")
    if sampling.logprobs is not None:
        _within("logprobs", sampling.logprobs, 0, MAX_TOP_LOGPROBS)
    _within("the number of stop token ids", len(sampling.stop_token_ids), 0, MAX_STOP_TOKEN_IDS)
    for token in sampling.stop_token_ids:
        _within("a stop token id", token, 0, vocabulary - 1)
    _within("the number of logit biases", len(sampling.bias_ids), 0, MAX_LOGIT_BIAS)
    if len(sampling.bias_ids) != len(sampling.bias_values):
        raise RequestRejected(
            Code.INVALID_REQUEST,
            f"{len(sampling.bias_ids)} biased tokens have {len(sampling.bias_values)} values",
        )
    for token in sampling.bias_ids:
        _within("a biased token id", token, 0, vocabulary - 1)
    for value in sampling.bias_values:
        _finite("a logit bias", value, None, None)


def _check_lengths(prompt: int, settings: SchedulerSettings) -> None:
    if prompt + 1 > settings.session_tokens:
        raise RequestRejected(
            Code.CONTEXT_LENGTH_EXCEEDED,
            f"the prompt has {prompt} tokens; with one new token that is more than the "
            f"{settings.session_tokens} that a sequence may have",
        )
    if prompt + 1 > settings.pool_tokens:
        needed = -(-(prompt + 1) // settings.block_tokens)
        raise RequestRejected(
            Code.PROMPT_NEVER_FITS,
            f"the prompt has {prompt} tokens; with one new token it needs {needed} cache blocks "
            f"of {settings.block_tokens} tokens, and the pool has {settings.pool_blocks}",
        )


def _within(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise RequestRejected(
            Code.INVALID_REQUEST, f"{what} is {value}, not between {least} and {most}"
        )


def _finite(what: str, value: float, least: float | None, most: float | None) -> None:
    if not math.isfinite(value):
        raise RequestRejected(Code.INVALID_REQUEST, f"{what} is not a finite number")
    if (least is not None and value < least) or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"between {least} and {most}"
        raise RequestRejected(Code.INVALID_REQUEST, f"{what} is {value}, not {bounds}")
