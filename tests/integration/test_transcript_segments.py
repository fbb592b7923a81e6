"""The real daemon and the segments of its transcript.

A full one is sealed while everything goes on; one that is lost is said, indexed over, and made whole again.
"""

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from chaos.client import Client, RpcError
from chaos.daemon import kill, wait_until
from tests.integration.conftest import Serve

EVENTS = 40
NEXT_FIRST = 2_000_001


async def append(client: Client, number: int, **members: object) -> dict[str, Any]:
    params = {"session_id": f"s{number % 2}", "actor": "user", "content": f"word{number} common"}
    answer: dict[str, Any] = await client.call("event.append", {**params, "request_id": f"r{number}", **members})
    return answer


async def history(client: Client, **members: object) -> dict[str, Any]:
    answer: dict[str, Any] = await client.call("session.history", {"session_id": "s1", **members})
    return answer


async def actor(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = (await client.call("system.status"))["actors"]["transcript_appender"]
    return found


async def wait_for_generation(client: Client, seq: int) -> dict[str, Any]:
    def covers(index: dict[str, Any]) -> bool:
        return index["covers"] is not None and index["covers"]["event_seq"] >= seq

    found: dict[str, Any] = await wait_until(client, covers, 90, "index.status")
    return found


def good_copy(data: Path, target: Path) -> Path:
    """Copy the segment with its WAL while nobody writes, as a backup would, into one file."""
    source = data / "transcript_appender" / "00000001.db"
    for suffix in ("", "-wal"):
        shutil.copyfile(str(source) + suffix, str(target) + suffix)
    connection = sqlite3.connect(target)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return target


def destroy(segment: Path) -> None:
    """Lose the WAL's content, and the first page with it."""
    for path in (segment, segment.with_name(segment.name + "-wal")):
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))


async def test_a_damaged_segment_is_sealed_indexed_over_and_restored(serve: Serve, data: Path, tmp_path: Path) -> None:
    segment = data / "transcript_appender" / "00000001.db"
    async with serve() as (_, client):
        for number in range(EVENTS):
            await append(client, number)
        await wait_for_generation(client, EVENTS)
        backup = good_copy(data, tmp_path / "backup.db")
        destroy(segment)
        damaged = segment.read_bytes()
        kill((await actor(client))["pid"])

        after = await append(client, 100)
        assert (after["seq"], after["deduplicated"]) == (NEXT_FIRST, False)
        assert (await append(client, 100))["deduplicated"]
        status = await client.call("system.status")
        assert status["ready"]["append"] and status["ready"]["read"]
        assert status["actors"]["transcript_appender"]["state"] == "degraded"
        assert "segment 00000001.db is sealed as damaged: " in status["actors"]["transcript_appender"]["reason"]

        page = await history(client)
        assert page["events"] == []
        assert [each["code"] for each in page["degraded"]] == ["segment_damaged"]
        assert "degraded" not in await history(client, after_seq=NEXT_FIRST - 1)
        with pytest.raises(RpcError, match="there is no event") as missing:
            await client.call("event.get", {"event_id": "unknown"})
        assert "segment 00000001.db is damaged" in missing.value.data["hint"]
        answer = await client.call("memory.search", {"query": "word100"})
        assert [hit["seq"] for hit in answer["hits"]][:1] == [NEXT_FIRST]
        assert "segment_damaged" in [each["code"] for each in answer["degraded"]]
        assert answer["behind"]["events"] <= 1, "a gap is no backlog"

        index = await wait_for_generation(client, NEXT_FIRST)
        assert index["rows"]["events"] == 1
        assert index["behind"]["events"] == 0
        assert segment.read_bytes() == damaged

        restored = await client.call("truth.restore", {"actor": "transcript_appender", "from": str(backup)})
        assert (restored["first_seq"], restored["last_seq"]) == (1, EVENTS)
        state = await actor(client)
        assert (state["state"], state["epoch"]) == ("ready", 2), "it went on all the time"
        page = await history(client, limit=500)
        assert [row["content"] for row in page["events"]] == [f"word{n} common" for n in range(1, EVENTS, 2)]
        assert "degraded" not in page
        again = await append(client, 7)
        assert (again["seq"], again["deduplicated"]) == (8, True)
        kept = data / "transcript_appender" / restored["kept_aside"] / "00000001.db"
        assert kept.read_bytes() == damaged

        await wait_until(client, lambda index: index["rows"]["events"] == EVENTS + 1, 90, "index.status")
        answer = await client.call("memory.search", {"query": "word7"})
        assert answer["degraded"] == []
        assert [hit["seq"] for hit in answer["hits"] if "word7 " in hit["snippet"]] == [8]


async def test_full_segments_are_sealed_and_everything_goes_on(serve: Serve, data: Path) -> None:
    small = "[transcript_appender]\nsegment_bytes_max = 131072\n"
    async with serve(small) as (_, client):
        for first in range(0, 600, 20):
            events = [
                {"session_id": "s1", "actor": "user", "content": f"word{n} common {'x' * 400}", "request_id": f"r{n}"}
                for n in range(first, first + 20)
            ]
            await client.call("event.append_many", {"events": events})
            if first == 300:
                kill((await actor(client))["pid"])
        segments = sorted(path.name for path in (data / "transcript_appender").glob("0*.db"))
        assert len(segments) > 3
        seen: list[int] = []
        page = await history(client, after_seq=0, limit=90)
        while page["events"]:
            seen += [row["seq"] for row in page["events"]]
            page = await history(client, after_seq=seen[-1], limit=90)
        assert seen == list(range(1, 601))
        for number in (5, 599):
            answer = await client.call("memory.search", {"query": f"word{number}"})
            assert [hit["seq"] for hit in answer["hits"] if f"word{number} " in hit["snippet"]] == [number + 1]
        index = await wait_for_generation(client, 600)
        assert index["rows"]["events"] == 600
        state = await actor(client)
        assert (state["state"], state["epoch"]) == ("ready", 2), "only the kill began a new life"
