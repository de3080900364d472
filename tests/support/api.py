"""A client for tests that looks at bytes: answers and streams, taken apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import httpx
from support.served import ServedStack

Body = Mapping[str, object]
ALPHABET = "The letters of the alphabet: A B C D E F G H I J K L M N O P Q R S T U V W X Y Z\n"
ALPHABET_PROMPT = ALPHABET + "The letters of the alphabet: A B C D E F"
"""Greedy, the model goes on `` G H I J K L M``, one token a letter."""
CAPITAL: Body = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}


@dataclass
class Told:
    """What a stream said."""

    raw: bytes
    chunks: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    dones: int = 0

    @property
    def deltas(self) -> list[tuple[int, str]]:
        """Index and text of every piece of text."""
        return [
            (choice["index"], text)
            for chunk in self.chunks
            for choice in chunk.get("choices", [])
            if (text := _text(choice))
        ]

    @property
    def texts(self) -> dict[int, str]:
        """The deltas joined by index."""
        joined: dict[int, str] = {
            choice["index"]: "" for chunk in self.chunks for choice in chunk.get("choices", [])
        }
        for index, text in self.deltas:
            joined[index] += text
        return joined

    @property
    def reasons(self) -> list[tuple[int, str]]:
        """Every finish reason, with its index."""
        return [
            (choice["index"], choice["finish_reason"])
            for chunk in self.chunks
            for choice in chunk.get("choices", [])
            if choice["finish_reason"]
        ]

    @property
    def error(self) -> dict[str, Any] | None:
        """The error event, if there was one."""
        return next((chunk["error"] for chunk in self.chunks if "error" in chunk), None)


def _text(choice: Mapping[str, Any]) -> str:
    return choice["text"] if "text" in choice else choice["delta"].get("content") or ""


class Api:
    """One key at one gateway."""

    def __init__(self, stack: ServedStack, *, timeout_s: float = 60.0) -> None:
        self.stack = stack
        self.client = httpx.Client(
            base_url=stack.url,
            headers={"authorization": f"Bearer {stack.key}"},
            timeout=timeout_s,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def completion(self, body: Body) -> httpx.Response:
        return self.client.post("/v1/completions", json={"model": self.stack.model, **body})

    def chat(self, body: Body) -> httpx.Response:
        return self.client.post("/v1/chat/completions", json={"model": self.stack.model, **body})

    def raw(self, path: str, content: bytes, **headers: str) -> httpx.Response:
        return self.client.post(
            path, content=content, headers={"content-type": "application/json", **headers}
        )

    def stream_completion(self, body: Body) -> Told:
        return self._stream("/v1/completions", body)

    def stream_chat(self, body: Body) -> Told:
        return self._stream("/v1/chat/completions", body)

    def text(self, body: Body) -> str:
        """The first choice's text of a completion that has to succeed."""
        answer = self.completion(body)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"]

    def _stream(self, path: str, body: Body) -> Told:
        asked = {"model": self.stack.model, **body, "stream": True}
        answer = self.client.post(path, json=asked)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        return told(answer.content)


def told(raw: bytes) -> Told:
    """A stream's bytes, read as strict UTF-8, every data line parsed."""
    found = Told(raw)
    for line in raw.decode("utf-8").split("\n"):
        if line == "data: [DONE]":
            found.dones += 1
        elif line.startswith("data: "):
            found.chunks.append(json.loads(line[6:]))
    return found


def check_error(answer: httpx.Response, status: int | tuple[int, ...]) -> dict[str, Any]:
    """The one form of every refusal; returns its ``error``."""
    allowed = (status,) if isinstance(status, int) else status
    assert answer.status_code in allowed, (answer.status_code, answer.text)
    assert answer.headers["content-type"] == "application/json"
    error = json.loads(answer.content.decode("utf-8"))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in answer.text
    return error
