"""Hosts of an engine for tests: with an executor that fails or dies at a token of the prompt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Literal, assert_never

import numpy as np
from headrace_contracts.codes import Code, FinishReason
from headrace_engine.host.base import Host, Served
from headrace_engine.host.process import ProcessHost
from headrace_engine.host.threads import ThreadHost
from headrace_engine.settings import EngineSettings
from headrace_engine.state.inbound import Cancel
from headrace_engine.state.outputs import PassOutputs, RowEnd
from headrace_engine.state.request import Request, RequestHandle, Sampling
from headrace_kit.clock import SystemClock
from support.faulty_engine import COMMAND, load_faulty

Where = Literal["threads", "process"]
LIMIT_S = 60.0


class Hosted:
    """An engine that runs somewhere, and what it has told."""

    def __init__(self, host: Host, served: Served) -> None:
        self.host = host
        self.served = served
        self.told: list[PassOutputs] = []
        self._news = asyncio.Event()

    def hear(self, batch: list[PassOutputs]) -> None:
        """What io does with outputs."""
        self.told += batch
        self._news.set()

    def push(self, handle: int, prompt: list[int], tokens: int) -> None:
        """A request that repeats its prompt."""
        ids = np.array(prompt, np.int32)
        sampling = Sampling(max_new_tokens=tokens)
        self.host.door.push(Request(f"r{handle}", RequestHandle(handle), ids, sampling))

    def cancel(self, handle: int) -> None:
        """Ends it."""
        self.host.door.cancel(Cancel(RequestHandle(handle), FinishReason.CANCELLED))

    def tokens(self, handle: int) -> list[int]:
        """Told so far."""
        return [
            int(token)
            for outputs in self.told
            for row, token in zip(_token_rows(outputs), outputs.tokens, strict=True)
            if outputs.handles[row] == handle
        ]

    def ends(self, handle: int) -> list[RowEnd]:
        """Terminal states told; one, once it is over."""
        return [
            end
            for outputs in self.told
            for end in outputs.ends
            if outputs.handles[end.row] == handle
        ]

    def reasons(self, handle: int) -> list[tuple[FinishReason, Code | None]]:
        """How it ended."""
        return [(end.reason, end.code) for end in self.ends(handle)]

    async def until(self, ready: Callable[[], bool]) -> None:
        """Waits until something that was told makes it true."""
        async with asyncio.timeout(LIMIT_S):
            while not ready():
                self._news.clear()
                await self._news.wait()


def _token_rows(outputs: PassOutputs) -> list[int]:
    return np.repeat(np.arange(len(outputs.counts)), outputs.counts).tolist()


def make_host(where: Where, settings: EngineSettings) -> Host:
    """Not loaded yet."""
    match where:
        case "threads":
            return ThreadHost(settings, load_faulty, SystemClock(), "e-1")
        case "process":
            return ProcessHost(settings, "e-1", COMMAND)
        case _:
            assert_never(where)


@asynccontextmanager
async def hosted(where: Where, settings: EngineSettings) -> AsyncGenerator[Hosted]:
    """A loaded engine; its ``run`` is the test's."""
    host = make_host(where, settings)
    try:
        yield Hosted(host, await host.load(lambda _: None))
    finally:
        await host.close()
