"""Retiring a worker: what is under way is answered, the process leaves by itself, and nobody counts a death."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.errors import BulkheadError
from actors.mailbox import deadline_after
from actors.messages.base import Row
from actors.settings import RoomSetup
from actors.worker import Worker, WorkerDied, WorkerSpec
from tests.unit.actors.pooled_room import Linger, Meet

SPEC = WorkerSpec(
    name="pooled",
    module="tests.unit.actors.pooled_room",
    settings=msgspec.Raw(msgspec.msgpack.encode(RoomSetup(directory=""))),
    start_ms=60_000,
)


@asynccontextmanager
async def running() -> AsyncIterator[Worker]:
    """Give a live worker; its `run` raising ends the test, a worker that stays is killed."""
    worker = Worker(SPEC, epoch=1)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        yield worker
        if gone(worker.pid):
            return
        nursery.cancel_scope.cancel("the test is over")


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_a_retired_worker_leaves_by_itself_and_its_run_returns() -> None:
    async with running() as worker:
        await worker.call(Meet(count=1), Row, deadline_ns=deadline_after(30))
        await worker.retire()
        assert gone(worker.pid), "nobody is left behind, not even a zombie"
        with pytest.raises(WorkerDied, match="ended with status 0"):
            await worker.call(Meet(count=1), Row, deadline_ns=deadline_after(30))


async def test_calls_under_way_are_answered_before_it_leaves_and_new_ones_are_refused() -> None:
    """The call lasts until it is interrupted, as the watchdog does at its deadline."""
    answers: list[str] = []
    here = trio.Event()

    async def linger(worker: Worker) -> None:
        try:
            await worker.call(Linger(), Row, deadline_ns=deadline_after(60), on_report=lambda report: here.set())
        except BulkheadError as error:
            answers.append(type(error).__name__)

    async with running() as worker, trio.open_nursery() as nursery:
        nursery.start_soon(linger, worker)
        await here.wait()
        nursery.start_soon(lambda: worker.retire(pending_s=60))
        await wait_all_tasks_blocked()
        with pytest.raises(WorkerDied, match="is being retired"):
            await worker.call(Meet(count=1), Row, deadline_ns=deadline_after(60))
        assert not answers and not gone(worker.pid)
        worker.watch(deadline_after(61), 0.0)
    assert answers == ["Interrupted"]
    assert gone(worker.pid)


async def test_a_call_that_does_not_end_fails_when_the_process_is_gone() -> None:
    async def linger(worker: Worker) -> None:
        with pytest.raises(WorkerDied):
            await worker.call(Linger(), Row, deadline_ns=deadline_after(30))

    async with running() as worker, trio.open_nursery() as nursery:
        nursery.start_soon(linger, worker)
        await wait_all_tasks_blocked()
        await worker.retire(pending_s=0.0)
    assert gone(worker.pid)


async def test_a_worker_that_does_not_leave_is_killed_and_that_is_no_death_either() -> None:
    async with running() as worker:
        os.kill(worker.pid, signal.SIGSTOP)
        await worker.retire(leave_s=0.1)
        assert gone(worker.pid)


async def test_giving_up_the_wait_leaves_no_worker_behind() -> None:
    async with running() as worker:
        os.kill(worker.pid, signal.SIGSTOP)
        with trio.move_on_after(0.05) as scope:
            await worker.retire()
        assert scope.cancelled_caught


async def test_a_worker_that_dies_unasked_is_still_a_death() -> None:
    with pytest.RaisesGroup(WorkerDied):
        async with running() as worker:
            os.kill(worker.pid, signal.SIGKILL)
            await trio.sleep_forever()
