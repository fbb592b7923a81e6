"""The two places for a search worker: who is in them, what they have open, and whether they can be trusted.

The first place is the active one's, the other the spare's. A worker is doubted while it is silent, and while it owes
answers that the other one had to give. A doubted worker is asked only when there is no other; nothing here kills it.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import trio

from actors.worker import Worker

# Beats come from a thread of their own, whatever the worker is doing. Two may be late on a busy machine.
BEATS_MISSED_MAX = 2
BEAT_SLACK_MS = 100


class Attempt(Protocol):
    """A call that a worker has in hand."""

    began: float
    search: bool

    def nudge(self) -> None:
        """Have whoever waits for the call look again."""


class Slot:
    """One of the two places, over all lives of its workers."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.since = 0.0  # when it came (trio's clock)
        self.loaded: set[int] = set()  # views that it may be asked for
        self.held: set[int] = set()  # … that it may have open: asked to open and not yet to close
        self.attempts: set[Attempt] = set()
        self.answers = 0  # searches answered
        self.owes = False  # the other one answered a search of its, and it has answered nothing since
        self.failures = 0
        self.oversized = 0  # lives in a row that ended by their size
        self.coming = False  # a worker is on its way up
        self.settled = trio.Event()  # … and is warm now, or dead

    def employ(self, worker: Worker) -> None:
        """Take a new worker in."""
        self.worker, self.since = worker, trio.current_time()
        self.owes = False

    def release(self) -> None:
        """Offer its worker to nobody any more."""
        self.worker = None
        self.loaded.clear()
        self.held.clear()

    def bury(self) -> None:
        """Take its dead worker out, with what it had in hand."""
        self.release()
        self.attempts.clear()

    def serves(self, view: int) -> bool:
        """Say whether its worker has a view open."""
        return self.worker is not None and view in self.loaded

    @property
    def silent(self) -> bool:
        """Say whether its worker has missed more beats than a busy one does."""
        worker = self.worker
        return worker is not None and worker.silent_ms > BEATS_MISSED_MAX * worker.spec.beat_ms + BEAT_SLACK_MS

    @property
    def trusted(self) -> bool:
        """Say whether an answer may be expected of its worker."""
        return self.worker is not None and not self.owes and not self.silent

    @property
    def searches(self) -> int:
        """Return how many searches its worker has in hand."""
        return sum(attempt.search for attempt in self.attempts)

    def nudge(self) -> None:
        """Have everybody who waits for its worker look again."""
        for attempt in self.attempts:
            attempt.nudge()


class Pair:
    """Both places, the active one first. `changed` is called whenever who serves may have changed."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._slots = [Slot(), Slot()]
        self.changed = changed
        self.failovers = 0

    def __iter__(self) -> Iterator[Slot]:
        """Iterate over both, the active one first."""
        return iter(tuple(self._slots))

    @property
    def active(self) -> Slot:
        """Return the place that searches go to."""
        return self._slots[0]

    def other(self, slot: Slot) -> Slot:
        """Return the other place."""
        return self._slots[1] if slot is self._slots[0] else self._slots[0]

    def serving(self, view: int) -> list[Slot]:
        """Return the places that have a view open: the trusted first, of these the active one."""
        return sorted((slot for slot in self if slot.serves(view)), key=lambda slot: not slot.trusted)

    def living(self) -> list[Slot]:
        """Return the places with a worker: the trusted first, of these the spare, which has less to do."""
        return sorted((slot for slot in reversed(tuple(self)) if slot.worker), key=lambda slot: not slot.trusted)

    def promote(self, slot: Slot) -> None:
        """Make a place the active one; searches have left the other."""
        if slot is not self.active:
            self._slots.reverse()
            self.failovers += 1
            self.changed()

    def prefer(self, view: int) -> None:
        """Make a place that has the view open the active one, if there is one."""
        self._slots.sort(key=lambda slot: not slot.serves(view))

    def bury(self, worker: Worker) -> None:
        """Take a dead worker out; its place notices a moment later by itself."""
        for slot in self._slots:
            if slot.worker is worker:
                slot.bury()
                self.changed()
