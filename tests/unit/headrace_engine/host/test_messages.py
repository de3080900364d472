"""Start and end of an engine's process, as messages."""

from __future__ import annotations

import pytest
from headrace_engine.errors import EngineFailed, ModelRejected
from headrace_engine.executor.base import ModelShape
from headrace_engine.host.base import Served
from headrace_engine.host.messages import (
    pack_ended,
    pack_loading,
    pack_refused,
    pack_served,
    pack_start,
    unpack_ended,
    unpack_loading,
    unpack_refused,
    unpack_served,
    unpack_start,
)
from headrace_engine.model.loader.tokenizer_files import TokenizerFiles
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.settings import EngineSettings
from headrace_engine.state.packed import Message, Unpacker
from headrace_kit.errors import SettingsError

SHAPE = ModelShape("m", "llama", 100, 64, "v1", "float32", 8, (1, 2))


def one(data: bytes) -> Message:
    [message] = Unpacker().feed(data)
    return message


def test_settings_arrive_as_they_were() -> None:
    settings = EngineSettings(executor="echo", tenant_weights={"a": 0.5}, step_target_ms=1.5)

    assert unpack_start(one(pack_start(settings, "e-1"))) == (settings, "e-1")


@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_what_is_served_arrives_as_it_was(with_tokenizer: bool) -> None:
    files = {"tokenizer.json": b"\x00\xff", "more": b""}
    tokenizer = TokenizerFiles(files, "{{ x }}", {"eos_token": "</s>"}, (1, 2), 0, True, 0.5)
    numbers = SchedulerSettings(tenant_weights={"a": 2.0}, ageing_s=3.0)
    served = Served("m", SHAPE, tokenizer if with_tokenizer else None, numbers)

    assert unpack_served(one(pack_served(served))) == served


def test_percent_arrives() -> None:
    assert unpack_loading(one(pack_loading(37))) == 37


def test_a_refusal_is_the_same_error_at_the_other_end() -> None:
    model = unpack_refused(one(pack_refused(ModelRejected("no such file"))))
    settings = unpack_refused(one(pack_refused(SettingsError(["a is 1", "b is 2"]))))

    assert type(model) is ModelRejected
    assert str(model) == "no such file"
    assert isinstance(settings, SettingsError)
    assert settings.problems == ["a is 1", "b is 2"]


def test_an_end_says_why() -> None:
    assert unpack_ended(one(pack_ended(None))) is None
    assert unpack_ended(one(pack_ended(EngineFailed("x")))) == "x"
    assert unpack_ended(one(pack_ended(OSError("x")))) == "OSError: x"
