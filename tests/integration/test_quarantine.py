"""Damaged truth in front of the real daemon: reads are answered, writes refused, and a command makes it whole again."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chaos.client import Client, RpcError
from chaos.daemon import wait_until
from tests.bridge_client import ROOT
from tests.integration.conftest import Serve

PAGE = 4096
QUARANTINED = 1009


async def fill(client: Client, first: int, last: int) -> None:
    for number in range(first, last):
        unit = {"unit_id": f"u{number}", "type": "skill", "scope": "user", "text": f"tea number {number}"}
        await client.call("unit.put", {**unit, "request_id": f"r{number}"})


async def core_state(client: Client, *states: str) -> dict[str, Any]:
    status = await wait_until(client, lambda s: s["actors"]["core_writer"]["state"] in states and s["ready"]["append"])
    found: dict[str, Any] = status["actors"]["core_writer"]
    return {**found, "ready": status["ready"]}


def damage_requests(core: Path) -> None:
    """Overwrite the table of request ids, which no read needs."""
    with closing(sqlite3.connect(f"file:{core}?mode=ro", uri=True)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'requests'").fetchone()
    with core.open("r+b") as file:
        file.seek((page - 1) * PAGE)
        file.write(b"\xff" * PAGE)


def damage_header(core: Path) -> None:
    with core.open("r+b") as file:
        file.write(b"\xff" * 100)


async def prepare(data: Path, serve: Serve) -> tuple[Path, Path]:
    """Write units, take a backup in between; return core.db, at rest, and the backup."""
    core, backup = data / "core_writer" / "core.db", data.with_name("backup.db")
    async with serve() as (_, client):
        await core_state(client, "ready")
        await fill(client, 0, 5)
    with closing(sqlite3.connect(core)) as connection:  # copies the WAL into the file
        connection.execute("SELECT count(*) FROM units").fetchone()
    shutil.copy(core, backup)
    async with serve() as (_, client):
        await core_state(client, "ready")
        await fill(client, 5, 10)
    with closing(sqlite3.connect(core)) as connection:
        connection.execute("SELECT count(*) FROM units").fetchone()
    return core, backup


async def test_reads_go_on_writes_are_refused_and_salvage_brings_everything_back(data: Path, serve: Serve) -> None:
    core, _ = await prepare(data, serve)
    damage_requests(core)
    damaged = core.read_bytes()
    async with serve() as (_, client):
        status = await core_state(client, "degraded")
        assert status["reason"].startswith("quarantined: ")
        assert (status["ready"]["read"], status["ready"]["write"], status["ready"]["append"]) == (True, False, True)
        for number in range(10):
            assert (await client.call("unit.get", {"unit_id": f"u{number}"}))["text"] == f"tea number {number}"
        with pytest.raises(RpcError) as refused:
            await fill(client, 10, 11)
        assert refused.value.code == QUARANTINED
        assert "bulkhead restore core_writer" in refused.value.data["hint"]
        await client.call("event.append", {"session_id": "s", "actor": "user", "content": "appends go on"})
        assert core.read_bytes() == damaged
        answer = await client.call("truth.restore", {"actor": "core_writer", "salvage": True, "deadline_ms": 60000})
        assert answer["tables"]["units"] == {"kept": 10, "lost": 0}
        assert answer["tables"]["requests"]["kept"] == 0
        assert (data / "core_writer" / answer["kept_aside"] / "core.db").read_bytes() == damaged
        status = await core_state(client, "ready")
        assert (status["ready"]["read"], status["ready"]["write"]) == (True, True)
        assert status["restarts"] == 0, "a restore is no death"
        await fill(client, 10, 12)
        for number in range(12):
            assert (await client.call("unit.get", {"unit_id": f"u{number}"}))["version"] == 1
        found = await client.call("memory.search", {"query": "tea", "limit": 20, "mode": "keyword"})
        assert {hit["id"] for hit in found["hits"]} == {f"u{number}" for number in range(12)}
    async with serve() as (_, client):
        await core_state(client, "ready")
        assert (await client.call("unit.get", {"unit_id": "u11"}))["core_seq"] == 12


async def test_a_file_that_can_not_be_opened_is_restored_from_a_backup(data: Path, serve: Serve) -> None:
    core, backup = await prepare(data, serve)
    damage_header(core)
    damaged = core.read_bytes()
    async with serve() as (_, client):
        status = await core_state(client, "quarantined")
        assert (status["ready"]["read"], status["ready"]["write"]) == (False, False)
        for method, params in (("unit.get", {"unit_id": "u1"}), ("session.open", {"session_id": "s"})):
            with pytest.raises(RpcError) as refused:
                await client.call(method, params)
            assert refused.value.code == QUARANTINED
        with pytest.raises(RpcError) as refused:
            await client.call("truth.restore", {"actor": "core_writer", "from": "/nowhere/core.db"})
        assert refused.value.code == -32602
        await core_state(client, "quarantined")  # as before: nothing has changed
        order = {"actor": "core_writer", "from": str(backup), "deadline_ms": 60000}
        answer = await client.call("truth.restore", order)
        assert answer["tables"]["units"]["kept"] == 5
        await core_state(client, "ready")
        assert (await client.call("unit.get", {"unit_id": "u4"}))["version"] == 1
        put = await client.call("unit.put", {"type": "skill", "scope": "user", "text": "new"})
        assert put["core_seq"] > 10, "what the lost file gave out is not given out again"
    kept = [path for path in (data / "core_writer").glob("damaged-*") if (path / "core.db").read_bytes() == damaged]
    assert kept
    assert backup.exists()


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"actor": "nobody", "salvage": True}, "no actor whose truth can be restored"),
        ({"actor": "searcher", "salvage": True}, "no actor whose truth can be restored"),
        ({"actor": "core_writer"}, "give either from or salvage"),
        ({"actor": "core_writer", "salvage": True, "from": "/x"}, "give either from or salvage"),
        ({"actor": "core_writer", "form": "/x"}, "form"),
    ],
)
async def test_an_order_that_can_not_be_understood_is_refused(
    serve: Serve, params: dict[str, object], words: str
) -> None:
    async with serve() as (_, client):
        with pytest.raises(RpcError, match=words) as refused:
            await client.call("truth.restore", params)
        assert refused.value.code == -32602


async def test_the_command_line_starts_the_daemon_and_restores(data: Path, config: Path, serve: Serve) -> None:
    core, _ = await prepare(data, serve)
    damage_requests(core)

    def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "supervisor", *arguments, "--data", str(data), "--config", str(config)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            timeout=60,
            check=False,
        )

    refused = run("restore", "core_writer", "--salvage")
    assert refused.returncode == 2 and b"--yes" in refused.stderr
    assert run("restore", "core_writer", "--from", "/nowhere", "--yes").returncode == 1
    try:
        done = run("restore", "core_writer", "--salvage", "--yes", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["tables"]["units"] == {"kept": 10, "lost": 0}
        text = run("restore", "core_writer", "--salvage", "--yes").stdout.decode()
        assert "rows kept" in text and "old files kept in" in text
    finally:
        assert run("stop").returncode == 0
