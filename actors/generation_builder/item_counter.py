"""Counts the items that rows belong to, by what a search by meaning can do with them. Pure.

An item is an event, a unit or a note, and may have several rows. It is complete when each of its rows that could have a
vector has one, and bare when none could.
"""

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from actors.messages.index import Items


class Tally(NamedTuple):
    """The rows of one item: all, those that could have a vector, those that have one."""

    rows: int = 0
    embeddable: int = 0
    present: int = 0

    def plus(self, other: "Tally") -> "Tally":
        """Return both together."""
        return Tally(self.rows + other.rows, self.embeddable + other.embeddable, self.present + other.present)

    @property
    def complete(self) -> bool:
        """Say whether nothing of it is missing."""
        return 0 < self.embeddable <= self.present


def items_of(tallies: Iterable[Tally]) -> Items:
    """Return how many items there are, of each kind."""
    found = list(tallies)
    return Items(
        items=len(found),
        complete=sum(tally.complete for tally in found),
        bare=sum(not tally.embeddable for tally in found),
    )


class ItemCounter:
    """Counts over rows that come one after the other, those of an item together."""

    def __init__(self) -> None:
        self._key: Hashable = None
        self._tally = Tally()
        self._items = Items()

    def add(self, key: Hashable, *, embeddable: bool, present: bool) -> None:
        """Count a row of the item with this key."""
        if key != self._key:
            self._close()
            self._key = key
        self._tally = self._tally.plus(Tally(1, embeddable, present))

    def result(self) -> Items:
        """Return what was counted; it may go on after that with another item."""
        self._close()
        return self._items

    def _close(self) -> None:
        if self._tally.rows:
            self._items = self._items.plus(items_of([self._tally]))
        self._tally = Tally()
