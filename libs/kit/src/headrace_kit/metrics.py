"""Metrics, declared once and read twice: Prometheus text, and the same values pushed over OTLP.

Values live in a ``prometheus_client`` registry of our own; nothing global is touched. The OTLP
side (``headrace_kit.otlp``) converts what that registry collects, so the two cannot disagree.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar

import prometheus_client as prometheus
from prometheus_client import exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from headrace_kit.otlp import Push

Kind = Literal["counter", "gauge", "histogram"]
Reading = float | Iterable[tuple[Sequence[str], float]]
"""What a callback returns: one value, or (label values, value) pairs."""

LATENCY_BUCKETS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
)
"""Seconds; for waits a person notices."""
MAX_SERIES: Final = 1000
"""Label combinations of one metric. Further ones are counted under ``other``."""
OVERFLOW: Final = "other"

_NAME = re.compile(r"headrace(_[a-z0-9]+)+")


@dataclass(frozen=True, slots=True)
class OtlpName:
    """A further name of a histogram over OTLP, as a convention of OpenTelemetry wants it."""

    name: str
    unit: str
    """As UCUM writes it: ``s``."""
    labels: Mapping[str, str]
    """Attribute for each label."""
    attributes: Mapping[str, str]
    """Attributes that never change."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """One metric, for documents, dashboards and alerts."""

    name: str
    kind: Kind
    help: str
    unit: str | None
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()
    otlp: OtlpName | None = None


Series = TypeVar("Series", prometheus.Counter, prometheus.Gauge, prometheus.Histogram)


class Instrument(Generic[Series]):
    """One declared metric with a bounded number of series. Safe on every thread."""

    def __init__(self, declaration: Declaration, series: Series) -> None:
        self.declaration = declaration
        self._series = series
        self._known: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()

    def labels(self, *values: object, **named: object) -> Series:
        """The series with these label values, in order of declaration or by name.

        Beyond ``MAX_SERIES`` combinations a new one is counted under ``other``, so that a caller
        who controls a label cannot exhaust memory.
        """
        names = self.declaration.labels
        key = tuple(str(value) for value in (values or [named[name] for name in names]))
        if len(key) != len(names) or (named and set(named) != set(names)):
            raise ValueError(f"{self.declaration.name} has labels {names}, not {values or named}")
        with self._lock:
            if key not in self._known:
                if len(self._known) >= MAX_SERIES:
                    key = (OVERFLOW,) * len(names)
                self._known.add(key)
        return self._series.labels(*key)

    def remove(self, *values: object) -> None:
        """Forgets one series, e.g. of an engine that left. Unknown ones are fine."""
        key = tuple(str(value) for value in values)
        with self._lock:
            if key in self._known:
                self._known.remove(key)
                self._series.remove(*key)


class Counter(Instrument[prometheus.Counter]):
    """Only grows."""

    def inc(self, amount: float = 1) -> None:
        """Adds to the series without labels."""
        self._series.inc(amount)


class Gauge(Instrument[prometheus.Gauge]):
    """Goes up and down."""

    def set(self, value: float) -> None:
        """Sets the series without labels."""
        self._series.set(value)

    def inc(self, amount: float = 1) -> None:
        """Adds to the series without labels."""
        self._series.inc(amount)

    def dec(self, amount: float = 1) -> None:
        """Takes from the series without labels."""
        self._series.dec(amount)


class Histogram(Instrument[prometheus.Histogram]):
    """Counts observations by size."""

    def observe(self, amount: float) -> None:
        """Adds one observation to the series without labels."""
        self._series.observe(amount)


class Registry:
    """The metrics of one process. Built in ``app.py`` and passed on; there is no global one."""

    content_type: Final = exposition.CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self, service: str, version: str = "") -> None:
        """``service`` names the process to an OTLP receiver, e.g. ``gateway``."""
        self.service = service
        self.version = version
        self._registry = prometheus.CollectorRegistry(auto_describe=False)
        self._declared: dict[str, Declaration] = {}
        self._push: Push | None = None

    def counter(
        self, name: str, help: str, *, unit: str | None = None, labels: Sequence[str] = ()
    ) -> Counter:
        """Declares a counter; its name ends in ``_total``."""
        made = self._declare(Declaration(name, "counter", help, unit, tuple(labels)))
        return Counter(made, prometheus.Counter(name, help, labels, registry=self._registry))

    def gauge(
        self, name: str, help: str, *, unit: str | None = None, labels: Sequence[str] = ()
    ) -> Gauge:
        """Declares a gauge."""
        made = self._declare(Declaration(name, "gauge", help, unit, tuple(labels)))
        return Gauge(made, prometheus.Gauge(name, help, labels, registry=self._registry))

    def histogram(
        self,
        name: str,
        help: str,
        *,
        unit: str | None = "seconds",
        buckets: Sequence[float] = LATENCY_BUCKETS,
        labels: Sequence[str] = (),
        otlp: OtlpName | None = None,
    ) -> Histogram:
        """Declares a histogram with these upper bounds, in ``unit``.

        It is pushed under its own name, and under that of ``otlp`` besides.
        """
        bounds = tuple(float(bound) for bound in buckets)
        made = self._declare(
            Declaration(name, "histogram", help, unit, tuple(labels), bounds, otlp)
        )
        series = prometheus.Histogram(name, help, labels, buckets=bounds, registry=self._registry)
        return Histogram(made, series)

    def callback(
        self,
        name: str,
        help: str,
        kind: Literal["counter", "gauge"],
        fn: Callable[[], Reading],
        *,
        unit: str | None = None,
        labels: Sequence[str] = (),
    ) -> None:
        """Declares a metric that ``fn`` reads from a snapshot whenever somebody looks.

        ``fn`` runs on the thread that looks, so it must only read what is immutable. A counter's
        readings never fall.
        """
        made = self._declare(Declaration(name, kind, help, unit, tuple(labels)))
        self._registry.register(_Callback(made, fn))

    def declared(self) -> list[Declaration]:
        """Every metric, sorted by name."""
        return [self._declared[name] for name in sorted(self._declared)]

    def families(self) -> list[Family]:
        """The present values, without the ``_created`` series that only clutter the text."""
        families = list(self._registry.collect())
        for family in families:
            family.samples = [s for s in family.samples if not s.name.endswith("_created")]
        return families

    def exposition(self) -> bytes:
        """The present values as Prometheus text, of type ``content_type``."""
        return exposition.generate_latest(_Families(self.families()))

    def start_otlp(self, endpoint: str, interval_s: float = 15.0) -> None:
        """Pushes the values over OTLP/gRPC to ``endpoint`` from a thread, until ``close``."""
        from headrace_kit.otlp import Push  # only those who export pay for the SDK's import

        if self._push is not None:
            raise RuntimeError("OTLP is already on")
        self._push = Push(self, endpoint, interval_s)

    def close(self) -> None:
        """Stops pushing, after one last push. Harmless when nothing is pushed."""
        if self._push is not None:
            self._push.close()
            self._push = None

    def _declare(self, made: Declaration) -> Declaration:
        """Refuses a name that breaks the rules: a metric is an interface."""
        if not _NAME.fullmatch(made.name):
            raise ValueError(f"{made.name!r} must look like headrace_<service>_<what>")
        if made.name in self._declared:
            raise ValueError(f"{made.name!r} is declared twice")
        if (made.kind == "counter") != made.name.endswith("_total"):
            raise ValueError(f"{made.name!r}: counters, and only they, end in _total")
        if made.unit is not None and made.unit not in made.name.split("_"):
            raise ValueError(f"{made.name!r} does not name its unit, {made.unit!r}")
        self._declared[made.name] = made
        return made


class _Callback(Collector):
    """Reads one declared metric when the registry is collected."""

    def __init__(self, declaration: Declaration, fn: Callable[[], Reading]) -> None:
        self._declaration = declaration
        self._fn = fn

    def describe(self) -> list[Family]:
        return [self._family()]

    def collect(self) -> list[Family]:
        family = self._family()
        reading = self._fn()
        pairs = [((), float(reading))] if isinstance(reading, int | float) else reading
        for values, value in pairs:
            family.add_metric([str(part) for part in values], value)
        return [family]

    def _family(self) -> CounterMetricFamily | GaugeMetricFamily:
        made = self._declaration
        form = CounterMetricFamily if made.kind == "counter" else GaugeMetricFamily
        return form(made.name, made.help, labels=made.labels)


class _Families(Collector):
    """What was collected already, in the shape that the text writer wants."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> list[Family]:
        return self._families
