"""Lifecycle: requests become sequences, and every sequence gets exactly one end.

Owner    engine thread
Writes   Sequence, the index of handles; the scheduler's events
Never    decides what runs
Rules    request.one-terminal-status, loop.validate-rejects-per-request, seq.delivered-stays
Next     headrace_engine.scheduler.scheduler
"""

from __future__ import annotations

from collections.abc import Iterable, Set

import numpy as np
from headrace_contracts.codes import Code, FinishReason
from headrace_kit.log import get_logger
from numpy.typing import NDArray

from headrace_engine.errors import RequestRejected
from headrace_engine.loop.outputs import OutputBuilder
from headrace_engine.loop.validate import check_request
from headrace_engine.scheduler.scheduler import Scheduler
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.due import DueTimes
from headrace_engine.state.inbound import Cancel
from headrace_engine.state.outputs import SequenceUsage
from headrace_engine.state.request import Request, RequestHandle
from headrace_engine.state.sequence import Sequence, Status

log = get_logger(__name__)


class Lifecycle:
    """Entry and end of sequences."""

    def __init__(
        self,
        scheduler: Scheduler,
        settings: SchedulerSettings,
        outputs: OutputBuilder,
        *,
        vocabulary: int,
        session_tokens: int,
    ) -> None:
        """``session_tokens`` is the smaller of the settings' and the model's."""
        self._scheduler = scheduler
        self._settings = settings
        self._outputs = outputs
        self._vocabulary = vocabulary
        self._session_tokens = session_tokens
        self._by_handle: dict[RequestHandle, list[Sequence]] = {}
        self._deadlines = DueTimes(scheduler.residents.sequences)
        self._next_number = 1
        self._arriving: list[Request] = []
        """Came in this pass, are checked, and may not have all of their sequences yet."""
        self.stop_tokens = np.zeros(vocabulary, np.int32)
        """How many sequences end at each token: most tokens are nobody's stop token."""
        self.logprobs_wanted = 0
        """Sequences that want logprobs."""
        self.finished: dict[str, int] = {}
        """Ended choices by reason."""

    @property
    def resident(self) -> int:
        """Sequences that are not gone yet."""
        return len(self._scheduler.residents.sequences)

    # entering

    def validate(self, requests: list[Request]) -> list[Request]:
        """Those that can run. Each other one gets its refusal."""
        good: list[Request] = []
        for request in requests:
            try:
                check_request(request, self._settings, self._vocabulary)
            except RequestRejected as refusal:
                self._refuse(request, refusal.code, str(refusal))
            except Exception as broken:
                # The boundary of one request: nothing of it is anywhere yet.
                log.exception("request.check_broke", id=getattr(request, "id", None))
                self._refuse(request, Code.INTERNAL, f"it cannot be checked: {broken!r}")
            else:
                good.append(request)
        self._arriving = good
        return good

    def accept(
        self, requests: list[Request], pushed_s: dict[RequestHandle, float], now_s: float
    ) -> None:
        """Makes the sequences of checked requests; they begin to wait."""
        self._arriving = requests
        for request in requests:
            open_choices = _open_choices(request)
            if open_choices:
                self._by_handle[request.handle] = []
            for choice in open_choices:
                self._accept_choice(request, choice, pushed_s.get(request.handle, now_s), now_s)
        self._arriving = []

    def _accept_choice(self, request: Request, choice: int, pushed_s: float, now_s: float) -> None:
        sequence = self._make(request, choice, pushed_s)
        self._by_handle[request.handle].append(sequence)
        self._scheduler.accept(sequence, now_s)
        for token in sequence.stop_ids:
            self.stop_tokens[token] += 1
        self.logprobs_wanted += request.sampling.logprobs is not None
        if request.deadline_s is not None:
            self._deadlines.add(request.deadline_s, sequence.number)
        self._end_if_complete(sequence, now_s)

    def _make(self, request: Request, choice: int, arrived_s: float) -> Sequence:
        earlier = request.generated[choice] if request.generated else None
        prompt = len(request.prompt)
        tokens: NDArray[np.int32] = np.ascontiguousarray(request.prompt, np.int32)
        if earlier is not None and len(earlier):
            tokens = np.concatenate([tokens, earlier]).astype(np.int32)
        limit, message = self._limit(request)
        sequence = Sequence(
            request=request,
            choice=choice,
            number=self._next_number,
            tokens=tokens,
            length=len(tokens),
            prompt_tokens=prompt,
            limit=limit,
            limit_message=message,
            arrived_s=arrived_s,
            stop_ids=request.sampling.stop_token_ids,
        )
        self._next_number += 1
        return sequence

    def _limit(self, request: Request) -> tuple[int, str]:
        wanted = len(request.prompt) + request.sampling.max_new_tokens
        if wanted <= min(self._session_tokens, self._settings.pool_tokens):
            return wanted, ""
        if self._session_tokens <= self._settings.pool_tokens:
            return self._session_tokens, (
                f"the sequence reached the {self._session_tokens} tokens that one may have"
            )
        return self._settings.pool_tokens, (
            f"the sequence filled the whole cache pool of {self._settings.pool_blocks} blocks, "
            f"{self._settings.pool_tokens} tokens"
        )

    def _end_if_complete(self, sequence: Sequence, now_s: float) -> None:
        """An earlier attempt may have delivered everything but the terminal status."""
        delivered = sequence.length - sequence.prompt_tokens
        if not delivered:
            return
        last = int(sequence.tokens[sequence.length - 1])
        if last in sequence.stop_ids and delivered > sequence.request.sampling.min_new_tokens:
            self.end(sequence, FinishReason.STOP, now_s)
        elif sequence.length >= sequence.limit:
            self.end(sequence, FinishReason.LENGTH, now_s, message=sequence.limit_message)

    def _refuse(self, request: Request, code: Code, message: str) -> None:
        choices = range(request.n) if 0 < request.n <= 4096 else range(1)
        for choice in choices:
            if choice not in request.finished:
                self._outputs.end_unborn(request.handle, choice, code, message)
                self._count(FinishReason.ERROR)

    # ending

    def cancel(self, cancels: list[Cancel], now_s: float) -> None:
        """Ends what the outside wants ended. Unknown and ended ones are passed over."""
        for cancel in cancels:
            for sequence in list(self._by_handle.get(cancel.handle, ())):
                if cancel.choice is None or cancel.choice == sequence.choice:
                    self._end_early(sequence, cancel.reason, now_s)

    def expire(self, now_s: float) -> None:
        """Ends sequences whose deadline has passed."""
        for number in self._deadlines.until(now_s):
            sequence = self._scheduler.residents.sequences[number]
            self._end_early(sequence, FinishReason.DEADLINE, now_s)

    def abort(self, code: Code, message: str, reason: FinishReason, now_s: float) -> None:
        """Ends everything."""
        for sequence in list(self._scheduler.residents.sequences.values()):
            if sequence.status is not Status.ENDED:
                self.end(sequence, reason, now_s, code=code, message=message)

    def fail(
        self,
        message: str,
        now_s: float,
        blamed: Set[int] | None,
        untold: Iterable[tuple[int, int]],
    ) -> None:
        """The engine failed: everybody who has no end yet gets one, and the scheduler, which may be what
        broke, is left as it is. The ``blamed``, or if that is None whoever ran, are told to have started,
        unless they were or have ended; the others are spared. ``untold`` ends, by handle and choice,
        which could not be told, become this one.
        """
        for handle, choice in untold:
            self._outputs.end_unborn(handle, choice, Code.ENGINE_FAILED, message)
        arriving = {request.handle: request for request in self._arriving}
        for handle, siblings in self._by_handle.items():
            for sequence in siblings:
                if sequence.end_reason is None:
                    usage = self._last_usage(sequence, now_s)
                    first_s = sequence.first_pass_s
                    spared = blamed is not None and sequence.number not in blamed
                    if not spared and not sequence.start_told and (blamed or first_s is not None):
                        first_s = now_s if first_s is None else first_s
                        self._outputs.start(sequence, first_s - sequence.arrived_s)
                    reason, code = FinishReason.ERROR, Code.ENGINE_FAILED
                    self._outputs.end(sequence, reason, usage, code, message, spared=spared)
                    self._count(reason)
            request = arriving.pop(handle, None)
            if request is not None:
                self._refuse_rest(request, {s.choice for s in siblings}, message)
        for request in arriving.values():
            self._refuse_rest(request, set(), message)

    def _refuse_rest(self, request: Request, made: set[int], message: str) -> None:
        for choice in _open_choices(request):
            if choice not in made:
                self._outputs.end_unborn(request.handle, choice, Code.ENGINE_FAILED, message)
                self._count(FinishReason.ERROR)

    def end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now_s: float,
        *,
        code: Code | None = None,
        message: str = "",
    ) -> None:
        """Gives the sequence its terminal status, and tells the scheduler."""
        self._flush(sequence)
        self._outputs.end(sequence, reason, self._usage(sequence, now_s), code, message)
        self._count(reason)
        for token in sequence.stop_ids:
            self.stop_tokens[token] -= 1
        self.logprobs_wanted -= sequence.request.sampling.logprobs is not None
        if code is Code.NUMERIC_FAILURE:
            self._scheduler.fail(sequence, now_s)
        else:
            self._scheduler.end(sequence, now_s)

    def disown(self, sequence: Sequence, now_s: float) -> None:
        """One that has ended turns out to have computed what is wrong: none of that stays."""
        if sequence.end_code is not Code.NUMERIC_FAILURE:  # else it is done
            self._scheduler.disown(sequence, now_s)

    def forget(self, gone: list[Sequence]) -> None:
        """Sequences were released."""
        for sequence in gone:
            siblings = self._by_handle[sequence.request.handle]
            siblings.remove(sequence)
            if not siblings:
                del self._by_handle[sequence.request.handle]

    def _end_early(self, sequence: Sequence, reason: FinishReason, now_s: float) -> None:
        if sequence.status is Status.ENDED:
            return
        code = None
        if reason is FinishReason.CANCELLED:
            code = Code.CANCELLED
        elif reason is FinishReason.DEADLINE:
            code = Code.DEADLINE_EXCEEDED
        self.end(sequence, reason, now_s, code=code)

    def _flush(self, sequence: Sequence) -> None:
        if sequence.slot is not None:
            self._scheduler.residents.columns.flush(sequence.slot, sequence)

    def _usage(self, sequence: Sequence, now_s: float) -> SequenceUsage:
        first_pass, first_token = sequence.first_pass_s, sequence.first_token_s
        return SequenceUsage(
            prompt_tokens=sequence.prompt_tokens,
            completion_tokens=sequence.length - sequence.prompt_tokens,
            cached_tokens=sequence.cached_tokens,
            queue_s=(now_s if first_pass is None else first_pass) - sequence.arrived_s,
            prefill_s=0.0
            if first_pass is None
            else (now_s if first_token is None else first_token) - first_pass,
            decode_s=0.0 if first_token is None else now_s - first_token,
            preemptions=sequence.preemptions,
            waits={
                reason.value: seconds
                for reason, seconds in self._scheduler.residents.reasons.spent(
                    sequence.number, now_s
                ).items()
            },
        )

    def _last_usage(self, sequence: Sequence, now_s: float) -> SequenceUsage:
        """For the end of an engine that failed. Its own state may be what broke, and what broke once may
        break again: nobody else's end may hang on that."""
        try:
            self._flush(sequence)
            return self._usage(sequence, now_s)
        except Exception as broken:
            log.warning(
                "sequence.usage_broke",
                id=sequence.request.id,
                choice=sequence.choice,
                reason=repr(broken),
            )
            prompt = sequence.prompt_tokens
            return SequenceUsage(prompt, sequence.length - prompt, 0, 0.0, 0.0, 0.0, 0)

    def _count(self, reason: FinishReason) -> None:
        name = reason.name.lower()
        self.finished[name] = self.finished.get(name, 0) + 1


def _open_choices(request: Request) -> list[int]:
    return [choice for choice in range(request.n) if choice not in request.finished]
