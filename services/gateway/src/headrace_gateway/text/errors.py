"""What text handling refuses.

InvalidRequest
└── PromptRejected        the caller changes the prompt
    └── TemplateRefused   the model's own template said no, in its words
Internal
└── TokenizerRejected     the model card's files cannot be used here
"""

from __future__ import annotations

from headrace_gateway.errors import Internal, InvalidRequest


class PromptRejected(InvalidRequest):
    """This prompt can never be turned into tokens of this model."""


class TemplateRefused(PromptRejected):
    """The template called ``raise_exception``; the message is the template's."""


class TokenizerRejected(Internal):
    """A tokenizer or template of a model card that this gateway cannot serve."""
