"""The decoder seam: a batch of ragged token rows over paged KV, in; logits, out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Dtype = Literal["float32", "bfloat16", "packed"]
"""How the weights of the linears are held. ``packed`` keeps the file's own 4-bit blocks."""
KvDtype = Literal["float32", "bfloat16"]

LANES: Final = 16
"""Token positions that lie side by side in a block's keys, so that one vector scores them all."""
_ALIGNMENT_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """How one cache block lies in memory.

    A block holds, for each layer, ``keys[kv_head, token // 16, head_dim, 16]`` and then
    ``values[kv_head, token, head_dim]``. Keys of a block whose tokens are not a multiple of 16
    have unused lanes at their end.
    """

    layers: int
    kv_heads: int
    head_dim: int
    block_tokens: int
    kv_dtype: KvDtype

    @property
    def item_bytes(self) -> int:
        """Bytes of one number."""
        return 4 if self.kv_dtype == "float32" else 2

    @property
    def lane_groups(self) -> int:
        """Groups of 16 tokens in a block."""
        return -(-self.block_tokens // LANES)

    @property
    def key_items(self) -> int:
        """Numbers of one layer's keys in a block."""
        return self.kv_heads * self.lane_groups * self.head_dim * LANES

    @property
    def layer_items(self) -> int:
        """Numbers of one layer's keys and values in a block."""
        return self.key_items + self.kv_heads * self.block_tokens * self.head_dim

    @property
    def block_bytes(self) -> int:
        """Bytes of a block across all layers, a multiple of 64."""
        size = self.layers * self.layer_items * self.item_bytes
        return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's KV across all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.item_bytes


@dataclass(frozen=True, slots=True)
class ForwardInputs:
    """One batch for a decoder. A row is a run of consecutive positions of one sequence.

    Invariants
        offsets[-1] == len(tokens)
        the blocks from block_starts[i] cover positions 0 .. begins[i] + offsets[i + 1] - offsets[i]
    """

    tokens: NDArray[np.int32]
    """int32[tokens]."""
    offsets: NDArray[np.int32]
    """int32[rows + 1]: where each row's tokens begin."""
    begins: NDArray[np.int32]
    """int32[rows]: position of each row's first token."""
    blocks: NDArray[np.int64]
    """int64[any]: byte offsets in the region, each row's in position order."""
    block_starts: NDArray[np.int32]
    """int32[rows]: where in ``blocks`` each row's begin."""
    store_from: NDArray[np.int32]
    """int32[rows]: KV of earlier positions is not written."""
    outputs: NDArray[np.int32]
    """int32[outputs]: indices of the tokens whose logits are wanted."""


@dataclass(frozen=True, slots=True)
class DecoderLimits:
    """What scratch is made for."""

    tokens: int
    """Of one batch."""
    outputs: int
    """Logit rows of one batch."""
    positions: int
    """Of one sequence."""


class Decoder(Protocol):
    """Weights, and one way to run them. One thread at a time calls it."""

    def describe(self) -> dict[str, str | int]:
        """What it is, for the log."""
        ...

    def start(self, limits: DecoderLimits, layout: CacheLayout, region: NDArray[np.uint8]) -> None:
        """Makes scratch for ``limits``. ``region`` holds the cache blocks."""
        ...

    def run(self, inputs: ForwardInputs) -> NDArray[np.float32]:
        """Writes KV and returns ``float32[outputs, vocabulary]`` logits, valid until the next call."""
        ...

    def close(self) -> None:
        """Ends its threads and frees what ``start`` made; ``start`` may follow.

        Weights go with the object.
        """
        ...
