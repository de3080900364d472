"""The loop: one iteration is one pass, its steps in the contract's order.

Owner    engine thread
Writes   everything of the engine core, through the functions it calls
Never    touches cache bytes; runs a callback; sees the network
Rules    loop.order, loop.phases, request.one-terminal-status, loop.blocks-when-idle
Next     headrace_engine.loop.lifecycle
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import chain, islice
from typing import Final, Protocol

from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.prefix_key import fold
from headrace_kit.affinity import Affinity
from headrace_kit.clock import Clock

from headrace_engine.cache.trie import Fold
from headrace_engine.errors import EngineFailed
from headrace_engine.executor.base import ExecutorLimits, ModelShape, sequence_tokens
from headrace_engine.loop.blame import at_work
from headrace_engine.loop.garbage import QUIET_S, Garbage
from headrace_engine.loop.handoff import give_way
from headrace_engine.loop.lifecycle import Lifecycle
from headrace_engine.loop.outputs import OutputBuilder
from headrace_engine.loop.ranks import Ranks, SingleRank, Turn
from headrace_engine.loop.setup import setup_batch
from headrace_engine.loop.update import update_batch
from headrace_engine.memory.objects import align_up
from headrace_engine.scheduler.commit import PassPlan
from headrace_engine.scheduler.journal import Journal
from headrace_engine.scheduler.scheduler import BLOCK_ALIGN, Scheduler
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.batch import BatchData
from headrace_engine.state.inbound import Inbound
from headrace_engine.state.mailbox import NewestCell
from headrace_engine.state.metrics import CacheStats, ScheduleMetrics, WaitingChoice
from headrace_engine.state.outputs import PassOutputs
from headrace_engine.state.request import Request
from headrace_engine.state.sequence import Sequence

WAITS_TOLD: Final = 256
"""Waiting choices whose reasons are shown."""


class LoopDoor(Protocol):
    """The door as the engine thread sees it. ``EngineGateway`` has more for others."""

    def pop(self, budget: int, *, block: bool, timeout_s: float | None = None) -> Inbound:
        """At most ``budget`` requests, and what else came; waits for something if ``block``."""
        ...

    def notify(self, outputs: PassOutputs) -> None:
        """Gives outputs away."""
        ...

    def finish(self, code: Code, message: str) -> None:
        """Nothing will follow; what is still queued ends with this."""
        ...


class BatchRunner(Protocol):
    """The executor as the engine thread sees it. ``ExecutorThread`` is one."""

    @property
    def limits(self) -> ExecutorLimits:
        """What the executor was started with."""
        ...

    def submit(self, batch: BatchData) -> None:
        """Gives a batch away."""
        ...

    def take(self, timeout_s: float | None = None) -> BatchData | None:
        """The oldest submitted batch."""
        ...


def executor_limits(settings: SchedulerSettings, block_bytes: int) -> ExecutorLimits:
    """What an executor has to be started with, for these settings and its ``block_bytes``."""
    return ExecutorLimits(
        slots=settings.max_batch,
        batch_tokens=settings.batch_tokens,
        sequence_tokens=sequence_tokens(settings.session_tokens, settings.phases),
        block_tokens=settings.block_tokens,
        region_bytes=settings.pool_blocks * align_up(block_bytes, BLOCK_ALIGN),
        phases=settings.phases,
    )


class EngineLoop:
    """The engine thread's body, and the one snapshot that others may read.

    ``metrics`` may be read from any thread; everything else belongs to the thread of ``run``.
    """

    def __init__(
        self,
        door: LoopDoor,
        executor: BatchRunner,
        settings: SchedulerSettings,
        clock: Clock,
        shape: ModelShape,
        *,
        ranks: Ranks | None = None,
        fold: Fold = fold,
        journal: Journal | None = None,
    ) -> None:
        """``executor`` was started with ``executor_limits(settings, ...)``.

        ``ranks`` is this engine's place among several; None: it is alone.
        ``fold`` is replaced by tests only.
        """
        self._door = door
        self._executor = executor
        self._settings = settings
        self._clock = clock
        self._ranks = ranks or SingleRank()
        self._active = 0
        """Sequences of the whole group that are not gone yet."""
        self._affinity = Affinity("engine")
        self._outputs = OutputBuilder()
        self.scheduler = Scheduler(
            settings,
            block_bytes=executor.limits.region_bytes // settings.pool_blocks,
            weights_version=shape.weights_version,
            kv_dtype=shape.kv_dtype,
            state_parts=shape.state_parts,
            affinity=self._affinity,
            fold=fold,
            journal=journal,
        )
        self._lifecycle = Lifecycle(
            self.scheduler,
            settings,
            self._outputs,
            vocabulary=shape.vocabulary,
            session_tokens=min(settings.session_tokens, shape.context_tokens),
        )
        self._running: deque[BatchData] = deque()
        """Batches handed over, oldest first; at most ``phases`` of them."""
        self._completed_s: list[float] = []
        """Of batches that came back since the last turn."""
        self._started: list[Sequence] = []
        """Ran for the first time; not told yet."""
        self.garbage: Garbage | None = None
        """Set before ``run`` by whoever owns the process. None: the interpreter collects as usual."""
        self._draining = False
        self._generated = 0
        self._times = (0.0, 0.0, 0.0)
        self._pass_tokens = 0
        self._cache_stats = CacheStats()
        self._waits: list[WaitingChoice] = []
        self._cache_stats_at = float("-inf")
        self.metrics = NewestCell(ScheduleMetrics())
        self.publish_metrics(clock.monotonic())

    def run(self) -> None:
        """Runs passes until drained or aborted. Afterwards nothing is resident.

        Raises ``EngineFailed`` when a batch failed or an invariant broke, after every request
        was told so; what was resident is then left as it was.
        """
        self._affinity.bind()
        if self.garbage is not None:
            self.garbage.start()
        try:
            while self.step():
                pass
            self._ranks.barrier()
            self._finish(Code.DRAINING, "the engine has shut down")
        except EngineFailed as failure:
            self._abandon(failure, failure)
            raise
        except Exception as broken:
            # The thread's top frame: whoever waits is told, then the process ends.
            failure = EngineFailed(f"the engine thread broke: {broken!r}")
            self._abandon(failure, broken)
            raise failure from broken
        finally:
            if self.garbage is not None:
                self.garbage.stop()

    def step(self) -> bool:
        """One pass, in the contract's order. False: nothing will follow."""
        idle = self._idle()
        inbound = self._pop(idle)
        requests = self._lifecycle.validate(inbound.requests)
        turn = self._broadcast(inbound, requests, idle)
        inbound, now_s, began_s = turn.inbound, turn.now_s, self._clock.monotonic()
        requests = [request for request in turn.checked if self._ranks.takes(request)]
        self._lifecycle.accept(requests, inbound.pushed_s, now_s)
        self._lifecycle.cancel(inbound.cancels, now_s)
        self._lifecycle.expire(now_s)
        if inbound.abort:
            self._abort(now_s)
        self._notify()
        self._retire(now_s)
        self._reduce_active()
        if self._finished(inbound):
            self._cache_stats_at = float("-inf")
            self.publish_metrics(now_s)
            return False
        plan = self.scheduler.schedule(now_s)
        self._fail_stalled_head_of_line(plan, now_s)
        self.publish_metrics(now_s)
        handed_over = self._hand_over(plan)
        handed_s = self._clock.monotonic()
        batch = self._take_finished_batch(handed_over)
        taken_s = self._clock.monotonic()
        if batch is not None:
            if batch.rows:
                self._completed_s.append(taken_s)
            self._update(batch, taken_s)
        self._tell_started(taken_s)
        self._retire(taken_s)
        if self._notify():
            give_way(taken_s - handed_s, runs_on=bool(self._running))
        if self._settings.audit:
            self.audit()
        if self.garbage is not None and self.garbage.pressing():
            self.garbage.collect()
        self._times = (handed_s - began_s, taken_s - handed_s, self._clock.monotonic() - taken_s)
        return True

    # steps

    def _idle(self) -> bool:
        """Whether no rank has anything; every rank answers the same."""
        if self._ranks.replicas == 1:
            self._active = self._lifecycle.resident
        return self._active == 0 and not self._running

    def _pop(self, idle: bool) -> Inbound:
        """Asks for what can be held, and waits only when nothing is resident. Rank 0 alone."""
        room = (self._settings.max_batch + self._settings.max_waiting) * self._ranks.replicas
        budget = room - self._active
        if idle:
            # It may sleep for long: what is shown meanwhile must be the idle state.
            self._cache_stats_at = float("-inf")
            self.publish_metrics(self._clock.monotonic())
        if not self._ranks.leads:
            return Inbound()
        if idle and not self._draining:
            return self._await(budget)
        return self._door.pop(max(0, budget), block=False)

    def _broadcast(self, inbound: Inbound, requests: list[Request], idle: bool) -> Turn:
        """Rank 0's turn, on every rank; the others sleep until it has one."""
        turn = None
        if self._ranks.leads:
            turn = Turn(inbound, self._clock.monotonic(), tuple(self._completed_s), requests)
        if idle:
            self._ranks.barrier()
        turn = self._ranks.broadcast(turn)
        self._draining |= turn.inbound.drain
        self._completed_s.clear()
        for completed_s in turn.completed_s:
            self.scheduler.completed(completed_s)
        return turn

    def _reduce_active(self) -> None:
        """How many sequences the whole group has: while there is one, every rank passes."""
        self._active = self._ranks.reduce_active(self._lifecycle.resident)

    def _await(self, budget: int) -> Inbound:
        """Sleeps in the door; before a long sleep garbage is collected."""
        garbage = self.garbage
        if garbage is not None and garbage.owed():
            inbound = self._door.pop(budget, block=True, timeout_s=QUIET_S)
            if inbound != Inbound():
                return inbound
            garbage.collect()
        return self._door.pop(budget, block=True)

    def _abort(self, now_s: float) -> None:
        self._draining = True
        self._lifecycle.abort(
            Code.DRAINING, "the engine is shutting down", FinishReason.CANCELLED, now_s
        )

    def _finished(self, inbound: Inbound) -> bool:
        """Whether the door is closed, nothing came through it, and nothing is left."""
        if not self._draining or inbound.requests:
            return False
        return not self._active and not self._running

    def _fail_stalled_head_of_line(self, plan: PassPlan, now_s: float) -> None:
        """Nothing runs and nothing will free memory: the first in line can never go on."""
        head = self.scheduler.stalled_head(plan)
        if head is None:
            return
        total = self._settings.pool_blocks
        needed = -(-head.length // self._settings.block_tokens)
        message = f"its {head.length} tokens need {needed} cache blocks; the pool has {total}"
        if head.length > head.prompt_tokens:
            self._lifecycle.end(head, FinishReason.LENGTH, now_s, message=message)
        else:
            self._lifecycle.end(
                head, FinishReason.ERROR, now_s, code=Code.OUT_OF_MEMORY, message=message
            )

    def _hand_over(self, plan: PassPlan) -> bool:
        """Whether there is a batch; where devices of replicas meet in each, also an empty one."""
        if plan.empty and (self._ranks.replicas == 1 or not self._active):
            return False
        batch = setup_batch(
            plan,
            self.scheduler.residents.columns,
            phase=plan.pass_id % self._settings.phases,
        )
        self._started += [chunk.sequence for chunk in plan.chunks if chunk.first]
        self._pass_tokens = int(batch.token_offsets[-1])
        self._running.append(batch)
        self._executor.submit(batch)
        return True

    def _take_finished_batch(self, handed_over: bool) -> BatchData | None:
        """Waits for the oldest batch, unless another may still be planned beside it."""
        if not self._running or (len(self._running) < self._settings.phases and handed_over):
            return None
        batch = self._executor.take()
        if batch is None:
            raise EngineFailed("the executor thread is gone")
        expected = self._running.popleft()
        assert batch is expected, "batches came back out of order"
        if batch.error is not None:
            raise EngineFailed(f"a batch failed: {batch.error!r}") from batch.error
        return batch

    def _update(self, batch: BatchData, now_s: float) -> None:
        if self.scheduler.journal is not None and batch.rows:
            self.scheduler.journal.completed(now_s, batch.output)
        self._generated += update_batch(
            batch, self.scheduler.residents, self._lifecycle, self._outputs, now_s
        )

    def _tell_started(self, now_s: float) -> None:
        for sequence in self._started:
            if sequence.first_pass_s is not None:
                self._outputs.start(sequence, sequence.first_pass_s - sequence.arrived_s)
        self._started = []

    def _retire(self, now_s: float) -> None:
        gone = self.scheduler.retire(now_s)
        if gone:
            self._lifecycle.forget(gone)

    def _notify(self) -> bool:
        outputs = self._outputs.take(self.scheduler.passes)
        if outputs is None or not self._ranks.tells:
            return False
        self._door.notify(outputs)
        return True

    def _abandon(self, failure: EngineFailed, cause: Exception) -> None:
        """Everything resident, and everything at the door, is told that the engine failed."""
        now_s = self._clock.monotonic()
        # Whoever was worked on when something raised is to blame, or who was in a batch that failed; else
        # anybody may be who ran.
        blamed: set[int] | None = at_work(cause)
        if not blamed:
            failed = isinstance(cause, EngineFailed)
            blamed = self.scheduler.residents.in_flight() if failed else None
        untold: list[tuple[int, int]] = []
        for step in (
            # What the pass had to tell before it broke; else a choice would have two rows.
            self._notify,
            partial(self._lifecycle.fail, str(failure), now_s, blamed, untold),
            self._notify,
            self._ranks.abandon,
            partial(self._finish, Code.ENGINE_FAILED, str(failure)),
        ):
            try:
                step()
            except Exception as broken:
                # Still the thread's top frame: what broke may break each of these too, and none may
                # keep the others from being told.
                untold += self._outputs.drop()
                failure.add_note(f"then {broken!r}")

    def _finish(self, code: Code, message: str) -> None:
        """What waits at the door ends so, and nothing follows."""
        if self._ranks.leads:
            self._door.finish(code, message)

    # what others may know

    @property
    def in_flight(self) -> int:
        """Batches that the executor has."""
        return len(self._running)

    def publish_metrics(self, now_s: float) -> None:
        """Makes one immutable snapshot; statistics of the cache at most once per interval."""
        residents, counters = self.scheduler.residents, self.scheduler.residents.counters
        if now_s - self._cache_stats_at >= self._settings.cache_stats_interval_s:
            self._cache_stats_at = now_s
            self._cache_stats = self.scheduler.cache_stats()
            self._waits = self._read_waits()
        slots = self.scheduler.pool.slots
        waiting = len(residents.waiting) + len(residents.paused)
        plan_s, wait_s, update_s = self._times
        self.metrics.put(
            ScheduleMetrics(
                pass_id=self.scheduler.passes,
                running=self._lifecycle.resident - waiting - len(residents.retiring),
                waiting=waiting,
                waiting_by_reason=residents.reasons.counts(),
                waits=self._waits,
                retiring=len(residents.retiring),
                slots=self._settings.max_batch,
                free_blocks=self.scheduler.objects.pages.free_pages,
                cached_blocks=len(slots.sorted) - self.scheduler.pool.checkpoints,
                total_blocks=self._settings.pool_blocks,
                prompt_tokens=counters.prompt_tokens,
                cached_tokens=counters.cached_tokens,
                copied_tokens=counters.copied_tokens,
                prefill_tokens=counters.prefill_tokens,
                decode_tokens=counters.decode_tokens,
                generated_tokens=self._generated,
                recomputed_tokens=counters.recomputed_tokens,
                preemptions=counters.preemptions,
                evictions=counters.evictions,
                deferrals=counters.deferrals,
                finished=dict(self._lifecycle.finished),
                pass_tokens=self._pass_tokens,
                plan_s=plan_s,
                wait_s=wait_s,
                update_s=update_s,
                draining=self._draining,
                cache=self._cache_stats,
            )
        )

    def _read_waits(self) -> list[WaitingChoice]:
        residents = self.scheduler.residents
        waits: list[WaitingChoice] = []
        for sequence in islice(chain(residents.paused, residents.waiting), WAITS_TOLD):
            waiting = residents.reasons.of(sequence.number)
            if waiting is not None:
                handle = sequence.request.handle
                waits.append(WaitingChoice(handle, waiting.reason.value, waiting.detail))
        return waits

    def audit(self) -> None:
        """Asserts every invariant of the core. O(everything)."""
        self.scheduler.audit()
