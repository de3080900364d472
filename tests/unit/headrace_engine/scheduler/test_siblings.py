"""Partial siblings: less than a block is shared, by a copy into a block of one's own."""

from __future__ import annotations

import numpy as np
import pytest
from headrace_engine.cache.block import SequenceBlocks
from headrace_engine.scheduler.admit import admit_prompt
from headrace_engine.scheduler.plan import plan_resume, resume_ways
from headrace_engine.scheduler.policy import worth_waiting
from headrace_engine.state.outputs import SequenceUsage
from headrace_engine.state.request import MediaSpan, Request, RequestHandle, Sampling
from headrace_engine.state.sequence import Sequence
from support.cache import CacheRig
from support.engine import Rig, TokenExactExecutor, colliding_fold, image, small_settings

BOTH = pytest.mark.parametrize("phases", [1, 2])


def exact(rig: Rig) -> TokenExactExecutor:
    assert isinstance(rig.executor, TokenExactExecutor)
    return rig.executor


def first_begin(rig: Rig, handle: int) -> int:
    """Position of the first token computed for the newest sequence that started."""
    batch = next(b for b in reversed(exact(rig).batches) if b.starts)
    row = batch.slots.tolist().index(batch.starts[-1].slot)
    return int(batch.begins[row])


def usage(rig: Rig, handle: int) -> SequenceUsage:
    end = rig.choice(handle).end
    assert end is not None
    return end.usage


@BOTH
@pytest.mark.rule("siblings.copied-before")
@pytest.mark.parametrize("common", range(12))
def test_a_prompt_begins_where_it_parts_from_one_that_is_cached(phases: int, common: int) -> None:
    rig = Rig(phases=phases)
    first = rig.push(list(range(11)), 3)
    rig.run()
    second = rig.push([*range(common), *[50] * (12 - common)], 3)
    rig.run()
    assert first_begin(rig, second) == common
    assert exact(rig).copied == (common % 4 > 0)
    for handle in (first, second):
        rig.assert_true(handle)
    rig.assert_idle()


@BOTH
@pytest.mark.rule("siblings.whole-blocks-in-usage")
@pytest.mark.parametrize("length", range(1, 14))
def test_a_repeated_prompt_computes_its_last_token_alone(phases: int, length: int) -> None:
    rig = Rig(phases=phases)
    handles = [rig.push(list(range(length)), 2) for _ in range(1)]
    rig.run()
    before = rig.loop.metrics.get().cached_tokens
    handles.append(rig.push(list(range(length)), 2))
    rig.run()
    assert first_begin(rig, handles[1]) == length - 1
    assert usage(rig, handles[1]).cached_tokens == (length - 1) // 4 * 4
    assert rig.loop.metrics.get().cached_tokens - before == length - 1
    for handle in handles:
        rig.assert_true(handle)
    rig.assert_idle()


@BOTH
@pytest.mark.rule("siblings.kept")
def test_the_next_turn_begins_at_the_token_where_the_last_one_ended(phases: int) -> None:
    rig = Rig(phases=phases)
    first = rig.push([1, 2, 3, 4, 5], 6)
    rig.run()
    said = rig.tokens(first)
    second = rig.push([1, 2, 3, 4, 5, *said, 7, 8, 9], 2)
    rig.run()
    # The last token was sampled, and never computed.
    assert first_begin(rig, second) == 10
    rig.assert_true(second)
    rig.assert_idle()


@BOTH
@pytest.mark.rule("siblings.never-early")
@pytest.mark.parametrize("length", [3, 6, 7, 8])
def test_choices_share_the_prompt_to_its_last_token(phases: int, length: int) -> None:
    rig = Rig(phases=phases, block_tokens=8, pool_blocks=16)
    handle = rig.push(list(range(length)), 4, n=4)
    rig.run()
    for choice in range(4):
        rig.assert_true(handle, choice)
    chunks = [
        int(length)
        for batch in exact(rig).batches
        for length in batch.lengths[~batch.autoregressive]
    ]
    # Less than half a block is computed by each: to wait a pass for it would cost more.
    assert chunks == ([length, 1, 1, 1] if length > 5 else [length] * 4)
    rig.assert_idle()


@pytest.mark.rule("siblings.never-early")
def test_what_is_computed_in_this_pass_is_not_copied_in_it() -> None:
    rig = Rig(max_batch=2)
    first, second = rig.push([1, 2, 3, 5, 5, 5], 1), rig.push([1, 2, 3, 6, 6, 6], 1)
    rig.step()
    (batch,) = exact(rig).batches
    assert len(batch.starts) == 2
    assert batch.begins.tolist() == [0, 0]
    assert batch.restores == []
    rig.run()
    for handle in (first, second):
        rig.assert_true(handle)


def test_waiting_must_save_most_of_the_work_and_more_than_half_a_block() -> None:
    assert worth_waiting(gain=9, work=10, block_tokens=16)
    assert not worth_waiting(gain=8, work=9, block_tokens=16), "half a block"
    assert not worth_waiting(gain=9, work=18, block_tokens=16), "half of the work"


@BOTH
def test_what_a_running_sequence_has_of_its_prompt_is_copied_while_it_writes_on(
    phases: int,
) -> None:
    rig = Rig(phases=phases, block_tokens=8, pool_blocks=16)
    first = rig.push([1, 2, 3, 4, 5, 6], 20)
    for _ in range(3):
        rig.step()
    second = rig.push([1, 2, 3, 4, 5, 9, 9], 3)
    rig.run()
    assert first_begin(rig, second) == 5
    for handle in (first, second):
        rig.assert_true(handle)
    rig.assert_idle()


@BOTH
@pytest.mark.rule("siblings.source-keeps-memory")
def test_where_memory_is_short_for_source_and_copy_nothing_is_copied(phases: int) -> None:
    rig = Rig(phases=phases, pool_blocks=3, session_tokens=12, prefill_chunk_tokens=12)
    first = rig.push([1, 2, 3], 1)
    rig.run()
    assert rig.scheduler.pool.slots.allocated == 1
    second = rig.push([1, 2, 4, 4, 4, 4, 4, 4, 4, 4], 2)
    rig.run()
    assert first_begin(rig, second) == 0
    assert exact(rig).copied == 0
    for handle in (first, second):
        rig.assert_true(handle)
    rig.assert_idle()


@BOTH
@pytest.mark.rule("siblings.source-keeps-memory")
def test_who_comes_later_in_the_pass_does_not_get_the_source_s_memory(phases: int) -> None:
    rig = Rig(phases=phases, pool_blocks=4, session_tokens=16, max_batch=3)
    rig.push([1, 2, 3], 1)
    rig.run()
    second = rig.push([1, 2, 4, 4], 1)
    third = rig.push([8] * 9, 1)
    rig.run()
    for handle in (second, third):
        rig.assert_true(handle)
    started = [b for b in exact(rig).batches if b.restores]
    assert len(started) == 1
    assert len(started[0].starts) == 1, "the third waits: three blocks are not left"
    rig.assert_idle()


@BOTH
@pytest.mark.rule("cache.poison-spreads")
@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_what_was_copied_from_a_failed_sequence_is_computed_again(phases: int, ahead: int) -> None:
    rig = Rig(phases=phases, block_tokens=8, pool_blocks=16)
    executor = exact(rig)
    bad = rig.push([1, 2, 3, 4, 5, 6], 30)
    for _ in range(3):
        rig.step()
    second = rig.push([1, 2, 3, 4, 5, 9, 9], 12)
    rig.step()
    third = rig.push([1, 2, 3, 4, 5, 9, 9, 8, 8], 12)
    for _ in range(2):
        rig.step()
    fourth = rig.push([1, 2, 3, 4, 5, 9, 8, 8, 8], 1)
    assert executor.copied >= 2
    executor.fail_rows.add((rig.scheduler.passes + ahead, 0))
    rig.run()
    for handle in (second, third, fourth):
        rig.assert_true(handle)
    assert len(rig.tokens(bad)) < 30
    again = rig.push([1, 2, 3, 4, 5, 9, 9], 3)
    rig.run()
    rig.assert_true(again)
    rig.assert_idle()


def test_a_copy_of_what_failed_before_the_copier_ended_does_not_stay() -> None:
    rig = Rig(block_tokens=8, pool_blocks=16)
    executor = exact(rig)
    rig.push([1, 2, 3, 4, 5, 6], 40)
    for _ in range(2):
        rig.step()
    second = rig.push([1, 2, 3, 4, 5, 9, 9], 2)
    for _ in range(4):
        rig.step()
    assert rig.reason(second) is not None
    assert executor.copied == 1
    pool = rig.scheduler.pool
    assert len(pool.slots.sorted) == 1
    executor.fail_rows.add((rig.scheduler.passes + 1, 0))
    rig.step()
    assert len(pool.slots.sorted) == 0
    rig.run()
    rig.assert_idle()


@BOTH
@pytest.mark.rule("siblings.kept")
def test_of_a_hundred_equal_prompts_one_last_block_stays(phases: int) -> None:
    rig = Rig(phases=phases)
    for _ in range(6):
        rig.push([1, 2, 3, 4, 5, 6], 1)
        rig.run()
    assert len(rig.scheduler.pool.slots.sorted) == 2
    rig.assert_idle()


@pytest.mark.rule("siblings.kept")
@pytest.mark.parametrize(
    ("prompt", "generation", "blocks", "begin"),
    [
        ("all", "all", 3, 10),
        ("all", "auto", 2, 8),
        ("all", "none", 2, 6),
        ("auto", "auto", 2, 8),
        ("auto", "none", 1, 4),
    ],
)
def test_modes_say_what_stays(prompt: str, generation: str, blocks: int, begin: int) -> None:
    rig = Rig(cache_prompt=prompt, cache_generation=generation)
    first = rig.push([1, 2, 3, 4, 5, 6], 5)
    rig.run()
    assert len(rig.scheduler.pool.slots.sorted) == blocks
    second = rig.push([1, 2, 3, 4, 5, 6, *rig.tokens(first), 9], 1)
    rig.run()
    assert first_begin(rig, second) == begin
    rig.assert_true(second)
    rig.assert_idle()


def test_automatically_a_last_block_stays_only_with_a_part_of_an_image() -> None:
    for first, blocks in ((1, 1), (3, 2)):
        rig = Rig(cache_prompt="auto", cache_generation="none")
        rig.push([1, 2, 3, 4, 5, 6], 1, media=(MediaSpan(first, first + 2, image(1)),))
        rig.run()
        assert len(rig.scheduler.pool.slots.sorted) == blocks
        rig.assert_idle()


@BOTH
@pytest.mark.rule("siblings.exact-beginning")
@pytest.mark.rule("cache.exact-identity")
def test_images_are_shared_only_with_themselves(phases: int) -> None:
    rig = Rig(phases=phases, pool_blocks=40, session_tokens=40)

    def ask(*images: tuple[int, int, int]) -> tuple[int, int]:
        media = tuple(MediaSpan(begin, end, image(number)) for begin, end, number in images)
        handle = rig.push([1, 2, 3, 4, 5, 90, 90, 90, 90, 6, 90, 7], 2, media=media)
        rig.run()
        rig.assert_true(handle)
        return first_begin(rig, handle), usage(rig, handle).cached_tokens

    assert ask((5, 9, 1), (10, 11, 2)) == (0, 0)
    assert ask((5, 9, 1), (10, 11, 2)) == (11, 8)
    assert ask((5, 9, 1), (10, 11, 3)) == (10, 8), "up to the image that is another"
    assert ask((5, 9, 4), (10, 11, 2)) == (5, 4)
    assert ask((5, 7, 1), (7, 9, 5)) == (5, 4), "an image of fewer tokens is another"
    assert ask() == (5, 4)
    assert ask((5, 9, 0)) == (5, 4)
    assert ask((5, 9, 0)) == (5, 4), "what is equal to nothing is not equal to itself"
    rig.assert_idle()


def admit(rig: CacheRig, prompt: list[int]) -> SequenceBlocks:
    holder = rig.enter()
    tokens = np.array(prompt, np.int32)
    request = Request("r", RequestHandle(1), tokens, Sampling(max_new_tokens=1))
    sequence = Sequence(request, 0, holder.number, tokens, len(tokens), len(tokens), 99, "", 0.0)
    admit_prompt(rig.pool, holder, sequence, small_settings())
    return holder


@pytest.mark.rule("siblings.bound-once")
def test_a_sibling_is_bound_at_admission_and_judged_in_each_pass() -> None:
    rig = CacheRig()
    first = admit(rig, [1, 2, 3, 4, 5, 6, 7])
    second = admit(rig, [1, 2, 3, 4, 5, 6, 9])
    sibling = second.sibling
    assert sibling is not None
    assert (sibling.source, sibling.common) == (first.blocks[1], 2)
    for block in first.blocks:
        rig.give_memory(block)

    def begin(lost: bool = False) -> list[int]:
        gone = {first.blocks[1]} if lost else set[object]()
        plan = plan_resume(second, known=7, filled=0, lost=gone)  # pyright: ignore[reportArgumentType]
        return [way.begin for way in resume_ways(second, plan, known=7, lost=gone)]  # pyright: ignore[reportArgumentType]

    assert begin() == [4], "nothing of it was written"
    first.blocks[1].written = 1
    assert begin() == [5, 4], "as far as it was written"
    first.blocks[1].written = 3
    assert begin() == [6, 4], "as far as it is the same"
    assert begin(lost=True) == [4]
    for holder in (first, second):
        rig.leave(holder)
    rig.assert_empty()


@pytest.mark.rule("siblings.exact-beginning")
def test_without_keys_that_differ_siblings_are_still_exact() -> None:
    for phases in (1, 2):
        rig = Rig(phases=phases, fold=colliding_fold)
        handles = [
            rig.push(prompt, 3)
            for prompt in ([1, 2, 3], [1, 2, 4], [2, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, 4, 6])
        ]
        rig.run()
        handles += [rig.push([1, 2, 3, 9], 3), rig.push([1, 2, 3, 4, 9, 9], 3)]
        rig.run()
        for handle in handles:
            rig.assert_true(handle)
        rig.assert_idle()


@BOTH
@pytest.mark.rule("siblings.copied-before")
@pytest.mark.parametrize("apart", range(6))
def test_a_burst_of_one_prompt_copies_from_what_its_own_pass_completes(
    phases: int, apart: int
) -> None:
    rig = Rig(phases=phases, max_batch=32, max_waiting=64, pool_blocks=512, batch_tokens=64)
    prompt = list(range(30))
    handles: list[int] = []
    for _ in range(50):
        handles.append(rig.push(prompt, max_new_tokens=12))
        for _ in range(apart):
            rig.step()
    rig.run()
    for handle in handles:
        rig.assert_true(handle)
    rig.assert_idle()


@BOTH
@pytest.mark.rule("siblings.copied-before")
@pytest.mark.parametrize("later", range(1, 8))
def test_a_source_that_its_own_pass_completes_as_a_block_known_already_is_copied_before(
    phases: int, later: int
) -> None:
    # The second completes its block a pass after the first, whose equal block stays in the trie; the
    # third begins in just that pass, for one of these distances, and copies from the second.
    rig = Rig(phases=phases, pool_blocks=32)
    prompt = [1, 2, 3, 4, 5, 6]
    handles = [rig.push(prompt, 8)]
    rig.step()
    handles.append(rig.push(prompt, 8))
    for _ in range(later):
        rig.step()
    handles.append(rig.push(prompt, 8))
    rig.run()
    for handle in handles:
        rig.assert_true(handle)
    assert rig.scheduler.residents.counters.copied_tokens
    rig.assert_idle()
