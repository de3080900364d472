"""The use case: a call comes in, an admitted request goes out, its events come back.

Edges (HTTP, gRPC) hold this one object. Everything a call can be refused for is decided in
``start``, before the first byte of an answer. Next: headrace_gateway.inference.planning
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Generator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from typing import Final, Literal

from headrace_contracts.codes import FinishReason
from headrace_kit.clock import Clock
from headrace_kit.log import get_logger
from headrace_kit.traces import NO_SPAN, Span
from headrace_transport import errors as transport
from headrace_transport.interface import GatewayWire

from headrace_gateway.errors import (
    DRAIN_RETRY_S,
    Draining,
    GatewayError,
    RateLimitExceeded,
    RequestNotFound,
    transport_errors,
)
from headrace_gateway.inference import lookup, standing
from headrace_gateway.inference.book import Book
from headrace_gateway.inference.calls import Call, Caller, OnceKey
from headrace_gateway.inference.cancels import Cancels, mark_of
from headrace_gateway.inference.catalog import Catalog
from headrace_gateway.inference.inbox import Inbox
from headrace_gateway.inference.limits import RateLimits
from headrace_gateway.inference.lookup import RequestInfo
from headrace_gateway.inference.models import ModelInfo, info_of
from headrace_gateway.inference.once import GRACE_S, Once, forgotten
from headrace_gateway.inference.planning import Planner
from headrace_gateway.inference.readiness import Readiness
from headrace_gateway.inference.receipt import Receipts
from headrace_gateway.inference.recovery import Patience, Recovery
from headrace_gateway.inference.resume import (
    check_cursor,
    parse_cursor,
    place,
)
from headrace_gateway.inference.running import OpenCall, Running
from headrace_gateway.inference.spans import tell_request
from headrace_gateway.inference.standing import Listed, Why
from headrace_gateway.inference.submission import Submission
from headrace_gateway.inference.taking_up import TakingUp
from headrace_gateway.inference.tasks import Tasks
from headrace_gateway.inference.watch import ModelGauges, Sweeper
from headrace_gateway.metrics import GatewayMetrics
from headrace_gateway.rounds import Rounds
from headrace_gateway.settings import GatewaySettings

log = get_logger(__name__)

TICK_S: Final = 0.1
"""Time between two looks at deadlines and silent requests."""
TRIM_EVERY_S: Final = 1.0
WARM_FIRST_S: Final = 0.1
WARM_EVERY_S: Final = 1.0
"""Times between two looks for models that are new: before there is one, and then."""
CANCEL_WAIT_S: Final = 1.0
"""How long a cancel by id waits for its mark to be on the server: its place is free then."""
LEAVE_S: Final = 0.5
"""How long saying good-bye to the server may take; else the lease lapses by itself."""
LAST_MENDING_S: Final = 5.0
"""How long the end of a drain waits for what is being mended: longer than a command may take."""
LAST_MARKS_S: Final = 0.5
"""How long the end of a drain waits for its cancels to be on the server."""
LAST_EVENTS_S: Final = 3.0
"""How long the end of a drain waits for readers to have told their clients."""


class InferenceService:
    """One per process. Belongs to one event loop; ``run`` goes on beside its calls."""

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
        self._clock = clock
        self._process = process
        self._refusing = False
        self._keep_s: float | None = None
        """How long this process's requests outlive it; None: it does not let go of any yet."""
        self._handed_over = 0
        """Calls that go on without this process."""
        self._starting = 0
        """Calls that were admitted here and have no reader yet."""
        self._readers = 0
        self._no_readers = asyncio.Event()
        self._no_readers.set()
        self._tasks = Tasks()
        self._planner = Planner(catalog, settings, clock, threads=threads, process=process)
        self._limits = RateLimits(wire, self._tasks)
        self._once = Once(wire, cancelled=self._cancelled_here)
        self._receipts = Receipts(metrics, clock, settle=self._limits.settle)
        self._cancels = Cancels(wire, self._tasks, metrics)
        self._book = Book(
            wire,
            process,
            clock,
            cancels=self._cancels,
            receipts=self._receipts,
            mend=lambda session: self._recovery.start(session),
        )
        self._inbox = Inbox(
            wire,
            process,
            clock,
            metrics,
            heard=self._book.heard,
            reconnected=self._reconnected,
        )
        self._submission = Submission(
            wire,
            clock,
            metrics,
            book=self._book,
            inbox=self._inbox,
            receipts=self._receipts,
            max_queued=settings.max_queued,
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
            changed=self._book.changed,
        )
        self._taking_up = TakingUp(
            wire,
            process,
            clock,
            metrics,
            book=self._book,
            inbox=self._inbox,
            catalog=catalog,
            recovery=self._recovery,
        )
        self._warm_rounds = Rounds("catalog.warm_missed")
        self._trim_rounds = Rounds("inbox.trim_missed")
        self._gauges = ModelGauges(wire, catalog, metrics)
        self._sweeper = Sweeper(wire, catalog, process, lease_s=settings.lease_s)
        metrics.open_requests = lambda: self._book.unsettled
        metrics.open_streams = lambda: self._readers
        metrics.foreign_records = lambda: wire.foreign.counts
        metrics.damaged_records = lambda: wire.damaged.counts

    # life

    async def run(self, stop: asyncio.Event) -> None:
        """Reads results and looks after requests until ``stop``; then lets go of this process's
        lease, at once or when what was handed over has had its time. Beats once before it begins, so that frames find a living gateway.
        """
        async with self._tasks:
            await self._beat()
            for job, name in (
                (self._inbox.read(), "inbox"),
                (self._beats(), "beats"),
                (self._watch(), "watch"),
                (self._trims(), "trims"),
                (self._warms(), "warms"),
                (self._gauges.run(), "gauges"),
                (self._sweeper.run(), "sweeper"),
            ):
                self._tasks.serve(job, name=name)
            await stop.wait()
        try:
            async with asyncio.timeout(LEAVE_S):
                keep_ms = int((self._keep_s or 0) * 1000) if self._handed_over else 0
                await self._wire.leave_gateway(self._process, keep_ms=keep_ms)
        except (transport.TransportUnavailable, TimeoutError):
            log.info("gateway.left_silently")

    async def drain(self, timeout_s: float) -> None:
        """Lets running streams end within ``timeout_s``; the rest is handed over. New calls are
        refused from the first moment on.
        """
        self._readiness.draining = True
        self._refusing = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._no_readers.wait()
        except TimeoutError:
            log.warning("drain.timeout", open=self._book.unsettled, timeout_s=timeout_s)
        await self._recovery.stop(timeout_s=LAST_MENDING_S)
        self._keep_s = max(self._settings.handover_s, self._settings.resume_grace_s)
        self._let_go(self._keep_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_EVENTS_S):
                await self._no_readers.wait()
        records = [session.id for call in self._book.calls for session in call.sessions]
        await self._cancels.sent(records, timeout_s=LAST_MARKS_S)

    # calls

    def new_id(self, kind: Literal["chat", "completion"]) -> str:
        """An id for a call: unique, and not to be guessed."""
        return f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{secrets.token_hex(14)}"

    async def start(self, call: Call) -> Running:
        """Admits and queues a call. Once this returns, it is queued durably.

        Raises a ``GatewayError`` with nothing queued.
        """
        arrived = self._clock.monotonic()
        with self._awaited():
            try:
                self._check_open()
                if call.once is None:
                    return await self._start(call, arrived)
                return await self._start_once(call, call.once, arrived)
            except GatewayError as error:
                self._metrics.rejected.labels(error.code.wire_name).inc()
                raise

    def _cancelled_here(self, call_id: str) -> bool:
        call = self._book.find(call_id)
        return call is not None and call.cancelled

    async def _start(self, call: Call, arrived: float) -> Running:
        plan = await self._planner.plan(call, arrived=arrived)
        tell_request(call, plan.call.sessions[0].record)
        await self._limits.reserve(plan.call, call.caller)
        try:
            await self._submission.submit(plan.call, call.caller)
        except BaseException:
            self._limits.refund(plan.call)
            raise
        return self._reader(plan.call, (), echo=plan.echo)

    async def _start_once(self, call: Call, key: OnceKey, arrived: float) -> Running:
        """Runs the call, unless it is a repetition: then it reads what the first one says."""
        first = await self._once.hold(call, key)
        if first is not None:
            echo = (await self._planner.plan(call, arrived=arrived)).echo if call.echo else ()
            try:
                return await self._resume(
                    first, (), call.caller, call.span, echo=echo, grace_s=GRACE_S
                )
            except RequestNotFound as error:
                raise forgotten() from error
        try:
            running = await self._start(call, arrived)
        except BaseException:
            await self._once.let_go(call, key)
            raise
        try:
            await self._once.keep(call, key)
        except BaseException:  # cancelled: nobody else would close it
            await running.aclose()
            raise
        return running

    async def resume(
        self, request_id: str, after: str, caller: Caller, *, span: Span = NO_SPAN
    ) -> Running:
        """Takes up the stream of a request behind ``after``: "", "12" or "12,9" (see
        ``Running.cursor``). Works at every gateway, as long as the log is kept.

        Raises ``RequestNotFound`` for an unknown one, and for another key's.
        """
        self._check_staying()
        cursor = parse_cursor(after)
        with self._awaited():
            return await self._resume(request_id, cursor, caller, span)

    async def _resume(
        self,
        request_id: str,
        cursor: Sequence[int],
        caller: Caller,
        span: Span,
        *,
        echo: Sequence[str] = (),
        grace_s: float = 0.0,
    ) -> Running:
        here = self._book.find(request_id)
        if here is not None:
            lookup.check_owner(here.tenant, here.key_id, request_id, caller)
            here.coming += 1  # before anything is waited for: its grace may be about to end
        try:
            if here is not None:
                await self._taking_up.take_back(here)
            call = await self._taking_up.opened(request_id, caller, span)
            check_cursor(cursor, call)
            call.left_at = None
            call.grace_s = max(call.grace_s, grace_s)
            return self._reader(call, cursor, echo=echo)
        finally:
            if here is not None:
                here.coming -= 1

    async def cancel(self, request_id: str, caller: Caller) -> bool:
        """Cancels a request wherever it is. False: it had ended.

        Raises ``RequestNotFound`` for an unknown one, and for another key's.
        """
        call = self._book.find(request_id)
        if call is not None:
            lookup.check_owner(call.tenant, call.key_id, request_id, caller)
        if call is not None and not call.moved:
            if call.ended:
                return False
            await self.cancel_call(call, cause="request")
            records = [session.id for session in call.sessions]
            await self._cancels.sent(records, timeout_s=CANCEL_WAIT_S)
            return True
        found = await lookup.find(self._wire, request_id, caller)
        mark, cancelled = mark_of(FinishReason.CANCELLED), False
        for record_id, state in found.states:
            if state.status != "finished":
                with transport_errors():
                    cancelled |= await self._wire.cancel(state.model, record_id, mark)
        if cancelled:
            self._metrics.cancels.labels("request").inc()
        return cancelled

    async def request(self, request_id: str, caller: Caller) -> RequestInfo:
        """What is known of a request. Raises ``RequestNotFound``."""
        found = await lookup.find(self._wire, request_id, caller)
        return self._as_told(lookup.info_of(request_id, found))

    async def requests(self, caller: Caller, *, limit: int) -> tuple[list[Listed], bool]:
        """The caller's own requests that have not ended, the newest first; whether there are more."""
        return await standing.live(
            self._wire, self._catalog, caller, limit=limit, as_told=self._as_told
        )

    async def why(self, request_id: str, caller: Caller) -> Why:
        """Why a request waits, or that it does not. Raises ``RequestNotFound``."""
        return await standing.explain(
            self._wire,
            self._catalog,
            request_id,
            caller,
            now_ms=self._clock.wall_ms(),
            as_told=self._as_told,
        )

    def _as_told(self, info: RequestInfo) -> RequestInfo:
        """What a client here knows to have ended has ended, although the server may hear of it from
        the engine a moment later.
        """
        call = self._book.find(info.id)
        if call is None or info.status == "finished" or not call.answered:
            return info
        return lookup.ended(info, call.finish, call.usage)

    async def models(self, caller: Caller) -> Sequence[ModelInfo]:
        """The models that the caller may use, by name."""
        cards = await self._catalog.cards()
        names = sorted(name for name in cards if not caller.models or name in caller.models)
        return [await info_of(self._catalog, name) for name in names]

    async def model(self, name: str, caller: Caller) -> ModelInfo:
        """One model. Raises ``ModelNotFound`` and ``PermissionDenied``."""
        await self._planner.card(name, caller)
        return await info_of(self._catalog, name)

    # what readers ask for

    async def cancel_call(self, call: OpenCall, *, cause: str) -> None:
        """Ends a call at its readers now, and at its engine as soon as it hears of it."""
        self._book.end(call, FinishReason.CANCELLED, cause)

    async def left(self, call: OpenCall, reader: Running) -> None:
        """A reader went. The last one to leave an unfinished call cancels it, or starts its
        grace, in which a resume finds it running.
        """
        self._readers -= 1
        self._count_readers()
        if call.readers or call.ended:
            return
        if max(self._settings.resume_grace_s, call.grace_s) == 0 and not call.coming:
            self._book.end(call, FinishReason.CANCELLED, "disconnect")
        else:
            call.left_at = self._clock.monotonic()

    # leaving

    @contextmanager
    def _awaited(self) -> Generator[None]:
        """A call that is on its way to a reader: a drain waits for it as for a reader, and one
        that comes too late is let go like the others.
        """
        self._starting += 1
        self._count_readers()
        try:
            yield
            if self._keep_s is not None:
                self._let_go(self._keep_s)
        finally:
            self._starting -= 1
            self._count_readers()

    def _let_go(self, keep_s: float) -> None:
        handed_over = self._book.let_go(keep_s=keep_s)
        self._handed_over += handed_over
        if handed_over:
            log.info("drain.handed_over", calls=handed_over, within_s=keep_s)

    def _count_readers(self) -> None:
        if self._readers or self._starting:
            self._no_readers.clear()
        else:
            self._no_readers.set()

    # submitting

    def _check_staying(self) -> None:
        """Nothing begins here that would only be cut off: not even what this process let go."""
        if self._refusing:
            raise Draining("This gateway is shutting down.", retry_after_s=DRAIN_RETRY_S)

    def _check_open(self) -> None:
        self._check_staying()
        held, limit = self._book.unsettled, self._settings.max_open_requests
        if held >= limit:
            raise RateLimitExceeded(
                f"This gateway holds {held} open requests, the limit is {limit}.",
                retry_after_s=self._receipts.advise_s(held),
            )

    def _reader(
        self, call: OpenCall, cursor: Sequence[int], *, echo: Sequence[str] = ()
    ) -> Running:
        self._readers += 1
        self._count_readers()
        return Running(
            call,
            self,
            after=place(cursor),
            keepalive_s=self._settings.keepalive_s,
            echo=echo,
        )

    # beside the calls

    def _reconnected(self) -> None:
        self._recovery.check_all_soon()
        self._cancels.retry()

    async def _watch(self) -> None:
        """Deadlines, grace, silent requests, marks that could not be sent, and old slots."""
        while True:
            await asyncio.sleep(TICK_S)
            lonely = self._book.look(grace_s=self._settings.resume_grace_s, inbox=self._inbox)
            for call in lonely:
                self._tasks.spawn(self._book.grace_over(call), name=f"grace {call.id}")
            self._recovery.look(self._inbox.sessions)
            if self._cancels.pending:
                self._cancels.retry()

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
            with self._trim_rounds.guarded():
                await self._inbox.trim(age_s=self._settings.trim_age_s)

    async def _warms(self) -> None:
        """Has models ready before they are first asked for."""
        while True:
            with self._warm_rounds.guarded():
                await self._catalog.warm()
            await asyncio.sleep(WARM_FIRST_S if self._catalog.empty else WARM_EVERY_S)
