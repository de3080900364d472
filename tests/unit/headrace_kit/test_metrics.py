"""One declaration is read by Prometheus and pushed over OTLP with the same values."""

from __future__ import annotations

import pytest
from headrace_kit.metrics import MAX_SERIES, OVERFLOW, Registry
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families


def samples(registry: Registry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What Prometheus would store, read with its own parser."""
    text = registry.exposition().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_each_kind_is_exposed_with_its_value() -> None:
    registry = Registry(service="gateway")
    counter = registry.counter("headrace_gateway_requests_total", "Requests.", labels=("route",))
    counter.labels("chat").inc()
    counter.labels(route="chat").inc(2)
    gauge = registry.gauge("headrace_gateway_open_requests", "Open.")
    gauge.set(5)
    gauge.inc()
    gauge.dec(2)
    histogram = registry.histogram("headrace_gateway_wait_seconds", "Wait.", buckets=(1, 2))
    histogram.observe(1.5)
    found = samples(registry)
    assert found["headrace_gateway_requests_total", (("route", "chat"),)] == 3
    assert found["headrace_gateway_open_requests", ()] == 4
    assert found["headrace_gateway_wait_seconds_bucket", (("le", "1.0"),)] == 0
    assert found["headrace_gateway_wait_seconds_bucket", (("le", "2.0"),)] == 1
    assert found["headrace_gateway_wait_seconds_sum", ()] == 1.5


def test_text_has_no_created_series_and_no_colons_in_names() -> None:
    registry = Registry(service="gateway")
    registry.counter("headrace_gateway_requests_total", "Requests.").inc()
    registry.histogram("headrace_gateway_wait_seconds", "Wait.").observe(1)
    names = {name for name, _ in samples(registry)}
    assert not [name for name in names if name.endswith("_created") or ":" in name]


def test_callback_is_read_whenever_somebody_looks() -> None:
    registry = Registry(service="engine")
    snapshot = {"free": 3.0}
    registry.callback("headrace_engine_free_blocks", "Free.", "gauge", lambda: snapshot["free"])
    registry.callback(
        "headrace_engine_ends_total",
        "Ends.",
        "counter",
        lambda: [(("stop",), 2), (("length",), 1)],
        labels=("reason",),
    )
    assert samples(registry)["headrace_engine_free_blocks", ()] == 3
    snapshot["free"] = 1
    found = samples(registry)
    assert found["headrace_engine_free_blocks", ()] == 1
    assert found["headrace_engine_ends_total", (("reason", "stop"),)] == 2


def test_label_values_beyond_the_bound_are_counted_under_other() -> None:
    registry = Registry(service="gateway")
    counter = registry.counter("headrace_gateway_calls_total", "Calls.", labels=("name",))
    for number in range(MAX_SERIES + 50):
        counter.labels(f"n{number}").inc()
    counter.labels("n0").inc()
    found = {labels: value for (_, labels), value in samples(registry).items()}
    assert len(found) == MAX_SERIES + 1
    assert found[("name", OVERFLOW),] == 50
    assert found[("name", "n0"),] == 2


def test_removed_series_is_gone_and_an_unknown_one_is_fine() -> None:
    registry = Registry(service="gateway")
    gauge = registry.gauge("headrace_gateway_engine_load", "Load.", labels=("engine",))
    gauge.labels("e1").set(1)
    gauge.remove("e1")
    gauge.remove("e2")
    assert samples(registry) == {}


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("requests_total", None),
        ("headrace_gateway:requests_total", None),
        ("headrace_gateway_requests", None),
        ("headrace_gateway_Requests_total", None),
        ("headrace_gateway_wait_total", "seconds"),
    ],
)
def test_name_that_breaks_the_rules_is_refused(name: str, unit: str | None) -> None:
    with pytest.raises(ValueError, match=name):
        Registry(service="gateway").counter(name, "Help.", unit=unit)


def test_second_declaration_and_wrong_labels_are_refused() -> None:
    registry = Registry(service="gateway")
    gauge = registry.gauge("headrace_gateway_load", "Load.", labels=("engine",))
    with pytest.raises(ValueError, match="declared twice"):
        registry.gauge("headrace_gateway_load", "Load.")
    with pytest.raises(ValueError, match="has labels"):
        gauge.labels("a", "b")
    with pytest.raises(ValueError, match="has labels"):
        gauge.labels(engine="a", tenant="b")


def test_declarations_are_listed_by_name() -> None:
    registry = Registry(service="gateway")
    registry.gauge("headrace_gateway_b", "B.")
    registry.histogram("headrace_gateway_a_seconds", "A.", buckets=(1, 2))
    listed = registry.declared()
    assert [made.name for made in listed] == ["headrace_gateway_a_seconds", "headrace_gateway_b"]
    assert listed[0].buckets == (1.0, 2.0)


def test_two_registries_share_nothing_and_the_global_one_stays_untouched() -> None:
    before = {family.name for family in REGISTRY.collect()}
    for _ in range(2):
        Registry(service="gateway").gauge("headrace_gateway_load", "Load.").set(1)
    assert {family.name for family in REGISTRY.collect()} == before
