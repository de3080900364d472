"""How a call's events become response bodies and chunks."""
