"""Limits that both sides of the wire rely on."""

from __future__ import annotations

from typing import Final

WIRE_VERSION: Final = 1
"""Version of every record in ``queue.proto``."""
MAX_CHOICES: Final = 128
"""Largest ``n``."""
MAX_TOP_LOGPROBS: Final = 20
MAX_LOGIT_BIAS: Final = 1024
"""Entries of one request's ``logit_bias``."""
MAX_STOP_TOKEN_IDS: Final = 64
INLINE_RECORD_BYTES: Final = 32 * 1024
"""A larger record goes to ``hr:{id}:body``, by reference."""
MAX_RECORD_BYTES: Final = 16 * 1024 * 1024
"""Largest encoded ``RequestRecord``."""
MAX_NAME: Final = 64
"""Characters of a request id, tenant or key id."""
MAX_PROCESS_NAME: Final = 128
"""Characters of a process id: a host name and a boot nonce."""
BOOT_NONCE: Final = 8
"""Hex digits at the end of a process id, after its name and a hyphen."""
MAX_MODEL_NAME: Final = 128
"""Characters of a model's name."""
SUSPECT_CRASHES: Final = 2
"""Leases of a request that expired before it is run alone."""
MAX_CRASHES: Final = 3
"""Leases of a request that expired, the last of them alone, before it is a dead letter."""
GENERATED_WEIGHT: Final = 2
"""Prompt tokens that one generated token is worth in a tenant's virtual counter."""
LOG_EVERY_TOKENS: Final = 16
"""Steps of a request between two appends to its resume log."""
LOG_EVERY_S: Final = 0.25
"""Longest time a delivered token stays out of the resume log."""
