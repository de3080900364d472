"""See the module headers."""
