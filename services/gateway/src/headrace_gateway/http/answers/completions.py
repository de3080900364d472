"""A completion's answer: ``text_completion``, whole and in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from headrace_gateway.http.answers.parts import (
    Choice,
    CompletionLogprobs,
    finish_name,
    usage_body,
)
from headrace_gateway.http.ports import RunningCall
from headrace_gateway.inference.calls import Delta, UsageTotal


def completion_body(
    running: RunningCall, choices: Mapping[int, Choice], usage: UsageTotal, *, logprobs: bool
) -> dict[str, object]:
    """The whole answer."""
    return {
        "id": running.id,
        "object": "text_completion",
        "created": running.created_s,
        "model": running.model,
        "system_fingerprint": running.system_fingerprint,
        "choices": [
            {
                "index": index,
                "text": "".join(choice.text),
                "logprobs": CompletionLogprobs().add(choice.tokens) if logprobs else None,
                "finish_reason": finish_name(choice.finish),
            }
            for index, choice in sorted(choices.items())
        ],
        "usage": usage_body(usage),
    }


class CompletionChunks:
    """The chunks of a streamed completion. The reason comes with the last text."""

    def __init__(self, running: RunningCall, *, include_usage: bool, logprobs: bool) -> None:
        self._head: dict[str, object] = {
            "id": running.id,
            "object": "text_completion",
            "created": running.created_s,
            "model": running.model,
            "system_fingerprint": running.system_fingerprint,
        }
        self._include_usage = include_usage
        self._logprobs: dict[int, CompletionLogprobs] | None = {} if logprobs else None

    def delta(self, event: Delta) -> Sequence[bytes]:
        reason = finish_name(event.finish)
        logprobs: dict[str, object] | None = None
        if self._logprobs is not None and event.tokens:
            columns = self._logprobs.setdefault(event.index, CompletionLogprobs())
            logprobs = columns.add(event.tokens)
        if not event.text and reason is None and logprobs is None:
            return ()
        chunk = {
            **self._head,
            "choices": [
                {
                    "index": event.index,
                    "text": event.text,
                    "logprobs": logprobs,
                    "finish_reason": reason,
                }
            ],
        }
        if self._include_usage:
            chunk["usage"] = None
        return (orjson.dumps(chunk),)

    def usage(self, usage: UsageTotal) -> bytes | None:
        if not self._include_usage:
            return None
        return orjson.dumps({**self._head, "choices": [], "usage": usage_body(usage)})
