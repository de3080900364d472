"""Checks of one request: everything the scheduler would otherwise meet in the middle of a pass.

Owner    engine thread
Writes   nothing
Never    raises for a user's mistake; looks at other requests
Rules    loop.validate-rejects-per-request, sched.never-fits
Next     headrace_engine.loop.lifecycle
"""

from __future__ import annotations

import math

import numpy as np
from headrace_contracts.codes import Code
from headrace_contracts.limits import MAX_CHOICES

from headrace_engine.errors import RequestRejected
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.request import FINGERPRINT_BYTES, MediaSpan, Request, Tokens
from headrace_engine.state.sampling import check_sampling, invalid, within


def check_request(request: Request, settings: SchedulerSettings, vocabulary: int) -> None:
    """Raises ``RequestRejected`` with code and numbers for the first thing that is wrong."""
    _check_choices(request)
    _check_turn(request)
    _check_tokens("prompt", request.prompt, vocabulary)
    if not len(request.prompt):
        raise invalid("the prompt has no tokens")
    for choice, tokens in enumerate(request.generated):
        _check_tokens(f"generated tokens of choice {choice}", tokens, vocabulary)
    _check_media(request.media, len(request.prompt))
    check_sampling(request.sampling, vocabulary)
    _check_lengths(len(request.prompt), settings)


def _check_choices(request: Request) -> None:
    within("n", request.n, 1, MAX_CHOICES)
    if request.generated and len(request.generated) != request.n:
        raise invalid(
            f"n is {request.n}, but generated tokens of {len(request.generated)} choices came"
        )
    for choice in request.finished:
        within("a finished choice", choice, 0, request.n - 1)


def _check_turn(request: Request) -> None:
    if request.band < 0:
        raise invalid(f"band is {request.band}, not at least 0")
    if request.deadline_s is not None and not math.isfinite(request.deadline_s):
        raise invalid(f"the deadline is {request.deadline_s}, not a finite time")


def _check_tokens(what: str, tokens: Tokens, vocabulary: int) -> None:
    if tokens.ndim != 1:
        raise invalid(f"the {what} is not a list of tokens")
    # The ufuncs themselves: the methods go through Python.
    if len(tokens) and (np.minimum.reduce(tokens) < 0 or np.maximum.reduce(tokens) >= vocabulary):
        at = int(((tokens < 0) | (tokens >= vocabulary)).argmax())
        raise invalid(
            f"token {int(tokens[at])} at position {at} of the {what} is outside the vocabulary "
            f"of {vocabulary}"
        )


def _check_media(media: tuple[MediaSpan, ...], prompt: int) -> None:
    free = 0
    for index, span in enumerate(media):
        if not free <= span.first < span.end <= prompt:
            raise invalid(
                f"media item {index} stands at {span.first} to {span.end}; it needs a place of its "
                f"own between {free} and the prompt's end at {prompt}",
            )
        if len(span.fingerprint) not in (0, FINGERPRINT_BYTES):
            raise invalid(
                f"the fingerprint of media item {index} has {len(span.fingerprint)} bytes, not "
                f"{FINGERPRINT_BYTES}",
            )
        free = span.end


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
