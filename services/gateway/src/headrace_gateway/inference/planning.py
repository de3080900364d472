"""From a call to records: checked, rendered, tokenized, measured. Nothing is queued here.

Next: headrace_gateway.inference.service
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import ModelCard, RequestRecord, Sampling
from headrace_kit.clock import Clock

from headrace_gateway.errors import (
    BACKEND_RETRY_S,
    DeadlineExceeded,
    InvalidRequest,
    NoEngine,
    PermissionDenied,
)
from headrace_gateway.inference import admission
from headrace_gateway.inference.calls import (
    Call,
    Caller,
    ChatPrompt,
    Prompt,
    TextPrompt,
    TokenPrompt,
)
from headrace_gateway.inference.catalog import Catalog, Model
from headrace_gateway.inference.once import GRACE_S
from headrace_gateway.inference.resume import EdgeNote, record_ids
from headrace_gateway.inference.running import OpenCall
from headrace_gateway.inference.session import Session
from headrace_gateway.settings import GatewaySettings

MAX_CHOICES_PER_CALL: Final = 1024
"""Prompts times n."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A call that may run: its sessions with their records, and what to begin its text with."""

    call: OpenCall
    echo: Sequence[str]
    """Per prompt; empty when not asked for."""


class Planner:
    """Decides whether a call may run, and writes its records. Changes nothing."""

    def __init__(
        self,
        catalog: Catalog,
        settings: GatewaySettings,
        clock: Clock,
        *,
        threads: Executor,
        process: str,
    ) -> None:
        """``threads`` tokenize long prompts. ``process`` names this gateway."""
        self._catalog = catalog
        self._settings = settings
        self._clock = clock
        self._threads = threads
        self._process = process

    async def plan(self, call: Call, *, arrived: float) -> Plan:
        """The call as it would be submitted. ``arrived`` in monotonic seconds.

        Raises a ``GatewayError`` for everything that a call can be refused for, short of a full
        queue and its key's concurrency.
        """
        deadline_s = self._deadline_s(call)
        card = await self.card(call.model, call.caller)
        sampling = admission.plan_sampling(call, card)
        n = self._choices(call)
        admission.check_salt(call.cache_salt)
        model = await self._catalog.model(card.model)
        prompts = await self._prompt_ids(model, call)
        records = self._records(call, prompts, sampling, card, n, deadline_s)
        if not self._settings.scale_from_zero and not await self._catalog.engines(card.model):
            raise NoEngine(f"No engine serves {card.model!r} now.", retry_after_s=BACKEND_RETRY_S)
        note = note_of(call, sampling, len(prompts))
        now = self._clock.monotonic()
        sessions: list[Session] = []
        for record, prompt in zip(records, prompts, strict=True):
            record.edge = note.encode()
            sessions.append(
                Session(
                    record,
                    choice_text=note.choice_text(model),
                    prompt_tokens=len(prompt),
                    now=now,
                    hidden=note.hidden,
                )
            )
        opened = OpenCall(
            call_id=call.request_id,
            model=card.model,
            kind=call.kind,
            key_id=call.caller.key_id,
            tenant=call.caller.tenant,
            n=n,
            sessions=sessions,
            names=model.text,
            fingerprint=model.fingerprint,
            created_ms=self._clock.wall_ms(),
            arrived=arrived,
            deadline=None if deadline_s is None else arrived + deadline_s,
            span=call.span,
            resumable=call.resumable,
            grace_s=grace_of(call),
        )
        echo = [model.text.decode(p, skip_special=False) for p in prompts] if call.echo else ()
        return Plan(opened, echo)

    async def card(self, name: str, caller: Caller) -> ModelCard:
        """The card of a model that the caller may use. Raises ``ModelNotFound`` and
        ``PermissionDenied``.
        """
        card = await self._catalog.card(name)
        if caller.models and name not in caller.models:
            raise PermissionDenied("This key may not use this model.", param="model")
        return card

    def _deadline_s(self, call: Call) -> float | None:
        """Seconds from arrival; the operator's default where the caller names none."""
        if call.deadline_s is None:
            return self._settings.default_deadline_s or None
        if call.deadline_s <= 0:
            raise DeadlineExceeded("The deadline had passed when the request arrived.")
        most = self._settings.max_deadline_s
        if not call.deadline_s <= most:  # NaN too
            raise InvalidRequest(f"A deadline is at most {most:g} s away.", param="timeout")
        return call.deadline_s

    def _choices(self, call: Call) -> int:
        n = admission.choices(call.sampling)
        most = self._settings.max_prompts_per_call
        param = prompt_param(call)
        if not call.prompts:
            raise InvalidRequest("There is no prompt.", param=param)
        if len(call.prompts) > most:
            raise InvalidRequest(
                f"A call has at most {most} prompts, not {len(call.prompts)}.", param=param
            )
        if n * len(call.prompts) > MAX_CHOICES_PER_CALL:
            raise InvalidRequest(
                f"n times the number of prompts is at most {MAX_CHOICES_PER_CALL}.", param="n"
            )
        return n

    async def _prompt_ids(self, model: Model, call: Call) -> list[list[int]]:
        """Token ids of every prompt; long ones are tokenized off the event loop."""

        def tokenize() -> list[list[int]]:
            try:
                return [model.text.prompt_ids(prompt, call.fields) for prompt in call.prompts]
            except InvalidRequest as error:
                error.param = error.param or prompt_param(call)
                raise

        if sum(map(_size, call.prompts)) <= self._settings.inline_chars:
            return tokenize()
        return await asyncio.get_running_loop().run_in_executor(self._threads, tokenize)

    def _records(
        self,
        call: Call,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        card: ModelCard,
        n: int,
        deadline_s: float | None,
    ) -> list[RequestRecord]:
        now_ms = self._clock.wall_ms()
        cap = self._settings.max_tokens_per_call
        records: list[RequestRecord] = []
        for record_id, prompt in zip(
            record_ids(call.request_id, len(prompts)), prompts, strict=True
        ):
            room = admission.fit(prompt, call.sampling, card, cap=cap, param=prompt_param(call))
            record = RequestRecord(
                version=WIRE_VERSION,
                id=record_id,
                model=card.model,
                gateway=self._process,
                tenant=call.caller.tenant,
                band=call.caller.band,
                key_id=call.caller.key_id,
                prompt=prompt,
                n=n,
                sampling=sampling,
                deadline_ms=0 if deadline_s is None else now_ms + max(1, int(deadline_s * 1000)),
                submitted_ms=now_ms,
                cache_salt=call.cache_salt,
                traceparent=call.span.traceparent,
            )
            record.sampling.max_new_tokens = room
            records.append(record)
        return records


def prompt_param(call: Call) -> str:
    """What the call's route calls its prompt."""
    return "messages" if call.kind == "chat" else "prompt"


def note_of(call: Call, sampling: Sampling, prompts: int) -> EdgeNote:
    """What another gateway would have to know."""
    return EdgeNote(
        kind=call.kind,
        prompts=prompts,
        stop=tuple(call.sampling.stop),
        stop_token_ids=tuple(sampling.stop_token_ids),
        min_tokens=sampling.min_new_tokens,
        include_stop=call.sampling.include_stop,
        logprobs=sampling.logprobs if sampling.HasField("logprobs") else None,
        traceparent=call.span.traceparent,
        grace_s=grace_of(call),
    )


def grace_of(call: Call) -> float:
    """How long a call goes on without a reader, at least."""
    return 0.0 if call.once is None else GRACE_S


def _size(prompt: Prompt) -> int:
    """Characters or tokens of a prompt, roughly: how long it will take."""
    match prompt:
        case ChatPrompt(messages):
            return sum(len(message.content) for message in messages)
        case TextPrompt(text):
            return len(text)
        case TokenPrompt(ids):
            return len(ids)
