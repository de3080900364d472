"""What every test run shares."""

from __future__ import annotations

from hypothesis import settings

# Timings on a shared machine are noise: no test fails for being slow on one example.
settings.register_profile("headrace", deadline=None, print_blob=True)
settings.load_profile("headrace")
