"""The real daemon moves old events into archives: nothing is lost on the way, and what went is known to have gone."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from chaos.client import Client, RpcError
from chaos.daemon import kill, wait_until
from tests.integration.conftest import Serve, indexed

SMALL = "[transcript_appender]\nsegment_bytes_max = 131072\n"
EVENTS = 300


async def fill(client: Client) -> None:
    """Append events over several segments."""
    for first in range(0, EVENTS, 20):
        events = [
            {"session_id": "s1", "actor": "user", "content": f"word{n} common {'x' * 400}", "event_id": f"e{n}"}
            for n in range(first, first + 20)
        ]
        await client.call("event.append_many", {"events": events})


async def archived(client: Client) -> dict[str, Any]:
    """Wait until nothing is queued any more; return what there is."""
    listed: dict[str, Any] = await wait_until(
        client, lambda found: not found["archiving"]["queued"], method="archive.list"
    )
    return listed


async def test_old_events_go_into_files_and_are_known_to_have_gone(serve: Serve, data: Path) -> None:
    async with serve(SMALL) as (_, client):
        await fill(client)
        await indexed(client)
        before = await client.call("archive.list")
        sealed = [each for each in before["segments"] if each["state"] == "sealed"]
        assert len(sealed) > 2
        assert before["archives"] == []
        assert (await client.call("archive.create", {"before": "2020-01-01"}))["segments"] == []
        queued = await client.call("archive.create", {"older_than_days": 0})
        assert queued["segments"] == [each["segment"] for each in sealed]
        listed = await archived(client)
        assert listed["archiving"]["error"] is None
        assert [each["segment"] for each in listed["archives"]] == queued["segments"]
        assert [each["state"] for each in listed["segments"]] == ["active"]

        gone = sum(each["events"] for each in listed["archives"])
        contents: list[str] = []
        for each in listed["archives"]:
            contents += pq.read_table(data / "archives" / each["name"]).column("content").to_pylist()
        assert contents == [f"word{n} common {'x' * 400}" for n in range(gone)]
        assert (await client.call("archive.verify"))["events"] == gone

        await indexed(client, lambda status: status["rows"]["events"] == EVENTS - gone)
        hits = (await client.call("memory.search", {"query": "word5 common", "limit": 50}))["hits"]
        assert hits
        assert all(hit["seq"] > gone for hit in hits)
        page = await client.call("session.history", {"session_id": "s1", "after_seq": 0})
        assert page["events"][0]["seq"] == gone + 1
        assert {each["code"] for each in page["degraded"]} == {"archived"}
        with pytest.raises(RpcError, match="event 'e3' is archived, in events-00000001-"):
            await client.call("event.get", {"event_id": "e3"})
        found = await client.call("archive.search", {"event_id": "e3"})
        assert [row["seq"] for row in found["events"]] == [4]
        await client.call(
            "unit.put",
            {"type": "summary", "scope": "user", "text": "t", "unit_id": "u", "event_refs": ["e3", "e299", "none"]},
        )
        refs = (await client.call("unit.refs", {"unit_id": "u"}))["events"]
        assert [(each["event_id"], each["state"]) for each in refs] == [
            ("e3", "archived"),
            ("e299", "present"),
            ("none", "missing"),
        ]
        assert [each["unit_id"] for each in (await client.call("event.units", {"event_id": "e3"}))["units"]] == ["u"]
        repeated = {"session_id": "s1", "actor": "user", "content": "again", "event_id": "e3"}
        assert (await client.call("event.append", repeated))["deduplicated"]


async def test_archiving_survives_the_death_of_whoever_takes_part(serve: Serve, data: Path) -> None:
    async with serve(SMALL) as (_, client):
        await fill(client)
        await client.call("archive.create", {"older_than_days": 0})
        for actor in ("generation_builder", "transcript_appender", "generation_builder"):
            kill((await client.call("system.status"))["actors"][actor]["pid"])
            await wait_until(client, lambda status: all(status["ready"].values()))
            await client.call("archive.create", {"older_than_days": 0})
        listed = await archived(client)
        if listed["archiving"]["error"] is not None:
            await client.call("archive.create", {"older_than_days": 0})
            listed = await archived(client)
        assert [each["state"] for each in listed["segments"]] == ["active"]
        gone = sum(each["events"] for each in listed["archives"])
        page = await client.call("session.history", {"session_id": "s1", "after_seq": 0, "limit": 500})
        assert [row["seq"] for row in page["events"]] == list(range(gone + 1, EVENTS + 1))
        assert (await client.call("archive.verify"))["events"] == gone
        files = sorted(path.name for path in (data / "archives").iterdir())
        assert files == sorted(each["name"] for each in listed["archives"])


async def test_bad_orders_are_refused(serve: Serve) -> None:
    async with serve() as (_, client):
        for params in ({}, {"before": "2026-01-01", "older_than_days": 1}):
            with pytest.raises(RpcError, match="give either before or older_than_days"):
                await client.call("archive.create", params)
        with pytest.raises(RpcError, match="there is no archive 'x'"):
            await client.call("archive.verify", {"name": "x"})
        assert await client.call("archive.verify") == {"verified": [], "events": 0}
        assert await client.call("archive.search") == {"events": [], "more": False}
