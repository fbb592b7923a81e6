"""The place of the builder's worker: calls go to whoever sits there, and he can be replaced without a death.

LanceDB does not give back what it took, and a call into it ends with its process only. So a worker is replaced when it
has grown too large, when it has made many builds, and when a build is to end now. Calls that come meanwhile wait for
the successor; those that a hasty replacement cut off are made once more, which is harmless: what a worker does besides
a build can be repeated, and a step of a build is refused by a process that does not have that build.

A worker that dies unasked raises WorkerDied through the nursery of the actor, as ever.
"""

from typing import TypeVar

import msgspec
import trio

from actors.actor import House
from actors.messages.base import Message
from actors.worker import OnReport, Worker, WorkerDied, WorkerSpec

Answer = TypeVar("Answer", bound=msgspec.Struct)

# A beat comes every 250 ms; LanceDB can take some hundred MiB in that time, which is what the margin is for.
LOOK_EVERY_S = 0.25
HARD_PERCENT = 150


class Seat:
    """One worker after the other, one at a time."""

    def __init__(self, house: House, spec: WorkerSpec, nursery: trio.Nursery) -> None:
        self._house = house
        self._spec = spec
        self._nursery = nursery
        self._taken = trio.Event()
        self._worker: Worker | None = None
        self.replaced = 0

    @property
    def rss_bytes(self) -> int:
        """Return the resident size of the worker as its last beat told it; 0 while there is none."""
        return self._worker.rss_bytes if self._worker is not None else 0

    async def fill(self) -> None:
        """Start a worker and let the calls through."""
        self._worker = await self._house.start_worker(self._spec, self._nursery)
        self._taken.set()

    async def replace(self, cause: str, *, pending_s: float) -> None:
        """Retire the worker, giving its calls `pending_s` to end, and start the next one. One caller at a time."""
        leaving, self._worker = self._worker, None
        assert leaving is not None, "the seat is empty: two callers replace the same worker"
        self._taken = trio.Event()
        self.replaced += 1
        self._house.log.info("worker replaced", extra={"cause": cause, "pid": leaving.pid})
        await leaving.retire(pending_s=pending_s)
        await self.fill()

    def kill(self, cause: str) -> None:
        """Kill the worker; that is a death, which ends the incarnation of the actor."""
        if self._worker is not None:
            self._worker.kill(cause)

    async def call(
        self, message: Message, answer: type[Answer], *, deadline_ns: int, on_report: OnReport | None = None
    ) -> Answer:
        """Make a call to the worker, waiting for one while there is none. Raises what `Worker.call` raises."""
        while True:
            await self._taken.wait()
            worker = self._worker
            assert worker is not None, "the event says that somebody sits there"
            try:
                return await worker.call(message, answer, deadline_ns=deadline_ns, on_report=on_report)
            except WorkerDied:
                if worker is self._worker:
                    raise


def hard_limit(rss_bytes_max: int) -> int:
    """Return the size at which a worker is killed at once, for the one above which it is replaced politely."""
    return rss_bytes_max * HARD_PERCENT // 100


async def keep_below(seat: Seat, bytes_max: int) -> None:
    """Kill a worker that grows beyond this many bytes, for ever: rather one build than the memory of the machine.

    RLIMIT_AS is no such limit. Measured: a worker that has built 17,395 rows of 1,536 dimensions holds 550 MB (730 at
    its peak) in 2.9 GB of address space, one that has built next to nothing 220 MB in 2.6 GB: arenas and the stacks of
    many threads are reserved, not used. And where that limit is met LanceDB aborts the process without a word.
    """
    while True:
        await trio.sleep(LOOK_EVERY_S)
        if seat.rss_bytes > bytes_max:
            seat.kill(f"{seat.rss_bytes} bytes resident, hard limit is {bytes_max}")
