"""A model's chat template: messages to token ids, so that only the template opens a turn.

What callers wrote is guarded (``headrace_gateway.text.guard``) before it is rendered, so that no
control token can come of it. After rendering, control tokens are parsed (all that are left are
the template's own), the guarded characters are put back, and each run between control tokens is
encoded as one plain text: the ids are those of the unguarded text wherever that holds no control
token.

Templates come with the model, which the operator chose: they run in an immutable sandbox, with
bounds against runaway loops and output.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace_gateway.inference.calls import Message
from headrace_gateway.text.errors import PromptRejected, TemplateRefused, TokenizerRejected
from headrace_gateway.text.guard import GuardFactory
from headrace_gateway.text.tokenizer import Tokenizer

ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
MAX_RENDERED_CHARS: Final = 16_000_000
MAX_RANGE_TOTAL: Final = 100_000
"""Numbers that all ``range`` calls of one rendering may give together."""

_RESERVED: Final = frozenset(
    {"messages", "add_generation_prompt", "range", "raise_exception", "strftime_now"}
)


class _Refusal(jinja2.TemplateError):
    """``raise_exception`` was called."""


class _GenerationTag(Extension):
    """``{% generation %}`` marks answers for training; serving renders what is inside."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Refuses products that would blow up: nothing a template needs."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        if (
            isinstance(left, (int, float))
            and isinstance(right, (int, float))
            and (operator == "*" or abs(right) <= 64)
        ):
            return super().call_binop(context, operator, left, right)
        raise jinja2.TemplateRuntimeError(f"{operator} is allowed between small numbers only")


class ChatTemplate:
    """One model's template, compiled. Immutable; safe to use from several threads."""

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime],
    ) -> None:
        """``now`` is for templates that write the date. Raises TokenizerRejected."""
        environment = _Sandbox(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        )
        environment.filters["tojson"] = _to_json

        def strftime_now(form: str) -> str:
            return now().strftime(form)

        names = {"raise_exception": _refuse, "strftime_now": strftime_now}
        try:
            self._template = environment.from_string(source, globals=names)
        except jinja2.TemplateError as error:
            raise TokenizerRejected(f"The chat template cannot be compiled: {error}") from error
        self._tokenizer = tokenizer
        self._special_tokens = dict(special_tokens)
        self._knows_tools = "tool_calls" in source
        self._knows_developer = "developer" in source
        self._guards = GuardFactory(tokenizer, source)

    def prompt_ids(
        self,
        messages: Sequence[Message],
        fields: Mapping[str, object] | None = None,
        *,
        below: int | None = None,
    ) -> list[int]:
        """Token ids of the messages, up to where the assistant's answer begins.

        ``fields`` are further names for the template. ``below`` as of ``encode_with_control``.
        Raises PromptRejected, or TemplateRefused with the template's words.
        """
        rendered, restore = self._rendered(messages, fields or {})
        return self._tokenizer.encode_with_control(rendered, restore=restore, below=below)

    def text(self, messages: Sequence[Message], fields: Mapping[str, object] | None = None) -> str:
        """The rendered prompt as text, for people: its control tokens look like typed ones."""
        rendered, restore = self._rendered(messages, fields or {})
        return rendered.translate(restore)

    def _rendered(
        self, messages: Sequence[Message], fields: Mapping[str, object]
    ) -> tuple[str, Mapping[int, int]]:
        self._check(messages, fields)
        shaped = [self._shape(message) for message in messages]
        guard = self._guards.guard([*shaped, fields])
        names: dict[str, object] = {
            # As transformers does: templates ask `tools is not none`.
            "tools": None,
            "documents": None,
            **{name: guard.value(value) for name, value in fields.items()},
            **self._special_tokens,
            "messages": [guard.message(message) for message in shaped],
            "add_generation_prompt": True,
            "range": _Range(),
        }
        return self._render(names), guard.restore

    def _check(self, messages: Sequence[Message], fields: Mapping[str, object]) -> None:
        if not messages:
            raise PromptRejected("There must be at least one message.", param="messages")
        for i, message in enumerate(messages):
            if message.role not in ROLES:
                raise PromptRejected(
                    f"messages[{i}].role is not one of {', '.join(sorted(ROLES))}.",
                    param="messages",
                )
        if taken := fields.keys() & (_RESERVED | self._special_tokens.keys()):
            raise PromptRejected(
                f"chat_template_kwargs must not set {', '.join(sorted(taken))}.",
                param="chat_template_kwargs",
            )

    def _shape(self, message: Message) -> dict[str, object]:
        """The message as templates expect it."""
        role, content = message.role, message.content
        if role == "developer" and not self._knows_developer:
            role = "system"
        calls = [_call(call) for call in message.tool_calls]
        if calls and not self._knows_tools:
            # A template that knows no tools would drop the calls: they are told as text.
            told = json.dumps([call.get("function", call) for call in calls], ensure_ascii=False)
            content, calls = f"{content}\n{told}" if content else told, []
        shaped: dict[str, object] = {"role": role, "content": content}
        if message.name is not None:
            shaped["name"] = message.name
        if message.tool_call_id is not None:
            shaped["tool_call_id"] = message.tool_call_id
        if calls:
            shaped["tool_calls"] = calls
        return shaped

    def _render(self, names: Mapping[str, object]) -> str:
        pieces: list[str] = []
        chars = 0
        try:
            for piece in self._template.generate(names):
                pieces.append(piece)
                chars += len(piece)
                if chars > MAX_RENDERED_CHARS:
                    raise PromptRejected(
                        f"The rendered messages are longer than {MAX_RENDERED_CHARS} characters.",
                        param="messages",
                    )
        except _Refusal as error:
            raise TemplateRefused(str(error.message), param="messages") from error
        except (
            jinja2.TemplateError,
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            # What a template can do wrong with messages it was not written for.
            raise PromptRejected(
                f"The model's chat template cannot render these messages: {error}",
                param="messages",
            ) from error
        return "".join(pieces)


class _Range:
    """``range`` with a budget for one rendering."""

    def __init__(self) -> None:
        self._left = MAX_RANGE_TOTAL

    def __call__(self, *bounds: int) -> range:
        numbers = range(*bounds)
        self._left -= len(numbers)
        if self._left < 0:
            raise jinja2.TemplateRuntimeError(f"range gave more than {MAX_RANGE_TOTAL} numbers")
        return numbers


def _refuse(message: object) -> NoReturn:
    raise _Refusal(str(message))


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's own: no HTML escapes, and the arguments that templates pass."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _call(call: Mapping[str, object]) -> dict[str, object]:
    """A tool call with its arguments as a value: the API has them as JSON text."""
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    parts = dict(cast("Mapping[str, object]", function))
    arguments = parts.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed: object = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict):
            parts["arguments"] = cast("dict[str, object]", parsed)
    return {**call, "function": parts}
