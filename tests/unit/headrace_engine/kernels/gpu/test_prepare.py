"""From a message to what a step reads: its tokens, and what of it is only room."""

from __future__ import annotations

import numpy as np
import pytest
from support.gpu import DEVICE

# Triton is imported below, and support.gpu chooses its interpreter before.
pytest.importorskip("triton")

import torch
from headrace_engine.kernels.gpu.prepare import UNIT_BYTES, Message, prepare
from torch import Tensor

pytestmark = pytest.mark.torch
BLOCK, HEAD, ITEM = 16, 8, 4
SLOTS, BLOCKS = 4, 40
UNITS = UNIT_BYTES // ITEM


class Step:
    """A message of rows of slots, and the arrays that are filled in from it."""

    def __init__(self, capacity: int, tokens: int) -> None:
        self.message = Message(capacity, 4 * BLOCKS, tokens)
        self.words = np.zeros(self.message.size, np.int32)
        self.table = torch.zeros((SLOTS + 1, BLOCKS), dtype=torch.int64, device=DEVICE)
        self.last = torch.arange(900, 900 + SLOTS + 1, dtype=torch.int32, device=DEVICE)
        kinds = [torch.int32] * 3 + [torch.int64]
        made = [torch.full((tokens + 8,), -7, dtype=kind, device=DEVICE) for kind in kinds]
        self.tokens, self.slots, self.positions, self.targets = made

    def put(self, place: int, values: list[int]) -> None:
        self.words[place : place + len(values)] = values

    def run(self, rows: int, longest: int, updates: int, size: int | None) -> None:
        prepare(
            self.message,
            torch.as_tensor(self.words, device=DEVICE),
            self.table,
            self.last,
            self.tokens,
            self.slots,
            self.positions,
            self.targets,
            rows=rows,
            longest=longest,
            updates=updates,
            block_tokens=BLOCK,
            head_dim=HEAD,
            item_bytes=ITEM,
            size=size,
        )


def values(tensor: Tensor) -> list[int]:
    return tensor.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def target(unit: int, position: int) -> int:
    return unit * UNITS + position % BLOCK * HEAD


# A step that is captured is prepared for the most that its size may have.
@pytest.mark.parametrize("bounds", [(2, 300, 21), (4, 320, 160)])
def test_a_step_with_prompts_is_filled_in_and_what_fills_it_up_writes_no_kv(
    bounds: tuple[int, int, int],
) -> None:
    step = Step(4, 320)
    message = step.message
    # Slot 2 has 300 tokens from position 16 on, slot 0 one at 40: the last that it sampled.
    step.put(0, [2, 21, 301])
    step.put(message.slots, [2, 0])
    step.put(message.begins, [16, 40])
    step.put(message.lengths, [300, 1])
    step.put(message.offsets, [0, 300])
    step.put(message.store_from, [20, 0])
    blocks = [*range(1, 21), 2]
    step.put(message.update_slots, [2] * 20 + [0])
    step.put(message.update_blocks, blocks)
    step.put(message.update_units, [50 + i for i in range(20)] + [99])
    step.put(message.host_tokens, [*range(1000, 1300), -1])
    step.run(*bounds, size=320)
    assert values(step.tokens)[:301] == [*range(1000, 1300), 900]
    assert values(step.slots)[:301] == [2] * 300 + [0]
    assert values(step.positions)[:301] == [*range(16, 316), 40]
    long = [target(50 + p // BLOCK - 1, p) if p >= 20 else -1 for p in range(16, 316)]
    # Behind the message's tokens none is written, and behind the step nothing is touched.
    assert values(step.targets) == [*long, target(99, 40)] + [-1] * 19 + [-7] * 8
    assert values(step.tokens)[301:] == [-7] * 27


def test_a_full_step_has_nothing_to_fill_up() -> None:
    step = Step(4, 16)
    message = step.message
    step.put(0, [4, 0, 16])
    step.put(message.slots, [0, 1, 2, 3])
    step.put(message.lengths, [4] * 4)
    step.put(message.offsets, [0, 4, 8, 12])
    step.put(message.host_tokens, list(range(16)))
    step.run(4, 16, 160, size=16)
    assert values(step.targets) == [target(0, p) for p in [0, 1, 2, 3] * 4] + [-7] * 8


def test_rows_that_pad_a_decode_step_run_in_the_spare_slot_and_write_no_kv() -> None:
    step = Step(4, 4)
    message = step.message
    step.put(0, [1, 0, 1])
    step.put(message.slots, [3])
    step.put(message.begins, [17])
    step.put(message.lengths, [1])
    step.put(message.host_tokens, [-1])
    step.run(4, 1, 0, size=None)
    assert values(step.tokens)[:4] == [903, 0, 0, 0]
    assert values(step.slots)[:4] == [3, SLOTS, SLOTS, SLOTS]
    assert values(step.positions)[:4] == [17, 0, 0, 0]
    assert values(step.targets) == [target(0, 17), -1, -1, -1] + [-7] * 8
