"""What earlier versions said on the wire is read by this one, and this one says it in the same way.

``tools/record_wire.py`` writes the recordings, one folder a version.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import record_wire
from google.protobuf import json_format
from headrace_contracts import keys
from headrace_contracts.pb.queue_pb2 import LogEntry
from headrace_engine.errors import JournalRejected
from headrace_engine.scheduler.journal_file import VERSION, read_journal
from support import server_dump
from support import wire_fixtures as wire
from support.redis import RedisServer, redis_server
from support.wire_messages import kind_of, value_of

FOLDERS = sorted(record_wire.RECORDINGS.glob("v*"))
OURS = record_wire.RECORDINGS / f"v{record_wire.version()}"
AGAIN = "the wire has changed: docs/guides/deprecation.md, then tools/record_wire.py --again"

every_version = pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def lacks(recorded: object, found: object, path: str = "") -> list[str]:
    """Where ``found`` has not what was recorded. It may have more: fields are added."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        ours = cast("dict[str, object]", found)
        return [
            each
            for key, value in cast("dict[str, object]", recorded).items()
            for each in (
                lacks(value, ours[key], f"{path}/{key}") if key in ours else [f"{path}/{key}: gone"]
            )
        ]
    return [] if recorded == found else [f"{path}: {recorded!r} is {found!r}"]


@pytest.fixture(scope="module")
def server() -> Generator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.mark.parametrize("number", [0, 1])
def test_an_entrys_number_in_its_millisecond_is_left_out_whatever_follows(number: int) -> None:
    entry = LogEntry(version=1, frame_id=f"1795992606000-{number}", attempt=2)
    data = entry.SerializeToString() + b"P\x04"  # a field whose tag is a letter
    assert server_dump.undated(data).endswith(b"<time>P\x04")


def test_what_only_looks_like_a_time_stays() -> None:
    for data in (b"a1795992606000", b"1795992606000b", b"17959926060001", b"1795992606x"):
        assert server_dump.undated(data) == data
    assert server_dump.undated(b"1795992606000 1795992606") == b"<time> <seconds>"


def test_this_version_is_recorded() -> None:
    assert OURS in FOLDERS, f"{OURS.name} is not: run tools/record_wire.py"


@every_version
def test_messages_mean_what_they_meant(folder: Path) -> None:
    for made in read(folder, "messages.json"):
        message = kind_of(made["type"]).FromString(bytes.fromhex(made["bytes"]))
        assert value_of(message) == made["value"], made["type"]


@every_version
def test_messages_are_written_as_they_were(folder: Path) -> None:
    for made in read(folder, "messages.json"):
        message = json_format.ParseDict(made["value"], kind_of(made["type"])())
        assert message.SerializeToString(deterministic=True).hex() == made["bytes"], made["type"]


def test_every_field_of_every_message_is_recorded() -> None:
    assert record_wire.messages() == read(OURS, "messages.json"), AGAIN


UNRECORDED = {
    "PROBE": "never written",
    "limits": "a prefix of other keys",
    "suspects": "of requests whose engines keep dying",
    "quarantine": "of requests whose engines keep dying",
    "dead_letters": "of requests whose engines keep dying",
}


def patterns() -> Iterator[tuple[str, str]]:
    """Every kind of key as ``headrace_contracts.keys`` spells it, with any names in it."""
    for name, value in vars(keys).items():
        if isinstance(value, str) and value.startswith("hr:"):
            yield name, re.escape(value)
        elif inspect.isfunction(value):
            holes = [f"<{parameter}>" for parameter in inspect.signature(value).parameters]
            spelled = re.escape(value(*holes))
            yield name, re.sub("<.*?>", ".+", spelled)


def test_every_kind_of_key_is_recorded() -> None:
    recorded = read(OURS, "server.json")["keys"]
    missing = {
        name
        for name, pattern in patterns()
        if not any(re.fullmatch(pattern, key) for key in recorded)
    }
    assert missing == set(UNRECORDED), "play it in tests/support/wire_fixtures.py"


@every_version
def test_digests_are_what_they_were(folder: Path) -> None:
    assert not lacks(read(folder, "digests.json"), wire.digests())


@every_version
async def test_what_a_deployment_left_on_its_server_is_read(
    folder: Path, server: RedisServer
) -> None:
    server.flush()
    await server_dump.load(server.url, read(folder, "server.json"))
    seen = await wire.observe(server.url)
    assert not lacks(read(folder, "seen.json"), seen)


async def test_a_deployment_leaves_on_its_server_what_it_left(server: RedisServer) -> None:
    server.flush()
    await wire.play(server.url)
    recorded = server_dump.undated_keys(read(OURS, "server.json"))
    found = server_dump.undated_keys(await server_dump.dump(server.url))
    assert not lacks(recorded, found), AGAIN
    assert not lacks(found, recorded), AGAIN


async def test_a_server_that_holds_something_else_is_seen_to(server: RedisServer) -> None:
    recorded = read(OURS, "server.json")
    del recorded["keys"][f"hr:{{{wire.MODEL}}}:leases"]
    server.flush()
    await server_dump.load(server.url, recorded)
    [lost] = lacks({"lost": []}, await wire.observe(server.url))
    assert lost == "/lost: [] is ['running']"


@every_version
def test_journals_are_read_or_refused_by_their_number(folder: Path) -> None:
    lines = (folder / "journal.jsonl").read_text().splitlines(keepends=True)
    version = json.loads(lines[0])["headrace_journal"]
    if version != VERSION:
        with pytest.raises(JournalRejected, match=str(version)):
            read_journal(lines)
        return
    [segment] = read_journal(lines)
    assert [record[0] for record in segment.records].count("a") == 4
