"""The process that waits for its turn: it is taken once, leaves with nobody's help, and a dead one is no hindrance."""

import os
import signal
from collections.abc import Iterator

import msgspec
import pytest
import trio

from actors.mailbox import deadline_after
from actors.messages.base import Row
from actors.settings import RoomSetup
from actors.understudy import Understudies
from actors.worker import Worker, WorkerSpec
from tests.unit.actors.pooled_room import Meet

SPEC = WorkerSpec(
    name="pooled",
    module="tests.unit.actors.pooled_room",
    settings=msgspec.Raw(msgspec.msgpack.encode(RoomSetup(directory=""))),
    start_ms=60_000,
    understudy=True,
)


@pytest.fixture
def understudies() -> Iterator[Understudies]:
    """Give the place where they wait, empty, and leave none behind."""
    made = Understudies()
    yield made
    made.dismiss()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_it_becomes_the_worker(understudies: Understudies) -> None:
    understudies.prepare(SPEC)
    (pid,) = understudies.pids()
    worker = Worker(SPEC, epoch=7, process=understudies.take(SPEC))
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        assert worker.pid == pid
        await worker.call(Meet(count=1), Row, deadline_ns=deadline_after(30))
        nursery.cancel_scope.cancel()
    assert not alive(pid)


def test_there_is_one_at_most_and_it_is_taken_once(understudies: Understudies) -> None:
    understudies.prepare(SPEC)
    understudies.prepare(SPEC)
    assert len(understudies.pids()) == 1
    taken = understudies.take(SPEC)
    assert taken is not None and understudies.take(SPEC) is None
    with taken:
        taken.kill()


def test_one_that_died_meanwhile_is_replaced(understudies: Understudies) -> None:
    understudies.prepare(SPEC)
    (first,) = understudies.pids()
    os.kill(first, signal.SIGKILL)
    while first in understudies.pids():
        pass
    assert understudies.take(SPEC) is None
    understudies.prepare(SPEC)
    assert understudies.pids() not in ([], [first])


def test_where_none_is_wanted_there_is_none(understudies: Understudies) -> None:
    understudies.prepare(msgspec.structs.replace(SPEC, understudy=False))
    assert understudies.pids() == []


def test_all_of_them_can_be_let_go(understudies: Understudies) -> None:
    understudies.prepare(SPEC)
    (pid,) = understudies.pids()
    understudies.dismiss()
    assert not alive(pid)
