"""A container engine for tests, on a Debian machine that has none: installed, started, stopped."""
