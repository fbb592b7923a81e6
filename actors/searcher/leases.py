"""Which generation serves, and who still reads which. Pure: counts, no files, no clock.

Owns the answer to one question: may a generation's files go? They may when it neither serves nor is read. Every reader
takes a lease before it sends a query and gives it back in `finally`; a swap sends new readers to the new generation and
lets the old ones finish where they began. The caller acts on `retired()`; nothing is deleted in here.
"""


class Leases:
    """The serving generation and the readers of each. Not thread-safe: one task owns it."""

    def __init__(self) -> None:
        self._serving: int | None = None
        self._readers: dict[int, int] = {}  # Invariant: the serving generation is a key; no count is negative

    @property
    def serving(self) -> int | None:
        """Return the generation that new readers get, None when there is none."""
        return self._serving

    def acquire(self) -> int | None:
        """Take a lease on the serving generation and return its number; None (and no lease) when nothing serves."""
        if self._serving is not None:
            self._readers[self._serving] += 1
        return self._serving

    def release(self, generation: int) -> None:
        """Give one lease back."""
        assert self.readers(generation) > 0, f"release of generation {generation}, which nobody reads"
        self._readers[generation] -= 1

    def swap(self, generation: int | None) -> int | None:
        """Let new readers have `generation` (None: nothing serves); return the number that served before."""
        before, self._serving = self._serving, generation
        if generation is not None:
            self._readers.setdefault(generation, 0)
        return before

    def readers(self, generation: int) -> int:
        """Return how many leases a generation has."""
        return self._readers.get(generation, 0)

    def leased(self) -> list[int]:
        """Return the generations whose files are needed: the serving one and those still read, ascending."""
        return sorted(number for number, count in self._readers.items() if count or number == self._serving)

    def retired(self) -> list[int]:
        """Return the generations that served once and are needed by nobody, ascending, until `forget` is called."""
        return sorted(number for number, count in self._readers.items() if not count and number != self._serving)

    def forget(self, generation: int) -> None:
        """Stop listing a retired generation: its workers have dropped it."""
        assert generation in self.retired(), f"generation {generation} is still in use"
        del self._readers[generation]
