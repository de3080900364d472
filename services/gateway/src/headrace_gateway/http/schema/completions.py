"""The body of ``POST /v1/completions``."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import WithJsonSchema

from headrace_gateway.http.errors import unsupported
from headrace_gateway.http.schema.fields import GenerationFields
from headrace_gateway.inference.calls import SamplingCall

_DEFAULT_TOKENS: Final = 16
"""As the OpenAI API documents it for this route."""

PromptField = Annotated[
    object,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                {"type": "array", "items": {"type": "integer"}},
                {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            ]
        }
    ),
]


class CompletionFields(GenerationFields):
    """Shared fields, and those of a completion."""

    prompt: PromptField = None
    echo: bool | None = None
    logprobs: int | None = None

    def check_together(self) -> None:
        super().check_together()
        if self.logprobs is not None and self.echo:
            raise unsupported("echo is not supported together with logprobs.", "echo")

    def sampling(self) -> SamplingCall:
        """What the service is asked for."""
        return self.sampling_with(
            max_tokens=_DEFAULT_TOKENS if self.max_tokens is None else self.max_tokens,
            logprobs=self.logprobs,
        )
