"""The watchdog of the workers: every tick, look at each of them against its deadlines.

The ladder for a call past its deadline is: interrupt (the worker's progress handler, then `interrupt()` on its
connection), and after a grace SIGKILL. The loop's own lag must not be mistaken for a worker's silence, so the
silence is counted in ticks that the loop really lived, each worth at most two periods.
"""

import time

import trio

from supervisor.supervise import Supervisor


async def keep_watch(supervisor: Supervisor, every_ms: int) -> None:
    """Look at every worker, for ever."""
    before = trio.current_time()
    while True:
        await trio.sleep(every_ms / 1000)
        now = trio.current_time()
        elapsed_ms = min((now - before) * 1000, 2.0 * every_ms)
        before = now
        supervisor.watch(time.monotonic_ns(), elapsed_ms)
