"""A completion's answer: ``text_completion``, whole and in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from headrace_gateway.http.answers.parts import (
    Choice,
    CompletionLogprobs,
    Envelope,
    finish_name,
    head,
    usage_body,
)
from headrace_gateway.http.ports import RunningCall
from headrace_gateway.inference.calls import Delta, UsageTotal


def completion_body(
    running: RunningCall, choices: Mapping[int, Choice], usage: UsageTotal, *, logprobs: bool
) -> dict[str, object]:
    """The whole answer."""
    return {
        **head(running, "text_completion"),
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
        self._envelope = Envelope(running, "text_completion", include_usage=include_usage)
        self._logprobs: dict[int, CompletionLogprobs] | None = {} if logprobs else None
        self._plain: dict[int, tuple[bytes, bytes]] = {}
        """What is around the text of a choice's chunks that hold nothing else."""

    def delta(self, event: Delta) -> Sequence[bytes]:
        if self._logprobs is None and event.finish is None:
            return (self._text_chunk(event.index, event.text),) if event.text else ()
        reason = finish_name(event.finish)
        logprobs: dict[str, object] | None = None
        if self._logprobs is not None and event.tokens:
            columns = self._logprobs.setdefault(event.index, CompletionLogprobs())
            logprobs = columns.add(event.tokens)
        if not event.text and reason is None and logprobs is None:
            return ()
        return (self._envelope.chunk(_choice(event.index, event.text, logprobs, reason)),)

    def usage(self, usage: UsageTotal) -> bytes | None:
        return self._envelope.usage(usage)

    def _text_chunk(self, index: int, text: str) -> bytes:
        around = self._plain.get(index)
        if around is None:
            empty = _choice(index, "", None, None)
            around = self._plain[index] = self._envelope.around_text(empty, "text")
        return around[0] + orjson.dumps(text) + around[1]


def _choice(
    index: int, text: str, logprobs: dict[str, object] | None, reason: str | None
) -> dict[str, object]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
