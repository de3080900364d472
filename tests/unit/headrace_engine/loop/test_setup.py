"""Setup: a plan as arrays."""

from __future__ import annotations

import numpy as np
import pytest
from support.engine import Rig, TokenExactExecutor


@pytest.mark.rule("batch.generating-first")
def test_decodes_come_first_then_chunks_that_sample_then_the_others() -> None:
    executor = TokenExactExecutor()
    rig = Rig(executor=executor, prefill_chunk_tokens=16, batch_tokens=32, pool_blocks=32)
    rig.push([1], 20)
    rig.step()
    rig.push(list(range(30)), 2)
    rig.push([5, 6], 2)
    rig.step()
    batch = executor.batches[-1]
    assert batch.generating == 2
    assert batch.autoregressive.tolist() == [True, False, False]
    assert batch.lengths.tolist() == [1, 2, 12]
    assert batch.begins.tolist() == [1, 0, 0]
    assert batch.token_offsets.tolist() == [0, 1, 3, 15]
    assert batch.tokens.tolist() == [0, 5, 6, *range(12)]
    assert batch.sample_indices.tolist() == [1, 0]
    assert [s.slot for s in batch.starts] == batch.slots[1:].tolist()[::1]
    rig.run()


def test_a_start_brings_everything_the_executor_needs() -> None:
    executor = TokenExactExecutor()
    rig = Rig(executor=executor)
    rig.push(
        [1, 2], 6, n=2, generated=[[5], [6]], seed=9, temperature=0.5, top_k=3, attempt=4,
        stop_token_ids=frozenset([96]), min_new_tokens=2,
    )  # fmt: skip
    rig.run()
    starts = [start for batch in executor.batches for start in batch.starts]
    assert [start.choice for start in starts] == [0, 1]
    assert [start.tokens.tolist() for start in starts] == [[1, 2, 5], [1, 2, 6]]
    sampling = starts[0].sampling
    assert starts[0].prompt_tokens == 2
    assert (sampling.seed, sampling.temperature, sampling.top_k) == (9, 0.5, 3)
    assert (sampling.attempt, sampling.min_new_tokens) == (4, 2)
    assert sampling.stop_token_ids == {96}


def test_shared_blocks_are_not_stored_again() -> None:
    executor = TokenExactExecutor()
    rig = Rig(executor=executor)
    rig.push(list(range(8)), 1)
    rig.run()
    rig.push(list(range(8)), 1)
    rig.run()
    batch = executor.batches[-1]
    assert batch.begins.tolist() == [7]
    assert batch.store_from.tolist() == [8]


def test_what_was_given_away_does_not_change() -> None:
    executor = TokenExactExecutor()
    rig = Rig(executor=executor, phases=2)
    rig.push([1, 2, 3], 12)
    kept: list[tuple[np.ndarray, list[int]]] = []
    while rig.busy:
        rig.step()
        for batch in executor.batches[len(kept) :]:
            tokens = batch.starts[0].tokens if batch.starts else batch.tokens
            kept.append((tokens, tokens.tolist()))
    assert all(array.tolist() == before for array, before in kept)
