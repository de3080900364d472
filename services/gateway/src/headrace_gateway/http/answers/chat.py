"""A chat's answer: ``chat.completion`` and its chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from headrace_gateway.http.answers.parts import (
    Choice,
    Envelope,
    chat_logprobs,
    finish_name,
    head,
    usage_body,
)
from headrace_gateway.http.ports import RunningCall
from headrace_gateway.inference.calls import Delta, UsageTotal


def chat_body(
    running: RunningCall, choices: Mapping[int, Choice], usage: UsageTotal, *, logprobs: bool
) -> dict[str, object]:
    """The whole answer."""
    return {
        **head(running, "chat.completion"),
        "choices": [
            {
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": "".join(choice.text),
                    "refusal": None,
                },
                "logprobs": chat_logprobs(choice.tokens) if logprobs else None,
                "finish_reason": finish_name(choice.finish),
            }
            for index, choice in sorted(choices.items())
        ],
        "usage": usage_body(usage),
    }


class ChatChunks:
    """The chunks of a streamed chat. Each choice opens with its role and closes with its reason."""

    def __init__(self, running: RunningCall, *, include_usage: bool, logprobs: bool) -> None:
        self._envelope = Envelope(running, "chat.completion.chunk", include_usage=include_usage)
        self._logprobs = logprobs
        self._opened: set[int] = set()
        self._plain: dict[int, tuple[bytes, bytes]] = {}
        """What is around the text of a choice's chunks that hold nothing else."""

    def delta(self, event: Delta) -> Sequence[bytes]:
        if event.finish is None and not self._logprobs and event.index in self._opened:
            return (self._text_chunk(event.index, event.text),) if event.text else ()
        chunks: list[bytes] = []
        if event.index not in self._opened:
            self._opened.add(event.index)
            opening = _choice(event.index, {"role": "assistant", "content": ""})
            chunks.append(self._envelope.chunk(opening))
        if event.text or (self._logprobs and event.tokens):
            logprobs = chat_logprobs(event.tokens) if self._logprobs else None
            said = _choice(event.index, {"content": event.text}, logprobs=logprobs)
            chunks.append(self._envelope.chunk(said))
        reason = finish_name(event.finish)
        if reason is not None:
            chunks.append(self._envelope.chunk(_choice(event.index, {}, finish=reason)))
        return chunks

    def usage(self, usage: UsageTotal) -> bytes | None:
        return self._envelope.usage(usage)

    def _text_chunk(self, index: int, text: str) -> bytes:
        around = self._plain.get(index)
        if around is None:
            empty = _choice(index, {"content": ""})
            around = self._plain[index] = self._envelope.around_text(empty, "content")
        return around[0] + orjson.dumps(text) + around[1]


def _choice(
    index: int,
    delta: dict[str, object],
    *,
    logprobs: dict[str, object] | None = None,
    finish: str | None = None,
) -> dict[str, object]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
