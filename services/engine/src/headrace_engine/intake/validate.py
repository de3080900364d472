"""validate: a record becomes a Request, or a refusal with its code and numbers. Pure.

Owner    io thread; functions only
Writes   nothing
Never    guesses: what is out of range is refused, never clamped
Rules    request.refused-before-it-is-queued
Next     headrace_engine.intake.gateway
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from headrace_contracts.codes import Code
from headrace_contracts.keys import BANDS
from headrace_contracts.limits import MAX_CHOICES, WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import MediaItem, RequestRecord
from headrace_contracts.pb.queue_pb2 import Sampling as SamplingMessage

from headrace_engine.errors import RequestRejected
from headrace_engine.state.request import Request, RequestHandle, Sampling, Tokens
from headrace_engine.state.sampling import check_counts, check_sampling, invalid, within

_MEDIA = {
    MediaItem.KIND_IMAGE: "an image",
    MediaItem.KIND_AUDIO: "an audio part",
    MediaItem.KIND_VIDEO: "a video",
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """What this engine can run."""

    model: str
    vocabulary: int
    context_tokens: int
    """Prompt and output together."""


def validate(
    record: RequestRecord,
    bounds: Bounds,
    *,
    handle: RequestHandle,
    attempt: int,
    delivered: Sequence[Sequence[int]],
    ended: Collection[int],
    now_s: float,
    now_ms: int,
) -> Request:
    """The request of ``record``, which continues after what earlier attempts ``delivered``.

    Raises ``RequestRejected`` with the code that the caller gets.
    """
    _check_record(record, bounds)
    prompt = _ids("prompt", record.prompt, bounds)
    sampling = _sampling(record.sampling, bounds)
    _check_lengths(len(prompt), sampling.max_new_tokens, bounds)
    deadline_s = None
    if record.deadline_ms:
        deadline_s = now_s + (record.deadline_ms - now_ms) / 1000
        if deadline_s <= now_s:
            raise RequestRejected(Code.DEADLINE_EXCEEDED, "the deadline passed in the queue")
    return Request(
        id=record.id,
        handle=handle,
        prompt=prompt,
        sampling=sampling,
        n=record.n,
        tenant=record.tenant,
        band=record.band,
        cache_salt=record.cache_salt,
        deadline_s=deadline_s,
        attempt=attempt,
        generated=tuple(_ids("delivered tokens", tokens, bounds) for tokens in delivered),
        finished=frozenset(ended),
    )


def _check_record(record: RequestRecord, bounds: Bounds) -> None:
    if record.version != WIRE_VERSION:
        raise invalid(f"record version {record.version}; this engine reads {WIRE_VERSION}")
    if record.model != bounds.model:
        raise RequestRejected(
            Code.MODEL_NOT_FOUND, f"this engine serves {bounds.model!r}, not {record.model!r}"
        )
    if record.media:
        kind = _MEDIA.get(record.media[0].kind, "a media part")
        raise RequestRejected(
            Code.UNSUPPORTED_PARAMETER, f"{bounds.model} is a text model: it cannot take {kind}"
        )
    within("n", record.n, 1, MAX_CHOICES)
    within("band", record.band, 0, BANDS - 1)
    if not record.prompt:
        raise invalid("the prompt has no tokens")


def _check_lengths(prompt: int, new: int, bounds: Bounds) -> None:
    if prompt + new > bounds.context_tokens:
        raise RequestRejected(
            Code.CONTEXT_LENGTH_EXCEEDED,
            f"{prompt} prompt tokens and {new} to generate make {prompt + new}; "
            f"the context is {bounds.context_tokens}",
        )


def _ids(what: str, ids: Sequence[int], bounds: Bounds) -> Tokens:
    array = np.fromiter(ids, dtype=np.int64, count=len(ids))
    if len(array) and int(array.max()) >= bounds.vocabulary:
        raise invalid(
            f"{what}: token id {int(array.max())}; the vocabulary has {bounds.vocabulary}"
        )
    return array.astype(np.int32)


def _sampling(message: SamplingMessage, bounds: Bounds) -> Sampling:
    check_counts(len(message.bias_ids), len(message.bias_values), len(message.stop_token_ids))
    sampling = Sampling(
        max_new_tokens=message.max_new_tokens,
        min_new_tokens=message.min_new_tokens,
        temperature=message.temperature,
        top_k=min(message.top_k, bounds.vocabulary),  # above it means the same
        top_p=message.top_p,
        min_p=message.min_p,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        bias_ids=tuple(message.bias_ids),
        bias_values=tuple(message.bias_values),
        seed=message.seed,
        stop_token_ids=frozenset(message.stop_token_ids),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
    )
    check_sampling(sampling, bounds.vocabulary)
    return sampling
