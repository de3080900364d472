"""Messages in every shape that clients send."""

from __future__ import annotations

import pytest
from headrace_gateway.http.errors import HttpError
from headrace_gateway.http.schema.messages import MAX_MESSAGES, messages_of
from headrace_gateway.inference.calls import Message

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


WRONG: list[tuple[object, str]] = [
    ("a", "messages[0]"),
    ({"content": "a"}, "messages[0].role"),
    ({"role": None, "content": "a"}, "messages[0].role"),
    ({"role": "wizard", "content": "a"}, "messages[0].role"),
    ({"role": ["user"], "content": "a"}, "messages[0].role"),
    ({"role": "user"}, "messages[0].content"),
    ({"role": "user", "content": None}, "messages[0].content"),
    ({"role": "user", "content": 5}, "messages[0].content"),
    ({"role": "user", "content": []}, "messages[0].content"),
    ({"role": "user", "content": [5]}, "messages[0].content[0]"),
    ({"role": "user", "content": [{"text": "a"}]}, "messages[0].content[0].type"),
    ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
    ({"role": "user", "content": [{"type": "spell"}]}, "messages[0].content[0].type"),
    ({"role": "user", "content": "a", "name": 5}, "messages[0].name"),
    ({"role": "user", "content": "a", "tool_calls": [CALL]}, "messages[0].tool_calls"),
    ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls"),
    ({"role": "assistant", "tool_calls": [5]}, "messages[0].tool_calls[0]"),
    ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0].function"),
    (
        {"role": "assistant", "tool_calls": [{"function": {"name": 1}}]},
        "messages[0].tool_calls[0].function.name",
    ),
    (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"role": "user", "content": "a"}, Message("user", "a")),
        ({"role": "user", "content": ""}, Message("user", "")),
        ({"role": "user", "content": [{"type": "text", "text": "a"}]}, Message("user", "a")),
        ({"role": "system", "content": "a", "name": "n"}, Message("system", "a", name="n")),
        ({"role": "developer", "content": "a"}, Message("system", "a")),
        ({"role": "assistant", "content": "a", "refusal": None}, Message("assistant", "a")),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            Message("assistant", "no"),
        ),
        ({"role": "assistant", "tool_calls": [CALL]}, Message("assistant", "", tool_calls=(CALL,))),
        (
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            Message("assistant", "", tool_calls=(CALL,)),
        ),
        (
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
            Message("tool", "42", tool_call_id="c1"),
        ),
    ],
)
def test_a_message_is_read(given: object, message: Message) -> None:
    assert messages_of([given]) == (message,)


def test_two_users_in_a_row_are_the_template_s_business() -> None:
    assert len(messages_of([{"role": "user", "content": "a"}] * 2)) == 2


@pytest.mark.parametrize(
    ("given", "param"),
    WRONG,
)
def test_a_wrong_message_is_named_by_its_place(given: object, param: str) -> None:
    with pytest.raises(HttpError) as refusal:
        messages_of([given])
    assert refusal.value.param == param


def test_too_many_messages_are_refused() -> None:
    with pytest.raises(HttpError, match="limit"):
        messages_of([{"role": "user", "content": "a"}] * (MAX_MESSAGES + 1))


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_media_parts_are_refused_by_name(kind: str) -> None:
    content: list[dict[str, object]] = [{"type": "text", "text": "a"}, {"type": kind, kind: {}}]
    with pytest.raises(HttpError) as refusal:
        messages_of([{"role": "user", "content": content}])
    assert refusal.value.param == "messages[0].content[1].type"
    assert kind in refusal.value.message
