"""What one incarnation of the builder is asked for and has not begun, and waking those who do it.

A state, no task: commands, the embedding and the looks at the truth put wishes in; the loops of rebuilding.py and
deltas.py take them out. Nobody waits for a wish to be fulfilled. The wish for a generation is on the board, so that it
outlives an incarnation.
"""

import trio

from actors.generation_builder.desk import Desk
from actors.messages.index import Covers


class Wishes:
    """The wishes for a full generation and for a delta."""

    def __init__(self, desk: Desk, *, owed: str | None = None) -> None:
        self._desk = desk
        self.owed = owed  # why a generation was built that failed
        self.paused_at: Covers | None = None  # none is built by itself while the truth is still there
        self.vectors = False  # there are vectors that the delta does not have
        self._full = trio.Event()
        self._delta = trio.Event()

    @property
    def forced(self) -> str | None:
        """Return why a generation is to be built at once, None when none is."""
        return self._desk.notice.asked

    def wish(self, reason: str) -> None:
        """Build a generation as soon as possible, whatever failed before."""
        self.paused_at = None
        self._desk.post(paused=False, cancelled=False, attempts=0)
        self.force(reason)

    def force(self, reason: str) -> None:
        """Build a generation as soon as possible. Two wishes are one: of the second only the reason is kept."""
        self._desk.post(asked=reason)
        self._full.set()

    def take(self) -> None:
        """A generation is begun: what was wished for until now is what it is for."""
        self.paused_at = None
        self._desk.post(asked=None)

    def want_delta(self) -> None:
        """Make a delta as soon as one may be made: there are vectors that it does not have."""
        self.vectors = True
        self._delta.set()

    def moved(self, latest: Covers) -> None:
        """The truth has moved: what was paused until then goes on."""
        if self.paused_at is not None and self.paused_at != latest:
            self.paused_at = None
            self._desk.post(cancelled=False)

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
