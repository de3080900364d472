"""Checkpoints on disk: where they are, what they hold, and how a tensor is read out of them."""
