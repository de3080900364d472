"""Fields that clients send and this version does not act on: what is refused, what is only a hint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, cast

from headrace_gateway.http.errors import bad_request, unsupported
from headrace_gateway.http.schema.fields import StreamOptions

HINTS: Final = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "user",
    }
)
"""Never change the answer, so they may be taken without being acted on."""

_NEUTRAL_EVERYWHERE: Final[Mapping[str, tuple[object, ...]]] = {
    "add_special_tokens": (True,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "beam_width": (1,),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "length_penalty": (1, 1.0),
    "priority": (0,),
    "prompt_logprobs": (),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
NEUTRAL_CHAT: Final[Mapping[str, tuple[object, ...]]] = {
    **_NEUTRAL_EVERYWHERE,
    "add_generation_prompt": (True,),
    "audio": (),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "reasoning_effort": ("none",),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Known fields of chat that are not offered, with the values (beside null) that ask for nothing."""
NEUTRAL_COMPLETION: Final[Mapping[str, tuple[object, ...]]] = {
    **_NEUTRAL_EVERYWHERE,
    "suffix": ("",),
}
"""The same for completions."""


def check_offered(body: Mapping[str, object], neutral: Mapping[str, tuple[object, ...]]) -> None:
    """Raises HttpError for a field that asks for something not offered."""
    for name in sorted(neutral.keys() & body.keys()):
        value = body[name]
        if value is not None and not any(_same(value, fine) for fine in neutral[name]):
            raise unsupported(f"{name} is not supported by this server.", name)


def unknown_fields(
    body: Mapping[str, object],
    known: Iterable[str],
    neutral: Mapping[str, object],
    *,
    strict: bool,
) -> tuple[str, ...]:
    """Names that mean nothing here, also within ``stream_options``.

    Raises HttpError for the first of them if ``strict``.
    """
    names = (
        *sorted(body.keys() - HINTS - neutral.keys() - frozenset(known)),
        *_unknown_options(body.get("stream_options")),
    )
    if strict and names:
        raise bad_request(f"{names[0]!a} is not a field of this route.", names[0])
    return names


def _unknown_options(options: object) -> list[str]:
    if not isinstance(options, dict):
        return []
    names = cast(Mapping[str, object], options).keys() - StreamOptions.model_fields.keys()
    return sorted(f"stream_options.{name}" for name in names)


def _same(value: object, fine: object) -> bool:
    """Equal and of one type: False is not 0."""
    return type(value) is type(fine) and value == fine
