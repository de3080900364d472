"""The official OpenAI SDK against the served stack."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from support.idle import check_idle
from support.served import ServedStack


@pytest.fixture
def client(stack: ServedStack) -> Generator[OpenAI]:
    with OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key, max_retries=0) as made:
        yield made


@pytest.fixture
async def async_client(stack: ServedStack) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=stack.key, max_retries=0) as made:
        yield made


def test_models_are_listed_and_found(client: OpenAI, stack: ServedStack) -> None:
    models = list(client.models.list())
    assert [model.id for model in models] == [stack.model]
    assert client.models.retrieve(stack.model).created > 1_600_000_000


def test_a_chat_is_answered(client: OpenAI, stack: ServedStack) -> None:
    answer = client.chat.completions.create(
        model=stack.model,
        messages=[{"role": "user", "content": "Hello"}],
        temperature=0,
        max_completion_tokens=8,
    )
    assert answer.id.startswith("chatcmpl-")
    assert answer._request_id == answer.id  # pyright: ignore[reportPrivateUsage]
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (31, 8)
    assert answer.usage.prompt_tokens_details is not None


def test_a_streamed_chat_joins_to_the_whole_one(client: OpenAI, stack: ServedStack) -> None:
    whole = client.chat.completions.create(
        model=stack.model,
        messages=[{"role": "user", "content": "Count to five."}],
        temperature=0,
        max_tokens=24,
    )
    stream = client.chat.completions.create(
        model=stack.model,
        messages=[{"role": "user", "content": "Count to five."}],
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_completion_with_logprobs_and_echo(client: OpenAI, stack: ServedStack) -> None:
    answer = client.completions.create(
        model=stack.model,
        prompt="The capital of France is",
        max_tokens=3,
        temperature=0,
        logprobs=2,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens) == answer.choices[0].text
    assert logprobs.top_logprobs is not None
    assert all(len(top) == 2 for top in logprobs.top_logprobs)
    assert logprobs.text_offset is not None
    assert logprobs.text_offset[0] == 0
    echoed = client.completions.create(
        model=stack.model, prompt="The capital of France is", max_tokens=3, temperature=0, echo=True
    )
    assert echoed.choices[0].text == "The capital of France is" + answer.choices[0].text


def test_chat_logprobs_hold_bytes_that_join_to_the_text(client: OpenAI, stack: ServedStack) -> None:
    answer = client.chat.completions.create(
        model=stack.model,
        messages=[{"role": "user", "content": "Hello"}],
        temperature=0,
        max_tokens=6,
        logprobs=True,
        top_logprobs=3,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    raw = b"".join(bytes(entry.bytes or []) for entry in logprobs.content)
    assert raw.decode() == answer.choices[0].message.content
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob)  # pyright: ignore[reportUnknownMemberType]


def test_errors_become_the_sdk_s_own(client: OpenAI, stack: ServedStack) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="none", messages=[{"role": "user", "content": "a"}])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=stack.model, messages=[], stream=True)
    assert wrong.value.param == "messages"
    stranger = client.with_options(api_key="hr_nobody")
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.chat.completions.create(
            model=stack.model,
            messages=[{"role": "user", "content": "a"}],
            response_format={"type": "json_object"},
        )
    assert unsupported.value.code == "unsupported_parameter"


def test_closing_a_stream_stops_the_engine(client: OpenAI, stack: ServedStack) -> None:
    stream = client.completions.create(
        model=stack.model,
        prompt="Once upon a time",
        max_tokens=4000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    stream.close()
    check_idle(stack)


def test_a_timeout_of_the_client_stops_the_engine(client: OpenAI, stack: ServedStack) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.5).completions.create(
            model=stack.model,
            prompt="Once upon a time",
            max_tokens=4000,
            extra_body={"ignore_eos": True},
        )
    check_idle(stack)


async def test_the_async_client_streams_too(async_client: AsyncOpenAI, stack: ServedStack) -> None:
    stream = await async_client.chat.completions.create(
        model=stack.model,
        messages=[{"role": "user", "content": "Hello"}],
        temperature=0,
        max_tokens=4,
        stream=True,
    )
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces)
