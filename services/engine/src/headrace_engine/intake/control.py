"""Control: entries that gateways and operators leave for this engine: nudges, attaches, drain.

Owner    io thread
Writes   Held (where its rows go)
Never    believes a nudge; it reads the mark
Rules    cancel.mark-is-truth, control.explicit-id
Next     headrace_engine.intake.consumer
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import Attach, Control, Frame
from headrace_kit.log import get_logger
from headrace_transport.errors import TransportUnavailable
from headrace_transport.interface import EngineWire

from headrace_engine.intake.columns import row_key
from headrace_engine.intake.desk import Desk
from headrace_engine.intake.held import Held
from headrace_engine.intake.link import Link
from headrace_engine.intake.publisher_frames import last_logprobs, logprobs_message

log = get_logger(__name__)

_BLOCK_MS = 1000
_SLOTS = 1 << 32


class ControlReader:
    """Reads the process's control stream, from its beginning: the id is this boot's own."""

    def __init__(
        self,
        *,
        wire: EngineWire,
        model: str,
        engine: str,
        desk: Desk,
        link: Link,
        sending: asyncio.Lock,
        drain: Callable[[float | None], None],
    ) -> None:
        """``sending`` is held while frames are under way. ``drain`` starts a drain; its argument is
        the time to finish in seconds.
        """
        self._wire = wire
        self._model = model
        self._engine = engine
        self._desk = desk
        self._link = link
        self._sending = sending
        self._drain = drain
        self._after = "0-0"

    async def run(self) -> None:
        """Obeys until cancelled."""
        while True:
            try:
                entries = await self._wire.read_control(
                    self._engine, self._after, block_ms=_BLOCK_MS
                )
                await self._obey([control for _, control in entries])
            except TransportUnavailable as error:
                await self._link.failed(error)
                continue
            if entries:
                self._after = entries[-1][0]
            else:
                await asyncio.sleep(0)  # a wire that answers at once must not starve the others

    async def _obey(self, entries: Sequence[Control | None]) -> None:
        """All entries, each at least once: an attach twice routes twice to the same place."""
        nudged: list[str] = []
        for control in entries:
            if control is None:
                continue  # of another version, which the wire has counted and told
            match control.WhichOneof("kind"):
                case "cancel":
                    nudged.append(control.cancel.id)
                case "attach":
                    await self._attach(control.attach)
                case "drain":
                    grace_ms = control.drain.grace_ms
                    self._drain(grace_ms / 1000 if grace_ms else None)
                case _:
                    log.warning("control.unknown_kind")
        await self._read_marks(nudged)

    async def _read_marks(self, nudged: Sequence[str]) -> None:
        ours = [request for request in nudged if self._desk.holdings.get(request) is not None]
        if not ours:
            return
        for request, marks in (await self._wire.cancels(self._model, ours)).items():
            self._desk.cancel_marked(request, marks)

    async def _attach(self, attach: Attach) -> None:
        """Sends what is published but not logged to the new gateway, and all further rows."""
        held = self._desk.holdings.get(attach.id)
        if held is None:
            return  # over, or lost: the gateway finds that in the state and the log
        if attach.slot + held.choices > _SLOTS:
            log.warning("control.no_such_slots", id=held.id, gateway=attach.gateway)
            return
        keys = [row_key(held.handle, choice) for choice in range(held.choices)]
        async with self._sending:  # what is on its way to the old gateway must be known first
            if not self._desk.holdings.holds(held):
                return
            held.gateway, held.slot = attach.gateway, attach.slot
            self._desk.book.route(keys, attach.gateway, attach.slot)
            frame = self._rest(held, keys, attach.first)
            await self._wire.publish({attach.gateway: frame})
        log.info("request.attached", id=held.id, gateway=attach.gateway)

    def _rest(self, held: Held, keys: Sequence[int], first: int) -> Frame:
        """Published tokens from ``first`` on that the log lacks, and the ends. Below is the log's."""
        book = self._desk.book
        frame = Frame(version=WIRE_VERSION, engine=self._engine)
        for choice, row in enumerate(book.find(np.asarray(keys, dtype=np.int64)).tolist()):
            start = min(max(first, int(book.logged[row])), int(book.ends[row]))
            tokens = book.unlogged(row)[start - int(book.logged[row]) :]
            frame.slots.append(held.slot + choice)
            frame.attempts.append(held.attempt)
            frame.firsts.append(start)
            frame.counts.append(len(tokens))
            frame.tokens.extend(tokens.tolist())
            frame.logged.append(int(book.logged[row]))
            items = held.unlogged_logprobs.get(choice)
            if items and len(tokens):
                last = last_logprobs(items, len(tokens))
                frame.logprobs.append(logprobs_message(choice, last))
            if choice in held.ends:
                frame.finishes.add().CopyFrom(held.ends[choice])
        return frame
