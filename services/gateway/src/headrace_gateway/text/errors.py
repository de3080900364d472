"""What text handling refuses.

InvalidRequest
└── PromptRejected        the caller changes the prompt
    ├── TemplateRefused   the model's own template said no, in its words
    └── TextTooLong       it has more tokens than the model's context, whatever they are
Internal
└── TokenizerRejected     the model card's files cannot be used here
"""

from __future__ import annotations

from headrace_contracts.codes import Code

from headrace_gateway.errors import Internal, InvalidRequest


class PromptRejected(InvalidRequest):
    """This prompt can never be turned into tokens of this model."""


class TemplateRefused(PromptRejected):
    """The template called ``raise_exception``; the message is the template's."""


class TextTooLong(PromptRejected):
    """Told by its length alone, before it is tokenized."""

    code = Code.CONTEXT_LENGTH_EXCEEDED

    def __init__(self, *, least_tokens: int, limit_tokens: int) -> None:
        super().__init__(
            f"This model's context length is {limit_tokens} tokens. The prompt is so long that it "
            f"has {least_tokens} or more."
        )


class TokenizerRejected(Internal):
    """A tokenizer or template of a model card that this gateway cannot serve."""
