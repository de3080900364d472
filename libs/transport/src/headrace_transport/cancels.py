"""Cancel marks: set by gateways, read by engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from google.protobuf.message import DecodeError
from headrace_contracts import keys
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import CancelMark, CancelNudge, Control

from headrace_transport.endings import ending_of, terminal_frame, total_usage
from headrace_transport.errors import TransportUnavailable
from headrace_transport.names import check_model, check_name
from headrace_transport.part import Part
from headrace_transport.replies import Reply, as_bytes, as_list, as_text, choices_of, readable

_TRIES = 8


class MarkReads(Part):
    """Both ends' reading of marks, over Redis."""

    async def cancels(
        self, model: str, requests: Sequence[str]
    ) -> Mapping[str, Sequence[CancelMark]]:
        """See ``GatewayWire.cancels``."""
        if not requests:
            return {}
        return marks_by_id(await self._server.run_model("marks", model, list(requests)))


class CancelMarks(MarkReads):
    """The gateway's cancels, over Redis."""

    async def cancel(self, model: str, request: str, mark: CancelMark) -> bool:
        """See ``GatewayWire.cancel``. Safe to repeat."""
        check_model(model)
        check_name("a request id", request)
        nudge = Control(version=WIRE_VERSION, cancel=CancelNudge(id=request))
        for _ in range(_TRIES):
            answer = await self._try_cancel(model, request, mark, nudge)
            if answer != "changed":
                return answer != "unknown"
        raise TransportUnavailable(f"request {request} changed hands {_TRIES} times meanwhile")

    async def _try_cancel(self, model: str, request: str, mark: CancelMark, nudge: Control) -> str:
        # The terminal frame is made here, from what the script then finds unchanged.
        names = ("attempt", "gateway", "slot", "n", "prompt", "lengths")
        values = as_list(await self._server.command("HMGET", keys.state(request), *names))
        if values[0] is None:
            return "unknown"
        with readable(f"the state of {request}"):
            attempt, gateway, slot, n, prompt = (
                as_bytes(value or b"").decode() for value in values[:5]
            )
            held = [int(part) for part in as_bytes(values[5] or b"").decode().split(",") if part]
            frame = terminal_frame(
                slot=int(slot),
                attempt=int(attempt) + 1,
                lengths=held or [0] * choices_of(n),
                ending=ending_of(mark),
                prompt_tokens=int(prompt),
            )
        usage = total_usage(list(frame.finishes), prompt_tokens=int(prompt))
        reply = await self._server.run_model(
            "cancel",
            model,
            [
                request,
                mark.SerializeToString(),
                mark.choice if mark.HasField("choice") else "",
                nudge.SerializeToString(),
                int(ending_of(mark).reason),
                frame.SerializeToString(),
                attempt,
                gateway,
                slot,
                usage.SerializeToString(),
            ],
        )
        return as_text(reply)


def marks_by_id(reply: Reply) -> dict[str, Sequence[CancelMark]]:
    """Marks from ``id, [mark, ...], id, [mark, ...]``."""
    flat = as_list(reply)
    return {as_text(flat[i]): marks_of(flat[i + 1]) for i in range(0, len(flat) - 1, 2)}


def marks_of(reply: Reply) -> list[CancelMark]:
    """Marks from an array of them, without those that are damaged."""
    found: list[CancelMark] = []
    for mark in as_list(reply):
        with suppress(DecodeError):
            found.append(CancelMark.FromString(as_bytes(mark)))
    return found
