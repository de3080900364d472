"""Traces: who arrives when, with how many tokens. From lines of JSON, a seed, or a journal.

Owner    nobody; frozen
Writes   nothing
Never    has real token ids: equal prefixes have equal stand-ins
Rules    simulate.deterministic
Next     headrace_engine.scheduler.simulate.simulator
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, cast

import numpy as np
from headrace_contracts.keys import BANDS
from numpy.typing import NDArray

from headrace_engine.scheduler.journal import Arrival, Segment
from headrace_engine.scheduler.journal_replay import Contents

_FIELDS = {"arrival_s", "prompt_tokens", "output_tokens", "tenant", "band", "prefix_group",
           "prefix_tokens"}  # fmt: skip
MAX_TOKENS: Final = 1 << 24
"""Of one request of a trace, prompt and output together: each has a stand-in in memory."""


@dataclass(frozen=True, slots=True)
class Item:
    """One request of a trace."""

    arrival_s: float
    content: NDArray[np.int32]
    """Stand-ins for prompt and output."""
    prompt_tokens: int
    output_tokens: int
    tenant: str = ""
    band: int = 1
    cancel_s: float | None = None
    """When somebody gives it up, on the clock of ``arrival_s``."""


class TraceRejected(ValueError):
    """A line of a trace means nothing; says which."""


@dataclass(frozen=True, slots=True)
class Synthetic:
    """A Poisson process."""

    requests: int = 500
    rate: float = 4.0
    """Requests per second."""
    prompt_tokens: int = 512
    """Mean; lengths are log-normal."""
    output_tokens: int = 128
    """Mean; lengths are log-normal."""
    prefix_groups: int = 8
    """Kinds of requests that share a prefix; 0: nobody shares."""
    prefix_share: float = 0.5
    """Of the mean prompt that is the group's."""
    tenants: int = 2
    seed: int = 0

    def items(self) -> list[Item]:
        """The same for the same fields."""
        random = np.random.default_rng(self.seed)
        arrivals = np.cumsum(random.exponential(1 / self.rate, self.requests))
        prompts = _lengths(random, self.prompt_tokens, self.requests)
        outputs = _lengths(random, self.output_tokens, self.requests)
        groups = random.integers(0, max(1, self.prefix_groups), self.requests)
        tenants = random.integers(0, max(1, self.tenants), self.requests)
        prefix = int(self.prompt_tokens * self.prefix_share) if self.prefix_groups else 0
        return [
            _item(
                i,
                arrival_s=float(arrivals[i]),
                prompt_tokens=int(prompts[i]),
                output_tokens=int(outputs[i]),
                # Tenants share nothing, so a group is one of its tenant.
                group=f"g{groups[i]}",
                prefix_tokens=min(prefix, int(prompts[i]) - 1),
                tenant=f"t{tenants[i]}",
                band=1,
            )
            for i in range(self.requests)
        ]


def read_trace(lines: Iterable[str]) -> list[Item]:
    """Items of a trace of JSON lines, in order of arrival.

    A line has ``arrival_s``, ``prompt_tokens``, ``output_tokens``, and may have ``tenant``,
    ``band``, ``prefix_group`` with ``prefix_tokens``. Raises ``TraceRejected`` with the line.
    """
    items: list[Item] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            items.append(_read_item(number, json.loads(line)))
        except KeyError as error:
            raise TraceRejected(f"line {number} has no {error}") from None
        except (TypeError, ValueError, OverflowError) as error:
            raise TraceRejected(f"line {number}: {error}") from None
    if not items:
        raise TraceRejected("it has no request")
    return sorted(items, key=_arrival)


def trace_of(segment: Segment) -> list[Item]:
    """What arrived in a segment of a journal, and what was there when it began."""
    contents = Contents(segment)
    ends = {record[2]: record for record in segment.records if record[0] == "e"}
    arrivals: list[Arrival] = []
    if segment.state is not None:
        arrivals = [Arrival(**fields["arrival"]) for fields in segment.state["sequences"]]
        arrivals = [a for a, f in zip(arrivals, segment.state["sequences"], strict=True)
                    if f["status"] != "ended"]  # fmt: skip
    # Those go first, so what was there is there from the first moment on.
    arrivals += [record[2] for record in segment.records if record[0] == "a"]
    start_s = segment.records[0][1] if segment.records and segment.records[0][0] != "k" else None
    if start_s is None:
        start_s = min((a.arrived_s for a in arrivals), default=0.0)
    items: list[Item] = []
    for arrival in arrivals:
        end = ends.get(arrival.number)
        output = arrival.limit - arrival.length
        cancel_s: float | None = None
        if end is not None:
            _, ended_s, _, reason, _, generated = end
            if reason in ("CANCELLED", "DEADLINE"):
                cancel_s = max(0.0, ended_s - start_s)
            else:
                output = generated - (arrival.length - arrival.prompt_tokens)
        if output < 1:
            continue
        items.append(
            Item(
                arrival_s=max(0.0, arrival.arrived_s - start_s),
                content=contents.of(arrival.number),
                prompt_tokens=arrival.length,
                output_tokens=output,
                tenant=arrival.tenant + (f"#{arrival.salt}" if arrival.salt else ""),
                band=arrival.band,
                cancel_s=cancel_s,
            )
        )
    return sorted(items, key=_arrival)


def _read_item(number: int, value: object) -> Item:
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    fields = cast("dict[str, Any]", value)
    unknown = set(fields) - _FIELDS
    if unknown:
        raise ValueError(
            f"unknown {', '.join(sorted(unknown))}; known: {', '.join(sorted(_FIELDS))}"
        )
    prompt, output = int(fields["prompt_tokens"]), int(fields["output_tokens"])
    arrival_s = float(fields["arrival_s"])
    if prompt < 1 or output < 1 or not 0 <= arrival_s < float("inf"):
        raise ValueError("prompt_tokens and output_tokens are at least 1, arrival_s at least 0")
    if prompt + output > MAX_TOKENS:
        raise ValueError(f"prompt_tokens and output_tokens are at most {MAX_TOKENS} together")
    group = fields.get("prefix_group")
    prefix = int(fields.get("prefix_tokens", prompt // 2)) if group is not None else 0
    if not 0 <= prefix <= prompt:
        raise ValueError(f"prefix_tokens is {prefix}, not between 0 and the prompt's {prompt}")
    tenant, band = str(fields.get("tenant", "")), int(fields.get("band", 1))
    tenant.encode()  # half a surrogate pair is no text, a ValueError
    if not 0 <= band < BANDS:
        raise ValueError(f"band is {band}, not between 0 and {BANDS - 1}")
    return _item(
        number,
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        group=str(group),
        prefix_tokens=prefix,
        tenant=tenant,
        band=band,
    )


def _item(
    number: int,
    *,
    arrival_s: float,
    prompt_tokens: int,
    output_tokens: int,
    group: str,
    prefix_tokens: int,
    tenant: str,
    band: int,
) -> Item:
    # One stand-in for all tokens of a group, one for all of a request: blocks of two are equal
    # exactly where the prefix is shared.
    content = np.full(prompt_tokens + output_tokens, number + 1, np.int32)
    content[:prefix_tokens] = -1 - _group_number(group)
    return Item(arrival_s, content, prompt_tokens, output_tokens, tenant, band)


def _group_number(group: str) -> int:
    digest = blake2b(group.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 2


def _lengths(random: np.random.Generator, mean: int, count: int) -> NDArray[np.int64]:
    sigma = 0.6
    lengths = random.lognormal(np.log(mean) - sigma**2 / 2, sigma, count)
    return np.clip(np.rint(lengths), 2, 8 * mean).astype(np.int64)


def _arrival(item: Item) -> float:
    return item.arrival_s
