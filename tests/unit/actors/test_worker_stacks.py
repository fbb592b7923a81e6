"""A worker that hangs is interrupted, asked where it hangs and killed, and its caller is told. Real processes."""

import os
import signal
import time
from typing import Literal

import msgspec
import pytest
import trio

from actors.mailbox import deadline_after
from actors.messages.base import Row
from actors.settings import RoomSetup
from actors.worker import Worker, WorkerDied, WorkerSpec
from tests.unit.actors.stuck_room import Hang

SPEC = WorkerSpec(
    name="stuck",
    module="tests.unit.actors.stuck_room",
    settings=msgspec.Raw(msgspec.msgpack.encode(RoomSetup(directory=""))),
    start_ms=60_000,
    beat_ms=50,
    silence_ms=1000,
    interrupt_grace_ms=200,
)
TICK_S = 0.05


async def died(how: Literal["sleep", "hold_gil", "raise"], spec: WorkerSpec = SPEC, stop: bool = False) -> WorkerDied:
    """Run a worker under a watchdog, have it hang, and return its death."""
    worker = Worker(spec, epoch=1)
    deaths: list[WorkerDied] = []

    async def live(*, task_status: trio.TaskStatus[Worker]) -> None:
        try:
            await worker.run(task_status=task_status)
        except WorkerDied as death:
            deaths.append(death)
            nursery.cancel_scope.cancel()

    async def watch() -> None:
        while True:
            worker.watch(time.monotonic_ns(), TICK_S * 1000)
            await trio.sleep(TICK_S)

    async def ask() -> None:
        with pytest.raises(WorkerDied):
            await worker.call(Hang(how=how), Row, deadline_ns=deadline_after(0.3))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(live)
            nursery.start_soon(watch)
            if stop:
                os.kill(worker.pid, signal.SIGSTOP)
            else:
                nursery.start_soon(ask)
    (death,) = deaths
    return death


@pytest.mark.parametrize("how", ["sleep", "hold_gil"])
async def test_its_stacks_come_with_its_death(how: Literal["sleep", "hold_gil"]) -> None:
    death = await died(how)
    assert "after its deadline" in death.cause
    assert "stuck_room.py" in death.detail and "in handle" in death.detail
    assert death.culprit == msgspec.msgpack.encode(Hang(how=how))


async def test_a_bug_comes_with_its_traceback_and_its_message() -> None:
    death = await died("raise")
    assert death.cause == "crashed: RuntimeError: a bug in the room"
    assert "Traceback" in death.detail and death.culprit == msgspec.msgpack.encode(Hang(how="raise"))


async def test_a_stopped_process_is_killed_for_its_silence() -> None:
    death = await died("sleep", stop=True)
    assert "silent" in death.cause and death.culprit is None


async def test_a_busy_one_is_killed_for_its_silence_where_that_is_wanted() -> None:
    death = await died("hold_gil", msgspec.structs.replace(SPEC, interrupt_grace_ms=30_000, busy_silence_ms=500))
    assert "silent" in death.cause and "in handle" in death.detail
