"""Alerts, beside what the gateways do."""

from __future__ import annotations

import re

from chartgen.alerts import ALERTS
from headrace_gateway.auth.upkeep import FORGET_EVERY_S


def test_damaged_records_are_told_as_long_as_they_are_met_at_all() -> None:
    """Keys are read together once in ``FORGET_EVERY_S``: a step of the counter is as rare."""
    alert = next(each for each in ALERTS if each.name == "HeadraceRecordsDamaged")
    window = re.search(r"increase\(\w+\[(\d+)m\]\)", alert.expr)
    assert window is not None
    assert int(window[1]) * 60 > FORGET_EVERY_S
    assert alert.wait == "0m"
