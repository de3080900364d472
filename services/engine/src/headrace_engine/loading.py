"""From settings to a loaded model: its executor, its name, and what gateways need of its tokenizer."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, assert_never

from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import ModelCard
from headrace_kit.log import get_logger
from headrace_transport.interface import EngineWire

from headrace_engine.cache.registry import state_blocks
from headrace_engine.errors import ModelRejected
from headrace_engine.executor.base import (
    Executor,
    ExecutorLimits,
    MeasuresItsMemory,
    ModelShape,
    RoundsItsSteps,
    sequence_tokens,
)
from headrace_engine.executor.cuda_ahead import Compiling, Rehearsal, begin_compiling
from headrace_engine.executor.echo import EchoExecutor
from headrace_engine.kernels.build import default_cache_dir
from headrace_engine.kernels.gpu.card import Card, find_card
from headrace_engine.memory.objects import align_up
from headrace_engine.model.families.llama import gguf_architecture, hf_architecture
from headrace_engine.model.loader.formats import Progress
from headrace_engine.model.loader.gguf_header import read_gguf_header
from headrace_engine.model.loader.gguf_tokenizer import tokenizer_from_gguf
from headrace_engine.model.loader.safetensors import read_json
from headrace_engine.model.loader.source import resolve
from headrace_engine.model.loader.tokenizer_files import TokenizerFiles, tokenizer_from_folder
from headrace_engine.scheduler.scheduler import BLOCK_ALIGN
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.settings import DEFAULT_CACHE_BYTES, EngineSettings, block_tokens
from headrace_engine.uncollected import uncollected

log = get_logger(__name__)

Percent = Callable[[int], None]
"""Called with the share of the weights that is loaded, 0 to 100."""

_QUANTIZATION: Final = re.compile(r"[._-](i?q\d\w*|f16|f32|bf16|fp16|fp32)$", re.IGNORECASE)
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._:/@+-]+")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What start-up made of the model settings."""

    name: str
    executor: Executor
    tokenizer: TokenizerFiles | None
    """None: an echo engine without one; gateways cannot tokenize for it."""

    @property
    def shape(self) -> ModelShape:
        """The executor's."""
        return self.executor.shape


class CardFacts(Protocol):
    """What a card says of a model. ``LoadedModel`` has it, and so has whoever was told."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> ModelShape: ...
    @property
    def tokenizer(self) -> TokenizerFiles | None: ...


def load_model(settings: EngineSettings, percent: Percent) -> LoadedModel:
    """Loads weights and tokenizer; takes its time. Raises ``ModelRejected``."""
    name = settings.model_name or name_of(settings.model)

    def progress(done: int, total: int) -> None:
        percent(100 * done // max(total, 1))

    match settings.executor:
        case "echo":
            tokenizer = _tokenizer(settings.model) if settings.echo_tokenizer else None
            return LoadedModel(name, _echo(settings), tokenizer)
        case "cpu":
            _check_architecture(settings.model)  # what is unknown needs no tokenizer either
            tokenizer = _tokenizer(settings.model)
            return LoadedModel(name, _cpu(settings, progress), tokenizer)
        case "cuda":
            executor, tokenizer = _cuda(settings, find_card(), progress)
            return LoadedModel(name, executor, tokenizer)
        case _:
            assert_never(settings.executor)


def name_of(model: str) -> str:
    """The public name of a model argument: ``org/name``, or its last part without its format."""
    if model.startswith("hf://"):
        name = model.removeprefix("hf://").partition("@")[0]
    else:
        name = Path(model.removeprefix("pkg://")).name.removesuffix(".gguf")
        name = _QUANTIZATION.sub("", name)
    name = _NOT_IN_NAMES.sub("-", name).strip("-")
    if not name:
        raise ModelRejected(f"{model}: no name can be made of it; set model_name")
    return name


def percent_log(now: Callable[[], float] = time.monotonic) -> Percent:
    """Logs progress at most once a second, and each value once."""
    last_s, last_value = 0.0, -1

    def percent(value: int) -> None:
        nonlocal last_s, last_value
        if value != last_value and (value == 100 or now() - last_s >= 1.0):
            last_s, last_value = now(), value
            log.info("model.loading", percent=value)

    return percent


def fit(settings: EngineSettings, executor: Executor) -> SchedulerSettings:
    """The core's numbers for this model. Raises ``ModelRejected`` where they cannot work."""
    shape = executor.shape
    block = block_tokens(settings)
    block_bytes = executor.block_bytes(block)
    wanted = settings.context_tokens or shape.context_tokens
    if wanted > shape.context_tokens:
        raise ModelRejected(
            f"context_tokens is {wanted}; {shape.name} supports {shape.context_tokens}"
        )
    blocks = settings.cache_blocks or _cache_bytes(settings, executor, wanted) // block_bytes
    try:
        state = state_blocks(shape.state_parts, align_up(block_bytes, BLOCK_ALIGN))
    except ValueError as error:
        raise ModelRejected(str(error)) from error
    room = max(blocks - state, 0) * block
    if blocks - state < 2:
        raise ModelRejected(
            f"the cache holds {room} tokens ({blocks} blocks of {block}), less than two blocks; "
            f"one token takes {shape.kv_bytes_per_token} bytes"
        )
    if room < wanted and settings.context_tokens is None:
        log.warning("context.lowered", model_tokens=wanted, pool_tokens=room)
        wanted = room
    elif room < wanted:  # as it was asked for: what outgrows the pool ends there
        log.warning("pool.smaller_than_context", context_tokens=wanted, pool_tokens=room)
    try:
        return SchedulerSettings(
            max_batch=settings.max_batch,
            max_waiting=settings.max_waiting,
            batch_tokens=settings.batch_tokens,
            prefill_chunk_tokens=settings.prefill_chunk_tokens,
            session_tokens=wanted,
            block_tokens=block,
            pool_blocks=blocks,
            state_blocks=state,
            phases=settings.phases,
            prefix_cache=settings.prefix_cache,
            cache_prompt=settings.cache_prompt,
            cache_generation=settings.cache_generation,
            quantum_passes=settings.quantum_passes,
            tenant_weights=settings.tenant_weights,
            ageing_s=settings.ageing_s,
            step_target_ms=settings.step_target_ms,
            step_tokens=executor.step_tokens if isinstance(executor, RoundsItsSteps) else 1,
        )
    except ValueError as error:
        raise ModelRejected(str(error)) from error


def _cache_bytes(settings: EngineSettings, executor: Executor, context_tokens: int) -> int:
    if settings.cache_bytes is not None or not isinstance(executor, MeasuresItsMemory):
        return settings.cache_bytes or DEFAULT_CACHE_BYTES
    limits = ExecutorLimits(
        slots=settings.max_batch,
        batch_tokens=settings.batch_tokens,
        sequence_tokens=sequence_tokens(context_tokens, settings.phases),
        block_tokens=block_tokens(settings),
        region_bytes=0,
        phases=settings.phases,
    )
    return executor.cache_room(limits, settings.gpu_memory_utilization) or DEFAULT_CACHE_BYTES


async def publish_card(
    wire: EngineWire, model: CardFacts, core: SchedulerSettings, *, created_s: int
) -> None:
    """Writes the tokenizer's files, the tenants' weights and the card. Again changes nothing.

    ``created_s`` is for a card that is not there yet, or is of other weights.
    """
    shape = model.shape
    old = await wire.card(model.name)
    same = old is not None and old.weights_version == shape.weights_version
    card = ModelCard(
        version=WIRE_VERSION,
        model=model.name,
        created=old.created if old is not None and same else created_s,
        context_tokens=core.session_tokens,
        block_tokens=core.block_tokens,
        vocabulary=shape.vocabulary,
        weights_version=shape.weights_version,
        pool_tokens=core.pool_tokens,
        architecture=shape.architecture,
        dtype=shape.kv_dtype,
    )
    if model.tokenizer is not None:
        for name, data in model.tokenizer.files.items():
            card.files[name] = f"sha256:{await wire.put_blob(data)}"
        add_text_fields(card, model.tokenizer)
    await wire.put_weights(model.name, core.tenant_weights)
    await wire.put_card(card)


def add_text_fields(card: ModelCard, tokenizer: TokenizerFiles) -> None:
    """What a card says of text, but for where the files are."""
    card.chat_template = tokenizer.chat_template
    card.end_token_ids.extend(tokenizer.end_token_ids)
    card.add_begin_token = tokenizer.add_begin_token
    for name, text in tokenizer.special_tokens.items():
        card.special_tokens[name] = text
    if tokenizer.begin_token_id is not None:
        card.begin_token_id = tokenizer.begin_token_id
    if tokenizer.temperature is not None:
        card.temperature = tokenizer.temperature
    if tokenizer.top_p is not None:
        card.top_p = tokenizer.top_p
    if tokenizer.top_k is not None:
        card.top_k = tokenizer.top_k


def _check_architecture(model: str) -> None:
    path = resolve(model)
    if path.is_dir():
        hf_architecture(path, read_json(path / "config.json"))
    else:
        gguf_architecture(read_gguf_header(path))


def _tokenizer(model: str) -> TokenizerFiles:
    path = resolve(model)
    if path.is_dir():
        return tokenizer_from_folder(path)
    return tokenizer_from_gguf(read_gguf_header(path).metadata)


def _cpu(settings: EngineSettings, progress: Progress) -> Executor:
    # Imported here: only who runs a model pays for its libraries.
    from headrace_engine.executor.cpu import CpuExecutor

    return CpuExecutor.load(
        settings.model,
        dtype="float32" if settings.dtype == "auto" else settings.dtype,
        kv_dtype=settings.kv_dtype,
        threads=settings.threads,
        cache_dir=None if settings.cache_dir is None else Path(settings.cache_dir).expanduser(),
        sha256=settings.model_sha256,
        progress=progress,
    )


@uncollected()
def _cuda(
    settings: EngineSettings, card: Card | None, progress: Progress
) -> tuple[Executor, TokenizerFiles]:
    # Before anything that takes its time: above all the import of torch, as long as many a kernel.
    compiling = None if card is None else begin_compiling(rehearsal_of(settings, card))
    try:
        # Without a device nothing else need be read; with one, what is small before the weights.
        tokenizer = None if card is None else _tokenizer(settings.model)
        executor = _cuda_beside(settings, progress, compiling)
        return executor, tokenizer or _tokenizer(settings.model)
    except BaseException:
        if compiling is not None:
            compiling.stop()
        raise


def _cuda_beside(
    settings: EngineSettings, progress: Progress, compiling: Compiling | None
) -> Executor:
    try:
        from headrace_engine.executor.cuda import CudaExecutor
    except ModuleNotFoundError as missing:
        raise ModelRejected(
            f"executor cuda needs torch and triton, built for CUDA; {missing.name} is not installed"
        ) from missing
    return CudaExecutor.load(
        settings.model,
        context_tokens=settings.context_tokens,
        sha256=settings.model_sha256,
        cache_dir=None if settings.cache_dir is None else Path(settings.cache_dir).expanduser(),
        progress=progress,
        ready=None if compiling is None else compiling.ready,
    )


def rehearsal_of(settings: EngineSettings, card: Card, folder: str | None = None) -> Rehearsal:
    """The start that these settings ask for on a card. ``folder``: for its kernels, if not in
    ``cache_dir``."""
    cache = default_cache_dir() if settings.cache_dir is None else Path(settings.cache_dir)
    return Rehearsal(
        model=settings.model,
        slots=settings.max_batch,
        batch_tokens=settings.batch_tokens,
        block_tokens=block_tokens(settings),
        phases=settings.phases,
        context_tokens=settings.context_tokens,
        card=card,
        folder=folder or str(cache.expanduser() / "triton"),
    )


def _echo(settings: EngineSettings) -> EchoExecutor:
    return EchoExecutor(
        vocabulary=settings.echo_vocabulary,
        mode=settings.echo_mode,
        step_s=settings.echo_step_ms / 1000,
        context_tokens=settings.echo_context_tokens,
    )
