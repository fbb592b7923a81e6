"""Fault cases L, C7, C3, S2 and S4: many writers, one truth, and it is the same through every door.

The ids are those of docs/FAULT-CASES.md.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import trio

from chaos.client import ROOT, Client, open_bridge, open_socket
from chaos.daemon import Daemon, kill, wait_gone, wait_until
from chaos.databases import check_databases
from chaos.history import read_session
from tests.integration.conftest import Serve

# 100 ms is promised; the lock of a machine that is busy with other work is held for as long as its disk takes.
HOLD_S = 1.0


async def append(client: Client, session_id: str, number: int) -> str:
    params = {"session_id": session_id, "actor": "user", "content": f"{session_id} {number}"}
    stored = await client.call("event.append", {**params, "request_id": f"{session_id}/{number}"}, deadline_s=60)
    event_id: str = stored["event_id"]
    return event_id


# ---------------------------------------------------------------- L1: nobody holds the truth for long


def longest_wait_s(path: Path, until: trio.Event) -> tuple[float, int]:
    """Take and give back the write lock of a database again and again; return the longest wait and the number."""
    longest, count = 0.0, 0
    with closing(sqlite3.connect(path, timeout=HOLD_S, isolation_level=None)) as connection:
        while not until.is_set():
            began = time.monotonic()
            connection.execute("BEGIN IMMEDIATE")  # "database is locked" after HOLD_S is the failure
            longest = max(longest, time.monotonic() - began)
            connection.execute("ROLLBACK")
            count += 1
            time.sleep(0.005)
    return longest, count


async def test_l1_a_rebuild_holds_up_no_writer_of_the_truth(serve: Serve) -> None:
    """Another process's writer gets the lock of both truths all the time while generations are built."""
    async with serve() as (daemon, client):
        events = [{"session_id": "s", "actor": "user", "content": f"note {number} fsync 记忆"} for number in range(800)]
        await client.call("event.append_many", {"events": events}, deadline_s=60)
        await client.call("unit.put", {"type": "plan", "scope": "global", "text": "x"})
        finished = trio.Event()
        waits: dict[str, tuple[float, int]] = {}

        async def probe(name: str) -> None:
            waits[name] = await trio.to_thread.run_sync(longest_wait_s, daemon.data / name, finished)

        async with trio.open_nursery() as nursery:
            for name in ("core_writer/core.db", "transcript_appender/00000001.db"):
                nursery.start_soon(probe, name)
            for _ in range(3):
                before = (await client.call("index.status"))["generation"] or 0
                await client.call("index.rebuild")
                await wait_until(
                    client,
                    lambda s, b=before: (s["generation"] or 0) > b and s["building"] is None,
                    method="index.status",
                )
            finished.set()
        for name, (longest_s, count) in waits.items():
            assert count > 10 and longest_s < HOLD_S, (name, longest_s, count)


# ---------------------------------------------------------------- L2, C7, L4: many processes


@pytest.mark.parametrize(("processes", "rows"), [(8, 100), (12, 100)], ids=["l2", "c7"])
async def test_l2_c7_many_processes_write_to_a_fresh_store_at_once(
    data: Path, config: Path, processes: int, rows: int
) -> None:
    """Nothing is there yet: the bridges race to start the daemon, and every row of each is stored exactly once."""
    acknowledged: dict[str, list[str]] = {}

    async def write(session_id: str) -> None:
        async with open_bridge(data, config) as client:
            acknowledged[session_id] = [await append(client, session_id, number) for number in range(rows)]

    async with trio.open_nursery() as nursery:
        for number in range(processes):
            nursery.start_soon(write, f"p{number}")
    daemon = Daemon(data, config)
    async with open_socket(daemon.socket_path) as client:
        for session_id, ids in acknowledged.items():
            assert [event["event_id"] for event in await read_session(client, session_id)] == ids
        stored = sum(len(ids) for ids in acknowledged.values())
        assert stored == processes * rows
    await daemon.stop()


async def test_l4_clients_that_are_killed_leave_no_lock_and_lose_nothing(data: Path, config: Path) -> None:
    """Ten clients write, five are killed in the middle; the others go on, and so does the next daemon."""
    acknowledged: dict[str, list[str]] = {f"c{number}": [] for number in range(10)}

    async def write(session_id: str, victim: bool) -> None:
        async with open_bridge(data, config) as client:
            for number in range(20):
                acknowledged[session_id].append(await append(client, session_id, number))
                if victim and number == 10:
                    assert client.pid is not None and kill(client.pid)
                    return

    async with trio.open_nursery() as nursery:
        for number, session_id in enumerate(acknowledged):
            nursery.start_soon(write, session_id, number < 5)
    daemon = Daemon(data, config)
    async with open_socket(daemon.socket_path) as client:
        for session_id, ids in acknowledged.items():
            assert len(ids) >= 11
            assert [event["event_id"] for event in await read_session(client, session_id)] == ids
        pid = (await client.call("system.status"))["pid"]
    daemon.kill()
    await wait_gone(pid, 10)
    async with open_bridge(data, config) as client:
        await append(client, "after", 0)
    await daemon.stop()


# ---------------------------------------------------------------- C3: a shutdown that is cut short


async def test_c3_a_shutdown_that_is_cut_short_damages_nothing(data: Path, config: Path) -> None:
    """SIGTERM, and SIGKILL 50 ms later, again and again (start_terminated does it 200 times)."""
    daemon, ids = Daemon(data, config), []
    for life in range(3):
        daemon.start()
        await daemon.connected()
        async with open_socket(daemon.socket_path) as client:
            ids += [await append(client, f"life {life}", number) for number in range(20)]
            await client.call("unit.put", {"type": "plan", "scope": "global", "text": f"life {life}"})
        pid = daemon.pid()
        assert pid is not None
        kill(pid, signal.SIGTERM)
        await trio.sleep(0.05)
        kill(pid)
        assert daemon.process is not None
        daemon.process.wait()
        with trio.fail_after(20):
            while daemon.family():  # noqa: ASYNC110 - the workers are nobody's children any more
                await trio.sleep(0.02)
        assert check_databases(data) == []
    daemon.start()
    await daemon.connected()
    async with open_socket(daemon.socket_path) as client:
        stored = [event for life in range(3) for event in await read_session(client, f"life {life}")]
        assert [event["event_id"] for event in stored] == ids
        assert len((await client.call("unit.list", {"limit": 10}))["units"]) == 3
    await daemon.stop()


# ---------------------------------------------------------------- S2, S4: what is counted, and every door


async def test_s2_what_was_taken_in_is_what_is_stored_counted_and_indexed(serve: Serve) -> None:
    """One bad event among good ones is refused; the counts of every place agree on the others."""
    async with serve() as (_, client):
        for number in range(30):
            await append(client, "s", number)
        with pytest.raises(Exception, match="content"):
            await client.call("event.append", {"session_id": "s", "actor": "user", "content": ""})
        await wait_until(client, lambda s: s["rows"]["events"] == 30, method="index.status")
        await wait_until(client, lambda s: [each["events"] for each in s["sessions"]] == [30], method="session.list")
        assert len(await read_session(client, "s")) == 30


def run_command(data: Path, config: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "supervisor", *arguments, "--data", str(data), "--config", str(config)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


async def test_s4_what_is_written_through_one_door_is_read_through_all_others(serve: Serve, config: Path) -> None:
    async with serve() as (daemon, socket_client), open_bridge(daemon.data, config) as bridge:

        async def tool(name: str, arguments: dict[str, object]) -> str:
            return json.dumps(await bridge.call("tools/call", {"name": name, "arguments": arguments}))

        await append(socket_client, "door socket", 0)
        await append(bridge, "door bridge", 0)
        await tool("memory_store", {"text": "door mcp 0"})
        await trio.to_thread.run_sync(
            run_command, daemon.data, config, "append", "--session", "cli", "--actor", "user", "door cli 0"
        )
        for word in ("socket", "bridge", "mcp", "cli"):
            query = {"query": f"door {word}", "limit": 10}
            for client in (socket_client, bridge):
                found = json.dumps(await client.call("memory.search", query))
                assert f"door {word} 0" in found, (word, found)
            assert f"door {word} 0" in await tool("memory_search", query)
            printed = await trio.to_thread.run_sync(
                run_command, daemon.data, config, "search", f"door {word}", "--json"
            )
            assert f"door {word} 0" in printed
