"""A disk that fills up under a real daemon: what gives way, what is refused, and how everything comes back.

The room is made small by a limit on the size of files, set on the running daemon from outside: to the watch of the disk
it is room like any other (`supervisor/disk.py`), and it needs no rights and no real disk that is full. The workers do
not have it, so what is refused here was refused early. `test_disk_full.py` fills a real file system.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from chaos.client import Client, RpcError
from chaos.daemon import Daemon, wait_until
from tests.integration.conftest import Serve, embedding_by, running
from tests.unit.actors.embedding.fake_endpoint import FakeEndpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes are Linux only")

MIB = 2**20
DISK = "\n[disk]\ncheck_every_ms = 20\nballast_after_ms = 100\nballast_bytes = 1048576\n"
DISK_FULL = 1005


def leave_room(daemon: Daemon, count: int | None) -> None:
    """Let the daemon see this many bytes of room (None: as much as there is)."""
    pid = daemon.pid()
    assert pid is not None
    process = psutil.Process(pid)
    _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    largest = max((path.stat().st_size for path in daemon.data.glob("*/*.db*")), default=0)
    process.rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY if count is None else largest + count, hard))


async def until_level(client: Client, level: str) -> dict[str, Any]:
    status: dict[str, Any] = await wait_until(client, lambda status: status["disk"]["level"] == level)
    return status


async def refused(client: Client, method: str, params: dict[str, Any]) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await client.call(method, params)
    assert caught.value.code == DISK_FULL, caught.value
    assert caught.value.outcome == "not_executed"
    assert caught.value.data["retry_after_ms"] > 0 and caught.value.data["hint"]
    return caught.value


def event(content: str) -> dict[str, Any]:
    return {"session_id": "s", "actor": "user", "content": content}


UNIT = {"type": "profile", "scope": "user", "text": "likes oolong"}


async def test_a_full_disk_refuses_what_grows_and_everything_comes_back_without_a_restart(
    serve: Serve, tmp_path: Path
) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    async with serve(DISK) as (daemon, client):
        await client.call("event.append", event("first words"))
        unit = await client.call("unit.put", UNIT)
        source = await client.call("source.add", {"path": str(folder)})

        leave_room(daemon, 40 * MIB)
        status = await until_level(client, "full")
        assert status["ready"] | {"build": False, "cache": True} == {
            "append": True,
            "write": False,
            "read": True,
            "search": True,
            "build": False,
            "cache": True,
        }
        assert status["disk"]["writes_refused"] and not status["disk"]["appends_refused"]
        error = await refused(client, "unit.put", UNIT)
        assert "unit.put refused" in error.message and "disk.full_bytes" in error.message
        await refused(client, "session.open", {"session_id": "new"})
        await refused(client, "session.close", {"session_id": "s"})
        await refused(client, "source.add", {"path": str(tmp_path)})
        # The events go on, and so does everything that reads or makes smaller.
        await client.call("event.append", event("second words"))
        history = await client.call("session.history", {"session_id": "s"})
        assert [each["content"] for each in history["events"]] == ["first words", "second words"]
        found = await client.call("memory.search", {"query": "second words"})
        assert found["hits"]
        assert (await client.call("unit.get", {"unit_id": unit["unit_id"]}))["text"] == "likes oolong"
        await client.call("source.remove", {"source_id": source["source_id"]})

        leave_room(daemon, 10 * MIB)
        status = await wait_until(client, lambda status: status["disk"]["appends_refused"])
        assert not status["ready"]["append"] and status["ready"]["read"] and status["ready"]["search"]
        error = await refused(client, "event.append", event("lost"))
        assert "disk.append_bytes" in error.message
        await refused(client, "event.append_many", {"events": [event("lost")]})
        assert len((await client.call("session.history", {"session_id": "s"}))["events"]) == 2

        leave_room(daemon, None)
        status = await until_level(client, "ok")
        assert status["ready"]["append"] and status["ready"]["write"]
        await client.call("event.append", event("third words"))
        await client.call("unit.put", UNIT)
        await client.call("session.open", {"session_id": "new"})
        assert {each["epoch"] for each in status["actors"].values()} == {1}, "nobody had to be restarted"


async def test_the_ballast_is_given_away_on_a_full_disk_and_made_again(serve: Serve) -> None:
    async with serve(DISK) as (daemon, client):
        ballast = daemon.data / "ballast"
        await wait_until(client, lambda status: status["disk"]["ballast_bytes"] == MIB)
        assert ballast.stat().st_blocks * 512 >= MIB
        leave_room(daemon, 40 * MIB)
        await wait_until(client, lambda status: status["disk"]["ballast_bytes"] == 0)
        assert not ballast.exists()
        leave_room(daemon, None)
        await wait_until(client, lambda status: status["disk"]["ballast_bytes"] == MIB)
        assert ballast.exists()


def generations(data: Path) -> list[str]:
    return sorted(path.name for path in (data / "generation_builder").glob("gen-*"))


async def until_generations(data: Path, expected: list[str]) -> None:
    """Wait until these are the folders of generations on the disk, unfinished ones included."""
    with trio.fail_after(30):
        while generations(data) != expected:  # noqa: ASYNC110 - the file system tells nobody
            await trio.sleep(0.02)


async def until_index(client: Client, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    index: dict[str, Any] = await wait_until(client, holds, method="index.status")
    return index


async def test_on_a_low_disk_derived_data_gives_way_and_the_truth_goes_on(
    data: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    text = embedding_by(endpoint, publish_ms=100) + f"retire_grace_ms = 100\n{DISK}cache_bytes_max_low = 0\n"
    async with running(data, config, text) as (daemon, client):
        for number in range(4):
            await client.call("event.append", event(f"words of number {number}"))
        await until_index(client, lambda index: index["vectors"] == {"have": 4, "want": 4})
        await client.call("index.rebuild")
        await until_index(client, lambda index: len(index["previous"]) == 1 and index["building"] is None)
        assert (await client.call("cache.stats"))["entries"] == 4

        leave_room(daemon, 300 * MIB)
        await until_level(client, "low")
        index = await until_index(client, lambda index: index["paused_by"] == "disk" and not index["previous"])
        assert index["paused"] and index["embedding"]["state"] == "paused"
        await wait_until(client, lambda stats: stats["entries"] == 0, method="cache.stats")
        serving = f"gen-{index['generation']:06d}"
        await until_generations(data, [serving])
        status = await client.call("system.status")
        assert status["actors"]["generation_builder"]["state"] == "degraded"
        assert "disk is low" in status["actors"]["generation_builder"]["reason"]
        assert not status["ready"]["build"] and status["ready"]["write"] and status["ready"]["append"]
        with pytest.raises(RpcError, match="no earlier generation is kept"):
            await client.call("index.rollback")

        # The truth takes everything; the builder sees it, and does not build, not even when told to.
        await client.call("unit.put", UNIT)
        await client.call("event.append", event("words of number 4"))
        await client.call("index.rebuild")
        seen = await until_index(client, lambda index: index["behind"] == {"events": 1, "units": 1})
        assert seen["builds"]["started"] == index["builds"]["started"] and seen["building"] is None
        found = await client.call("memory.search", {"query": "number", "mode": "keyword"})
        assert {hit["seq"] for hit in found["hits"] if "seq" in hit} == {1, 2, 3, 4, 5}

        leave_room(daemon, None)
        await until_index(
            client,
            lambda index: index["behind"] == {"events": 0, "units": 0} and index["vectors"] == {"have": 6, "want": 6},
        )
        status = await until_level(client, "ok")
        assert status["actors"]["generation_builder"]["state"] == "ready" and status["ready"]["build"]
        assert {each["epoch"] for each in status["actors"].values()} == {1}


@pytest.mark.parametrize("stage", ["events", "prepare"])
async def test_a_build_that_runs_is_ended_at_once_and_made_again_later(serve: Serve, data: Path, stage: str) -> None:
    async with serve(DISK) as (daemon, client):
        await client.call("debug.hold_build", {"stage": stage})
        await client.call("event.append", event("words"))
        await until_index(client, lambda index: (index["building"] or {}).get("stage") == stage)
        before = (await client.call("system.status"))["actors"]["generation_builder"]
        leave_room(daemon, 300 * MIB)
        index = await until_index(client, lambda index: index["building"] is None)
        assert index["generation"] is None and "the disk is low" in index["last_error"]
        await until_generations(data, [])
        builder = (await client.call("system.status"))["actors"]["generation_builder"]
        names = [worker["name"] for worker in builder["workers"]]
        assert "rebuilder" not in names, "whatever its process was doing has ended"
        assert builder["pid"] == before["pid"]
        assert (builder["restarts"], builder["epoch"]) == (0, 1), "but that was no death"

        await client.call("debug.hold_build", {"stage": None})
        leave_room(daemon, None)
        await until_index(client, lambda index: index["behind"] == {"events": 0, "units": 0} and index["generation"])
