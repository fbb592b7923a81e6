"""A worker without a daemon: started through the launcher, spoken to with the daemon's own handle of a worker.

For what a daemon would not allow: two workers on one file, a worker that is stopped and not killed for it.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import trio

from actors.messages.base import Message
from actors.settings import RoomSetup
from actors.worker import Worker, WorkerDied, WorkerSpec

Answer = TypeVar("Answer", bound=msgspec.Struct)
LAUNCHER = "chaos.faults.worker"
CALL_S = 10.0


@asynccontextmanager
async def bare_worker(data: Path, room: str, *, epoch: int = 1, name: str | None = None) -> AsyncIterator[Worker]:
    """Give a worker of a room on a data directory, ready; it is killed at the end. Its death alone raises nothing."""
    setup = RoomSetup(directory=str(data / room), index_directory=str(data / "generation_builder"))
    spec = WorkerSpec(
        name=name or room,
        module=f"actors.{room}.worker",
        settings=msgspec.Raw(msgspec.msgpack.encode(setup)),
        launcher=LAUNCHER,
    )
    worker = Worker(spec, epoch=epoch)

    async def live(*, task_status: trio.TaskStatus[Worker]) -> None:
        try:
            await worker.run(task_status=task_status)
        except WorkerDied:
            if not worker.statistics().calls and not worker.info:
                raise  # it never started

    async with trio.open_nursery() as nursery:
        await nursery.start(live)
        yield worker
        worker.kill("the scenario is over")


async def call(worker: Worker, message: Message, answer: type[Answer], *, seconds: float = CALL_S) -> Answer:
    """Make a call with a deadline."""
    return await worker.call(message, answer, deadline_ns=time.monotonic_ns() + int(seconds * 1e9))
