"""Policy: arithmetic only. Where a chunk ends, who may take memory from whom.

Owner    nobody; functions of their arguments
Writes   nothing
Never    has state
Rules    sched.decode-first, sched.chunk-ends, sched.memory-by-order, sched.hysteresis
Next     headrace_engine.scheduler.order
"""

from __future__ import annotations

from headrace_engine.cache.block import Rank


def prefill_budget(
    *,
    decoding: int,
    batch_tokens: int,
    chunk_tokens: int,
    block_tokens: int = 1,
    step_tokens: int = 1,
) -> int:
    """Tokens of known context that one pass may compute beside ``decoding`` rows.

    What goes beyond a multiple of ``step_tokens`` would be filled up to the next one, and is left for
    the next pass, unless it is most of the chunk, or less than a block would remain.
    """
    free = batch_tokens - decoding
    if not decoding:
        return free
    tokens = min(free, chunk_tokens)
    beyond = (decoding + tokens) % step_tokens
    left = tokens - beyond
    return left if left >= max(beyond, block_tokens) else tokens


def chunk_end(*, begin: int, context: int, budget: int, block_tokens: int) -> int:
    """Where a chunk from ``begin`` stops: the context's end, or else a block boundary.

    ``begin`` itself when the budget does not reach a boundary.
    """
    if context - begin <= budget:
        return context
    end = (begin + budget) // block_tokens * block_tokens
    return max(begin, end)


def prefill_share(*, budget: int, whole: int, contenders: int, block_tokens: int) -> int:
    """Tokens that the first of ``contenders`` prompts may take before the others had theirs.

    Half of what is left of the pass's ``whole`` budget, as long as somebody else waits: a long prompt
    neither freezes short ones nor starves. But no less than a quarter of the whole: prompts that are
    cut into small pieces take more passes, and each piece reads what stands before it once more.
    """
    if contenders <= 1:
        return budget
    return max(budget // 2, min(budget, max(block_tokens, whole // 4)))


def worth_waiting(*, gain: int, work: int, block_tokens: int) -> bool:
    """Whether to wait a pass for ``gain`` tokens that another computes just now, of ``work``.

    Only for most of the work, and for more than half a block: else the wait costs more than it saves.
    """
    return 2 * gain > max(work, block_tokens)


def publication_end(*, begin: int, end: int, boundary: int, due: int, block_tokens: int) -> int:
    """Where a chunk of a model with a recurrent state stops, so that the state there can be kept.

    At ``boundary`` if the chunk reaches it, else at its last block boundary, if that is ``due``.
    """
    if begin < boundary <= end:
        return boundary
    aligned = end // block_tokens * block_tokens
    return aligned if aligned > begin and aligned >= due else end


def may_take_row(taker: Rank, victim: Rank) -> bool:
    """Whether a waiting ``taker`` may have the row of ``victim``, which runs.

    Only a more urgent band may: within one, whoever runs has as good a right, and a swap costs.
    """
    return taker[0] < victim[0]


def may_take(
    taker: Rank, victim: Rank, *, taker_runs: bool, victim_runs: bool, same_tenant: bool
) -> bool:
    """Whether ``taker`` may have blocks that ``victim`` holds.

    The total order decides. A waiting sequence does not stop a running one of another tenant
    in its band: their order changes every quantum, and each change would cost a preemption. Nor
    does it one that came earlier and may end later: each deadline would cost one.
    """
    if taker >= victim:
        return False
    if taker_runs or not victim_runs:
        return True
    return taker[0] < victim[0] or (same_tenant and taker[-1] < victim[-1])
