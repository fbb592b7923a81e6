"""Backups by the real daemon, while it is written to, and when it or a worker is killed in the middle."""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

from chaos.client import Client, Disconnected, RpcError
from chaos.daemon import kill, wait_until
from tests.integration.conftest import Serve

CONFIG = "\n[backup]\nfree_bytes_min = 0\n"
LONG_S = 90.0


async def write(client: Client, number: int) -> None:
    """Append an event, and write a unit that rests on it."""
    params = {"session_id": f"s{number % 3}", "actor": "user", "content": f"event {number} {'x' * 2000}"}
    event = await client.call("event.append", {**params, "deadline_ms": 60_000}, deadline_s=60)
    unit = {"type": "plan", "scope": "user", "text": f"unit {number}", "event_refs": [event["event_id"]]}
    await client.call("unit.put", {**unit, "deadline_ms": 60_000}, deadline_s=60)


async def made(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = await client.call("backup.create", {"wait": True}, deadline_s=LONG_S)
    assert found["state"] == "finished", found
    return found


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
        return connection.execute(query).fetchall()


async def test_a_backup_under_load_is_whole_and_consistent(serve: Serve, data: Path) -> None:
    async with serve(CONFIG) as (_, client):
        for number in range(100):
            await write(client, number)
        written = 100
        ended = trio.Event()

        async def keep_writing() -> None:
            nonlocal written
            while not ended.is_set():
                await write(client, written)
                written += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_writing)
            told = await made(client)
            ended.set()
        assert written > 100
        again = await client.call("backup.verify", {"backup": told["backup"]}, deadline_s=LONG_S)
        assert again["verified"] and again["events"] == told["events"] >= 100
        listed = await client.call("backup.list")
        assert [row["backup"] for row in listed["backups"]] == [told["backup"]]
        assert listed["running"] is None and listed["last_failure"] is None
    backup = data / "backups" / told["backup"]
    core, segment = backup / "core_writer" / "core.db", backup / "transcript_appender" / "00000001.db"
    events = {event_id for (event_id,) in rows(segment, "SELECT event_id FROM events")}
    for (refs,) in rows(core, "SELECT event_refs FROM units"):
        assert refs[2:-2] in events, "every event that core speaks of is in the backup"
    known = [seq for (seq,) in rows(core, "SELECT last_seq FROM sessions")]  # core learns of them a little later
    assert told["event_seq"] >= max(known, default=0)
    for content, content_hash in rows(segment, "SELECT content, content_hash FROM events"):
        assert hashlib.sha256(content.encode()).digest() == content_hash


async def test_a_daemon_that_is_killed_in_the_middle_leaves_no_backup(serve: Serve, data: Path) -> None:
    async with serve(CONFIG) as (_, client):
        await write(client, 0)
        good = await made(client)
    async with serve(CONFIG) as (daemon, client):
        await wait_until(client, lambda s: s["ready"]["write"])
        asked = await client.call("backup.create", deadline_s=30)
        assert asked["state"] != "failed"
        daemon.kill()
    # Whatever stage that was: it is a backup, or it is none.
    async with serve(CONFIG) as (_, client):
        listed = await client.call("backup.list", deadline_s=30)
        for row in listed["backups"]:
            assert (await client.call("backup.verify", {"backup": row["backup"]}, deadline_s=LONG_S))["verified"]
        assert good["backup"] in [row["backup"] for row in listed["backups"]]
        again = await made(client)
        assert again["backup"] > good["backup"]
    assert [path.name for path in (data / "backups").iterdir() if path.name.endswith(".tmp")] == []


@pytest.mark.parametrize("actor", ["core_writer", "transcript_appender"])
async def test_a_worker_that_is_killed_in_the_middle_costs_the_backup_alone(serve: Serve, actor: str) -> None:
    async with serve(CONFIG) as (_, client):
        await write(client, 0)
        status = await client.call("system.status")
        pids = [each["pid"] for each in status["actors"][actor]["workers"]]
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                found = await client.call("backup.create", {"wait": True}, deadline_s=LONG_S)
                assert found["state"] in ("failed", "finished")

            nursery.start_soon(ask)
            for pid in pids:
                kill(pid)
        await made(client)
        await write(client, 1)


async def test_a_daemon_that_goes_down_does_not_wait_for_a_backup(serve: Serve) -> None:
    async with serve(CONFIG) as (_, client):
        await write(client, 0)
        await client.call("backup.create", deadline_s=30)
        with pytest.raises((RpcError, Disconnected)):
            await client.call("system.drain")
            while True:
                await client.call("backup.create", deadline_s=30)


async def test_one_request_makes_one_backup(serve: Serve) -> None:
    async with serve(CONFIG) as (_, client):
        first = await client.call("backup.create", {"wait": True, "request_id": "r"}, deadline_s=LONG_S)
        second = await client.call("backup.create", {"wait": True, "request_id": "r"}, deadline_s=LONG_S)
        assert first["backup"] == second["backup"]
        with pytest.raises(RpcError, match="no name of a backup"):
            await client.call("backup.verify", {"backup": "../core_writer"})
