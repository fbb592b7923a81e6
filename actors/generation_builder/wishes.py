"""What one incarnation of the builder is asked for and has not begun, and waking those who do it.

A state, no task: commands, the embedding and the looks at the truth put wishes in; the loops of rebuilding.py and
deltas.py take them out. Nobody waits for a wish to be fulfilled.
"""

import trio

from actors.generation_builder.desk import Desk
from actors.messages import Covers


class Wishes:
    """The wishes for a full generation and for a delta."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.forced: str | None = None  # why a generation is to be built at once
        self.owed: str | None = None  # why one was built that failed
        self.paused_at: Covers | None = None  # none is built by itself while the truth is still there
        self.vectors = False  # there are vectors that the delta does not have
        self._full = trio.Event()
        self._delta = trio.Event()

    def wish(self, reason: str) -> None:
        """Build a generation as soon as possible, whatever failed before."""
        self.paused_at = None
        self._desk.post(paused=False, attempts=0)
        self.force(reason)

    def force(self, reason: str) -> None:
        """Build a generation as soon as possible."""
        self.forced = reason
        self._full.set()

    def want_delta(self) -> None:
        """Make a delta as soon as one may be made: there are vectors that it does not have."""
        self.vectors = True
        self._delta.set()

    def wake(self) -> None:
        """Have both loops look whether something is due."""
        self._full.set()
        self._delta.set()

    async def wait_full(self, seconds: float) -> None:
        """Wait until a generation may be due, or for so long. Call it right after a look: what came before is past."""
        self._full = trio.Event()
        with trio.move_on_after(seconds):
            await self._full.wait()

    async def wait_delta(self, seconds: float) -> None:
        """Wait until a delta may be due, or for so long. Call it right after a look."""
        self._delta = trio.Event()
        with trio.move_on_after(seconds):
            await self._delta.wait()
