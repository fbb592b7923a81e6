"""Reads a sealed folder again, a piece at a time, and compares its files with the manifest. Owns nothing on disk.

Between two pieces only the hash of the file under way is kept; when that is lost (another process took over, another
folder was asked for), the file is begun again. What is seen are files that changed after they were sealed and verified:
a disk that returns other bytes, a program that wrote where it should not.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from actors import generation as generations
from actors.errors import GenerationSuspect
from actors.generation import FileEntry, Manifest
from actors.messages.builder_work import Scrubbed, ScrubSlice

if TYPE_CHECKING:
    from hashlib import _Hash

BLOCK_BYTES = 1024 * 1024


class Scrub:
    """One scrub at a time."""

    def __init__(self, index: Path) -> None:
        self._index = index
        self._folder: Path | None = None
        self._manifest: Manifest | None = None
        self._place = (0, 0)  # number of the file, offset in it
        self._hash: _Hash = hashlib.sha256()

    def read(self, piece: ScrubSlice, check: Callable[[], None]) -> Scrubbed:
        """Read the next piece. Raises GenerationSuspect, and what `check` raises."""
        folder = generations.sealed_path(self._index, piece.generation, piece.delta)
        manifest = self._begin(folder, piece.place)
        self._folder = None  # whatever is raised below, the hash does not fit the place any more
        number, offset = self._place
        left = piece.bytes_max
        while number < len(manifest.files) and left > 0:
            entry = manifest.files[number]
            read = self._read(folder, entry, offset, left, check)
            offset, left = offset + read, left - read
            if offset >= entry.bytes:
                self._compare(folder, entry)
                number, offset, self._hash = number + 1, 0, hashlib.sha256()
        self._folder, self._place = folder, (number, offset)
        return Scrubbed(bytes=piece.bytes_max - left, next=self._place if number < len(manifest.files) else None)

    def _begin(self, folder: Path, place: tuple[int, int] | None) -> Manifest:
        """Return the manifest, and make sure that the hash fits the place: else the file there is begun again."""
        if place is None or folder != self._folder or self._manifest is None or place != self._place:
            self._manifest = generations.verify_shape(folder)
            self._place = (0 if place is None else place[0], 0)
            self._hash = hashlib.sha256()
        return self._manifest

    def _read(self, folder: Path, entry: FileEntry, offset: int, bytes_max: int, check: Callable[[], None]) -> int:
        """Hash a piece of a file and return how long it was."""
        until = min(entry.bytes, offset + bytes_max)
        at = offset
        try:
            with (folder / entry.path).open("rb") as file:
                file.seek(at)
                while at < until:
                    check()
                    block = file.read(min(BLOCK_BYTES, until - at))
                    if not block:
                        break
                    self._hash.update(block)
                    at += len(block)
        except OSError as error:
            raise GenerationSuspect(f"generation {folder.name}: file {entry.path!r} not readable: {error}") from error
        if at < until:
            raise GenerationSuspect(
                f"generation {folder.name}: file {entry.path!r} ends at byte {at}, not {entry.bytes}"
            )
        return at - offset

    def _compare(self, folder: Path, entry: FileEntry) -> None:
        if self._hash.hexdigest() != entry.sha256:
            raise GenerationSuspect(f"generation {folder.name}: file {entry.path!r} is not what was sealed")
