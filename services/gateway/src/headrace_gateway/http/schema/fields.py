"""Fields that both generating routes share. Types are judged here, ranges by the admission."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, WithJsonSchema

from headrace_gateway.http.body import place_name
from headrace_gateway.http.errors import HttpError, bad_request, unsupported
from headrace_gateway.inference.calls import SamplingCall

_TOKEN_ID: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_SALT_CHARACTERS: Final = 256

Stop = Annotated[
    object,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                {"type": "null"},
            ]
        }
    ),
]
LogitBias = Annotated[
    object,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "object", "additionalProperties": {"type": "number"}},
                {"type": "null"},
            ]
        }
    ),
]


class StreamOptions(BaseModel):
    """How a stream is told."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Taken and not acted on: chunks are not padded."""


class GenerationFields(BaseModel):
    """The shared fields. Null is the same as absent, everywhere but in ``model``."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    model: Annotated[str, Field(min_length=1, max_length=256)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    best_of: int | None = None
    """Only as many as ``n``: every choice is returned."""
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: FiniteFloat | None = None
    top_p: FiniteFloat | None = None
    top_k: int | None = None
    min_p: FiniteFloat | None = None
    presence_penalty: FiniteFloat | None = None
    frequency_penalty: FiniteFloat | None = None
    repetition_penalty: FiniteFloat | None = None
    logit_bias: LogitBias = None
    seed: int | None = None
    stop: Stop = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    cache_salt: Annotated[str, Field(max_length=_SALT_CHARACTERS)] | None = None
    """Requests share cached prefixes only with those of the same salt."""
    user: str | None = None
    metadata: dict[str, object] | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def check_together(self) -> None:
        """Raises HttpError for fields that contradict each other."""
        if self.stream_options is not None and not self.stream:
            raise bad_request(
                "stream_options is only allowed when stream is true.", "stream_options"
            )
        if self.best_of is not None and self.best_of != (1 if self.n is None else self.n):
            raise unsupported("best_of is only supported when it equals n.", "best_of")

    def sampling_with(self, *, max_tokens: int | None, logprobs: int | None) -> SamplingCall:
        """What the service is asked for, with the two fields that each route spells its own way."""
        return SamplingCall(
            n=self.n,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=logit_bias_of(self.logit_bias),
            seed=self.seed,
            stop=stops_of(self.stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            logprobs=logprobs,
            include_stop=bool(self.include_stop_str_in_output),
        )


Fields = TypeVar("Fields", bound=GenerationFields)
Typed = TypeVar("Typed", bound=BaseModel)


def fields_of(kind: type[Fields], body: Mapping[str, object]) -> Fields:
    """The typed fields of a body. Raises HttpError that names the first wrong one."""
    fields = typed(kind, body)
    fields.check_together()
    return fields


def typed(kind: type[Typed], body: Mapping[str, object]) -> Typed:
    """The same of any body, without a look at how fields go together."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise _first_fault(error) from None


def stops_of(value: object) -> tuple[str, ...]:
    """``stop``: null, a string, or an array of them; never an empty one."""
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise bad_request("stop must be a string or an array of strings.", "stop")
    found: list[str] = []
    for stop in cast(list[object], stops):
        if not isinstance(stop, str):
            raise bad_request("stop must be a string or an array of strings.", "stop")
        if not stop:
            raise bad_request("A stop string must not be empty.", "stop")
        found.append(stop)
    return tuple(found)


def logit_bias_of(value: object) -> dict[int, float] | None:
    """``logit_bias``: null, or an object of token ids (as JSON must write them: strings)."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise bad_request("logit_bias must be an object of token ids and numbers.", "logit_bias")
    biases: dict[int, float] = {}
    for name, bias in cast(Mapping[str, object], value).items():
        if not _TOKEN_ID.fullmatch(name):
            raise bad_request(f"logit_bias: {name[:40]!a} is not a token id.", "logit_bias")
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise bad_request(f"logit_bias: the bias of {name} must be a number.", "logit_bias")
        biases[int(name)] = _float(bias, "logit_bias")
    return biases


def _float(number: int | float, param: str) -> float:
    try:
        return float(number)
    except OverflowError:
        raise bad_request(f"{param} holds a number too large for a 64-bit float.", param) from None


def _first_fault(error: ValidationError) -> HttpError:
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place: Sequence[str | int] = fault["loc"]
    param = place_name(place)
    if fault["type"] == "missing":
        return bad_request(f"{param} is required.", param)
    return bad_request(f"{param}: {_plain(fault['msg'])}.", param)


def _plain(message: str) -> str:
    return message[:1].lower() + message[1:]
