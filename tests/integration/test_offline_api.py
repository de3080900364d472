"""The offline API runs the real model on the CPU: the reference's tokens, whatever happened before."""

from __future__ import annotations

import asyncio
import json
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headrace_contracts.codes import FinishReason
from headrace_engine.api import Engine, EngineSettings, Sampling
from headrace_engine.executor.cpu import CpuExecutor
from headrace_engine.loading import LoadedModel, Percent, load_model
from support.process import engine_process
from support.redis import redis_server
from support.smollm2 import model_path

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

REFERENCE = json.loads((Path(__file__).parents[1] / "data/smollm2_greedy.json").read_text())
CASES: list[dict[str, Any]] = REFERENCE["cases"]
SETTINGS = EngineSettings(
    threads=2, context_tokens=512, cache_blocks=256, max_batch=16, batch_tokens=256,
    prefill_chunk_tokens=128,
)  # fmt: skip


class Loads:
    """Loads as the engine does, and watches what becomes of the memory."""

    def __init__(self) -> None:
        self.executors: list[weakref.ref[CpuExecutor]] = []

    def __call__(self, settings: EngineSettings, percent: Percent) -> LoadedModel:
        loaded = load_model(settings, percent)
        assert isinstance(loaded.executor, CpuExecutor)
        self.executors.append(weakref.ref(loaded.executor))
        return loaded


@pytest.fixture(scope="module")
def loads() -> Loads:
    return Loads()


@pytest.fixture(scope="module")
def engine(loads: Loads) -> Iterator[Engine]:
    model_path()
    with Engine(settings=SETTINGS, load=loads) as engine:
        yield engine
    assert not {"engine", "executor", "signal"} & {t.name for t in threading.enumerate()}


def sampling(engine: Engine, case: dict[str, Any], tokens: int | None = None) -> Sampling:
    count = len(case["output_ids"]) if tokens is None else tokens
    return Sampling(count, temperature=0.0, stop_token_ids=engine.end_token_ids)


def test_a_batch_gives_the_references_tokens(engine: Engine) -> None:
    completions = engine.infer(
        [case["prompt_ids"] for case in CASES], [sampling(engine, case) for case in CASES]
    )

    for case, completion in zip(CASES, completions, strict=True):
        assert completion.tokens == case["output_ids"], case["name"]
        wanted = FinishReason.STOP if case["finish"] == "stop" else FinishReason.LENGTH
        assert completion.finish == wanted


def test_streams_in_threads_and_on_an_event_loop_give_them_too(engine: Engine) -> None:
    found: dict[str, list[int]] = {}

    def read(case: dict[str, Any]) -> None:
        outputs = engine.create_instance().stream_infer(case["prompt_ids"], sampling(engine, case))
        found[case["name"]] = [token for output in outputs for token in output.tokens]

    async def read_async(case: dict[str, Any]) -> None:
        outputs = engine.create_instance().async_stream_infer(
            case["prompt_ids"], sampling(engine, case)
        )
        found[case["name"]] = [token async for output in outputs for token in output.tokens]

    async def all_async() -> None:
        await asyncio.gather(*(read_async(case) for case in CASES[::2]))

    threads = [threading.Thread(target=read, args=(case,)) for case in CASES[1::2]]
    for thread in threads:
        thread.start()
    asyncio.run(all_async())
    for thread in threads:
        thread.join()

    assert found == {case["name"]: case["output_ids"] for case in CASES}


def test_leaving_early_frees_everything_and_disturbs_nobody(engine: Engine) -> None:
    left, stayed = CASES[:2]
    other = engine.start(stayed["prompt_ids"], sampling(engine, stayed, 20))
    for _ in engine.create_instance().stream_infer(left["prompt_ids"], sampling(engine, left, 400)):
        break

    assert [t for output in other for t in output.tokens] == stayed["output_ids"][:20]
    engine.sleep()  # waits until the engine is idle; a leak would keep it from getting there
    engine.wakeup()


@pytest.mark.parametrize("level", [1, 2])
def test_after_sleep_the_tokens_are_the_same_and_nothing_is_cached(
    engine: Engine, loads: Loads, level: int
) -> None:
    case = CASES[0]
    before = loads.executors[-1]()
    assert before is not None
    region, weights = weakref.ref(before.region), weakref.ref(before)
    del before

    engine.sleep(level)

    assert region() is None
    assert (weights() is None) == (level == 2)
    engine.wakeup()
    (completion,) = engine.infer([case["prompt_ids"]], sampling(engine, case, 12))
    assert completion.tokens == case["output_ids"][:12]
    assert completion.usage.cached_tokens == 0


def test_new_weights_of_the_same_file_have_their_version_and_an_empty_cache(
    engine: Engine, tmp_path: Path
) -> None:
    case = CASES[0]
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(model_path().read_bytes())
    old = engine.shape.weights_version

    assert engine.update_params(str(copy)) == old  # the same content

    (completion,) = engine.infer([case["prompt_ids"]], sampling(engine, case, 8))
    assert completion.tokens == case["output_ids"][:8]
    assert completion.usage.cached_tokens == 0


def test_an_engine_process_without_the_device_it_was_told_ends_with_code_2(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with redis_server() as server:
        process = engine_process(tmp_path, server.url, "--executor", "cuda")
        assert process.wait(90) == 2  # torch is imported first
    refusal = json.loads(process.log().splitlines()[-1])
    assert refusal["event"] == "engine.refused"
    assert "no CUDA device is usable here" in refusal["reason"]
