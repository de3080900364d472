"""The default model behind an engine whose io has a process of its own: what it says is the same.

``HEADRACE_TEST_IO_PROCESS=on`` runs every test here with such engines.
"""

from __future__ import annotations

from pathlib import Path

from support.api import ALPHABET_PROMPT, Api, Body
from support.served import ServedStack, StartStack
from support.waiting import wait_until

CHOICES: Body = {"prompt": ALPHABET_PROMPT, "max_tokens": 12, "temperature": 0, "n": 2}
STOPPED: Body = {"prompt": ALPHABET_PROMPT, "max_tokens": 40, "temperature": 0, "stop": [" K L"]}
LOGPROBS: Body = {"prompt": "The capital of France is", "max_tokens": 4, "logprobs": 2}
CHAT: Body = {
    "messages": [{"role": "user", "content": "Name three rivers 🦄."}],
    "max_tokens": 12,
    "temperature": 0,
    "stream_options": {"include_usage": True},
}


def answers(api: Api) -> list[object]:
    """What must not depend on the form."""
    streamed = [api.stream_completion(CHOICES), api.stream_completion(STOPPED)]
    chat = api.stream_chat(CHAT)
    whole = api.completion({**LOGPROBS, "temperature": 0}).json()
    refused = api.completion({"prompt": "x", "max_tokens": 0})
    return [
        *((told.texts, sorted(told.reasons)) for told in (*streamed, chat)),
        chat.chunks[-1]["usage"]["completion_tokens"],
        whole["choices"],
        (refused.status_code, refused.json()),
    ]


def child_of(pid: int) -> int:
    """The only process that another one has started."""
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def test_two_processes_say_what_one_says(api: Api, start: StartStack) -> None:
    split: ServedStack = start(environ={"HEADRACE_ENGINE_IO_PROCESS": "on"})
    [engine] = split.pids("headrace_engine")
    assert b"headrace_engine.host.child" in Path(f"/proc/{child_of(engine)}/cmdline").read_bytes()
    with Api(split) as other:
        assert answers(other) == answers(api)
        # a client that leaves has its request ended at the engine's other process too
        gone = {"model": split.model, "prompt": ALPHABET_PROMPT, "max_tokens": 2000}
        with other.client.stream("POST", "/v1/completions", json={**gone, "stream": True}) as live:
            next(live.iter_lines())
        wait_until(lambda: not other.client.get("/v1/requests").json()["data"], "it runs on")
