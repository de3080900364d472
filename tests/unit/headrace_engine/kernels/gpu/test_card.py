"""Cards by name, and the card that is here."""

from __future__ import annotations

import ctypes

import pytest
import torch
from headrace_engine.kernels.gpu import card as cards
from headrace_engine.kernels.gpu.card import (
    Card,
    find_card,
    parse_card,
    processors_of,
    shared_memory,
)
from support.gpu import DEVICE, ON_GPU

pytestmark = pytest.mark.torch


def test_a_card_is_named_by_architecture_and_processors() -> None:
    assert parse_card("sm_90:132") == Card(9, 0, 132)
    assert parse_card("sm_120:188") == Card(12, 0, 188)
    assert str(Card(8, 9, 142)) == "sm_89:142"


@pytest.mark.parametrize("text", ["", "sm_90", "h100", "sm_9:0", "sm_90:0", "sm_90:132x"])
def test_what_names_no_card_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="sm_90:132"):
        parse_card(text)


@pytest.mark.skipif(not ON_GPU, reason="asks the card that is here")
def test_the_card_that_is_here_is_the_one_torch_finds() -> None:
    card = find_card()
    assert card is not None
    assert card.capability == torch.cuda.get_device_capability()
    assert card.processors == processors_of(torch.device(DEVICE))


def test_without_a_driver_there_is_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert find_card() is None


@pytest.mark.parametrize(
    ("capability", "kib"),
    [((8, 0), 163), ((8, 9), 99), ((9, 0), 227), ((12, 0), 99), ((0, 0), 99), ((13, 0), 99)],
)
def test_shared_memory_goes_by_the_architecture(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], kib: int
) -> None:
    monkeypatch.setattr(cards, "capability", lambda: capability)
    assert shared_memory() == kib << 10


@pytest.mark.skipif(not ON_GPU, reason="asks the card that is here")
def test_the_card_that_is_here_has_that_much_shared_memory() -> None:
    properties = torch.cuda.get_device_properties(DEVICE)
    assert shared_memory() <= properties.shared_memory_per_block_optin
