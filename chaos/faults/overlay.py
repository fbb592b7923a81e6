"""What a file would be after a power cut, and what its process sees meanwhile: the page cache of one file, by hand.

Writes stay here until `flush`; reads see them. The file itself holds what was flushed, so that a SIGKILL of the process
leaves what a power cut would leave. Knows no SQLite: the file is a `Backing`. Not thread-safe; its user holds a lock.

Two cruelties of real disks are in it: `leak` lets a written block through at once now and then (unsynced writes
survive in any order), and after `condemn` (a failed fsync) what was unsynced stays readable but is never written.
"""

import random
from typing import Protocol

BLOCK = 4096


class Backing(Protocol):
    """The file on disk. A read beyond its end gives zeros."""

    def read(self, offset: int, length: int) -> bytes: ...

    def write(self, offset: int, data: bytes) -> None: ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...


class Overlay:
    """The unsynced state of one file."""

    def __init__(self, *, leak: float = 0.0, rng: random.Random | None = None) -> None:
        self._leak = leak
        self._random = rng or random.Random(0)
        self._blocks: dict[int, bytearray] = {}
        self._dirty: set[int] = set()
        self._size: int | None = None  # None: that of the file
        self._floor: int | None = None  # what the file has beyond this was cut off, and is not synced yet

    @property
    def unsynced_bytes(self) -> int:
        """Return how much a power cut would lose now."""
        return len(self._dirty) * BLOCK

    def size(self, backing: Backing) -> int:
        """Return the size of the file as its process sees it."""
        return backing.size() if self._size is None else self._size

    def read(self, backing: Backing, offset: int, length: int) -> bytes:
        """Return what the process sees, zeros beyond the end."""
        end = min(offset + length, max(offset, self.size(backing)))
        found = bytearray(length)
        for number in range(offset // BLOCK, -(-end // BLOCK)):
            block = self._block(backing, number)
            start, stop = max(offset, number * BLOCK), min(end, (number + 1) * BLOCK)
            found[start - offset : stop - offset] = block[start - number * BLOCK : stop - number * BLOCK]
        return bytes(found)

    def write(self, backing: Backing, offset: int, data: bytes) -> None:
        """Change the file as its process sees it."""
        end = offset + len(data)
        for number in range(offset // BLOCK, -(-end // BLOCK)):
            block = self._blocks.setdefault(number, bytearray(self._block(backing, number)))
            start, stop = max(offset, number * BLOCK), min(end, (number + 1) * BLOCK)
            block[start - number * BLOCK : stop - number * BLOCK] = data[start - offset : stop - offset]
            self._dirty.add(number)
        self._size = max(self.size(backing), end)
        if self._leak and self._floor is None:
            for number in range(offset // BLOCK, -(-end // BLOCK)):
                if self._random.random() < self._leak:
                    self._write_block(backing, number)

    def truncate(self, backing: Backing, size: int) -> None:
        """Cut the file off, or make it longer, as its process sees it."""
        self._floor = min(size, backing.size() if self._floor is None else self._floor)
        for number in [number for number in self._blocks if number * BLOCK >= size]:
            del self._blocks[number]
            self._dirty.discard(number)
        if (rest := size % BLOCK) and (last := self._blocks.get(size // BLOCK)) is not None:
            last[rest:] = bytes(BLOCK - rest)
        self._size = size

    def flush(self, backing: Backing) -> None:
        """Bring the file up to date; the caller syncs it afterwards."""
        if self._floor is not None and self._floor < backing.size():
            backing.truncate(self._floor)
        self._floor = None
        for number in sorted(self._dirty):
            self._write_block(backing, number)
        if self._size is not None and self._size != backing.size() and not self._blocks:
            backing.truncate(self._size)
        if not self._blocks:
            self._size = None

    def condemn(self) -> None:
        """Count everything as written though it is not: what Linux does with the pages of a failed fsync."""
        self._dirty.clear()

    def _block(self, backing: Backing, number: int) -> bytes | bytearray:
        kept = self._blocks.get(number)
        if kept is not None:
            return kept
        start = number * BLOCK
        readable = BLOCK if self._floor is None else max(0, min(BLOCK, self._floor - start))
        return backing.read(start, readable).ljust(BLOCK, b"\0") if readable else bytes(BLOCK)

    def _write_block(self, backing: Backing, number: int) -> None:
        block, start = self._blocks.pop(number), number * BLOCK
        self._dirty.discard(number)
        assert self._size is not None
        backing.write(start, bytes(block[: max(0, self._size - start)]))
