"""Small measurements: the engine alone in this process, or the served stack over HTTP.

For a first look and for comparing two settings on one machine; ``bench/`` has the real ones.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import httpx
import numpy as np
from headrace_engine.core import Core, build_core
from headrace_engine.errors import ModelRejected
from headrace_engine.loading import load_model
from headrace_engine.settings import EngineSettings
from headrace_engine.state.outputs import PassOutputs
from headrace_engine.state.request import Request, RequestHandle, Sampling
from headrace_kit.clock import SystemClock
from headrace_kit.errors import SettingsError
from headrace_kit.settings import load

from headrace_cli.endpoint import Endpoint, check, event, first_model, understood
from headrace_cli.errors import CommandFailed
from headrace_cli.timings import Answer, report

_FIRST_WORD: Final = 1000
"""Ids below this are special tokens or bytes in the usual vocabularies."""
_WORDS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of the engine."""

    requests: int
    concurrency: int
    """Requests in flight at once."""
    prompt_tokens: int
    output_tokens: int
    """Per request; the end of a turn is ignored."""
    seed: int = 0

    def prompts(self, vocabulary: int) -> list[list[int]]:
        """Random prompts that share no prefix; the same for the same seed."""
        source = random.Random(self.seed)
        words = range(min(_FIRST_WORD, vocabulary // 2), min(_WORDS, vocabulary))
        return [source.choices(words, k=self.prompt_tokens) for _ in range(self.requests)]


async def served(endpoint: Endpoint, wanted: Load, *, model: str | None) -> str:
    """Measures the stack over HTTP and returns the report. Raises CommandFailed."""
    with endpoint.client() as client:
        name = model or first_model(client)
    queue = list(reversed(wanted.prompts(_WORDS)))
    answers: list[Answer] = []
    async with endpoint.async_client(connections=wanted.concurrency) as client:

        async def reader() -> None:
            while queue:
                answers.append(await _ask(client, name, queue.pop(), wanted.output_tokens))

        began = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(wanted.concurrency, wanted.requests)):
                    group.create_task(reader())
        except* CommandFailed as failures:
            raise failures.exceptions[0] from None
        except* httpx.TransportError as failures:
            reason = failures.exceptions[0]
            raise CommandFailed(f"{endpoint.url} does not answer: {reason!r}") from reason
        wall_s = time.perf_counter() - began
    return f"{name} over {endpoint.url}\n{report(answers, wall_s)}"


async def _ask(
    client: httpx.AsyncClient, model: str, prompt: Sequence[int], output_tokens: int
) -> Answer:
    body: dict[str, object] = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    arrivals: list[float] = []
    tokens = 0
    sent = time.perf_counter()
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if not response.is_success:
            await response.aread()
            check(response)
        async for line in response.aiter_lines():
            chunk = event(line)
            if chunk is None:
                continue
            if chunk.get("choices"):
                arrivals.append(time.perf_counter())
            with understood(str(client.base_url)):
                if usage := cast("dict[str, int] | None", chunk.get("usage")):
                    tokens = usage["completion_tokens"]
    if not arrivals:
        raise CommandFailed("The stream ended without a token.")
    return Answer(sent, tuple(arrivals), tokens)


def offline(wanted: Load, *, model: str | None, dtype: str | None, executor: str | None) -> str:
    """Measures the engine in this process, with no network in between; returns the report."""
    given = {"model": model, "dtype": dtype, "executor": executor}
    try:
        settings = load(EngineSettings, cli={**given, "max_batch": max(wanted.concurrency, 1)})
        began = time.perf_counter()
        loaded = load_model(settings, lambda percent: None)
        core = build_core(settings, loaded, SystemClock())
    except (ModelRejected, SettingsError) as error:
        raise CommandFailed(str(error)) from error
    load_s = time.perf_counter() - began
    engine = threading.Thread(target=core.loop.run, name="engine")
    engine.start()
    try:
        answers, wall_s = _drive(core, wanted)
    finally:
        core.door.close()
        engine.join()
        core.executor.close()
    title = f"{loaded.name}, {settings.dtype}, {settings.executor}; loaded in {load_s:.1f} s"
    return f"{title}\n{report(answers, wall_s)}"


@dataclass(slots=True)
class _Flight:
    sent_s: float
    arrivals_s: list[float] = field(default_factory=list[float])


def _drive(core: Core, wanted: Load) -> tuple[list[Answer], float]:
    """Keeps ``concurrency`` requests in the engine until all are answered."""
    prompts = wanted.prompts(core.model.executor.shape.vocabulary)
    flights: dict[int, _Flight] = {}
    answers: list[Answer] = []
    began = time.perf_counter()
    sent = 0
    while len(answers) < wanted.requests:
        while sent < wanted.requests and len(flights) < wanted.concurrency:
            flights[sent] = _Flight(time.perf_counter())
            core.door.push(_request(sent, prompts[sent], wanted.output_tokens))
            sent += 1
        outputs = core.door.take_outputs(1.0)
        if outputs is None:
            raise CommandFailed("The engine stopped; its log says why.")
        now = time.perf_counter()
        for batch in outputs:
            answers += _landed(batch, flights, now)
    return answers, time.perf_counter() - began


def _landed(batch: PassOutputs, flights: dict[int, _Flight], now: float) -> list[Answer]:
    """Notes what a pass brought; returns the answers that it completed."""
    for handle in batch.handles[batch.counts > 0]:
        flights[int(handle)].arrivals_s.append(now)
    done: list[Answer] = []
    for end in batch.ends:
        flight = flights.pop(int(batch.handles[end.row]))
        if end.code is not None or not flight.arrivals_s:
            raise CommandFailed(f"A request ended as {end.reason.name}: {end.message}")
        done.append(Answer(flight.sent_s, tuple(flight.arrivals_s), end.usage.completion_tokens))
    return done


def _request(handle: int, prompt: Sequence[int], output_tokens: int) -> Request:
    return Request(
        id=f"bench-{handle}",
        handle=RequestHandle(handle),
        prompt=np.array(prompt, np.int32),
        sampling=Sampling(max_new_tokens=output_tokens, temperature=0.0),
    )
