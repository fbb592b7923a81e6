"""Which view serves, and who still reads which. Pure: counts, no files, no clock.

Owns the answer to one question: may a view be closed, and the files go that only it needs? It may when it neither
serves nor is read. Every reader takes a lease before it sends a query and gives it back in `finally`; a swap sends new
readers to the new view and lets the old ones finish where they began. Views are known by number (`split_view`). The
caller acts on `retired()`; nothing is deleted in here.
"""


class Leases:
    """The serving view and the readers of each. Not thread-safe: one task owns it."""

    def __init__(self) -> None:
        self._serving: int | None = None
        self._readers: dict[int, int] = {}  # Invariant: the serving view is a key; no count is negative

    @property
    def serving(self) -> int | None:
        """Return the view that new readers get, None when there is none."""
        return self._serving

    def acquire(self) -> int | None:
        """Take a lease on the serving view and return its number; None (and no lease) when nothing serves."""
        if self._serving is not None:
            self._readers[self._serving] += 1
        return self._serving

    def hold(self, view: int) -> None:
        """Take a lease on a view whether it serves or not: it is closed once the lease was given back."""
        self._readers[view] = self.readers(view) + 1

    def release(self, view: int) -> None:
        """Give one lease back."""
        assert self.readers(view) > 0, f"release of view {view}, which nobody reads"
        self._readers[view] -= 1

    def swap(self, view: int | None) -> int | None:
        """Let new readers have `view` (None: nothing serves); return the number that served before."""
        before, self._serving = self._serving, view
        if view is not None:
            self._readers.setdefault(view, 0)
        return before

    def readers(self, view: int) -> int:
        """Return how many leases a view has."""
        return self._readers.get(view, 0)

    def leased(self) -> list[int]:
        """Return the views that are needed: the serving one and those still read, ascending."""
        return sorted(number for number, count in self._readers.items() if count or number == self._serving)

    def retired(self) -> list[int]:
        """Return the views that served once and are needed by nobody, ascending, until `forget` is called."""
        return sorted(number for number, count in self._readers.items() if not count and number != self._serving)

    def forget(self, view: int) -> None:
        """Stop listing a retired view: its workers have dropped it."""
        assert view in self.retired(), f"view {view} is still in use"
        del self._readers[view]
