"""The drill: a backup under load, restored in another directory by the command line, holds what it says it holds."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from chaos.client import Client
from chaos.daemon import Daemon, data_directory, wait_until
from tests.bridge_client import ROOT
from tests.integration.conftest import CONFIG, Serve, running

BACKUP = "\n[backup]\nfree_bytes_min = 0\n"
LONG_S = 90.0
PAGE = 500


def bulkhead(data: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    """Start a command on a data directory."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BULKHEAD_DATA": str(data)}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "supervisor", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def done(data: Path, *arguments: str, code: int = 0) -> str:
    """Run a command; return what it printed."""
    process = bulkhead(data, *arguments)
    out, err = process.communicate(timeout=LONG_S)
    assert process.returncode == code, (out, err)
    return (out if code == 0 else err).decode()


async def write(client: Client, number: int) -> None:
    """Append an event and write a version of a unit."""
    event = {"session_id": f"s{number % 5}", "actor": "user", "content": f"event {number} {'x' * 500}"}
    await client.call("event.append", {**event, "deadline_ms": 60_000}, deadline_s=60)
    unit = {"unit_id": f"u{number % 7}", "type": "plan", "scope": "user", "text": f"unit {number}"}
    await client.call("unit.put", {**unit, "deadline_ms": 60_000}, deadline_s=60)


async def content(client: Client, *, event_seq: int, core_seq: int) -> dict[str, Any]:
    """Return the number and a hash of all events and versions of units up to these seqs, as a client sees them."""
    events, versions = [], []
    for session in range(5):
        after = 0
        while True:
            params = {"session_id": f"s{session}", "after_seq": after, "limit": PAGE}
            page = await client.call("session.history", params, deadline_s=30)
            events += [row for row in page["events"] if row["seq"] <= event_seq]
            if not page["more"]:
                break
            after = page["events"][-1]["seq"]
    for unit in range(7):
        before = None
        while True:
            params = {"unit_id": f"u{unit}", "limit": PAGE, **({"before_version": before} if before else {})}
            page = await client.call("unit.history", params, deadline_s=30)
            versions += [row for row in page["versions"] if row["core_seq"] <= core_seq]
            if not page["more"]:
                break
            before = page["versions"][-1]["version"]
    # A version that has been followed by another one since is shown as deprecated; what it says has not changed.
    facts = [{key: row[key] for key in ("unit_id", "version", "core_seq", "text")} for row in versions]
    return {"events": (len(events), digest(events)), "units": (len(facts), digest(facts))}


def digest(rows: list[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


async def test_a_backup_under_load_is_restored_elsewhere_with_the_same_content(serve: Serve, data: Path) -> None:
    async with serve(BACKUP) as (_, client):
        for number in range(50):
            await write(client, number)
        ended, written = trio.Event(), 50

        async def keep_writing() -> None:
            nonlocal written
            while not ended.is_set():
                await write(client, written)
                written += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_writing)
            told = await client.call("backup.create", {"wait": True}, deadline_s=LONG_S)
            ended.set()
        assert told["state"] == "finished", told
        covered = {"event_seq": told["event_seq"], "core_seq": told["core_seq"]}
        expected = await content(client, **covered)
        assert (expected["events"][0], expected["units"][0]) == (told["events"], told["units"])
        # In place it would take the daemon's files away.
        assert "daemon runs" in await in_thread(lambda: done(data, "restore", told["backup"], "--yes", code=1))
    backup = data / "backups" / told["backup"]
    with data_directory() as elsewhere:
        await in_thread(lambda: done(elsewhere, "restore", str(backup)))
        async with running(elsewhere, elsewhere.with_name("config.toml"), CONFIG) as (_, client):
            assert await content(client, **covered) == expected
            found = await client.call("memory.search", {"query": "event"}, deadline_s=30)
            assert found["hits"]
            status = await client.call("index.status", deadline_s=30)
            assert status is not None
            await write(client, 0)
            appended = await client.call("session.history", {"session_id": "s0", "limit": 1}, deadline_s=30)
            assert appended["events"][0]["seq"] > told["event_seq"] + 1_000_000 - written
        left = Daemon(elsewhere).family()
        assert left == []


async def in_thread(work: Any) -> Any:
    return await trio.to_thread.run_sync(work)


@pytest.mark.parametrize("after_s", [0.0, 0.15, 0.3, 0.5])
async def test_a_restore_that_is_killed_is_begun_anew(serve: Serve, data: Path, after_s: float) -> None:
    async with serve(BACKUP) as (_, client):
        for number in range(20):
            await write(client, number)
        told = await client.call("backup.create", {"wait": True}, deadline_s=LONG_S)
    backup = data / "backups" / told["backup"]
    with data_directory() as elsewhere:
        process = bulkhead(elsewhere, "restore", str(backup))
        await trio.sleep(after_s)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if not (elsewhere / "IDENTITY").exists():
            await in_thread(lambda: done(elsewhere, "restore", str(backup)))
        async with running(elsewhere, elsewhere.with_name("config.toml"), CONFIG) as (_, client):
            found = await content(client, event_seq=told["event_seq"], core_seq=told["core_seq"])
            assert (found["events"][0], found["units"][0]) == (20, 20)


async def test_archives_come_along(serve: Serve, data: Path) -> None:
    small = BACKUP + "[transcript_appender]\nsegment_bytes_max = 65536\n"
    async with serve(small) as (_, client):
        for number in range(60):
            await write(client, number)
        await client.call("archive.create", {"older_than_days": 0})
        listed = await wait_until(client, lambda found: not found["archiving"]["queued"], method="archive.list")
        assert listed["archives"]
        told = await client.call("backup.create", {"wait": True}, deadline_s=LONG_S)
        assert told["state"] == "finished", told
        again = await client.call("backup.create", {"wait": True}, deadline_s=LONG_S)
        assert again["linked"] >= 2 * len(listed["archives"]), "what does not change is not copied again"
        expected = await content(client, event_seq=told["event_seq"], core_seq=told["core_seq"])
        await client.call("backup.verify", {"backup": again["backup"]}, deadline_s=LONG_S)
    with data_directory() as elsewhere:
        await in_thread(lambda: done(elsewhere, "restore", str(data / "backups" / again["backup"])))
        async with running(elsewhere, elsewhere.with_name("config.toml"), CONFIG) as (_, client):
            assert await content(client, event_seq=told["event_seq"], core_seq=told["core_seq"]) == expected
            verified = await client.call("archive.verify", deadline_s=LONG_S)
            assert verified["events"] == sum(each["events"] for each in listed["archives"])
            found = await client.call("archive.search", {"session_id": "s0"})
            assert found["events"][0]["seq"] == 1


async def test_what_is_exported_is_imported_with_equal_counts_twice(serve: Serve, data: Path) -> None:
    async with serve() as (_, client):
        for number in range(5):  # core learns of a session by itself a moment after its first event
            await client.call(
                "session.open", {"session_id": f"s{number}", "title": f"title {number}", "meta": {"k": 1}}
            )
        for number in range(12):
            await write(client, number)
        await client.call("session.close", {"session_id": "s2"})
        await client.call("session.archive", {"session_id": "s3"})
        notes = data.with_name("notes")
        notes.mkdir()
        await client.call("source.add", {"path": str(notes), "name": "notes"})
        file = data.with_name("memory.jsonl")
        told = json.loads(await in_thread(lambda: done(data, "export", str(file), "--json")))
        assert told["exported"] == {"source": 1, "session": 5, "event": 12, "unit": 12}
        assert "there already" in await in_thread(lambda: done(data, "export", str(file), code=1))
        first = await content(client, event_seq=10**9, core_seq=10**9)
        sessions = await client.call("session.list")
    with data_directory() as elsewhere:
        async with running(elsewhere, elsewhere.with_name("config.toml"), CONFIG) as (_, client):
            for expected in ("imported", "present"):
                found = json.loads(await in_thread(lambda: done(elsewhere, "import", str(file), "--json")))
                assert found["read"] == told["exported"]
                assert found["outcomes"][expected] >= 29
            assert await content(client, event_seq=10**9, core_seq=10**9) == first
            again = await client.call("session.list")
            put_away = await client.call("session.list", {"status": "archived"})
            assert [row["session_id"] for row in put_away["sessions"]] == ["s3"]
            facts = [
                {(row["session_id"], row["title"], row["status"], row["created_at"]) for row in each["sessions"]}
                for each in (sessions, again)
            ]
            assert facts[0] == facts[1]
