"""A real file system of 96 MiB, filled to the last byte: nothing acknowledged is lost, and room is all that is needed.

The bytes of the watermarks would be most of such a disk, so their shares hold: 10 % and 2 %.
"""

import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from chaos.client import Client, RpcError, open_socket
from chaos.daemon import Daemon, wait_gone, wait_until
from tests.integration.conftest import CONFIG, Serve, running
from tests.small_disk import Filler, small_disk_at

SIZE_MIB = 96
DISK_FULL = 1005
DISK = "\n[disk]\ncheck_every_ms = 50\nreport_hold_ms = 300\nballast_after_ms = 100\nballast_bytes = 4194304\n"
NO_BALLAST = DISK.replace("ballast_bytes = 4194304", "ballast_bytes = 0")
TRUTH = ("transcript_appender", "core_writer")


@pytest.fixture
def small_disk(data: Path) -> Iterator[Path]:
    """Mount a small file system on the data directory."""
    with small_disk_at(data, SIZE_MIB) as mounted:
        yield mounted


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
        await searches(client)  # what the keyword index has is found on a full disk; it gets no larger there
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


async def test_without_a_free_byte_at_its_start_a_daemon_reads_until_there_is_room(
    small_disk: Path, config: Path
) -> None:
    """Not even the epoch of a new writer fits, and there is no ballast that could make room."""
    filler, writer = Filler(small_disk), Writer()
    async with running(small_disk, config, CONFIG + NO_BALLAST) as (daemon, client):
        for _ in range(20):
            assert await writer.append(client)
        assert await put_unit(client) is None
        await searches(client)  # brings the words up to date: without room for them they would not be found
        await until_log_grows(small_disk / "transcript_appender" / "00000001.db-wal", lambda: writer.append(client))
        await until_log_grows(small_disk / "core_writer" / "core.db-wal", lambda: put_unit(client))
        pid = daemon.pid()
        daemon.kill()
        await wait_gone(pid, 10.0)
        filler.take_all()
    async with running(small_disk, config, CONFIG + NO_BALLAST) as (_, client):
        status: dict[str, Any] = await wait_until(
            client,
            lambda status: (
                all(status["actors"][name]["state"] == "degraded" for name in TRUTH) and status["ready"]["search"]
            ),  # it asks core what was forgotten before it answers
        )
        reasons = [status["actors"][name]["reason"] for name in TRUTH]
        assert all(reason.startswith("read-only: ") for reason in reasons), reasons
        assert status["ready"]["read"]
        assert not status["ready"]["append"] and not status["ready"]["write"]
        check(writer, await history(client))
        await searches(client)
        assert not await writer.append(client) and await put_unit(client) == DISK_FULL
        assert writer.codes == {DISK_FULL} and not writer.unknown
        filler.give_back()
        await writer.until_it_works(client)
        status = await wait_until(
            client, lambda status: all(status["actors"][name]["state"] == "ready" for name in TRUTH)
        )
        assert status["ready"]["append"] and await put_unit(client) is None
        assert [status["actors"][name]["epoch"] for name in TRUTH] == [1, 1], "nobody had to be restarted"
        check(writer, await history(client))
    async with running(small_disk, config, CONFIG + NO_BALLAST) as (_, client):
        check(writer, await history(client))


async def until_log_grows(log: Path, write: Callable[[], Awaitable[object]]) -> None:
    """Write until the WAL has become longer, so that there is no room left in it that the next commit could use."""
    size = log.stat().st_size
    while log.stat().st_size <= size:
        await write()
