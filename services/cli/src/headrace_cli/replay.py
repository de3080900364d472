"""``headrace replay``: a journal's plans made again without a device, or under other settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from difflib import unified_diff
from pathlib import Path
from typing import Final

from headrace_engine.errors import JournalRejected
from headrace_engine.scheduler.journal import Segment
from headrace_engine.scheduler.journal_file import read_journal
from headrace_engine.scheduler.journal_replay import Difference, Replayed, Replayer, Step
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.scheduler.simulate.cost import CostModel, fit
from headrace_engine.scheduler.simulate.simulator import simulate
from headrace_engine.scheduler.simulate.summary import Column, summarize, table
from headrace_engine.scheduler.simulate.trace import trace_of

from headrace_cli.errors import CommandFailed

_WORDS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def read(path: Path, *, partial: bool) -> list[Segment]:
    """The segments of a journal. Raises CommandFailed."""
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            return read_journal(file, partial=partial)
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandFailed(f"{path}: it is not text: this is no journal") from error
    except JournalRejected as error:
        hint = ""
        if error.cut_off:
            hint = "--partial takes what is whole of a journal that was never closed."
        raise CommandFailed(f"{path}: {error}", hint=hint) from error


def run(path: Path, *, changes: Sequence[str], partial: bool) -> bool:
    """Prints what came of it; whether every plan was the recorded one."""
    segments = read(path, partial=partial)
    if changes:
        print(compared(segments, changes))
        return True
    same = True
    for number, segment in enumerate(segments, start=1):
        result = replayed(segment, path)
        start = "the engine's start" if segment.state is None else f"pass {segment.passes}"
        print(f"segment {number}, from {start}: {result.passes} plans are the same.")
        if result.recorded_break:
            how = (
                result.broke
                or "nothing breaks here: it was the device, a race, or what a prompt contains"
            )
            print(f"The engine broke in the next pass. Here: {how}")
        if result.difference is not None:
            print(differing(result.difference))
            same = False
    return same


def replayed(segment: Segment, path: Path) -> Replayed:
    """One segment, replayed. Raises CommandFailed."""
    try:
        return Replayer(segment).run()
    except JournalRejected as error:
        raise CommandFailed(f"{path}: {error}") from error


def differing(difference: Difference) -> str:
    """The first plan that is not the recorded one, and the recorded one."""
    lines = list(
        unified_diff(
            difference.recorded.lines(),
            difference.replayed.lines(),
            "recorded",
            "replayed",
            lineterm="",
            n=100,
        )
    )
    if not lines:
        lines = ["The two read alike: the hashes differ in where decoding rows stand."]
    return "\n".join([f"Pass {difference.pass_id} is the first that differs:", *lines])


def compared(segments: Sequence[Segment], changes: Sequence[str]) -> str:
    """A table: what arrived, under the recorded settings and under changed ones. CommandFailed.

    Both are simulated, with a cost model fitted to the recorded batches, so that like is
    compared with like.
    """
    segment = max(segments, key=_arrivals)
    settings = segment.origin.settings
    changed = with_changes(settings, changes)
    steps: list[Step] = []
    for each in segments:
        steps += replayed(each, Path("journal")).steps
    cost = fitted(steps)
    items = trace_of(segment)
    if not items:
        raise CommandFailed("The journal has no request to compare with.")
    columns = [
        Column("recorded", summarize(simulate(items, settings, cost))),
        Column("changed", summarize(simulate(items, changed, cost))),
    ]
    return f"{', '.join(changes)}; {described(cost)}\n{table(columns)}"


def fitted(steps: Sequence[Step]) -> CostModel:
    """A cost model from recorded batches. Raises CommandFailed."""
    try:
        return fit(steps)
    except ValueError as error:
        raise CommandFailed(f"The journal gives no cost model: {error}.") from error


def described(cost: CostModel) -> str:
    """A cost model in one line."""
    return (
        f"a batch costs {cost.base_s * 1e3:.3f} ms, {cost.decode_row_s * 1e6:.2f} µs a decoding "
        f"row, {cost.prefill_token_s * 1e6:.2f} µs a prompt token, "
        f"{cost.context_token_s * 1e9:.2f} ns a position attended to"
    )


def with_changes(settings: SchedulerSettings, changes: Sequence[str]) -> SchedulerSettings:
    """The settings with ``name=value`` applied. Raises CommandFailed."""
    given: dict[str, object] = {}
    known = {field.name: getattr(settings, field.name) for field in fields(settings)}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or name not in known or name == "tenant_weights":
            names = ", ".join(sorted(set(known) - {"tenant_weights"}))
            raise CommandFailed(f"{change!r} is not NAME=VALUE of a scheduler setting: {names}.")
        given[name] = _value(name, text, known[name])
    try:
        return replace(settings, **given)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise CommandFailed(f"These settings cannot work: {error}.") from error


def _value(name: str, text: str, now: object) -> object:
    try:
        if isinstance(now, bool):
            return _WORDS[text.lower()]
        if isinstance(now, int):
            return int(text)
        return None if text.lower() == "none" else float(text)
    except (KeyError, ValueError):
        raise CommandFailed(f"{name}: {text!r} is not a value like {now!r}.") from None


def _arrivals(segment: Segment) -> int:
    return sum(record[0] == "a" for record in segment.records)
