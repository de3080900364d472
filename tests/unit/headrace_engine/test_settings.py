"""The engine's settings, and what contradicts itself in them."""

from __future__ import annotations

import math
import os

import pytest
from headrace_engine.settings import (
    EngineSecrets,
    EngineSettings,
    check_settings,
    has_io_process,
)
from headrace_kit.errors import SettingsError
from headrace_kit.settings import load, load_secrets


def test_the_defaults_agree_with_each_other() -> None:
    check_settings(EngineSettings())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            EngineSettings(max_batch=400, batch_tokens=512, prefill_chunk_tokens=256),
            ("batch_tokens (512)", "max_batch (400)", "prefill_chunk_tokens (256)"),
        ),
        (
            EngineSettings(block_tokens=64, prefill_chunk_tokens=32),
            ("prefill_chunk_tokens (32)", "block_tokens (64)"),
        ),
        (
            EngineSettings(executor="cuda", prefill_chunk_tokens=48),
            ("prefill_chunk_tokens (48)", "block_tokens (64)"),
        ),
        (EngineSettings(executor="cuda", dtype="packed"), ("dtype (packed)", "cuda")),
        (EngineSettings(executor="cuda", block_tokens=48), ("block_tokens (48)", "power of two")),
        (EngineSettings(executor="cuda", kv_dtype="float32"), ("kv_dtype (float32)", "cuda")),
        (EngineSettings(sole_name=True), ("sole_name", "name")),
        (EngineSettings(tenant_weights={"a": 0.0}), ("tenant_weights", "'a' is 0.0")),
        (EngineSettings(tenant_weights={"b": math.inf}), ("tenant_weights", "'b' is inf")),
        (EngineSettings(stall_s=1.0, lease_ms=30_000), ("stall_s (1 s)", "lease_ms (30000 ms)")),
    ],
)
def test_a_contradiction_is_named_with_both_values(
    settings: EngineSettings, words: tuple[str, ...]
) -> None:
    with pytest.raises(SettingsError) as caught:
        check_settings(settings)
    for word in words:
        assert word in str(caught.value)


def test_a_process_for_io_is_refused_where_memory_cannot_be_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = EngineSettings(io_process="on")
    check_settings(wanted)
    assert has_io_process(EngineSettings(executor="cuda"))
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(SettingsError, match=r"io_process \(on\) .* Darwin lacks"):
        check_settings(wanted)
    assert not has_io_process(EngineSettings(executor="cuda"))


def test_a_share_of_a_gpu_is_refused_where_none_is_used() -> None:
    with pytest.raises(SettingsError, match="gpu_memory_utilization is set, but executor cpu"):
        check_settings(EngineSettings(gpu_memory_utilization=0.5))
    check_settings(EngineSettings(executor="cuda", gpu_memory_utilization=0.5))


def test_every_contradiction_is_named_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        check_settings(EngineSettings(max_batch=9000, block_tokens=512))
    assert len(caught.value.problems) == 2


def test_the_environment_sets_them() -> None:
    settings = load(
        EngineSettings,
        environ={"HEADRACE_ENGINE_MAX_BATCH": "8", "HEADRACE_ENGINE_PREFIX_CACHE": "off"},
    )

    assert (settings.max_batch, settings.prefix_cache) == (8, False)


@pytest.mark.parametrize("name", ["two words", "brace{", "x" * 257])
def test_a_model_name_that_cannot_be_a_key_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="MODEL_NAME"):
        load(EngineSettings, environ={"HEADRACE_ENGINE_MODEL_NAME": name})


def test_the_password_is_a_secret_and_no_setting() -> None:
    hidden = load_secrets(EngineSecrets, environ={"HEADRACE_ENGINE_REDIS_PASSWORD": "hunter2"})

    assert hidden.redis_password is not None
    assert "hunter2" not in repr(hidden)
    assert "redis_password" not in EngineSettings.model_fields
