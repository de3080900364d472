"""The engine's settings: every value a person may change, with unit, bounds and meaning."""

from __future__ import annotations

import math
import os
import platform
from typing import Final, Literal

from headrace_kit.errors import SettingsError
from headrace_kit.log import Format, Level
from headrace_kit.settings import Secrets, Settings, setting
from pydantic import SecretStr

from headrace_engine.default_model import DEFAULT_MODEL


class EngineSettings(Settings, env_prefix="HEADRACE_ENGINE_"):
    """One engine process."""

    model: str = setting(DEFAULT_MODEL, min_length=1)
    """Weights: a folder, `pkg://package/file`, or `hf://org/name@revision` from a local cache."""
    model_name: str | None = setting(None, min_length=1, max_length=256, pattern=r"^[^\s{}]+$")
    """Name that requests give. Derived from `model` when absent."""
    model_sha256: str | None = setting(None, pattern=r"^[0-9a-f]{64}$")
    """Expected SHA-256 of a single-file model, in hex. The default model's is known and checked."""
    executor: Literal["cpu", "cuda", "echo"] = setting("cpu")
    """Device: `cpu` runs the model with torch or native kernels, `cuda` on one NVIDIA GPU in bfloat16;
    `echo` repeats the prompt and loads nothing."""
    dtype: Literal["auto", "float32", "bfloat16", "packed"] = setting("auto")
    """Weights in memory: `float32` is exact, `bfloat16` and `packed` (the file's 4 bits) are faster.
    `auto` is `float32` on `cpu` and `bfloat16` on `cuda`, which has no other."""
    kv_dtype: Literal["auto", "float32", "bfloat16"] = setting("auto")
    """KV cache element type; `auto` follows `dtype`."""
    threads: int | None = setting(None, ge=1, le=1024, unit="threads")
    """Threads of the `cpu` executor's kernels. Every core of the process when absent."""

    max_batch: int = setting(64, ge=1, le=65536, unit="sequences")
    """Sequences that may be resident at once."""
    max_waiting: int = setting(4, ge=1, le=65536, unit="sequences")
    """Sequences that may wait inside the engine besides. More gives the scheduler choice, and takes
    work from idle engines."""
    batch_tokens: int = setting(512, ge=1, le=1 << 20, unit="tokens")
    """Tokens of one batch."""
    prefill_chunk_tokens: int = setting(256, ge=1, le=1 << 20, unit="tokens")
    """Tokens of one prompt in one batch at most, so that a long prompt cannot stop the others."""
    step_target_ms: float | None = setting(None, gt=0, le=60_000, unit="ms")
    """Time that a batch with running sequences should take: pieces of prompts are cut to it, from
    `block_tokens` to `prefill_chunk_tokens`. When absent they have the latter's size."""
    context_tokens: int | None = setting(None, ge=2, le=1 << 24, unit="tokens")
    """Prompt and output of one sequence together. When absent: the model's own limit, or what the KV
    cache holds if that is less. A cache smaller than what is set here is served with a warning:
    what outgrows it ends as `length`."""
    block_tokens: int | None = setting(None, ge=1, le=1024, unit="tokens")
    """Tokens of one cache block. When absent 16, and 64 on `cuda`, where it is a power of two of at
    least 16."""
    cache_bytes: int | None = setting(None, ge=1 << 16, unit="bytes")
    """Size of the KV cache. Allocated once, at start. When absent 1 GiB, and on `cuda` what
    `gpu_memory_utilization` leaves."""
    gpu_memory_utilization: float = setting(0.9, gt=0, le=0.99)
    """Share of the GPU's memory that may be in use once the engine has started, whoever uses it. The
    KV cache gets what weights, scratch and graphs leave, unless its size is set. Only on `cuda`."""
    cache_blocks: int | None = setting(None, ge=1, unit="blocks")
    """Size of the KV cache in blocks; wins over `cache_bytes`. For tests and experiments."""
    io_process: Literal["auto", "on", "off"] = setting("auto")
    """Whether the server, leases, frames and metrics are served by a process of their own, so that
    they never keep the engine from its next pass. `auto` is `on` for `cuda`, whose steps are short. Linux
    alone has it."""
    phases: int = setting(2, ge=1, le=2, unit="batches")
    """Batches in flight: 2 plans one while the device runs another."""
    prefix_cache: bool = setting(True)
    """Whether cached blocks of earlier prompts are used again."""
    cache_prompt: Literal["all", "auto"] = setting("all")
    """`all`: a prompt is also found by the part of it that fills no whole block. `auto`: only where
    that part has an image."""
    cache_generation: Literal["all", "auto", "none"] = setting("all")
    """What of generated tokens stays in the cache. `all`: everything, to the last token; the next
    turn of a conversation begins there. `auto`: whole blocks. `none`: nothing."""
    quantum_passes: int = setting(64, ge=1, unit="passes")
    """Passes between two looks at fairness between tenants."""
    tenant_weights: dict[str, float] = setting({})
    """Share of a tenant relative to the others, in its queue and in the engine: at 2 it gets twice
    the tokens of one at 1, which is what a tenant has that is not named. The same for every engine
    of a model: each writes them to the server when it starts."""
    ageing_s: float | None = setting(None, gt=0, le=86_400, unit="s")
    """A request that waits in the engine moves up one priority band for each such time. Never when
    absent: while a higher band is busy, a lower one waits."""
    cache_dir: str | None = setting(None, min_length=1)
    """Folder of compiled kernels. When absent `$XDG_CACHE_HOME/headrace`, else `~/.cache/headrace`."""

    name: str | None = setting(None, min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._-]+$")
    """Name of this process in leases and logs; a boot nonce is added. The host name when absent."""
    sole_name: bool = setting(False)
    """Whether no other process can run under this `name`, as a supervisor or a StatefulSet sees to
    it. What an earlier one held when it was killed is then taken over at once, not after its lease."""
    redis_url: str = setting("redis://127.0.0.1:6379/0", min_length=1)
    """URL of the Redis or Valkey server, without the password. Over TLS `rediss://…`; found through
    sentinels `redis+sentinel://host:port,host:port/service/db`."""
    redis_ca_file: str | None = setting(None)
    """Authority that signed the server's certificate, for `rediss://`; the system's when absent."""
    redis_cert_file: str | None = setting(None)
    """A certificate of ours, for a server that asks for one."""
    redis_key_file: str | None = setting(None)
    """The key of `redis_cert_file`."""
    lease_ms: int = setting(10_000, ge=200, le=600_000, unit="ms")
    """How long a request stays ours without renewal. Renewed at a third of it."""
    resume_grace_s: float = setting(0.0, ge=0, le=3600, unit="s")
    """How long requests outlive their gateway's lease, so that another gateway can resume them. Of
    engines and gateways the least counts, so it is the same for all."""
    stall_s: float = setting(60.0, gt=0, le=3600, unit="s")
    """Longest that one pass may take. Beyond it the engine counts as stuck: it renews no lease and
    is not live."""
    buffer_tokens: int = setting(1_000_000, ge=1_000, unit="tokens")
    """Tokens that may wait for publication while the server is away."""
    drain_s: float = setting(30.0, ge=0, le=86_400, unit="s")
    """After SIGTERM, time for running requests to finish; the rest is handed back."""

    http_host: str = setting("127.0.0.1", min_length=1)
    """Address of the port for health and metrics."""
    http_port: int = setting(9100, ge=0, le=65535)
    """Port for health and metrics; 0 takes a free one."""
    ready_file: str | None = setting(None, min_length=1)
    """File that is written once requests are served, as JSON with `http_port`, `pid` and `engine`."""
    metrics_vllm_names: bool = setting(True)
    """Whether /metrics repeats the main series under vLLM's names."""
    otlp_endpoint: str | None = setting(None, min_length=1)
    """OTLP/gRPC receiver of metrics and traces, such as `http://127.0.0.1:4317`. Nothing is sent when
    absent."""
    otlp_interval_s: float = setting(15.0, gt=0, le=3600, unit="s")
    """Time between two pushes of metrics."""
    trace_ratio: float = setting(1.0, ge=0, le=1)
    """Share of the requests that come without a trace which are recorded as one. A gateway's own
    decision, which travels with the request, comes first. 0 records none at all."""
    journal_bytes: int = setting(32 << 20, ge=0, unit="bytes")
    """Memory for the newest events and plan hashes, for `headrace replay`, besides one snapshot of
    the scheduler. It holds no token ids. 0 keeps no journal."""
    journal_dir: str | None = setting(None, min_length=1)
    """Folder where an engine that fails leaves its journal, besides the four before it. The system's
    temporary one when absent, where all are kept."""
    journal_file: str | None = setting(None, min_length=1)
    """File that gets every event as it happens, **with token ids**, and the file before it as
    `.1`. Nothing is written when absent."""
    journal_file_bytes: int = setting(256 << 20, ge=1 << 16, unit="bytes")
    """Size of `journal_file` and the one before it together, besides a snapshot in each."""
    log_level: Level = setting("info")
    """Least severe log line that is written."""
    log_format: Format = setting("json")
    """Form of log lines on standard error."""

    echo_tokenizer: bool = setting(True)
    """Whether an echo engine publishes the tokenizer of `model`, so that gateways can serve it."""
    echo_vocabulary: int = setting(49_152, ge=2, unit="tokens")
    """Vocabulary of the echo executor."""
    echo_context_tokens: int = setting(8_192, ge=2, unit="tokens")
    """Context of the echo executor."""
    echo_mode: Literal["echo", "attempt"] = setting("echo")
    """What the echo executor answers: the prompt again, or tokens that depend on the attempt."""
    echo_step_ms: float = setting(0.0, ge=0, le=60_000, unit="ms")
    """Time the echo executor takes for a batch."""


class EngineSecrets(Secrets, env_prefix="HEADRACE_ENGINE_"):
    """The engine's secrets."""

    redis_password: SecretStr | None = None
    """Password of the server, where it wants one."""
    redis_sentinel_password: SecretStr | None = None
    """Password of the sentinels themselves, where they want one."""


DEFAULT_CACHE_BYTES: Final = 1 << 30
"""KV cache of an executor whose device does not bound it."""


def block_tokens(settings: EngineSettings) -> int:
    """Tokens of one cache block, as set or as it suits the executor."""
    return settings.block_tokens or (64 if settings.executor == "cuda" else 16)


def has_io_process(settings: EngineSettings) -> bool:
    """Whether io runs in a process of its own, as set or as it suits the executor."""
    if settings.io_process == "auto":
        return settings.executor == "cuda" and hasattr(os, "memfd_create")
    return settings.io_process == "on"


def check_settings(settings: EngineSettings) -> None:
    """Refuses values that contradict each other; raises ``SettingsError`` with both."""
    problems: list[str] = []
    least = settings.max_batch + settings.prefill_chunk_tokens
    if settings.batch_tokens < least:
        problems.append(
            f"batch_tokens ({settings.batch_tokens}) is below max_batch ({settings.max_batch}) + "
            f"prefill_chunk_tokens ({settings.prefill_chunk_tokens}): a batch could not hold one "
            "token of each sequence and a piece of a prompt"
        )
    block = block_tokens(settings)
    if settings.prefill_chunk_tokens < block:
        problems.append(
            f"prefill_chunk_tokens ({settings.prefill_chunk_tokens}) is below block_tokens "
            f"({block}): a long prompt could never advance"
        )
    if settings.executor == "cuda":
        problems += [
            f"{name} ({value}) is not what executor cuda runs: it has bfloat16 only"
            for name, value in (("dtype", settings.dtype), ("kv_dtype", settings.kv_dtype))
            if value not in ("auto", "bfloat16")
        ]
        if block < 16 or block & (block - 1):
            problems.append(
                f"block_tokens ({block}) is not what executor cuda runs: "
                "a power of two of at least 16"
            )
    elif "gpu_memory_utilization" in settings.model_fields_set:
        problems.append(
            f"gpu_memory_utilization is set, but executor {settings.executor} uses no GPU: "
            "set cache_bytes"
        )
    if settings.journal_file is not None and not settings.journal_bytes:
        problems.append("journal_file is set, but journal_bytes is 0: no journal is kept")
    if settings.stall_s * 1000 < settings.lease_ms / 3:
        problems.append(
            f"stall_s ({settings.stall_s:g} s) is below a third of lease_ms "
            f"({settings.lease_ms} ms): no renewal could tell a stall"
        )
    if settings.io_process == "on" and not hasattr(os, "memfd_create"):
        problems.append(
            f"io_process (on) needs memory that two processes share without a file, which "
            f"{platform.system()} lacks: set off, or leave it out"
        )
    if settings.sole_name and settings.name is None:
        problems.append("sole_name needs a name: host names may be given twice")
    problems += [
        f"tenant_weights: the weight of {tenant!r} is {weight}, not a finite number above 0"
        for tenant, weight in settings.tenant_weights.items()
        if not 0 < weight < math.inf
    ]
    if problems:
        raise SettingsError(problems)
