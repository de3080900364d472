"""A pool of blocks over a small region."""

from __future__ import annotations

import pytest
from support.cache import CacheRig


@pytest.fixture
def rig() -> CacheRig:
    return CacheRig(blocks=8)
