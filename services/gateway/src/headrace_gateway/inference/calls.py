"""What an edge (HTTP, gRPC) asks of the inference service, and what it gets back.

Nothing here knows HTTP, gRPC or Redis. Next: headrace_gateway.inference.service
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from headrace_contracts.codes import Code, FinishReason
from headrace_kit.traces import NO_SPAN, Span


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message, its content already joined to a string."""

    role: str
    content: str
    name: str | None = None
    tool_calls: Sequence[Mapping[str, object]] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Rendered by the model's template; text inside messages never becomes control tokens."""

    messages: Sequence[Message]


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A raw prompt; control tokens in it are parsed as such (documented)."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt of token ids."""

    ids: Sequence[int]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class SamplingCall:
    """The caller's sampling fields. None: the default applies (the model's, else ours).

    Types are checked by the edge; ranges by ``inference.admission``, once for all edges.
    """

    n: int | None = None
    max_tokens: int | None = None
    """None: what the context leaves for chat, 16 for completions (the edge sets 16)."""
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """None: not wanted; n: of the chosen token and the n most likely."""
    include_stop: bool = False
    """Whether a matched stop string stays in the text."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: the outcome of authentication."""

    key_id: str
    tenant: str
    band: int
    scopes: frozenset[str]
    models: frozenset[str]
    max_concurrency: int | None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class Bucket:
    """What is left of a limit."""

    limit: int
    left: int
    full_s: float
    """Until all of it is back, if nothing more is taken."""


@dataclass(frozen=True, slots=True)
class RateState:
    """What is left of a key's minute; None where there is no limit."""

    requests: Bucket | None
    tokens: Bucket | None


@dataclass(frozen=True, slots=True)
class Reservation:
    """What was taken from a key's minute for a call, and by which limits."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    tokens: int


@dataclass(frozen=True, slots=True)
class OnceKey:
    """A caller's idempotency key, and the body that came with it, as hashes."""

    name: str
    body: str


@dataclass(frozen=True, slots=True)
class Call:
    """One request of an edge. Several prompts make several engine requests under one id."""

    kind: Literal["chat", "completion"]
    model: str
    prompts: Sequence[Prompt]
    sampling: SamplingCall
    caller: Caller
    request_id: str
    """Ours, unique: ``chatcmpl-...`` or ``cmpl-...``; prompt i of several runs as ``<id>.<i>``."""
    echo: bool = False
    cache_salt: bytes = b""
    deadline_s: float | None = None
    """Seconds from now."""
    resumable: bool = False
    """Whether the edge tells its client places at which the stream can be taken up elsewhere."""
    span: Span = NO_SPAN
    """The edge's, which ends it: what the engines do hangs below it."""
    fields: Mapping[str, object] = field(default_factory=dict[str, object])
    """Extra names of the template (chat_template_kwargs)."""
    once: OnceKey | None = None
    """Set: the same call again is this one."""


@dataclass(frozen=True, slots=True)
class TopToken:
    """A candidate beside a chosen token."""

    id: int
    text: str
    raw: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """One generated token with its logprob; ``raw`` are its exact bytes."""

    id: int
    text: str
    raw: bytes
    logprob: float
    top: Sequence[TopToken]


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """Sums over a call: the prompt counts once per prompt, completions over all choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(slots=True)  # frozen, it would cost a call for each field, and there is one a token
class Delta:
    """Some text of one choice. ``index`` = prompt position x n + choice.

    ``cursor`` names the place for ``GET /v1/requests/{id}/events?after=``: all tokens of the
    choice up to this delta are ``cursor`` many.
    """

    index: int
    text: str
    token_ids: Sequence[int]
    tokens: Sequence[TokenInfo]
    cursor: int
    finish: FinishReason | None = None
    code: Code | None = None
    """Set when ``finish`` is ERROR."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """The last event of a call."""

    usage: UsageTotal


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Nothing happened for a while; the edge may write a comment."""


Event = Delta | Done | KeepAlive
