"""Cutting a sequence at arbitrary places."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def cut(items: Sequence[T], at: Sequence[int]) -> list[Sequence[T]]:
    """The items in order, cut at the places of ``at`` that lie inside."""
    places = sorted({0, len(items), *(place for place in at if place < len(items))})
    return [items[first:end] for first, end in pairwise(places)]
