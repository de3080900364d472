"""The arithmetic of a memory plan, and what is said when it does not add up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headrace_engine.errors import ModelRejected
from support.gpu import DEVICE

# Triton is imported below, and support.gpu chooses its interpreter before.
pytest.importorskip("triton")

import torch
from headrace_engine.executor.cuda_memory import MemoryPlan, allocating
from triton.runtime.errors import OutOfResources  # pyright: ignore[reportMissingTypeStubs]

pytestmark = pytest.mark.torch

GIB = 1 << 30
PLAN = MemoryPlan(
    total=80 * GIB,
    share=0.9,
    workspace=2 * GIB,
    weights=16 * GIB,
    activations=3 * GIB,
    graphs=1 * GIB,
)


def test_the_cache_gets_what_the_share_leaves() -> None:
    assert PLAN.room == 50 * GIB
    assert replace(PLAN, share=0.5).room == 18 * GIB
    PLAN.check(block_bytes=25 * GIB)


def test_the_log_names_every_category_in_gib() -> None:
    assert PLAN.with_cache(50 * GIB).told() == {
        "total": 80.0,
        "share": 0.9,
        "workspace": 2.0,
        "weights": 16.0,
        "activations": 3.0,
        "graphs": 1.0,
        "cache": 50.0,
    }


def test_a_plan_without_room_is_refused_with_its_numbers() -> None:
    with pytest.raises(ModelRejected) as refused:
        replace(PLAN, share=0.25).check(block_bytes=1 << 20)
    assert str(refused.value) == (
        "no memory is left for the KV cache: of 80.00 GiB, gpu_memory_utilization 0.25 admits "
        "20.00, and weights 16.00, activations 3.00, graphs 1.00, workspace 2.00 GiB are taken "
        "(workspace counts other processes too); lower max_batch or batch_tokens, raise "
        "gpu_memory_utilization, or take a smaller model"
    )
    with pytest.raises(ModelRejected):
        PLAN.check(block_bytes=26 * GIB)  # one block would fit, two do not


def test_a_kernel_that_does_not_fit_the_card_is_refused_with_its_numbers() -> None:
    with (
        pytest.raises(
            ModelRejected, match="wants 131072 of shared memory, and the card has 101376"
        ),
        allocating("activations", torch.device(DEVICE), "lower max_batch"),
    ):
        raise OutOfResources(131072, 101376, "shared memory")
