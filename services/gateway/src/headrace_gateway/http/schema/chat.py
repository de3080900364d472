"""The body of ``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated

from pydantic import WithJsonSchema

from headrace_gateway.http.errors import bad_request
from headrace_gateway.http.schema.fields import GenerationFields
from headrace_gateway.inference.calls import SamplingCall

Messages = Annotated[
    object,
    WithJsonSchema({"type": "array", "minItems": 1, "items": {"type": "object"}}),
]


class ChatFields(GenerationFields):
    """Shared fields, and those of a chat."""

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, object] | None = None
    """Further names of the model's template."""

    def check_together(self) -> None:
        super().check_together()
        older, newer = self.max_tokens, self.max_completion_tokens
        if older is not None and newer is not None and older != newer:
            raise bad_request(
                "max_tokens and max_completion_tokens differ; send one of them.", "max_tokens"
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise bad_request("top_logprobs needs logprobs to be true.", "top_logprobs")

    def sampling(self) -> SamplingCall:
        """What the service is asked for."""
        newer = self.max_completion_tokens
        return self.sampling_with(
            max_tokens=self.max_tokens if newer is None else newer,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )
