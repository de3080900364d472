"""One engine, and whatever may happen to it: the random test of the whole core."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from headrace_contracts.codes import Code, FinishReason
from headrace_engine.scheduler.journal import BLOCKS_A_PASS, Journal
from headrace_engine.state.request import MediaSpan
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from support.engine import RecurrentExecutor, Rig, TokenExactExecutor, image, true_tokens

IMAGES = [
    ((2, 5, 1),),
    ((2, 5, 2),),
    ((2, 5, 1), (6, 7, 3)),
    ((2, 3, 1), (4, 9, 2)),
    ((0, 4, 1),),
    ((3, 4, 0),),
]
"""(first, end, number) of each item; number 0 is equal to nothing."""
PREFIXES = [[], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 9, 9, 9, 9, 9], [5] * 12]


def up_to_stop(tokens: list[int], stops: frozenset[int], min_new: int) -> list[int]:
    """As far as a sequence gets that may stop after ``min_new`` tokens."""
    for index in range(min_new, len(tokens)):
        if tokens[index] in stops:
            return tokens[: index + 1]
    return tokens


class EngineMachine(RuleBasedStateMachine):
    """One engine and everything that may happen to it."""

    phases: int
    fold: Any
    journal_bytes: int | None = None
    """Size of a journal's ring; None: there is none."""
    blocks_a_pass: int = BLOCKS_A_PASS
    """That a snapshot of the journal looks at."""

    @initialize(
        blocks=st.sampled_from([8, 10, 16]),
        rows=st.sampled_from([1, 3, 4]),
        chunk=st.sampled_from([4, 8]),
        cache=st.sampled_from([True, True, True, False]),
        window=st.sampled_from([1, 8]),
        prompt=st.sampled_from(["all", "all", "all", "auto"]),
        generation=st.sampled_from(["all", "all", "all", "auto", "none"]),
        interval=st.sampled_from([1, 4, 8, 64]),
        skip=st.sampled_from([1, 1, 3]),
    )
    def start(
        self,
        blocks: int,
        rows: int,
        chunk: int,
        cache: bool,
        window: int,
        prompt: str,
        generation: str,
        interval: int,
        skip: int,
    ) -> None:
        self.executor = self._executor()
        size = type(self).journal_bytes
        self.journal = None
        if size is not None:
            self.journal = Journal(size, blocks_a_pass=type(self).blocks_a_pass)
        self.rig = Rig(
            executor=self.executor,
            journal=self.journal,
            fold=type(self).fold,
            phases=type(self).phases,
            pool_blocks=blocks,
            max_batch=rows,
            prefill_chunk_tokens=chunk,
            batch_tokens=chunk + rows + 4,
            session_tokens=40,
            prefix_cache=cache,
            cache_prompt=prompt,
            cache_generation=generation,
            cache_checkpoint_interval=interval,
            cache_prompt_boundary_skip=skip,
            plan_window=window,
            max_waiting=6,
            ageing_s=20.0,
        )
        self.disturbed: set[int] = set()
        self.failures = 0

    @rule(
        prefix=st.sampled_from(PREFIXES),
        tail=st.lists(st.integers(0, 3), min_size=1, max_size=9),
        new=st.integers(1, 12),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        stops=st.sampled_from([(), (), (0, 1, 2, 3, 4, 5, 6, 7)]),
        min_new=st.sampled_from([0, 0, 3]),
        tenant=st.sampled_from(["a", "b"]),
        band=st.integers(0, 2),
        salt=st.sampled_from([b"", b"", b"x"]),
        deadline_s=st.sampled_from([None, None, None, 10.0]),
        given=st.sampled_from([0, 0, 2]),
        images=st.sampled_from([(), (), (), *IMAGES]),
    )
    def push(
        self,
        prefix: list[int],
        tail: list[int],
        new: int,
        n: int,
        stops: tuple[int, ...],
        min_new: int,
        tenant: str,
        band: int,
        salt: bytes,
        deadline_s: float | None,
        given: int,
        images: tuple[tuple[int, int, int], ...],
    ) -> None:
        prompt = prefix + tail
        media = tuple(
            MediaSpan(first, min(end, len(prompt)), image(number))
            for first, end, number in images
            if first < len(prompt)
        )
        earlier: list[list[int]] = []
        if given:
            whole = [
                self._true_tokens(prompt, min(given, new), choice=c, media=media) for c in range(n)
            ]
            earlier = [up_to_stop(tokens, frozenset(stops), min_new) for tokens in whole]
        handle = self.rig.push(
            prompt,
            new,
            n=n,
            stop_token_ids=frozenset(stops),
            min_new_tokens=min(min_new, new),
            tenant=tenant,
            band=band,
            cache_salt=salt,
            deadline_s=None if deadline_s is None else self.rig.clock.monotonic() + deadline_s,
            generated=earlier,
            media=media,
        )
        if deadline_s is not None:
            self.disturbed.add(handle)

    @rule(data=st.data())
    def push_a_second_turn(self, data: st.DataObject) -> None:
        done = [
            key for key, heard in self.rig.heard.items() if heard.end is not None and heard.tokens
        ]
        if done:
            handle, choice = data.draw(st.sampled_from(sorted(done)))
            request = self.rig.requests[handle]
            prompt = [*request.prompt.tolist(), *self.rig.tokens(handle, choice)]
            self.rig.push([*prompt[:30], 7], 3, media=request.media)

    @rule(steps=st.integers(1, 6))
    def run_passes(self, steps: int) -> None:
        for _ in range(steps):
            self.rig.clock.advance(1.0)
            self.rig.step()

    @rule(data=st.data(), whole=st.booleans(), stop=st.booleans())
    def cancel(self, data: st.DataObject, whole: bool, stop: bool) -> None:
        if self.rig.requests:
            handle = data.draw(st.sampled_from(sorted(self.rig.requests)))
            reason = FinishReason.STOP if stop else FinishReason.CANCELLED
            self.rig.cancel(self.rig.requests[handle].handle, reason, None if whole else 0)
            self.disturbed.add(handle)

    @rule(row=st.integers(0, 3), ahead=st.integers(1, 2))
    def fail_a_row(self, row: int, ahead: int) -> None:
        self.executor.fail_rows.add((self.rig.scheduler.passes + ahead, row))

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.rig.run(3000)
        for handle, request in self.rig.requests.items():
            for choice in range(request.n):
                self._check(handle, choice)
        self.rig.assert_idle()

    def _executor(self) -> TokenExactExecutor:
        return TokenExactExecutor()

    def _true_tokens(self, prompt: list[int], count: int, **fields: Any) -> list[int]:
        return true_tokens(prompt, count, recurrent=self.executor.recurrent, **fields)

    def _check(self, handle: int, choice: int) -> None:
        heard = self.rig.choice(handle, choice)
        assert heard.end is not None, "no terminal status"
        self.rig.assert_true(handle, choice)
        request = self.rig.requests[handle]
        given = len(request.generated[choice]) if request.generated else 0
        assert heard.end.usage.completion_tokens in (0, given + len(heard.tokens))
        if heard.end.code is Code.NUMERIC_FAILURE or handle in self.disturbed:
            return
        if heard.end.code is Code.PROMPT_NEVER_FITS:
            assert len(request.prompt) + 1 > self.rig.settings.pool_tokens
            return
        limit = min(request.sampling.max_new_tokens, 40 - len(request.prompt))
        limit = min(limit, self.rig.settings.pool_tokens - len(request.prompt))
        whole = self._true_tokens(
            request.prompt.tolist(), limit, choice=choice, media=request.media
        )
        sampling = request.sampling
        expected = up_to_stop(whole, sampling.stop_token_ids, sampling.min_new_tokens)
        stopped = (
            expected[-1] in sampling.stop_token_ids and len(expected) > sampling.min_new_tokens
        )
        assert heard.end.reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
        assert heard.tokens == expected[given:]


class StateMachine(EngineMachine):
    """The same for a model with a recurrent state, of one block or of several parts."""

    state_parts: tuple[int, ...] = (8, 8)

    def _executor(self) -> TokenExactExecutor:
        return RecurrentExecutor(type(self).state_parts)
