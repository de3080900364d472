"""Every message of the wire and of the gRPC API, with every field set: what a recording of them has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from google.protobuf import json_format
from google.protobuf.message import Message
from headrace_contracts.pb import inference_pb2, queue_pb2

Json = dict[str, Any]


def messages() -> Iterator[Message]:
    """Every message of the wire and of the gRPC API, every field set; one for each alternative."""
    for module in (queue_pb2, inference_pb2):
        for name in cast("Any", module).DESCRIPTOR.message_types_by_name:
            kind = cast("type[Message]", getattr(module, name))
            descriptor: Any = kind.DESCRIPTOR
            choices = [
                field.name
                for group in descriptor.oneofs
                if len(group.fields) > 1
                for field in group.fields
            ]
            for chosen in choices or [None]:
                yield _filled(kind(), frozenset(choices) - {chosen})


def _filled(
    message: Message, without: frozenset[str | None] = frozenset(), inside: tuple[str, ...] = ()
) -> Message:
    descriptor: Any = message.DESCRIPTOR
    inside = (*inside, descriptor.full_name)
    for field in descriptor.fields:
        # A message may hold others of its own kind: one of them is enough.
        endless = field.message_type and inside.count(field.message_type.full_name) > 1
        if field.name in without or endless:
            continue
        value: Any = getattr(message, field.name)
        if field.message_type and field.message_type.GetOptions().map_entry:
            by_name = field.message_type.fields_by_name
            value[_scalar(by_name["key"], 0)] = _scalar(by_name["value"], 0)
        elif field.message_type and field.is_repeated:
            for _ in range(2):
                _filled(value.add(), inside=inside)
        elif field.message_type:
            value.SetInParent()
            _filled(value, inside=inside)
        elif field.is_repeated:
            value.extend(_scalar(field, i) for i in range(2))
        else:
            setattr(message, field.name, _scalar(field, 0))
    return message


def _scalar(field: Any, i: int) -> object:
    if field.enum_type:
        return field.enum_type.values[1 + i].number
    match field.cpp_type:
        case field.CPPTYPE_STRING if field.type == field.TYPE_BYTES:
            return f"{field.name} \x00\xff{i}".encode("latin-1")
        case field.CPPTYPE_STRING:
            return f"{field.name} äé {i}"
        case field.CPPTYPE_FLOAT | field.CPPTYPE_DOUBLE:
            return field.number + i + 0.25
        case field.CPPTYPE_BOOL:
            return True
        case _:
            return 1000 * field.number + i


def kind_of(name: str) -> type[Message]:
    """A message's class by its name."""
    module = queue_pb2 if name in queue_pb2.DESCRIPTOR.message_types_by_name else inference_pb2
    return cast("type[Message]", getattr(module, name))


def value_of(message: Message) -> Json:
    """A message as data, with the names of its fields."""
    return json_format.MessageToDict(message, preserving_proto_field_name=True)
