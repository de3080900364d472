"""From settings to a model: names, sizes, cards."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from headrace_engine.default_model import DEFAULT_MODEL
from headrace_engine.errors import ModelRejected
from headrace_engine.executor.echo import EchoExecutor
from headrace_engine.loading import (
    LoadedModel,
    fit,
    load_model,
    name_of,
    percent_log,
    publish_card,
)
from headrace_engine.model.loader.tokenizer_files import TokenizerFiles
from headrace_engine.settings import EngineSettings, block_tokens
from headrace_transport.memory import MemoryEngineWire
from headrace_transport.memory_broker import MemoryBroker
from structlog.testing import capture_logs


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (DEFAULT_MODEL, "SmolLM2-135M-Instruct"),
        ("hf://org/some-model@main", "org/some-model"),
        ("/models/My Model/", "My-Model"),
        ("models/tiny-q4_k_m.gguf", "tiny"),
        ("models/tiny.BF16.gguf", "tiny"),
        ("models/qwen2.gguf", "qwen2"),
    ],
)
def test_a_name_is_made_of_the_last_part_without_its_format(model: str, name: str) -> None:
    assert name_of(model) == name


def test_a_path_that_gives_no_name_is_refused() -> None:
    with pytest.raises(ModelRejected, match="model_name"):
        name_of("//")


def echo(context: int = 4096) -> EchoExecutor:
    """A small executor: 16 tokens take 64 bytes."""
    return EchoExecutor(100, context_tokens=context, kv_bytes_per_token=4)


def test_the_cache_is_sized_by_its_bytes() -> None:
    numbers = fit(EngineSettings(cache_bytes=1 << 16), echo())

    assert numbers.pool_blocks == (1 << 16) // 64
    assert numbers.session_tokens == 4096


def test_a_cache_smaller_than_the_models_context_lowers_it_and_says_so() -> None:
    with capture_logs() as logs:
        numbers = fit(EngineSettings(cache_blocks=8), echo())

    assert numbers.session_tokens == 128
    assert [(entry["event"], entry["pool_tokens"]) for entry in logs] == [("context.lowered", 128)]


def test_a_pool_smaller_than_the_context_asked_for_is_served_with_both_numbers_said() -> None:
    with capture_logs() as logs:
        numbers = fit(EngineSettings(context_tokens=1000, cache_blocks=8), echo())

    assert (numbers.session_tokens, numbers.pool_tokens) == (1000, 128)
    (entry,) = logs
    assert entry["event"] == "pool.smaller_than_context"
    assert (entry["context_tokens"], entry["pool_tokens"]) == (1000, 128)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (EngineSettings(context_tokens=5000), "4096"),
        (EngineSettings(cache_blocks=1), "16 tokens"),
    ],
)
def test_what_cannot_fit_is_refused_with_the_numbers(settings: EngineSettings, words: str) -> None:
    with pytest.raises(ModelRejected, match=words):
        fit(settings, echo())


async def test_the_card_tells_gateways_what_they_need() -> None:
    tokenizer = TokenizerFiles(
        files={"tokenizer.json": b"{}"},
        chat_template="{{ messages }}",
        special_tokens={"eos_token": "</s>"},
        end_token_ids=(2, 7),
        begin_token_id=1,
        add_begin_token=True,
        temperature=0.5,
        top_p=0.9,
        top_k=20,
    )
    broker = MemoryBroker()
    model = LoadedModel("m", echo(), tokenizer)
    numbers = fit(EngineSettings(cache_blocks=64), model.executor)

    await publish_card(MemoryEngineWire(broker), model, numbers, created_s=5)

    card = broker.cards["m"]
    digest = card.files["tokenizer.json"].removeprefix("sha256:")
    assert broker.blob(digest) == b"{}"
    assert (card.context_tokens, card.pool_tokens, card.block_tokens) == (1024, 1024, 16)
    assert (card.vocabulary, card.weights_version, card.created) == (100, "echo-1", 5)
    assert list(card.end_token_ids) == [2, 7]
    assert (card.begin_token_id, card.add_begin_token) == (1, True)
    assert (card.temperature, card.top_k) == (0.5, 20)
    assert dict(card.special_tokens) == {"eos_token": "</s>"}


def test_an_unknown_architecture_is_named_before_a_tokenizer_is_missed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["MambaForCausalLM"]}')
    with pytest.raises(ModelRejected, match="unknown architecture MambaForCausalLM"):
        load_model(EngineSettings(model=str(tmp_path)), lambda _: None)


async def test_a_card_without_a_tokenizer_names_no_files() -> None:
    broker = MemoryBroker()
    model = LoadedModel("m", echo(), None)

    await publish_card(
        MemoryEngineWire(broker), model, fit(EngineSettings(), model.executor), created_s=5
    )

    assert not broker.cards["m"].files
    assert not broker.cards["m"].HasField("begin_token_id")


async def test_weights_of_tenants_reach_the_core_and_the_queue() -> None:
    broker = MemoryBroker()
    model = LoadedModel("m", echo(), None)
    settings = EngineSettings(tenant_weights={"acme": 2.5}, ageing_s=3.0, step_target_ms=40)
    numbers = fit(settings, model.executor)
    assert (numbers.tenant_weights, numbers.ageing_s) == ({"acme": 2.5}, 3.0)
    assert numbers.step_target_ms == 40

    await publish_card(MemoryEngineWire(broker), model, numbers, created_s=5)

    assert broker.work("m").weights == {"acme": 2.5}


async def test_a_second_engine_leaves_the_models_age_alone() -> None:
    broker = MemoryBroker()
    wire, model = MemoryEngineWire(broker), LoadedModel("m", echo(), None)
    numbers = fit(EngineSettings(), model.executor)

    await publish_card(wire, model, numbers, created_s=5)
    await publish_card(wire, model, numbers, created_s=9)
    assert broker.cards["m"].created == 5

    broker.cards["m"].weights_version = "older"
    await publish_card(wire, model, numbers, created_s=9)
    assert broker.cards["m"].created == 9


def test_progress_is_said_once_a_second_and_at_the_end() -> None:
    now = [10.0]
    say = percent_log(lambda: now[0])
    with capture_logs() as logs:
        for value in range(101):
            now[0] += 0.1
            say(value)
        say(100)

    said = [entry["percent"] for entry in logs]
    assert said[-1] == 100
    assert len(said) in (11, 12)


def test_an_echo_engine_may_come_without_a_tokenizer() -> None:
    settings = EngineSettings(executor="echo", echo_tokenizer=False, echo_context_tokens=64)

    model = load_model(settings, lambda _: None)

    assert model.tokenizer is None
    assert model.executor.shape.context_tokens == 64


def test_an_echo_engine_brings_the_tokenizer_of_its_model() -> None:
    model = load_model(EngineSettings(executor="echo"), lambda _: None)

    assert model.tokenizer is not None
    assert "tokenizer.json" in model.tokenizer.files
    assert model.name == "SmolLM2-135M-Instruct"


def test_blocks_are_larger_on_a_gpu_unless_they_are_set() -> None:
    assert block_tokens(EngineSettings()) == 16
    assert block_tokens(EngineSettings(executor="cuda")) == 64
    assert block_tokens(EngineSettings(executor="cuda", block_tokens=32)) == 32


@pytest.mark.torch
def test_a_gpu_is_refused_where_there_is_none() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")

    with pytest.raises(ModelRejected, match=r"no CUDA device is usable here \(.*\): \w+"):
        load_model(EngineSettings(executor="cuda", model="/nowhere"), lambda percent: None)


def test_a_gpu_is_refused_without_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headrace_engine.executor.cuda", None)

    with pytest.raises(ModelRejected, match="needs torch and triton"):
        load_model(EngineSettings(executor="cuda"), lambda percent: None)
