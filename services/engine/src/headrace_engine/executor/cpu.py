"""The executor that runs on processor cores.

Owner    executor thread
Writes   the region's bytes, per-slot sampling state, ``batch.output``
Never    touches sequences, blocks, allocators
Rules    executor.no-device-above, batch.one-holder
Next     headrace_engine.model.decoder
"""

from __future__ import annotations

import os
from collections import deque
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
from headrace_kit.log import get_logger
from numpy.typing import NDArray

from headrace_engine.errors import ModelRejected
from headrace_engine.executor.arena import allocate_region
from headrace_engine.executor.base import ExecutorLimits, ModelShape
from headrace_engine.executor.copies import run_copies
from headrace_engine.executor.inputs import BlockTable, prepare_inputs
from headrace_engine.executor.sampler import NumpySampling, Sampler, SamplingKernels
from headrace_engine.kernels.build import NativeUnavailable
from headrace_engine.kernels.native import NativeLibrary
from headrace_engine.model.decoder import (
    CacheLayout,
    Decoder,
    DecoderLimits,
    Dtype,
    KvDtype,
)
from headrace_engine.model.loader.formats import Progress
from headrace_engine.model.native_decoder import NativeDecoder, unsupported_reason
from headrace_engine.model.opening import OpenedModel, open_model
from headrace_engine.state.batch import BatchData, BatchOutput

_log = get_logger()

Kernels = Literal["auto", "native", "torch"]
"""``auto``: native where they can be compiled, else torch with a warning."""


class CpuExecutor:
    """See Executor. A batch is done when ``submit`` returns; ``collect`` hands out its result."""

    def __init__(
        self,
        opened: OpenedModel,
        decoder: Decoder,
        sampling: SamplingKernels,
        kv_dtype: KvDtype,
        dtype: Dtype,
    ) -> None:
        config = opened.weights.config
        self._config = config
        self._decoder = decoder
        self._sampling = sampling
        self._kv_dtype: KvDtype = kv_dtype
        self._shape = ModelShape(
            name=config.name,
            architecture=config.architecture,
            vocabulary=config.vocabulary,
            context_tokens=config.context_tokens,
            weights_version=f"{opened.digest[:32]}-{dtype}-{kv_dtype}",
            kv_dtype=kv_dtype,
            kv_bytes_per_token=self._layout(1).token_bytes,
        )
        self._done: deque[tuple[BatchData, BatchOutput]] = deque()

    @classmethod
    def load(
        cls,
        model: str,
        *,
        dtype: Dtype = "float32",
        kv_dtype: Literal["auto"] | KvDtype = "auto",
        threads: int | None = None,
        sha256: str | None = None,
        kernels: Kernels = "auto",
        cache_dir: Path | None = None,
        progress: Progress | None = None,
    ) -> CpuExecutor:
        """Opens, checks and reads a model. Raises ModelRejected naming file and tensor.

        ``threads`` defaults to the cores this process may use. ``cache_dir`` is where compiled
        kernels lie. ``progress`` is called with (bytes done, bytes in all).
        """
        opened = open_model(model, sha256=sha256)
        decoder, sampling = make_decoder(
            opened, dtype, kernels=kernels, threads=threads, cache_dir=cache_dir, progress=progress
        )
        if kv_dtype == "auto":
            kv_dtype = "float32" if dtype == "float32" else "bfloat16"
        return cls(opened, decoder, sampling, kv_dtype, dtype)

    @property
    def shape(self) -> ModelShape:
        """See Executor."""
        return self._shape

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens at which the model itself ends a text."""
        return self._config.eos_token_ids

    @property
    def region(self) -> NDArray[np.uint8]:
        """The cache blocks' bytes, once started."""
        return self._region

    def describe(self) -> dict[str, str | int]:
        """Kernels, data types and threads, for the log."""
        return {**self._decoder.describe(), "kv_dtype": self._kv_dtype}

    def block_bytes(self, block_tokens: int) -> int:
        """See Executor."""
        return self._layout(block_tokens).block_bytes

    def start(self, limits: ExecutorLimits) -> None:
        """See Executor."""
        self._region: NDArray[np.uint8] = allocate_region(limits.region_bytes)
        self._sampler = Sampler(limits.slots, self._config.vocabulary, self._sampling)
        self._table = BlockTable(limits.slots, limits.sequence_tokens, limits.block_tokens)
        decoder_limits = DecoderLimits(
            tokens=limits.batch_tokens, outputs=limits.slots, positions=limits.sequence_tokens
        )
        self._decoder.start(decoder_limits, self._layout(limits.block_tokens), self._region)

    def submit(self, batch: BatchData) -> None:
        """See Executor."""
        run_copies(self._region, batch.restores)
        for start in batch.starts:
            self._sampler.start(start)
        inputs = prepare_inputs(batch, self._table, self._sampler.last_tokens)
        logits = self._decoder.run(inputs)
        generating = batch.slots[: batch.generating]
        output = self._sampler.sample(generating, batch.sample_indices, logits)
        run_copies(self._region, batch.publishes)
        self._done.append((batch, output))

    def collect(self, batch: BatchData) -> None:
        """See Executor."""
        oldest, output = self._done.popleft()
        assert oldest is batch, "batches are collected in the order they were submitted"
        batch.output = output

    def close(self) -> None:
        """See Executor."""
        self._decoder.close()
        self._done.clear()
        self._region = np.zeros(0, np.uint8)
        self._sampler = Sampler(0, self._config.vocabulary, self._sampling)
        self._table = BlockTable(0, 1, 1)

    def _layout(self, block_tokens: int) -> CacheLayout:
        config = self._config
        return CacheLayout(
            config.layers, config.kv_heads, config.head_dim, block_tokens, self._kv_dtype
        )


def make_decoder(
    opened: OpenedModel,
    dtype: Dtype,
    *,
    kernels: Kernels,
    threads: int | None,
    cache_dir: Path | None,
    progress: Progress | None,
) -> tuple[Decoder, SamplingKernels]:
    """The native decoder where it can be, else its torch twin, with a warning that says why.

    ``kernels="native"`` raises NativeUnavailable instead of falling back.
    """
    threads = threads or available_cores()
    if kernels != "torch":
        reason = unsupported_reason(opened.weights.config)
        try:
            if reason is not None:
                raise NativeUnavailable(reason)
            library = NativeLibrary(threads, cache_dir)
            return NativeDecoder(library, opened.weights, dtype, progress), library
        except NativeUnavailable as error:
            if kernels == "native":
                raise
            if find_spec("torch") is None:  # as in the CPU image
                raise ModelRejected(
                    f"the native kernels cannot be used: {error}; "
                    "and torch, which could do without them, is not installed"
                ) from error
            _log.warning(
                "kernels.native_unavailable",
                reason=str(error),
                effect="plain torch is used instead, several times slower",
            )
    # Imported here because torch takes seconds, and native kernels do without it.
    import torch

    from headrace_engine.model.torch_decoder import TorchDecoder

    torch.set_num_threads(threads)
    return TorchDecoder(opened.weights, dtype, progress), NumpySampling()


def available_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
