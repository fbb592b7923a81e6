"""When each root is walked again: after a change, and by the clock, more seldom where changes are told. Pure.

A walk that takes long is made seldom: a root costs a tenth of the time at most by the clock, a quarter when it changes.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from actors.messages.builder_work import RootWatch
from actors.messages.core_writer import SourceRoot

CLOCK_FACTOR = 10
CHANGE_FACTOR = 4


class Periods(NamedTuple):
    """Seconds from one walk of a root to the next: polled, watched (events can be lost); and between two questions
    whether a walk that takes long is done.
    """

    polled_s: float
    watched_s: float
    unfinished_s: float = 1.0


class _Walk(NamedTuple):
    source: SourceRoot
    at_s: float  # when its outcome came, or when it was last asked for
    took_s: float
    unfinished: bool


class Rounds:
    """The last walk of each root, and how its changes are noticed. Times are monotonic seconds."""

    def __init__(self, periods: Periods) -> None:
        self._periods = periods
        self._walks: dict[str, _Walk] = {}
        self._watches: dict[str, RootWatch] = {}
        self._changed: set[str] = set()

    @property
    def watches(self) -> list[RootWatch]:
        """Return what was last told of the watches."""
        return list(self._watches.values())

    def told(self, watches: Iterable[RootWatch]) -> bool:
        """Take what is told of the watches; say whether a root has changed."""
        before, self._watches = self._watches, {watch.source_id: watch for watch in watches}
        known = {name: watch.changes for name, watch in before.items()}
        changed = {name for name, watch in self._watches.items() if watch.changes != known.get(name, 0)}
        self._changed |= changed
        return bool(changed)

    def changed(self, names: Iterable[str]) -> None:
        """Have these walked, whatever is told of them."""
        self._changed |= set(names)

    def due(self, sources: Iterable[SourceRoot], now_s: float) -> list[str]:
        """Return the roots whose walk is to begin now, by source_id."""
        return [source.source_id for source in sources if now_s >= self._due_at(source)]

    def is_waiting(self, now_s: float) -> bool:
        """Say whether it is time to ask for the outcome of walks that were not done the last time."""
        waiting = [walk.at_s for walk in self._walks.values() if walk.unfinished]
        return bool(waiting) and now_s >= min(waiting) + self._periods.unfinished_s

    def _due_at(self, source: SourceRoot) -> float:
        walk = self._walks.get(source.source_id)
        if walk is None or walk.source != source:
            return float("-inf")
        if source.source_id in self._changed:
            return walk.at_s + CHANGE_FACTOR * walk.took_s
        if walk.unfinished:
            return float("inf")
        watch = self._watches.get(source.source_id)
        watched = watch is not None and watch.mode == "events"
        period_s = self._periods.watched_s if watched else self._periods.polled_s
        return walk.at_s + max(period_s, CLOCK_FACTOR * walk.took_s)

    def begin(self, due: Collection[str]) -> None:
        """Note that these are being walked: what changes from now on is for the next round."""
        self._changed -= set(due)

    def end(
        self,
        sources: Iterable[SourceRoot],
        due: Collection[str],
        now_s: float,
        *,
        unfinished: Collection[str] = (),
        took_s: Mapping[str, float] | None = None,
    ) -> None:
        """Note that these were walked, but for those that are `unfinished`, and how long each walk takes."""
        walks: dict[str, _Walk] = {}
        for source in sources:
            name = source.source_id
            before = self._walks.get(name)
            if before is not None and before.source != source:
                before = None
            if name in due or name in unfinished or (before is not None and before.unfinished):
                walks[name] = _Walk(source, now_s, (took_s or {}).get(name, 0.0), name in unfinished)
            elif before is not None:
                walks[name] = before
        self._walks = walks
