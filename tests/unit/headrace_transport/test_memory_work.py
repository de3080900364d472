"""A model's work in memory: what only its inside shows."""

from __future__ import annotations

from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import LogEntry, Usage
from headrace_transport.memory_work import ModelWork, Work, append_log, marks_of
from headrace_transport.records import encode
from support.clock import FakeClock
from support.wires import MODEL, entry, mark, record


def model(clock: FakeClock | None = None) -> tuple[ModelWork, dict[str, Work]]:
    requests: dict[str, Work] = {}
    return ModelWork(MODEL, (clock or FakeClock()).wall_ms, requests), requests


def submit(work: ModelWork, name: str, *, tenant: str = "acme", tokens: int = 3) -> None:
    sent = record(name, tenant=tenant, prompt=[1] * tokens)
    work.submit(sent, encode(sent), max_queued=99, max_concurrency=None, resume=None, lengths=[])


def test_weight_of_a_tenant_is_its_share() -> None:
    work, _ = model()
    work.weights["big"] = 3.0
    for i in range(12):
        submit(work, f"b{i}", tenant="big", tokens=10)
        submit(work, f"s{i}", tenant="small", tokens=10)
    taken = [each.id[0] for each in work.take("e-1", credit=12, lease_ms=10)]
    assert taken.count("b") == 9


def test_owner_and_finish_follow_the_status() -> None:
    work, requests = model()
    submit(work, "r1")
    assert (requests["r1"].owner, requests["r1"].finish) == (None, None)
    work.take("e-1", credit=1, lease_ms=10)
    assert requests["r1"].is_of("e-1", 1)
    assert work.finish("e-1", "r1", 1, entry=LogEntry(), reason=FinishReason.STOP, usage=Usage())
    assert (requests["r1"].owner, requests["r1"].finish) == (None, FinishReason.STOP)


def test_marks_are_ordered_the_requests_own_first() -> None:
    work, requests = model()
    submit(work, "r1")
    work.take("e-1", credit=1, lease_ms=10)
    sent = [mark(FinishReason.STOP, choice=2), mark(FinishReason.STOP, choice=0), mark()]
    for each in sent:
        assert work.mark("r1", each) == "marked"
    assert marks_of(requests["r1"]) == [sent[2], sent[1], sent[0]]
    assert work.mark("unknown", mark()) == "unknown"


def test_dead_letter_keeps_the_reason() -> None:
    work, _ = model()
    submit(work, "r1")
    work.take("e-1", credit=1, lease_ms=10)
    assert not work.bury("e-2", "r1", 1, why="x", usage=Usage())
    assert work.bury("e-1", "r1", 1, why="because", usage=Usage())
    assert [(each.id, each.why) for each in work.dead_letters] == [("r1", "because")]


def test_log_of_nobody_is_not_ours() -> None:
    assert not append_log(None, "e-1", 1, entry([1])).ours
