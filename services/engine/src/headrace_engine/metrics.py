"""Every metric of the engine, declared once.

Gauges and totals of the schedule are read from its snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from headrace_contracts.codes import FinishReason
from headrace_kit.metrics import Registry

from headrace_engine.state.metrics import ScheduleMetrics
from headrace_engine.state.outputs import RowEnd

WAIT_BUCKETS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0),
)
"""Seconds; for waits of a person: 10 ms to 600 s with room on both sides."""
TOKEN_BUCKETS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 10.0),
)
"""Seconds; for the time of one token or pass."""
LENGTH_BUCKETS: Final = tuple(float(1 << power) for power in range(0, 18, 1))
"""Tokens."""
LetGo = Literal["lost", "released", "failed", "gave_up"]
"""Why a request is no longer ours although it has not ended: somebody else has its lease; we
handed it back; the engine failed; too much of it waited for a server that is away."""


@dataclass(frozen=True, slots=True)
class IntakeState:
    """What io holds, read when somebody looks."""

    held: int = 0
    """Requests claimed and neither settled nor let go."""
    unpublished_tokens: int = 0
    wire_up: bool = True
    stalled_s: float = 0.0
    foreign: Mapping[str, int] = field(default_factory=dict[str, int])
    """Records of other wire versions that were refused, by kind."""
    damaged: Mapping[str, int] = field(default_factory=dict[str, int])
    """Records that could not be read, by kind."""


class EngineMetrics:
    """The engine's metrics on one registry.

    ``snapshot`` gives the loop's newest state, ``intake`` that of io. Without them (for
    documents) everything reads as empty.
    """

    def __init__(
        self,
        registry: Registry,
        snapshot: Callable[[], ScheduleMetrics] = ScheduleMetrics,
        intake: Callable[[], IntakeState] = IntakeState,
    ) -> None:
        self.registry = registry
        self._snapshot = snapshot
        self._intake = intake
        self.claimed = registry.counter(
            "headrace_engine_requests_claimed_total",
            "Requests taken from the queue. Equals finished + let go + held.",
        )
        self.finished = registry.counter(
            "headrace_engine_requests_finished_total",
            "Requests that this engine ended, by reason; refused and cancelled ones included.",
            labels=("reason",),
        )
        self.let_go = registry.counter(
            "headrace_engine_requests_let_go_total",
            "Requests that another engine ends: lease lost, released at drain, engine failed, "
            "or given up because too much of them waited for publication.",
            labels=("why",),
        )
        self.refused = registry.counter(
            "headrace_engine_requests_refused_total",
            "Claimed requests that this engine cannot run, by error code.",
            labels=("code",),
        )
        self.generation_tokens = registry.counter(
            "headrace_engine_published_tokens_total", "Generated tokens that went out in frames."
        )
        self._declare_latencies(registry)
        self._declare_schedule()
        self._declare_intake()
        for reason in FinishReason:  # a series exists before its first event, so that rates work
            self.finished.labels(reason.name.lower())
        for why in get_args(LetGo):
            self.let_go.labels(why)

    def _declare_latencies(self, registry: Registry) -> None:
        self.queue_time = registry.histogram(
            "headrace_engine_queue_seconds",
            "Time inside the engine before the first pass of a choice.",
            buckets=WAIT_BUCKETS,
        )
        self.first_token = registry.histogram(
            "headrace_engine_first_token_seconds",
            "Time from claim to publication of a choice's first token.",
            buckets=WAIT_BUCKETS,
        )
        self.request_time = registry.histogram(
            "headrace_engine_request_seconds",
            "Time from claim to settlement of a request, whatever its end.",
            buckets=WAIT_BUCKETS,
        )
        self.prefill_time = registry.histogram(
            "headrace_engine_prefill_seconds",
            "Time from a choice's first pass to its first token.",
            buckets=WAIT_BUCKETS,
        )
        self.token_time = registry.histogram(
            "headrace_engine_inter_token_seconds",
            "Mean time between the tokens of a choice, observed once at its end.",
            buckets=TOKEN_BUCKETS,
        )
        self.publish_lag = registry.histogram(
            "headrace_engine_publish_lag_seconds",
            "Time from a pass's result to the server's acknowledgement of its frame.",
            buckets=TOKEN_BUCKETS,
        )
        self.prompt_length = registry.histogram(
            "headrace_engine_prompt_length_tokens",
            "Prompt tokens of an ended choice.",
            unit="tokens",
            buckets=LENGTH_BUCKETS,
        )
        self.output_length = registry.histogram(
            "headrace_engine_output_length_tokens",
            "Generated tokens of an ended choice.",
            unit="tokens",
            buckets=LENGTH_BUCKETS,
        )

    def ended(self, end: RowEnd) -> None:
        """Observes what one ended choice took."""
        usage = end.usage
        self.prompt_length.observe(usage.prompt_tokens)
        self.output_length.observe(usage.completion_tokens)
        if usage.completion_tokens:
            self.prefill_time.observe(usage.prefill_s)
        if usage.completion_tokens > 1:
            self.token_time.observe(usage.decode_s / (usage.completion_tokens - 1))

    def _declare_schedule(self) -> None:
        self._gauge("sequences_running", "Sequences that hold a slot.", lambda s: s.running)
        self._gauge("sequences_waiting", "Sequences that wait.", lambda s: s.waiting)
        self._gauge(
            "sequences_retiring",
            "Ended sequences whose last batch is on the device.",
            lambda s: s.retiring,
        )
        self.registry.callback(
            "headrace_engine_sequences_waiting_by_reason",
            "Sequences that wait, by the reason of the newest pass.",
            "gauge",
            lambda: _labelled(self._snapshot().waiting_by_reason),
            labels=("reason",),
        )
        self._gauge("slots", "Sequences that can be resident at once.", lambda s: s.slots)
        self._gauge("blocks", "Cache blocks of the pool.", lambda s: s.total_blocks)
        self._gauge("blocks_free", "Cache blocks without content.", lambda s: s.free_blocks)
        self._gauge(
            "blocks_cached",
            "Cache blocks whose content nobody holds: taken when memory is short.",
            lambda s: s.cached_blocks,
        )
        self._gauge(
            "blocks_held",
            "Cache blocks of running and waiting sequences, at most a second old under load.",
            lambda s: s.cache.held_blocks,
        )
        self._gauge(
            "blocks_in_flight",
            "Cache blocks of ended sequences whose last batch is on the device, as old.",
            lambda s: s.cache.in_flight_blocks,
        )
        self._gauge(
            "blocks_indexed",
            "Blocks that the prefix cache can find, with or without memory, as old.",
            lambda s: s.cache.indexed_blocks,
        )
        self._gauge(
            "cache_usage_ratio",
            "Share of the pool that sequences hold, 0 to 1.",
            kv_usage,
        )
        self._gauge("pass_tokens", "Tokens of the newest batch.", lambda s: s.pass_tokens)
        self._gauge(
            "plan_seconds", "Host time of the newest pass, pop to hand over.", lambda s: s.plan_s
        )
        self._gauge(
            "wait_seconds", "Time the newest pass waited for the executor.", lambda s: s.wait_s
        )
        self._gauge(
            "update_seconds", "Host time of the newest pass after its result.", lambda s: s.update_s
        )
        self._total("passes", "Passes.", lambda s: s.pass_id)
        self._total(
            "prompt_tokens",
            "Prompt tokens of choices that ran for the first time.",
            lambda s: s.prompt_tokens,
        )
        self._total(
            "cached_tokens", "Prompt tokens found in the prefix cache.", lambda s: s.cached_tokens
        )
        self._total(
            "copied_tokens",
            "Known tokens copied out of a block that is shared in part, instead of computed.",
            lambda s: s.copied_tokens,
        )
        self._total("prefill_tokens", "Known tokens computed.", lambda s: s.prefill_tokens)
        self._total("decode_tokens", "Tokens computed one at a time.", lambda s: s.decode_tokens)
        self._total("generated_tokens", "Tokens decided.", lambda s: s.generated_tokens)
        self._total(
            "recomputed_tokens",
            "Tokens computed again after a preemption.",
            lambda s: s.recomputed_tokens,
        )
        self._total("preemptions", "Sequences put back to waiting.", lambda s: s.preemptions)
        self._total("evictions", "Cache blocks that lost their content.", lambda s: s.evictions)
        self._total(
            "deferrals",
            "Passes a sequence waited for another that computed the same block.",
            lambda s: s.deferrals,
        )
        self.registry.callback(
            "headrace_engine_sequences_finished_total",
            "Ended choices, by reason.",
            "counter",
            lambda: _labelled(self._snapshot().finished),
            labels=("reason",),
        )

    def _declare_intake(self) -> None:
        def show(
            name: str, help: str, fn: Callable[[IntakeState], float], unit: str | None
        ) -> None:
            self.registry.callback(
                f"headrace_engine_{name}", help, "gauge", lambda: fn(self._intake()), unit=unit
            )

        show("requests_held", "Requests claimed and not over.", lambda i: i.held, None)
        show(
            "unpublished_tokens",
            "Tokens that wait for publication.",
            lambda i: i.unpublished_tokens,
            "tokens",
        )
        show("wire_up", "1 while the server answers.", lambda i: float(i.wire_up), None)
        show(
            "stalled_seconds",
            "Time since a pass began, 0 while nothing is resident.",
            lambda i: i.stalled_s,
            "seconds",
        )
        self.registry.callback(
            "headrace_engine_foreign_records_total",
            "Records of another wire version that were read and refused, by kind: control, fence, "
            "frame, log, record.",
            "counter",
            lambda: _labelled(self._intake().foreign),
            labels=("kind",),
        )
        self.registry.callback(
            "headrace_engine_damaged_records_total",
            "Records that could not be read, each time that they were met, by kind: card, control, "
            "fence, frame, log, record, request; replaced: keys of another type that were emptied.",
            "counter",
            lambda: _labelled(self._intake().damaged),
            labels=("kind",),
        )

    def _gauge(self, name: str, help: str, fn: Callable[[ScheduleMetrics], float]) -> None:
        full = f"headrace_engine_{name}"
        self.registry.callback(full, help, "gauge", lambda: fn(self._snapshot()))

    def _total(self, name: str, help: str, fn: Callable[[ScheduleMetrics], float]) -> None:
        full = f"headrace_engine_{name}_total"
        self.registry.callback(full, help, "counter", lambda: fn(self._snapshot()))

    def vllm_text(self, model: str) -> bytes:
        """The few series under the names that existing dashboards and endpoint pickers read.

        They come from the same snapshot. Their colon is not allowed in OTLP, so they are text only.
        """
        state = self._snapshot()
        label = f'{{model_name="{_escaped(model)}"}}'
        series: list[tuple[str, str, str, float]] = [
            ("num_requests_running", "gauge", "Sequences running.", state.running),
            ("num_requests_waiting", "gauge", "Sequences waiting.", state.waiting),
            ("kv_cache_usage_perc", "gauge", "Share of KV blocks in use, 0 to 1.", kv_usage(state)),
            ("num_preemptions_total", "counter", "Preemptions.", state.preemptions),
            ("prompt_tokens_total", "counter", "Prompt tokens.", state.prompt_tokens),
            ("generation_tokens_total", "counter", "Generated tokens.", state.generated_tokens),
            ("prefix_cache_queries_total", "counter", "Prompt tokens.", state.prompt_tokens),
            ("prefix_cache_hits_total", "counter", "Cached tokens.", state.cached_tokens),
        ]
        lines: list[str] = []
        for name, kind, help, value in series:
            lines += [f"# HELP vllm:{name} {help}", f"# TYPE vllm:{name} {kind}"]
            lines.append(f"vllm:{name}{label} {float(value)!r}")
        config = (
            f'{{model_name="{_escaped(model)}",block_size="{state.cache.block_tokens}",'
            f'num_gpu_blocks="{state.total_blocks}"}}'
        )
        lines += [
            "# HELP vllm:cache_config_info Block size and count.",
            "# TYPE vllm:cache_config_info gauge",
            f"vllm:cache_config_info{config} 1.0",
        ]
        return ("\n".join(lines) + "\n").encode()


def kv_usage(state: ScheduleMetrics) -> float:
    """Share of the pool's blocks that sequences hold, 0 to 1; cached content counts as free."""
    if not state.total_blocks:
        return 0.0
    return 1.0 - (state.free_blocks + state.cached_blocks) / state.total_blocks


def _labelled(values: Mapping[str, int]) -> Iterable[tuple[Sequence[str], float]]:
    return [((name,), float(value)) for name, value in values.items()]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
