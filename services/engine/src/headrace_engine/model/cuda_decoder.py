"""The decoder on a CUDA device: one function for a whole decode step, one for mixed batches.

Nothing here synchronizes, allocates for good, or reads a device value on the host, so that
``decode`` can be captured into a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from headrace_engine.kernels.gpu.card import processors_of
from headrace_engine.kernels.gpu.decode_attention import FEW_ROWS, DecodeAttention
from headrace_engine.kernels.gpu.embed import embed_norm
from headrace_engine.kernels.gpu.gated_many import gated_many, gates_many
from headrace_engine.kernels.gpu.gemv import gemv
from headrace_engine.kernels.gpu.norm import residual_norm
from headrace_engine.kernels.gpu.prefill_attention import prefill_attention
from headrace_engine.kernels.gpu.product import (
    MOST_ROWS,
    MOST_SPLITS,
    gated_product,
    gates,
    multiplies,
    product,
    split_product,
    splits_of,
)
from headrace_engine.kernels.gpu.rope_store import rope_store
from headrace_engine.kernels.gpu.shared_attention import (
    SharedRows,
    beginning_splits,
    shared_attention,
)
from headrace_engine.kernels.gpu.swiglu import swiglu
from headrace_engine.model.cuda_weights import CudaLayer, CudaWeights

_GEMV_ROWS = 1
ADDED_ROWS: Final = 512
"""From here on cuBLAS adds a product to the residual itself, which costs it next to nothing: the norm
that follows has half as much to read and to write."""
FRESH_TOKENS: Final = 3072
"""Least length of a prompt without cached context that attends by cuDNN, where that is faster by
more than the launches cost of a step that is not captured. At 2,048 both take the same time,"""
FRESH_TOKENS_OF_SMALL: Final = 6144
"""and of a small model such a step waits for its launches, 0.6 ms a layer, until prompts are this long."""
_SMALL_LAYER: Final = 64 << 20
"""Items at most of a small model's layer."""
_FRESH_STEP: Final = 512
"""cuDNN makes a plan for each length, 40 ms each on an H200: lengths are rounded up to this."""
PREFILL_SIZES: Final = (16, 32, 64, 96, 128, 192, 256, 384, 512, 640, 768, 896, 1024)
"""Tokens of small mixed steps, after rounding up."""
_SIZE_STEP: Final = 128
"""Tokens of other mixed steps are rounded up to this: cuBLAS picks a kernel by the exact count, and
the first use of a kernel waits until the device stands still."""


LEAST_SINGLES: Final = -(-(FEW_ROWS + 1) // 4) * 4
"""Single tokens of a captured mixed step, at least: from here on idle ones cost nothing."""


@dataclass(frozen=True, slots=True)
class TokenColumns:
    """What the prepare kernel fills: one entry a token of the batch."""

    tokens: Tensor
    """int32[capacity]."""
    slots: Tensor
    """int32[capacity]."""
    positions: Tensor
    """int32[capacity]."""
    targets: Tensor
    """int64[capacity]: item offset in the region, or -1."""

    def head(self, count: int) -> TokenColumns:
        """The first ``count`` tokens."""
        return TokenColumns(
            self.tokens[:count],
            self.slots[:count],
            self.positions[:count],
            self.targets[:count],
        )


@dataclass(frozen=True, slots=True)
class MixedBatch:
    """How the tokens of a mixed batch attend. Every token is in exactly one of the three."""

    singles: Tensor | None
    """int32[count]: tokens that are their row's only one; ``idle_token`` where there is none."""
    tiles: Tensor | None
    """int32[count, 2]: first token and tokens of each query tile."""
    fresh: Sequence[tuple[int, int]]
    """Rows without cached context, as (first token, end): they attend within themselves."""
    shared: SharedRows | None = None
    """Of ``singles``, where their beginnings shall be read once."""


class CudaDecoder:
    """Weights and scratch of one model on one device. One thread and stream at a time."""

    def __init__(self, weights: CudaWeights, region: Tensor, table: Tensor) -> None:
        self.weights = weights
        self._config = weights.config
        self._region = region
        self._table = table
        self._device = weights.embedding.device
        self._dtype = weights.embedding.dtype
        self._on_gpu = self._device.type == "cuda"
        self._processors = processors_of(self._device)
        layer = weights.layers[0]
        matrices = (layer.qkv, layer.attention_output, layer.gate_up, layer.down)
        small = sum(matrix.numel() for matrix in matrices) <= _SMALL_LAYER
        self.fresh_tokens = FRESH_TOKENS_OF_SMALL if small else FRESH_TOKENS
        """Least length of a prompt in ``MixedBatch.fresh``."""

    def allocate(self, *, tokens: int, rows: int, block_tokens: int) -> None:
        """Makes scratch for batches of ``tokens`` tokens and ``rows`` rows."""
        config = self._config
        self._block_tokens = block_tokens

        def empty(*shape: int, dtype: torch.dtype = self._dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=self._device)

        tokens = padded_tokens(tokens)
        # Tokens that only fill a step up run as what stood there last, so they begin as valid ones.
        self.columns = TokenColumns(
            tokens=empty(tokens + 1, dtype=torch.int32).zero_(),
            slots=empty(tokens + 1, dtype=torch.int32).zero_(),
            positions=empty(tokens + 1, dtype=torch.int32).zero_(),
            targets=empty(tokens + 1, dtype=torch.int64).fill_(-1),
        )
        self.idle_token = tokens
        """Stands behind all tokens, has no context, and so attends to nothing."""
        self.columns.positions[self.idle_token] = -1
        self._residual = empty(tokens, config.hidden)
        self._normed = empty(tokens, config.hidden)
        self._delta = empty(tokens, config.hidden)
        self._qkv = empty(tokens, config.qkv_width)
        # Zeros: nobody attends for tokens that only fill a step up, and they run on with what is here.
        self._attended = empty(tokens, config.heads * config.head_dim).zero_()
        # Large steps need none, which is half a gigabyte of an 8B model.
        apart = next((count for count in range(tokens, 0, -1) if self._swiglu_apart(count)), 0)
        self._gate_up = empty(apart, 2 * config.intermediate)
        self._active = empty(tokens, config.intermediate)
        self._fresh = torch.zeros(
            (rounded_up(tokens) if tokens >= self.fresh_tokens else 0, config.qkv_width),
            dtype=self._dtype,
            device=self._device,
        )
        self._last = empty(rows, config.hidden)
        self.logits = empty(rows, config.vocabulary, dtype=torch.float32)
        self._parts = empty(MOST_SPLITS * MOST_ROWS * config.hidden, dtype=torch.float32)
        self._decode_attention = DecodeAttention(
            self._region,
            rows=max(rows, LEAST_SINGLES),
            layers=config.layers,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            block_tokens=block_tokens,
            processors=self._processors,
        )
        lines = max(size * self._shared_splits(size) for size in range(1, rows + 1))
        self._shared_scratch = (
            empty(lines * config.heads * config.head_dim, dtype=torch.float32),
            empty(lines * config.heads, dtype=torch.float32),
        )
        self.every_row = torch.arange(rows, dtype=torch.int32, device=self._device)

    def warm_up(self) -> None:
        """Makes what the first use of each prompt length and step size would make, on the calling
        thread: cuDNN's plans belong to a thread."""
        if not self._on_gpu:
            return
        for length in range(self.fresh_tokens, self._fresh.shape[0] + 1, _FRESH_STEP):
            self._attend_rounded(self._fresh[:length])
        layer = self.weights.layers[0]
        for size in range(PREFILL_SIZES[-1], self._normed.shape[0] + 1, _SIZE_STEP):
            self._linear(self._normed[:size], layer.qkv, self._qkv[:size])
            delta, residual = self._delta[:size], self._residual[:size]
            self._product(self._attended[:size], layer.attention_output, delta, residual)
            self._mlp(layer, self._normed[:size], delta, residual)

    def decode(
        self, rows: int, shared: SharedRows | None = None, *, layers: int | None = None
    ) -> Tensor:
        """Runs one token of each of ``rows`` rows; ``layers`` as for ``run``. Returns logits
        ``float32[rows, vocabulary]``."""
        queries = self.every_row[:rows]
        batch = MixedBatch(singles=queries, tiles=None, fresh=(), shared=shared)
        return self._project(self.run(rows, batch, layers=layers))

    def normed(self, count: int) -> Tensor:
        """Where ``run`` leaves its result."""
        return self._normed[:count]

    def project(self, hidden: Tensor, outputs: Tensor) -> Tensor:
        """Logits ``float32[len(outputs), vocabulary]`` of some of the tokens that ran."""
        chosen = self._last[: outputs.shape[0]]
        if outputs.shape[0]:
            torch.index_select(hidden, 0, outputs, out=chosen)
        return self._project(chosen)

    def run(self, count: int, batch: MixedBatch, *, layers: int | None = None) -> Tensor:
        """Runs ``count`` tokens through all layers, or the first ``layers``, which gives no token but
        uses every kernel. Returns what the output layer reads of each."""
        weights, config = self.weights, self._config
        columns = self.columns.head(count)
        residual, normed = self._residual[:count], self._normed[:count]
        delta, qkv, attended = self._delta[:count], self._qkv[:count], self._attended[:count]
        epsilon = config.norm_epsilon
        first = weights.layers[0].attention_norm
        if batch.singles is not None and batch.shared is None:
            self._decode_attention.plan(batch.singles, columns.slots, columns.positions)
        embed_norm(columns.tokens, weights.embedding, first, residual, normed, epsilon)
        for index, layer in enumerate(weights.layers[:layers]):
            self._linear(normed, layer.qkv, qkv)
            if layer.qkv_bias is not None:
                qkv += layer.qkv_bias
            seen = self._attend(index, layer, columns, batch, qkv, attended)
            added = self._product(seen, layer.attention_output, delta, residual)
            residual_norm(added, residual, layer.mlp_norm, normed, epsilon)
            added = self._mlp(layer, normed, delta, residual)
            last = index + 1 == len(weights.layers)
            following = weights.final_norm if last else weights.layers[index + 1].attention_norm
            residual_norm(added, residual, following, normed, epsilon)
        return normed

    def _mlp(
        self, layer: CudaLayer, normed: Tensor, delta: Tensor, residual: Tensor
    ) -> Tensor | None:
        count = normed.shape[0]
        active = self._active[:count]
        if self._swiglu_apart(count):
            gate_up = self._gate_up[:count]
            torch.mm(normed, layer.gate_up.t(), out=gate_up)
            swiglu(gate_up, active)
        elif count <= _GEMV_ROWS:
            gemv(normed, layer.gate_up, active, gated=True)
        elif count <= MOST_ROWS:
            gated_product(normed, layer.gate_up, active)
        else:
            gated_many(normed, layer.gate_up, active, self._processors)
        return self._product(active, layer.down, delta, residual)

    def _swiglu_apart(self, count: int) -> bool:
        """Whether gate and up of so many tokens are the library's product, and SwiGLU follows it."""
        shape = (self._config.intermediate, self._config.hidden, self._processors)
        if count <= MOST_ROWS:
            return count > _GEMV_ROWS and not gates(count, *shape)
        return not gates_many(count, *shape)

    def _attend(
        self,
        index: int,
        layer: CudaLayer,
        columns: TokenColumns,
        batch: MixedBatch,
        qkv: Tensor,
        attended: Tensor,
    ) -> Tensor:
        """Attention of every token; the result may lie elsewhere than in ``attended``."""
        config = self._config
        norms = None
        if layer.query_norm is not None and layer.key_norm is not None:
            norms = (layer.query_norm, layer.key_norm)
        rope_store(
            qkv,
            self.weights.rope,
            columns.positions,
            columns.targets,
            norms,
            self._region,
            layer=index,
            heads=config.heads,
            kv_heads=config.kv_heads,
            block_tokens=self._block_tokens,
            epsilon=config.norm_epsilon,
        )
        if batch.singles is not None and batch.shared is not None:
            shared_attention(
                qkv,
                batch.shared,
                batch.singles,
                columns.slots,
                columns.positions,
                self._table,
                self._region,
                self._shared_scratch,
                attended,
                layer=index,
                heads=config.heads,
                kv_heads=config.kv_heads,
                head_dim=config.head_dim,
                block_tokens=self._block_tokens,
                splits=self._shared_splits(batch.singles.shape[0]),
            )
        elif batch.singles is not None:
            self._decode_attention.attend(
                qkv, self._table, attended, rows=batch.singles.shape[0], layer=index
            )
        if batch.tiles is not None:
            prefill_attention(
                qkv,
                batch.tiles,
                columns.slots,
                columns.positions,
                self._table,
                self._region,
                attended,
                layer=index,
                heads=config.heads,
                kv_heads=config.kv_heads,
                head_dim=config.head_dim,
                block_tokens=self._block_tokens,
            )
        if batch.fresh == [(0, qkv.shape[0])] and rounded_up(qkv.shape[0]) == qkv.shape[0]:
            out = self._attend_rounded(qkv)
            return out.transpose(1, 2).reshape(attended.shape)
        for first, end in batch.fresh:
            self._attend_fresh(qkv[first:end], attended[first:end])
        return attended

    def _attend_fresh(self, qkv: Tensor, attended: Tensor) -> None:
        """Attention of a whole prompt within itself, by cuDNN: faster than ours, same operands.

        Where its length is not a rounded one it runs in a copy that is. What follows the prompt
        there is zeros, which no token of it sees; the neighbour's rows would do as well, but for a
        NaN among them.
        """
        count = qkv.shape[0]
        length = rounded_up(count)
        if length > count:
            padded = self._fresh[:length]
            padded[:count].copy_(qkv)
            padded[count:].zero_()
            qkv = padded
        heads = (1, count, self._config.heads, self._config.head_dim)
        out = self._attend_rounded(qkv)
        attended.view(heads).copy_(out.transpose(1, 2)[:, :count])

    def _attend_rounded(self, qkv: Tensor) -> Tensor:
        """``[1, heads, tokens, head_dim]``: causal attention within ``qkv``."""
        config = self._config
        heads = qkv.view(1, qkv.shape[0], -1, config.head_dim).transpose(1, 2)
        ends = (config.heads, config.heads + config.kv_heads)
        query, key, value = heads[:, : ends[0]], heads[:, ends[0] : ends[1]], heads[:, ends[1] :]
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]):
            return torch.nn.functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            )

    def _shared_splits(self, rows: int) -> int:
        config = self._config
        return beginning_splits(rows, config.heads, config.kv_heads, self._processors)

    def _product(self, x: Tensor, weight: Tensor, delta: Tensor, residual: Tensor) -> Tensor | None:
        """What a product adds to the residual: ``delta``, or its partial sums; None: it was added."""
        rows, width = x.shape[0], weight.shape[0]
        if rows >= ADDED_ROWS:
            torch.addmm(residual, x, weight.t(), out=residual)
            return None
        splits = splits_of(rows, width, weight.shape[1], self._processors)
        if not splits:
            self._linear(x, weight, delta)
            return delta
        parts = self._parts[: splits * rows * width].view(splits, rows, width)
        split_product(x, weight, parts)
        return parts

    def _linear(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        rows, (width, depth) = x.shape[0], weight.shape
        if rows <= _GEMV_ROWS:
            gemv(x, weight, out)
        elif multiplies(rows, width, depth, self._processors):
            product(x, weight, out)
        else:
            torch.mm(x, weight.t(), out=out)

    def _project(self, hidden: Tensor) -> Tensor:
        rows = hidden.shape[0]
        logits = self.logits[:rows]
        if rows == 0:
            return logits
        output = self.weights.output
        if rows <= _GEMV_ROWS:
            gemv(hidden, output, logits)
        elif self._on_gpu and self._dtype != torch.float32:
            torch.mm(hidden, output.t(), out_dtype=torch.float32, out=logits)
        else:
            torch.mm(hidden.float(), output.float().t(), out=logits)
        return logits


def padded_tokens(tokens: int) -> int:
    """The size at which a mixed step of ``tokens`` tokens runs."""
    for size in PREFILL_SIZES:
        if size >= tokens:
            return size
    return -(-tokens // _SIZE_STEP) * _SIZE_STEP


def rounded_up(tokens: int) -> int:
    """The length at which a fresh prompt of ``tokens`` attends."""
    return -(-tokens // _FRESH_STEP) * _FRESH_STEP
