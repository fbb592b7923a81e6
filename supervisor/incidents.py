"""Incidents: a bounded text file for each thing that should not have happened, written beside the loop.

`report` never blocks and never raises: the texts wait in a short queue, a thread writes them, and what finds the queue
full is counted. What a worker left behind (its traceback, the stacks it was asked for) is worth a file; a process that
was killed from outside has nothing to say and leaves a line in the log only.
"""

import traceback
from pathlib import Path

import trio

from actors.worker import WorkerDied
from supervisor.config import LogLimits
from supervisor.logs import write_incident

WAITING_MAX = 16
WRITE_S = 5.0


class Incidents:
    """The folder of incidents of one daemon."""

    def __init__(self, folder: Path, limits: LogLimits) -> None:
        self._folder = folder
        self._limits = limits
        self._send, self._receive = trio.open_memory_channel[tuple[str, str]](WAITING_MAX)
        self._limiter = trio.CapacityLimiter(1)
        self.reported = 0
        self.dropped = 0

    def report(self, name: str, text: str) -> None:
        """Have a file written about something; `name` becomes a part of its name."""
        self.reported += 1
        try:
            self._send.send_nowait((name, text))
        except trio.WouldBlock:
            self.dropped += 1

    def report_death(self, actor: str, epoch: int, cause: Exception) -> None:
        """Have a file written about an actor's death, if anything is known beyond its cause."""
        detail = cause.detail if isinstance(cause, WorkerDied) else "".join(_traceback(cause))
        if detail.strip():
            self.report(f"{actor}-died", f"{actor}, epoch {epoch}: {cause}\n\n{detail}\n")

    async def run(self) -> None:
        """Write what is reported, for ever; a disk that does not take it is given up on after a while."""
        async for name, text in self._receive:
            with trio.move_on_after(WRITE_S):
                await trio.to_thread.run_sync(
                    write_incident,
                    self._folder,
                    self._limits,
                    name,
                    text,
                    abandon_on_cancel=True,
                    limiter=self._limiter,
                )


def _traceback(cause: Exception) -> list[str]:
    return traceback.format_exception(cause)
