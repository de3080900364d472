"""Chat messages as clients write them: strings or parts, calls of tools, and who speaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn, cast

from headrace_gateway.http.errors import HttpError, bad_request, unsupported
from headrace_gateway.inference.calls import Message

MAX_MESSAGES: Final = 16_384
"""More than fit into any context; each costs time before the prompt can be counted."""
_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""What the caller writes, and what the template sees."""
_TEXT_PARTS: Final = {"text": "text", "refusal": "refusal"}
"""Parts that are text, and the field that holds it."""
_MEDIA_PARTS: Final = frozenset(
    {"image_url", "input_image", "image", "input_audio", "audio_url", "audio", "video_url", "file"}
)
_BETWEEN_PARTS: Final = "\n"


def messages_of(value: object) -> tuple[Message, ...]:
    """The ``messages`` of a chat. Raises HttpError that names the place of the first fault."""
    if not isinstance(value, list):
        raise bad_request("messages must be an array of messages.", "messages")
    items = cast(list[object], value)
    if not items:
        raise bad_request("messages must hold at least one message.", "messages")
    if len(items) > MAX_MESSAGES:
        raise bad_request(
            f"messages holds {len(items)} messages; the limit is {MAX_MESSAGES}.", "messages"
        )
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(items))


def _message(value: object, place: str) -> Message:
    if not isinstance(value, dict):
        raise bad_request(f"{place} must be an object.", place)
    fields = cast(Mapping[str, object], value)
    role = _role(fields, place)
    calls = _tool_calls(fields.get("tool_calls"), f"{place}.tool_calls")
    if calls and role != "assistant":
        raise bad_request("Only an assistant's message has tool_calls.", f"{place}.tool_calls")
    content = fields.get("content")
    if content is None and not calls:
        raise bad_request(f"{place}.content is required.", f"{place}.content")
    return Message(
        role=role,
        content="" if content is None else _content(content, f"{place}.content"),
        name=_text_or_none(fields, "name", place),
        tool_calls=calls,
        tool_call_id=_text_or_none(fields, "tool_call_id", place),
    )


def _role(fields: Mapping[str, object], place: str) -> str:
    given = fields.get("role")
    if given is None:
        raise bad_request(f"{place}.role is required.", f"{place}.role")
    if not isinstance(given, str) or given not in _ROLES:
        raise bad_request(f"{place}.role must be one of {', '.join(_ROLES)}.", f"{place}.role")
    return _ROLES[given]


def _content(value: object, place: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise bad_request(f"{place} must be a string or an array of parts.", place)
    parts = cast(list[object], value)
    if not parts:
        raise bad_request(f"{place} must hold at least one part.", place)
    return _BETWEEN_PARTS.join(_part(part, f"{place}[{index}]") for index, part in enumerate(parts))


def _part(value: object, place: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise bad_request(f"{place} must be an object with a type.", place)
    fields = cast(Mapping[str, object], value)
    kind = fields.get("type")
    if not isinstance(kind, str):
        raise bad_request(f"{place}.type is required.", f"{place}.type")
    if kind not in _TEXT_PARTS:
        _refuse_part(kind, f"{place}.type")
    text = fields.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise bad_request(f"{place}.{_TEXT_PARTS[kind]} must be a string.", f"{place}.{kind}")
    return text


def _refuse_part(kind: str, place: str) -> NoReturn:
    if kind in _MEDIA_PARTS:
        raise unsupported(f"This model takes text only; {place} is {kind}.", place)
    raise bad_request(f"{place}: {kind[:40]!a} is not a known kind of part.", place)


def _tool_calls(value: object, place: str) -> tuple[Mapping[str, object], ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise bad_request(f"{place} must be an array.", place)
    return tuple(
        _tool_call(item, f"{place}[{index}]")
        for index, item in enumerate(cast(list[object], value))
    )


def _tool_call(value: object, place: str) -> Mapping[str, object]:
    """A call that the assistant made: ``{"id", "type", "function": {"name", "arguments"}}``."""
    if not isinstance(value, dict):
        raise _not_a_call(place)
    call = cast(Mapping[str, object], value)
    function = call.get("function")
    if not isinstance(function, dict):
        raise _not_a_call(f"{place}.function")
    parts = cast(Mapping[str, object], function)
    if not isinstance(parts.get("name"), str):
        raise bad_request(f"{place}.function.name must be a string.", f"{place}.function.name")
    if not isinstance(parts.get("arguments", ""), str):
        raise bad_request(
            f"{place}.function.arguments must be a string of JSON.", f"{place}.function.arguments"
        )
    return call


def _not_a_call(place: str) -> HttpError:
    return bad_request(f"{place} must be an object that describes a call of a function.", place)


def _text_or_none(fields: Mapping[str, object], name: str, place: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise bad_request(f"{place}.{name} must be a string.", f"{place}.{name}")
    return value
