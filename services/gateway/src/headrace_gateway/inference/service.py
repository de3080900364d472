"""The use case: a call comes in, an admitted request goes out, its events come back.

Edges (HTTP, gRPC) hold this one object. Everything a call can be refused for is decided in
``start``, before the first byte of an answer. Next: headrace_gateway.inference.running
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final, Literal

from headrace_contracts.codes import FinishReason
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import ModelCard, RequestRecord, Sampling, Usage
from headrace_kit.clock import Clock
from headrace_kit.log import get_logger
from headrace_transport import errors as transport
from headrace_transport.interface import GatewayWire, RequestState

from headrace_gateway.errors import (
    BACKEND_RETRY_S,
    BackendUnavailable,
    Conflict,
    DeadlineExceeded,
    Draining,
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    NoEngine,
    PermissionDenied,
    QueueFull,
    RateLimitExceeded,
    RequestNotFound,
    transport_errors,
)
from headrace_gateway.inference import admission
from headrace_gateway.inference.calls import (
    Call,
    Caller,
    ChatPrompt,
    Prompt,
    TextPrompt,
    TokenPrompt,
    UsageTotal,
)
from headrace_gateway.inference.cancels import Cancels, mark_of
from headrace_gateway.inference.catalog import Catalog, Model
from headrace_gateway.inference.inbox import Inbox
from headrace_gateway.inference.readiness import Readiness
from headrace_gateway.inference.receipt import Receipts
from headrace_gateway.inference.recovery import REMARK_S, Patience, Recovery
from headrace_gateway.inference.resume import (
    EdgeNote,
    parse_cursor,
    place,
    record_ids,
    resumed_session,
)
from headrace_gateway.inference.running import OpenCall, Running
from headrace_gateway.inference.session import Outcome, Session
from headrace_gateway.inference.tasks import Tasks
from headrace_gateway.metrics import GatewayMetrics
from headrace_gateway.settings import GatewaySettings

log = get_logger(__name__)

TICK_S: Final = 0.1
"""Time between two looks at deadlines and silent requests."""
TRIM_EVERY_S: Final = 1.0
CLOSING_S: Final = 10.0
"""How long an ended request keeps its slots when its engine does not tell its end."""
MAX_CHOICES_PER_CALL: Final = 1024
"""Prompts times n."""
DRAIN_RETRY_S: Final = 1
"""Another gateway takes the call at once; one second is the least that can be said."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model as callers see it."""

    id: str
    created: int
    """Unix seconds."""
    context_tokens: int
    ready: bool
    """Whether an engine serves it now."""
    architecture: str
    dtype: str
    weights_version: str


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """A request as its caller sees it."""

    id: str
    model: str
    status: Literal["queued", "running", "finished"]
    created_ms: int
    attempt: int
    n: int
    prompt_tokens: int
    finish: FinishReason | None
    usage: UsageTotal | None


class InferenceService:
    """One per process. Belongs to one event loop; enter it before use."""

    def __init__(
        self,
        wire: GatewayWire,
        catalog: Catalog,
        settings: GatewaySettings,
        metrics: GatewayMetrics,
        readiness: Readiness,
        clock: Clock,
        *,
        threads: Executor,
        process: str,
    ) -> None:
        """``process``: name and boot nonce of this gateway."""
        self._wire = wire
        self._catalog = catalog
        self._settings = settings
        self._metrics = metrics
        self._readiness = readiness
        self._refusing = False
        self._clock = clock
        self._threads = threads
        self._process = process
        self._calls: dict[str, OpenCall] = {}
        self._unsettled = 0
        """Calls that have not ended."""
        self._readers = 0
        self._no_readers = asyncio.Event()
        self._no_readers.set()
        self._owners: dict[str, OpenCall] = {}
        """Call of each record id."""
        self._rates: dict[str, admission.DrainRate] = {}
        self._resuming = asyncio.Lock()
        self._tasks = Tasks()
        self._receipts = Receipts(metrics, clock)
        self._cancels = Cancels(wire, self._tasks, metrics)
        self._inbox = Inbox(
            wire,
            process,
            clock,
            metrics,
            heard=self._heard,
            reconnected=self._reconnected,
        )
        self._recovery = Recovery(
            wire,
            process,
            clock,
            metrics,
            inbox=self._inbox,
            catalog=catalog,
            cancels=self._cancels,
            tasks=self._tasks,
            patience=Patience(
                settings.silence_check_s, settings.lost_engine_s, settings.scale_from_zero
            ),
            changed=self._changed,
        )
        metrics.open_requests = lambda: self._unsettled
        metrics.open_streams = lambda: self._readers

    # life

    async def run(self, stop: asyncio.Event) -> None:
        """Reads results and looks after requests until ``stop``; then lets go of this process's
        lease. Beats once before it begins, so that frames find a living gateway.
        """
        async with self._tasks:
            await self._beat()
            for job, name in (
                (self._inbox.read(), "inbox"),
                (self._beats(), "beats"),
                (self._watch(), "watch"),
                (self._trims(), "trims"),
            ):
                self._tasks.serve(job, name=name)
            await stop.wait()
        try:
            await self._wire.leave_gateway(self._process)
        except transport.TransportUnavailable:
            log.info("gateway.left_silently")

    async def drain(self, timeout_s: float) -> None:
        """Lets running streams end within ``timeout_s``; the rest then get an error. New calls
        are refused from the first moment on.
        """
        self._readiness.draining = True
        self._refusing = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._no_readers.wait()
        except TimeoutError:
            log.warning("drain.timeout", open=self._unsettled, timeout_s=timeout_s)
        now = self._clock.monotonic()
        for call in list(self._calls.values()):
            if call.ended:
                continue
            keep = self._settings.resume_grace_s > 0
            call.cause = call.cause or ("" if keep else "drain")
            for session in call.sessions:
                if not session.ended:
                    session.fail(Draining("This gateway is shutting down."), now)
                    if not keep:  # otherwise another gateway can take it up
                        self._cancel_record(session, "drain")
            self._settle(call)

    # calls

    def new_id(self, kind: Literal["chat", "completion"]) -> str:
        """An id for a call: unique, and not to be guessed."""
        return f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{secrets.token_hex(14)}"

    async def start(self, call: Call) -> Running:
        """Admits and queues a call. Once this returns, it is queued durably.

        Raises a ``GatewayError`` with nothing queued.
        """
        try:
            return await self._start(call, self._clock.monotonic())
        except GatewayError as error:
            self._metrics.rejected.labels(error.code.wire_name).inc()
            raise

    async def _start(self, call: Call, arrived: float) -> Running:
        self._check_open()
        deadline_s = self._deadline_s(call)
        card = await self._card(call.model, call.caller)
        planned = admission.plan_sampling(call, card)
        n = self._choices(call)
        admission.check_salt(call.cache_salt)
        model = await self._catalog.model(card.model)
        prompts = await self._prompt_ids(model, call)
        param = _prompt_param(call)
        rooms = [
            admission.fit(
                prompt, planned, card, cap=self._settings.max_tokens_per_call, param=param
            )
            for prompt in prompts
        ]
        if not self._settings.scale_from_zero and not await self._catalog.engines(card.model):
            raise NoEngine(f"No engine serves {card.model!r} now.", retry_after_s=BACKEND_RETRY_S)
        note = _note(call, planned, len(prompts))
        now = self._clock.monotonic()
        sessions = [
            Session(
                self._record(call, record_id, prompt, planned, n, room, note, deadline_s),
                choice_text=note.choice_text(model),
                prompt_tokens=len(prompt),
                now=now,
                hidden=note.hidden,
            )
            for record_id, prompt, room in zip(
                record_ids(call.request_id, len(prompts)), prompts, rooms, strict=True
            )
        ]
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
        )
        await self._submit(opened, call.caller)
        echo = [model.text.decode(prompt, skip_special=False) for prompt in prompts]
        return self._reader(opened, "", echo=echo if call.echo else ())

    async def resume(self, request_id: str, after: str, caller: Caller) -> Running:
        """Takes up the stream of a request behind ``after``: "", "12" or "12,9" (see
        ``Running.cursor``). Works at every gateway, as long as the log is kept.
        """
        cursor = parse_cursor(after)
        async with self._resuming:
            call = self._calls.get(request_id)
            if call is not None:
                self._check_owner(call.tenant, call.key_id, request_id, caller)
                self._metrics.resumes.labels("here").inc()
            else:
                call = await self._take_up(request_id, caller)
            call.left_at = None
            if len(cursor) > 1 and len(cursor) != len(call.sessions) * call.n:
                raise InvalidRequest(
                    f"after has {len(cursor)} numbers, but the call has "
                    f"{len(call.sessions) * call.n} choices.",
                    param="after",
                )
            return self._reader(call, after)

    async def cancel(self, request_id: str, caller: Caller) -> bool:
        """Cancels a request wherever it is. False: it had ended.

        Raises ``RequestNotFound`` for an unknown one, and for another key's.
        """
        call = self._calls.get(request_id)
        if call is not None:
            self._check_owner(call.tenant, call.key_id, request_id, caller)
            if call.ended:
                return False
            await self.cancel_call(call, cause="request")
            return True
        states = await self._states(request_id, caller)
        cancelled = False
        mark = mark_of(FinishReason.CANCELLED)
        for record_id, state in states:
            if state is not None and state.status != "finished":
                with transport_errors():
                    cancelled |= await self._wire.cancel(state.model, record_id, mark)
        self._metrics.cancels.labels("request").inc()
        return cancelled

    async def request(self, request_id: str, caller: Caller) -> RequestInfo:
        """What is known of a request. Raises ``RequestNotFound``."""
        states = [state for _, state in await self._states(request_id, caller) if state]
        first = states[0]
        status: Literal["queued", "running", "finished"] = "finished"
        if any(state.status == "running" for state in states):
            status = "running"
        elif any(state.status == "queued" for state in states):
            status = "queued"
        return RequestInfo(
            id=request_id,
            model=first.model,
            status=status,
            created_ms=first.created_ms,
            attempt=max(state.attempt for state in states),
            n=first.n,
            prompt_tokens=sum(state.prompt_tokens for state in states),
            finish=first.finish if status == "finished" else None,
            usage=_total([state.usage for state in states if state.usage is not None]),
        )

    async def models(self, caller: Caller) -> Sequence[ModelInfo]:
        """The models that the caller may use, by name."""
        cards = await self._catalog.cards()
        names = sorted(name for name in cards if not caller.models or name in caller.models)
        return [await self._info(name) for name in names]

    async def model(self, name: str, caller: Caller) -> ModelInfo:
        """One model. Raises ``ModelNotFound`` and ``PermissionDenied``."""
        await self._card(name, caller)
        return await self._info(name)

    async def cancel_call(self, call: OpenCall, *, cause: str) -> None:
        """Ends a call at its readers now, and at its engine as soon as it hears of it."""
        self._end(call, FinishReason.CANCELLED, cause)

    async def left(self, call: OpenCall, reader: Running) -> None:
        """A reader went. The last one to leave an unfinished call cancels it, or starts its
        grace, in which a resume finds it running.
        """
        self._readers -= 1
        if not self._readers:
            self._no_readers.set()
        if call.readers or call.ended:
            return
        call.left_at = self._clock.monotonic()
        if self._settings.resume_grace_s == 0:
            self._end(call, FinishReason.CANCELLED, "disconnect")

    # admission, step by step

    def _check_open(self) -> None:
        if self._refusing:
            raise Draining("This gateway is shutting down.", retry_after_s=DRAIN_RETRY_S)
        limit = self._settings.max_open_requests
        if self._unsettled >= limit:
            raise RateLimitExceeded(
                f"This gateway holds {self._unsettled} open requests, the limit is {limit}.",
                retry_after_s=self._receipts.advise_s(self._unsettled),
            )

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

    async def _card(self, name: str, caller: Caller) -> ModelCard:
        card = await self._catalog.card(name)
        if caller.models and name not in caller.models:
            raise PermissionDenied("This key may not use this model.", param="model")
        return card

    def _choices(self, call: Call) -> int:
        n = admission.choices(call.sampling)
        most = self._settings.max_prompts_per_call
        param = _prompt_param(call)
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
            return [model.text.prompt_ids(prompt, call.fields) for prompt in call.prompts]

        if sum(map(_size, call.prompts)) <= self._settings.inline_chars:
            return tokenize()
        return await asyncio.get_running_loop().run_in_executor(self._threads, tokenize)

    def _record(
        self,
        call: Call,
        record_id: str,
        prompt: Sequence[int],
        planned: Sampling,
        n: int,
        room: int,
        note: EdgeNote,
        deadline_s: float | None,
    ) -> RequestRecord:
        now_ms = self._clock.wall_ms()
        record = RequestRecord(
            version=WIRE_VERSION,
            id=record_id,
            model=call.model,
            gateway=self._process,
            tenant=call.caller.tenant,
            band=call.caller.band,
            key_id=call.caller.key_id,
            prompt=prompt,
            n=n,
            sampling=planned,
            deadline_ms=0 if deadline_s is None else now_ms + max(1, int(deadline_s * 1000)),
            submitted_ms=now_ms,
            cache_salt=call.cache_salt,
            traceparent=call.traceparent,
            edge=note.encode(),
        )
        record.sampling.max_new_tokens = room
        return record

    async def _submit(self, call: OpenCall, caller: Caller) -> None:
        """Queues every record, or none: what was queued before a refusal is cancelled."""
        sent: list[Session] = []
        try:
            for session in call.sessions:
                self._inbox.open(session)
                sent.append(session)
                await self._queue(session, caller, first=session is call.sessions[0])
                session.submitted = True
        except BaseException as error:
            # A plain refusal says that it is not queued; after anything else it may be.
            doubtful = not isinstance(error, GatewayError) or isinstance(error, BackendUnavailable)
            for session in sent:
                self._inbox.close(session)
                if session.submitted or doubtful:
                    self._cancel_record(session, "failure")
            raise
        self._calls[call.id] = call
        self._unsettled += 1
        for session in call.sessions:
            self._owners[session.id] = call
        self._metrics.started.labels(call.model).inc()
        for session in call.sessions:
            if session.ended:  # its rows were here before we were
                self._changed(session)

    async def _queue(self, session: Session, caller: Caller, *, first: bool) -> None:
        model = session.record.model
        try:
            with transport_errors():
                await self._wire.submit(
                    session.record,
                    max_queued=self._settings.max_queued,
                    max_concurrency=caller.max_concurrency if first else None,
                )
        except transport.QueueFull as full:
            retry_s = self._rate(model).advise(self._clock.monotonic())
            raise QueueFull(depth=full.depth, limit=full.limit, retry_after_s=retry_s) from full
        except transport.ConcurrencyExceeded as many:
            raise RateLimitExceeded(
                f"This key has {many.running} requests running, its limit is {many.limit}.",
                retry_after_s=self._receipts.advise_s(many.running),
            ) from many
        except transport.RequestConflict as taken:
            raise Conflict("A request with this id exists.", param="id") from taken
        except transport.RecordRejected as refused:
            raise InvalidRequest(str(refused)) from refused

    def _reader(self, call: OpenCall, after: str, *, echo: Sequence[str] = ()) -> Running:
        self._readers += 1
        self._no_readers.clear()
        return Running(
            call,
            self,
            after=place(parse_cursor(after)),
            keepalive_s=self._settings.keepalive_s,
            echo=echo,
        )

    # resume, step by step

    async def _take_up(self, request_id: str, caller: Caller) -> OpenCall:
        """Makes a call of what the server knows, and has its rows sent here."""
        states = await self._states(request_id, caller)
        first = next(state for _, state in states if state is not None)
        note = EdgeNote.decode(first.edge)
        if note is None or any(state is None for _, state in states):
            raise RequestNotFound(request_id)
        try:
            model = await self._catalog.model(first.model)
        except ModelNotFound as error:
            raise RequestNotFound(request_id) from error
        now = self._clock.monotonic()
        sessions = [
            resumed_session(
                record_id,
                model,
                note,
                n=state.n,
                attempt=state.attempt,
                prompt_tokens=state.prompt_tokens,
                now=now,
            )
            for record_id, state in states
            if state is not None
        ]
        call = OpenCall(
            call_id=request_id,
            model=first.model,
            kind=note.kind,
            key_id=first.key_id,
            tenant=first.tenant,
            n=first.n,
            sessions=sessions,
            names=model.text,
            fingerprint=model.fingerprint,
            created_ms=first.created_ms,
            arrived=now,
            deadline=None,
            resumed=True,
        )
        for session in sessions:
            self._inbox.open(session)
        try:
            with transport_errors():
                for session in sessions:
                    await self._recovery.mend(session)
        except BaseException:
            for session in sessions:
                self._inbox.close(session)
            raise
        self._calls[call.id] = call
        self._unsettled += 1
        for session in sessions:
            self._owners[session.id] = call
        self._metrics.resumes.labels("log" if call.ended else "engine").inc()
        if call.ended:
            self._settle(call)
        return call

    async def _states(
        self, request_id: str, caller: Caller
    ) -> list[tuple[str, RequestState | None]]:
        """State of every record of a call, the first of which is known and the caller's."""
        with transport_errors():
            state = await self._wire.request_state(request_id)
            if state is not None:
                self._check_owner(state.tenant, state.key_id, request_id, caller)
                return [(request_id, state)]
            first = f"{request_id}.0"
            state = await self._wire.request_state(first)
            if state is None:
                raise RequestNotFound(request_id)
            self._check_owner(state.tenant, state.key_id, request_id, caller)
            note = EdgeNote.decode(state.edge)
            found: list[tuple[str, RequestState | None]] = [(first, state)]
            for record_id in record_ids(request_id, note.prompts if note else 1)[1:]:
                found.append((record_id, await self._wire.request_state(record_id)))
            return found

    def _check_owner(self, tenant: str, key_id: str, request_id: str, caller: Caller) -> None:
        """Another key's request does not exist for a caller: ids are not an oracle."""
        if (tenant, key_id) != (caller.tenant, caller.key_id):
            raise RequestNotFound(request_id)

    # what happens to running calls

    def _heard(self, session: Session, outcome: Outcome, choice: int) -> None:
        """A row changed something."""
        if outcome & Outcome.BEGAN:
            self._rate(session.record.model).began(self._clock.monotonic())
        if outcome & Outcome.BEHIND and self._clock.monotonic() >= session.next_check:
            self._recovery.start(session)
        ended = session.choices[choice]
        if outcome & Outcome.STOPPED or (
            outcome & Outcome.DUPLICATE
            and ended.stop_string
            and self._clock.monotonic() - ended.marked_at > REMARK_S
        ):
            self._stop(session, choice)
        if session.ended:
            self._changed(session)

    def _stop(self, session: Session, choice: int) -> None:
        """Tells the engine that a stop string ended a choice."""
        stopped = session.choices[choice]
        stopped.marked_at = self._clock.monotonic()
        self._cancels.ask(
            session.record.model,
            session.id,
            FinishReason.STOP,
            cause="stop_string",
            choice=choice,
            at=len(stopped.tokens),
        )

    def _changed(self, session: Session) -> None:
        """Mending brought something, or a session ended."""
        for index, choice in enumerate(session.choices):
            if choice.stop_string and not choice.engine_done and not choice.marked_at:
                self._stop(session, index)
        session.close(self._clock.monotonic())
        call = self._owners.get(session.id)
        if call is None:
            return
        if session.failure is not None:
            for other in call.sessions:
                if not other.ended:
                    other.end_here(FinishReason.CANCELLED, self._clock.monotonic())
                    self._cancel_record(other, "failure")
        self._settle(call)

    def _end(self, call: OpenCall, reason: FinishReason, cause: str) -> None:
        now = self._clock.monotonic()
        for session in call.sessions:
            if not session.ended:
                call.cause = call.cause or cause
                session.end_here(reason, now)
                self._cancel_record(session, cause, reason)
        self._settle(call)

    def _cancel_record(
        self, session: Session, cause: str, reason: FinishReason = FinishReason.CANCELLED
    ) -> None:
        self._cancels.ask(session.record.model, session.id, reason, cause=cause)

    def _settle(self, call: OpenCall) -> None:
        """Counts and logs the end of a call, once."""
        if call.ended and not call.reported:
            call.reported = True
            self._unsettled -= 1
            self._receipts.write(call)

    def _reconnected(self) -> None:
        self._recovery.check_all_soon()
        self._cancels.retry()

    # what runs beside the calls

    async def _watch(self) -> None:
        """Deadlines, grace, silent requests, marks that could not be sent, and old slots."""
        while True:
            await asyncio.sleep(TICK_S)
            now = self._clock.monotonic()
            for call in list(self._calls.values()):
                self._look_at(call, now)
            self._recovery.look(self._inbox.sessions)
            if self._cancels.pending:
                self._cancels.retry()

    def _look_at(self, call: OpenCall, now: float) -> None:
        if not call.ended:
            if call.deadline is not None and now >= call.deadline:
                self._end(call, FinishReason.DEADLINE, "deadline")
            elif (
                call.left_at is not None
                and not call.readers
                and now - call.left_at >= self._settings.resume_grace_s
            ):
                self._tasks.spawn(self._grace_over(call), name=f"grace {call.id}")
                call.left_at = None
            return
        waits = any(
            not session.engine_done
            and session.failure is None
            and session.ended_at is not None
            and now - session.ended_at < CLOSING_S
            for session in call.sessions
        )
        if not waits and not call.readers:
            for session in call.sessions:
                self._inbox.close(session)
                self._owners.pop(session.id, None)
            del self._calls[call.id]

    async def _grace_over(self, call: OpenCall) -> None:
        """Cancels a call that nobody took up, unless another gateway has it now."""
        for session in call.sessions:
            if session.ended:
                continue
            try:
                state = await self._wire.request_state(session.id)
            except transport.TransportUnavailable:
                state = None
            if call.readers:
                return
            if state is not None and state.gateway not in ("", self._process):
                session.fail(
                    Conflict("The stream was taken up at another gateway."),
                    self._clock.monotonic(),
                )
        self._end(call, FinishReason.CANCELLED, "disconnect")

    async def _beat(self) -> None:
        try:
            await self._wire.beat_gateway(self._process, ttl_ms=int(self._settings.lease_s * 1000))
        except transport.TransportUnavailable:
            log.debug("gateway.beat_missed")

    async def _beats(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_s / 3)
            await self._beat()

    async def _trims(self) -> None:
        while True:
            await asyncio.sleep(TRIM_EVERY_S)
            try:
                await self._inbox.trim(age_s=self._settings.trim_age_s)
            except transport.TransportUnavailable:
                log.debug("inbox.trim_missed")

    async def _info(self, name: str) -> ModelInfo:
        card = await self._catalog.card(name)
        engines = await self._catalog.engines(name)
        return ModelInfo(
            id=card.model,
            created=card.created,
            context_tokens=card.context_tokens,
            ready=any(engine.state == "ready" for engine in engines),
            architecture=card.architecture,
            dtype=card.dtype,
            weights_version=card.weights_version,
        )

    def _rate(self, model: str) -> admission.DrainRate:
        return self._rates.setdefault(model, admission.DrainRate())


def _prompt_param(call: Call) -> str:
    return "messages" if call.kind == "chat" else "prompt"


def _size(prompt: Prompt) -> int:
    """Characters or tokens of a prompt, roughly: how long it will take."""
    match prompt:
        case ChatPrompt(messages):
            return sum(len(message.content) for message in messages)
        case TextPrompt(text):
            return len(text)
        case TokenPrompt(ids):
            return len(ids)


def _note(call: Call, planned: Sampling, prompts: int) -> EdgeNote:
    return EdgeNote(
        kind=call.kind,
        prompts=prompts,
        stop=tuple(call.sampling.stop),
        stop_token_ids=tuple(planned.stop_token_ids),
        min_tokens=planned.min_new_tokens,
        include_stop=call.sampling.include_stop,
        logprobs=planned.logprobs if planned.HasField("logprobs") else None,
    )


def _total(usages: Sequence[Usage]) -> UsageTotal | None:
    if not usages:
        return None
    return UsageTotal(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
    )
