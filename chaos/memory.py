"""How much memory a process takes while something is done to it, seen from outside."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import trio

MIB = 1 << 20
LOOK_S = 0.02


class Memory:
    """The resident memory of a process in MiB: when we began to look, at most, and at the end."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.before = self.peak = self.now()

    def now(self) -> float:
        """Return what it takes now."""
        return float(self._process.memory_info().rss / MIB)

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            self.peak = max(self.peak, self.now())
            await trio.sleep(LOOK_S)

    async def settled(self, below: float, seconds: float = 10.0) -> float:
        """Wait until no more than `below` MiB are taken, at most so long; return what is taken then."""
        give_up = time.monotonic() + seconds
        while True:
            now = self.now()
            if now <= below or time.monotonic() > give_up:
                return now
            await trio.sleep(LOOK_S)


@asynccontextmanager
async def measured(pid: int) -> AsyncIterator[Memory]:
    """Measure the memory of a process while the body runs. Raises psutil.NoSuchProcess when it is gone."""
    memory = Memory(pid)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.run)
        yield memory
        nursery.cancel_scope.cancel()
