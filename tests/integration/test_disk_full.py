"""A real file system of 96 MiB, filled to the last byte: nothing acknowledged is lost, and room is all that is needed.

The bytes of the watermarks would be most of such a disk, so their shares hold: 10 % and 2 %.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from chaos.client import Client, RpcError, open_socket
from chaos.daemon import Daemon, wait_until
from tests.integration.conftest import Serve

SIZE_MIB = 96
DISK_FULL = 1005
DISK = "\n[disk]\ncheck_every_ms = 50\nreport_hold_ms = 300\nballast_after_ms = 100\nballast_bytes = 4194304\n"


@pytest.fixture
def small_disk(data: Path) -> Iterator[Path]:
    """Mount a small file system on the data directory."""
    data.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m,mode=0700", "bulkhead-test", str(data)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
    yield data
    subprocess.run(["umount", "-l", str(data)], check=True)


class Filler:
    """Takes all the room that is left, and gives it back."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "filler"

    def take_all(self) -> None:
        with self._path.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue

    def give_back(self) -> None:
        self._path.unlink()


class Writer:
    """Appends events and puts units, and keeps what it was told about them."""

    def __init__(self) -> None:
        self.acknowledged: set[str] = set()
        self.refused: set[str] = set()
        self.unknown: set[str] = set()
        self.codes: set[int] = set()
        self._number = 0

    async def append(self, client: Client) -> bool:
        self._number += 1
        content = f"event {self._number} " + "words " * 2000
        try:
            await client.call("event.append", {"session_id": "s", "actor": "user", "content": content})
        except RpcError as error:
            self.codes.add(error.code)
            (self.refused if error.outcome == "not_executed" else self.unknown).add(content)
            return False
        self.acknowledged.add(content)
        return True

    async def until_it_works(self, client: Client) -> None:
        with trio.fail_after(60):
            while not await self.append(client):  # noqa: ASYNC110 - a client has nothing but its next attempt
                await trio.sleep(0.05)


async def put_unit(client: Client) -> int | None:
    """Put a unit; return the code of the error."""
    try:
        await client.call("unit.put", {"type": "profile", "scope": "user", "text": "words " * 2000})
    except RpcError as error:
        return error.code
    return None


async def history(client: Client) -> list[str]:
    contents: list[str] = []
    after = 0
    while True:
        page = await client.call("session.history", {"session_id": "s", "after_seq": after, "limit": 100})
        contents += [event["content"] for event in page["events"]]
        if not page["more"]:
            return contents
        after = page["events"][-1]["seq"]


def check(writer: Writer, stored: list[str]) -> None:
    assert len(stored) == len(set(stored)), "nothing is there twice"
    assert writer.acknowledged <= set(stored), "what was acknowledged is there"
    assert set(stored) <= writer.acknowledged | writer.unknown, "what was refused is not"


async def searches(client: Client) -> None:
    found = await client.call("memory.search", {"query": "event words"})
    assert found["hits"]


async def test_a_disk_that_fills_up_loses_nothing_and_needs_room_and_no_restart(serve: Serve, small_disk: Path) -> None:
    filler, writer = Filler(small_disk), Writer()
    async with serve(DISK) as (_, client):
        for _ in range(20):
            assert await writer.append(client)
        await wait_until(client, lambda status: status["disk"]["ballast_bytes"] > 0)
        filler.take_all()
        # Some may still fit into a write-ahead log that has its room already; then it is over.
        with trio.fail_after(60):
            while await writer.append(client):
                pass
        while await put_unit(client) is None:
            pass
        status = await wait_until(client, lambda status: status["disk"]["level"] == "full")
        assert status["disk"]["total_bytes"] == SIZE_MIB << 20
        for _ in range(30):
            await writer.append(client)
            assert await put_unit(client) in (DISK_FULL, None)
        assert writer.codes == {DISK_FULL}, "nothing but the typed refusal"
        assert not writer.unknown
        check(writer, await history(client))
        await searches(client)
        await wait_until(client, lambda status: status["disk"]["ballast_bytes"] == 0)

        filler.give_back()
        await writer.until_it_works(client)
        await wait_until(client, lambda status: status["disk"]["level"] == "ok" and status["disk"]["ballast_bytes"])
        assert await put_unit(client) is None
        check(writer, await history(client))
        status = await client.call("system.status")
        assert status["actors"]["transcript_appender"]["epoch"] == 1 == status["actors"]["core_writer"]["epoch"]
    await restarted(serve, writer)


async def restarted(serve: Serve, writer: Writer) -> None:
    """Look once more, at another daemon."""
    async with serve(DISK) as (_, client):
        check(writer, await history(client))


async def test_a_daemon_killed_on_a_full_disk_comes_up_there_and_serves_what_it_has(
    serve: Serve, small_disk: Path, config: Path
) -> None:
    filler, writer = Filler(small_disk), Writer()
    async with serve(DISK) as (daemon, client):
        for _ in range(20):
            await writer.append(client)
        await wait_until(client, lambda status: status["disk"]["ballast_bytes"] > 0)
        await searches(client)  # brings the words up to date: without room for them they would not be found
        stop(daemon)  # else it gives its ballast away while the disk fills up, and the filler takes that as well
        filler.take_all()
        daemon.kill()
        again = Daemon(small_disk, config)
        again.start()
        await again.connected()
        await serves_on_the_full_disk(again, filler, writer)
        await again.stop()


def stop(daemon: Daemon) -> None:
    pid = daemon.pid()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)


async def serves_on_the_full_disk(daemon: Daemon, filler: Filler, writer: Writer) -> None:
    async with open_socket(daemon.socket_path) as client:
        status: dict[str, Any] = await wait_until(
            client, lambda status: status["disk"]["level"] == "full" and status["ready"]["read"]
        )
        assert status["ready"]["search"]
        filler.take_all()  # the ballast's room as well
        check(writer, await history(client))
        await searches(client)
        filler.give_back()
        await writer.until_it_works(client)
        check(writer, await history(client))
