"""Text to text in one process: the default model's tokenizer on an engine that repeats the prompt."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from headrace_cli.pipeline import Answer, Chat, Pipeline, pipeline
from headrace_contracts.codes import FinishReason
from headrace_engine.api import Engine, EngineSettings, PromptTooLong, Sampling
from headrace_engine.errors import EngineDraining, ModelRejected
from headrace_gateway.inference.calls import Message
from headrace_gateway.text.errors import PromptRejected
from support.smollm2 import SYSTEM, model_path

SETTINGS = EngineSettings(executor="echo", cache_blocks=1024, max_batch=16)
SOME = Sampling(200)


@pytest.fixture(scope="module")
def pipe() -> Iterator[Pipeline]:
    model_path()
    with pipeline(settings=SETTINGS) as pipe:
        yield pipe


def assert_idle(pipe: Pipeline) -> None:
    pipe.engine.sleep()  # waits for everything
    pipe.engine.wakeup()


def test_strings_are_continued_in_order(pipe: Pipeline) -> None:
    prompts = [f"Number {i}, and a word: été." for i in range(50)]

    answers = pipe(prompts, SOME)

    assert [answer.text for answer in answers] == prompts
    assert {answer.finish for answer in answers} == {FinishReason.STOP}
    assert answers[0].usage.prompt_tokens == len(answers[0].tokens) - 1  # and the end token


def test_chats_go_through_the_template(pipe: Pipeline) -> None:
    chats = [
        [{"role": "user", "content": "Hello"}],
        [Message("system", "Be brief."), Message("user", "Hello")],
    ]

    first, second = pipe(chats, SOME)

    # What is repeated ends where the template ends its first message.
    assert first.text == f"system\n{SYSTEM}"
    assert second.text == "system\nBe brief."


def test_strings_and_chats_together(pipe: Pipeline) -> None:
    text, chat = pipe(["Hello", [{"role": "user", "content": "Hello"}]], SOME)

    assert text.text == "Hello"
    assert chat.usage.prompt_tokens > text.usage.prompt_tokens + 10


def test_a_stop_string_ends_the_answer_and_is_not_shown(pipe: Pipeline) -> None:
    stopped, other = pipe(["one two three four", "five"], SOME, stop="three")

    assert (stopped.text, stopped.finish) == ("one two ", FinishReason.STOP)
    assert stopped.usage.completion_tokens == len(stopped.tokens) == 3
    assert other.text == "five"
    assert_idle(pipe)


def test_the_models_defaults_apply_without_sampling(pipe: Pipeline) -> None:
    (answer,) = pipe(["word " * 400])

    assert (len(answer.tokens), answer.finish) == (256, FinishReason.LENGTH)


def test_a_stream_joined_is_the_answer(pipe: Pipeline) -> None:
    prompt = "A text with several words, and ünïcödé."
    assert "".join(pipe.stream(prompt, SOME)) == prompt
    assert "".join(pipe.stream(prompt, SOME, stop=[" words"])) == "A text with several"
    assert "".join(pipe.stream(prompt, SOME, stop=" words")) == "A text with several"
    for text in pipe.stream("again and " * 100, Sampling(4000, min_new_tokens=4000)):
        assert text
        break
    assert_idle(pipe)


NO_MESSAGE: list[dict[str, str]] = [{"role": "user"}]
EMPTY: list[dict[str, str]] = [{}]


@pytest.mark.parametrize(
    ("prompt", "kind", "words"),
    [
        (NO_MESSAGE, PromptRejected, "role and content"),
        (EMPTY, PromptRejected, "nothing"),
        ("much too long " * 4000, PromptTooLong, "8192"),
    ],
)
def test_one_bad_prompt_is_named_and_nothing_runs_on(
    pipe: Pipeline, prompt: str | Chat, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        pipe(["fine", prompt], SOME)

    assert caught.value.__notes__ == ["prompt 1"]
    assert_idle(pipe)


def test_no_prompts_give_no_answers_and_a_string_is_no_list(pipe: Pipeline) -> None:
    assert pipe([]) == []
    with pytest.raises(TypeError, match="not a list"):
        pipe("Hello")


def test_an_engine_without_a_tokenizer_is_refused_and_closed() -> None:
    with pytest.raises(ModelRejected, match="no tokenizer"):
        pipeline(settings=SETTINGS.model_copy(update={"echo_tokenizer": False}))


def test_closing_closes_the_engine() -> None:
    model_path()
    pipe = Pipeline(Engine(settings=SETTINGS))
    assert isinstance(pipe(["x"], SOME)[0], Answer)

    pipe.close()

    with pytest.raises(EngineDraining):
        pipe(["x"], SOME)
