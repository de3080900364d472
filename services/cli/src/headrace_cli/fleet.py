"""The engines of a deployment, as they tell of themselves on its server: shown, and drained."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from headrace_transport.address import Access
from headrace_transport.interface import EngineInfo, GatewayWire

from headrace_cli.access import find_server, open_wire
from headrace_cli.errors import CommandFailed
from headrace_cli.state import StateDir

_HOME: Final = "\x1b[H\x1b[2J"
"""Clears a terminal."""
_LOOK_EVERY_S: Final = 0.2
"""Time between two looks whether an engine is still there."""
_WITHIN_S: Final = 600.0
"""How long an engine is waited for whose time to drain is its own setting."""
_SETTLE_S: Final = 60.0
"""How long an engine may take beyond the time that it was given."""
_HEAD: Final = ("ENGINE", "STATE", "RUNNING", "WAITING", "BLOCKS HELD")


@dataclass(frozen=True, slots=True)
class Fleet:
    """A server and what it takes to read it."""

    redis_url: str
    access: Access

    def __repr__(self) -> str:
        return f"Fleet({self.redis_url!r})"

    @classmethod
    def find(cls, redis_url: str | None, state: StateDir, environ: Mapping[str, str]) -> Fleet:
        """See ``find_server``."""
        url, access, _ = find_server(redis_url, state, environ)
        return cls(url, access)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[GatewayWire]:
        """The wire. Raises CommandFailed for a server that cannot be used."""
        async with open_wire(self.redis_url, self.access) as wire:
            yield wire


async def picture(wire: GatewayWire) -> str:
    """Every model with its queue and its engines, as a table."""
    parts: list[str] = []
    for card in await wire.cards():
        engines = sorted(await wire.engines(card.model), key=lambda each: each.process)
        depth = await wire.queue_depth(card.model)
        running = sum(each.running for each in engines)
        parts.append(f"{card.model}   queued {depth}   running {running}")
        parts.append(_table([_HEAD, *map(_row, engines)]) if engines else "  no engine")
        parts.append("")
    return "\n".join(parts) if parts else "No model has been served here yet.\n"


async def top(fleet: Fleet, *, interval_s: float, once: bool) -> None:
    """Prints the picture, again and again where standard output is a terminal."""
    again = not once and sys.stdout.isatty()
    async with fleet.open() as wire:
        while True:
            shown = await picture(wire)
            if not again:
                print(shown, end="")
                return
            print(f"{_HOME}{time.strftime('%H:%M:%S')}  Ctrl-C ends it\n\n{shown}", flush=True)
            await asyncio.sleep(interval_s)


async def drain(wire: GatewayWire, name: str, *, grace_s: float | None) -> str:
    """Asks an engine to end; its process id. Raises CommandFailed without such an engine.

    ``name``: a process id, or its beginning where no other begins alike.
    """
    known = await _engines(wire)
    found = [process for process in known if process == name] or [
        process for process in known if name and process.startswith(name)
    ]
    if len(found) > 1:
        raise CommandFailed(f"{name!r} may be any of {', '.join(sorted(found))}.")
    grace_ms = 0 if grace_s is None else max(1, round(grace_s * 1000))
    if not found or not await wire.drain_engine(found[0], grace_ms=grace_ms):
        raise CommandFailed(f"There is no engine {name!r}.", hint="`headrace top` names them.")
    return found[0]


async def gone(wire: GatewayWire, process: str, *, within_s: float) -> None:
    """Returns when the engine has left, or its lease lapsed. Raises CommandFailed if it stays."""
    until = time.monotonic() + within_s
    while (engine := (await _engines(wire)).get(process)) is not None:
        if time.monotonic() >= until:
            raise CommandFailed(
                f"{process} has not ended within {within_s:g} s: it is {engine.state}, with "
                f"{engine.running} running and {engine.waiting} waiting.",
                hint="It was asked once, and may still end. Its drain_s may be longer: give "
                "--timeout. An engine that stays ready did not understand: end its process.",
            )
        await asyncio.sleep(_LOOK_EVERY_S)


async def run_drain(
    fleet: Fleet, name: str, *, grace_s: float | None, wait: bool, timeout_s: float | None
) -> None:
    """``drain``, told; with ``wait`` until it is over, for ``timeout_s`` at most."""
    within_s = timeout_s
    if within_s is None:
        within_s = _WITHIN_S if grace_s is None else grace_s + _SETTLE_S
    async with fleet.open() as wire:
        process = await drain(wire, name, grace_s=grace_s)
        print(f"{process} takes no more requests, and ends when its own have ended or moved on")
        if wait:
            await gone(wire, process, within_s=within_s)
            print(f"{process} has ended")


async def _engines(wire: GatewayWire) -> Mapping[str, EngineInfo]:
    """All engines by their ids."""
    return {
        info.process: info for card in await wire.cards() for info in await wire.engines(card.model)
    }


def _row(engine: EngineInfo) -> tuple[str, ...]:
    held = engine.total_blocks - engine.free_blocks
    share = f"{100 * held / engine.total_blocks:.0f} %" if engine.total_blocks else "-"
    blocks = f"{held} of {engine.total_blocks} ({share})" if engine.total_blocks else "-"
    return (engine.process, engine.state, str(engine.running), str(engine.waiting), blocks)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
