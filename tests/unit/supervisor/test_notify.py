"""systemd's datagrams, received on a real socket."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from supervisor.notify import Notifier, describe


class FakeHealth:
    """The two answers that the notifier asks for."""

    def __init__(self) -> None:
        self.up = {"append": False, "write": True, "search": True}
        self.turning = True

    def ready(self) -> dict[str, bool]:
        """Return what works."""
        return self.up

    def live(self) -> bool:
        """Return whether the loop turns."""
        return self.turning


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """Give the receiving end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)
        yield receiver


def received(manager: socket.socket) -> list[str]:
    texts = []
    while True:
        try:
            texts.append(manager.recv(4096).decode())
        except BlockingIOError:
            return texts


def test_without_a_manager_nothing_happens() -> None:
    notifier = Notifier({})
    assert not notifier.wanted and not notifier.send(READY=1)


def test_a_manager_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    assert not Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).send(READY=1)


def test_pings_are_for_the_process_that_is_watched() -> None:
    watched = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "4000000"}
    assert Notifier({**watched, "WATCHDOG_PID": str(os.getpid())}).ping_every_s == 2.0
    assert Notifier({**watched, "WATCHDOG_PID": "1"}).ping_every_s is None
    assert Notifier({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"}).ping_every_s is None


async def test_ready_when_writes_are_taken_then_pings_while_work_is_done(
    autojump_clock: trio.testing.MockClock, manager: socket.socket
) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "2000000"})
    health, who = FakeHealth(), list[str | None]([None])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notifier.run, health, lambda: who[0])
        await trio.sleep(3)
        assert received(manager) == []
        health.up["append"] = True
        await trio.sleep(0.1)
        assert received(manager) == ["READY=1\nSTATUS=all capabilities ready"]
        await trio.sleep(2)
        assert received(manager).count("WATCHDOG=1") == 2
        who[0] = "core_writer"
        await trio.sleep(2)
        assert received(manager) == ["STATUS=core_writer is stuck"] * 2
        who[0], health.turning = None, False
        await trio.sleep(2)
        assert "WATCHDOG=1" not in received(manager)
        nursery.cancel_scope.cancel()


def test_what_does_not_work_is_named() -> None:
    assert describe(FakeHealth()) == "not ready: append"
