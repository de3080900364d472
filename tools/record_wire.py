"""Records what this version says on the wire: ``tests/wire/<version>``, for later versions' tests.

usage: record_wire.py [--again]

Run once for each release, before it is tagged. ``--again`` replaces a recording: right while its
version is not released, and never afterwards, since it is what running deployments have.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from headrace_engine.scheduler.journal_file import write_journal
from support import server_dump, wire_messages
from support import wire_fixtures as wire
from support.journals import recorded
from support.redis import redis_server

ROOT: Final = Path(__file__).resolve().parent.parent
RECORDINGS: Final = ROOT / "tests/wire"


def version() -> str:
    """Of the tree; wheels, images and chart have the same."""
    source = (ROOT / "charts/headrace/Chart.yaml").read_text()
    return next(line.split()[1] for line in source.splitlines() if line.startswith("version:"))


def messages() -> list[dict[str, Any]]:
    """Every message as bytes and as what they mean."""
    return [
        {
            "type": message.DESCRIPTOR.name,
            "bytes": message.SerializeToString(deterministic=True).hex(),
            "value": wire_messages.value_of(message),
        }
        for message in wire_messages.messages()
    ]


async def server() -> tuple[dict[str, Any], dict[str, Any]]:
    """What lies on the server of a deployment, and what gateways and engines read there."""
    with redis_server() as recording:
        await wire.play(recording.url)
        dumped = await server_dump.dump(recording.url)
        return dumped, await wire.observe(recording.url)


def record(folder: Path) -> None:
    """Writes all of it."""
    dumped, seen = asyncio.run(server())
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, Callable[[], object]] = {
        "messages.json": messages,
        "digests.json": wire.digests,
        "server.json": lambda: dumped,
        "seen.json": lambda: seen,
    }
    if same_but_for_times(folder / "server.json", dumped):
        del made["server.json"]  # no difference that a reader would have to look through
    for name, make in made.items():
        (folder / name).write_text(json.dumps(make(), indent=1, ensure_ascii=False) + "\n")
    journal, _ = recorded(requests=3)
    write_journal(journal, folder / "journal.jsonl")
    (folder / "journal.jsonl").chmod(0o644)


def same_but_for_times(path: Path, dumped: dict[str, Any]) -> bool:
    """Whether a server's content was recorded before."""
    if not path.exists():
        return False
    return server_dump.undated_keys(json.loads(path.read_text())) == server_dump.undated_keys(
        dumped
    )


def main() -> int:
    """Records this version, once."""
    folder = RECORDINGS / f"v{version()}"
    if folder.exists() and "--again" not in sys.argv[1:]:
        print(f"{folder.relative_to(ROOT)} is there: --again, if that version is not released yet")
        return 1
    record(folder)
    print(f"recorded: {folder.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
