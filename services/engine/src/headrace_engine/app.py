"""Builds the engine from its settings, once, and runs it."""
