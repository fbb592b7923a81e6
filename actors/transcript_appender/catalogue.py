"""The catalogue of segments: which files the transcript consists of, in which state, and which seqs each may hold.

    segments.json   {"sha256": …, "catalogue": {identity, floor, segments: [{number, state, first_seq, …}]}}

It is small, replaced as a whole (temporary file, fsync, rename, fsync of the folder), and can be made again from the
segments (`segments.py`). What only it knows is why there is a gap between the seqs of two segments, and `floor`: a
seq that is known to have been given out, so that a file that ends before it is known to have lost its tail; and
`clock`, the time (µs) up to which events may have been stamped.

    active ──▶ sealed      it was full (rotation.py), or a good copy took the place of a damaged one
       └─────▶ damaged ──▶ sealed
    sealed ──▶ damaged     the disk may change its mind about what was written long ago
    sealed ──▶ archived    its events are in a Parquet file; a list of them stays (archiving.py)

Invariants
* Numbers count from 1 without gaps; exactly the last segment is active.
* A segment is named here only once its file is durable. So a file that is named and is not there was lost.
* A program with a newer schema raises `schema` of the segments that it writes to: a header that claims a version which
  the catalogue does not know of is damage.
"""

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from actors.errors import Quarantined
from actors.messages.archives import ArchiveFile
from actors.sql.database import fsync_directory

FILE_NAME = "segments.json"
FORMAT = 2  # since 2 a segment may be archived
ARCHIVED = "archived"  # the folder of the lists that stay of archived segments
SEQ_MAX = 2**63 - 1
State = Literal["active", "sealed", "damaged", "archived"]


class Segment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file. `last_seq`: the last of a sealed one; of a damaged one the highest that is known to have been given
    out. `at`: since when it is in this state, µs UTC. `kept`: where the damaged file goes whose place a good one is
    just taking. `doubts`: how many suspicions of it no check has confirmed. `archive`: what took its place."""

    number: int
    state: State
    first_seq: int
    last_seq: int | None = None
    reason: str | None = None
    at: int = 0
    schema: int = 1
    kept: str | None = None
    doubts: int = 0
    archive: ArchiveFile | None = None

    @property
    def name(self) -> str:
        """Return the name of the file."""
        return segment_name(self.number)


class Suspicion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process met damage in a segment and left; the next one is to look closely.

    `seq`: at this event. `thorough`: at every cell, as what was met is none of what SQLite's own checks look at.
    """

    number: int
    reason: str
    seq: int | None = None
    thorough: bool = False


class Catalogue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All segments in the order of their numbers."""

    segments: tuple[Segment, ...]
    format: int = FORMAT
    identity: str = ""
    floor: int = 0
    clock: int = 0
    suspicion: Suspicion | None = None

    @property
    def active(self) -> Segment:
        """Return the segment that is appended to."""
        return self.segments[-1]

    def until(self, segment: Segment) -> int:
        """Return the highest seq that a segment may hold."""
        following = segment.number  # numbers count from 1, so this is the index of the next one
        return self.segments[following].first_seq - 1 if following < len(self.segments) else SEQ_MAX

    def with_segment(self, changed: Segment) -> "Catalogue":
        """Return the catalogue with one segment replaced."""
        segments = tuple(changed if each.number == changed.number else each for each in self.segments)
        return msgspec.structs.replace(self, segments=segments)

    def followed(self, sealed: Segment, following: Segment) -> "Catalogue":
        """Return the catalogue with the last segment sealed and another one behind it."""
        changed = self.with_segment(sealed)
        return msgspec.structs.replace(changed, segments=(*changed.segments, following))

    def acquitted(self, segment: Segment) -> "Catalogue":
        """Return the catalogue without the suspicion of a segment that no check has confirmed."""
        doubted = msgspec.structs.replace(segment, doubts=segment.doubts + 1)
        return msgspec.structs.replace(self.with_segment(doubted), suspicion=None)

    def damaged(self) -> tuple[Segment, ...]:
        """Return the damaged segments."""
        return tuple(each for each in self.segments if each.state == "damaged")


class _Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file: the catalogue, and a hash that tells what we wrote from what the disk made up."""

    sha256: str
    catalogue: msgspec.Raw


class _Format(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT


class Book:
    """The catalogue on disk and in memory, shared by the lanes of the worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILE_NAME
        self.catalogue = Catalogue(segments=())
        self._lock = threading.Lock()

    def load(self) -> bool:
        """Read the file; False when there is none or it is not what was written. Raises Quarantined for a newer one."""
        try:
            raw = self.path.read_bytes()
            sealed = msgspec.json.decode(raw, type=_Sealed)
            if hashlib.sha256(sealed.catalogue).hexdigest() != sealed.sha256:
                return False
            _require_format(sealed.catalogue, self.path)
            found = msgspec.json.decode(sealed.catalogue, type=Catalogue)
        except (FileNotFoundError, IsADirectoryError, msgspec.DecodeError, UnicodeDecodeError):
            return False
        if not _is_coherent(found):
            return False
        self.adopt(found)
        return True

    def is_current(self) -> bool:
        """Say whether the file still holds what is in memory: another process may have changed it."""
        other = Book(self.folder)
        with self._lock:
            return other.load() and other.catalogue == self.catalogue

    def change(self, made: Callable[[Catalogue], Catalogue]) -> None:
        """Replace the catalogue by what `made` returns for it. Durable on return; nothing is written if it is equal."""
        with self._lock:
            changed = made(self.catalogue)
            if changed == self.catalogue and self.path.exists():
                return
            assert _is_coherent(changed)
            write_catalogue(self.path, changed)
            self.adopt(changed)

    def raise_floor(self, seq: int, clock: int = 0) -> None:
        """Remember that a seq, and a time, were given out. Durable on return."""
        if seq > self.catalogue.floor:
            self.change(
                lambda now: msgspec.structs.replace(now, floor=max(now.floor, seq), clock=max(now.clock, clock))
            )

    def suspect(self, suspicion: Suspicion) -> None:
        """Leave word for the next process. A disk that does not take it must not hide the damage itself."""
        with contextlib.suppress(OSError):
            self.change(lambda now: msgspec.structs.replace(now, suspicion=suspicion))

    def path_of(self, segment: Segment) -> Path:
        """Return the file of a segment; of an archived one the list of its events."""
        return self.folder / ARCHIVED / segment.name if segment.state == "archived" else self.folder / segment.name

    def adopt(self, catalogue: Catalogue) -> None:
        """Take a catalogue as the current one without writing it."""
        self.catalogue = catalogue


def segment_name(number: int) -> str:
    """Return the name of the file with a number."""
    return f"{number:08}.db"


def segment_numbers(folder: Path) -> list[int]:
    """Return the numbers of the segments whose files are there, ascending."""
    stems = (path.stem for path in folder.glob("[0-9]*.db") if len(path.stem) == 8 and path.stem.isdecimal())
    return sorted(number for stem in stems if (number := int(stem)) > 0)


def _is_coherent(catalogue: Catalogue) -> bool:
    """Say whether the invariants hold."""
    segments = catalogue.segments
    numbers = [each.number for each in segments]
    firsts = [each.first_seq for each in segments]
    return (
        numbers == list(range(1, len(segments) + 1))
        and [each.number for each in segments if each.state == "active"] == numbers[-1:]
        and firsts == sorted(set(firsts))
        and all(first > 0 for first in firsts)
    )


def _require_format(raw: msgspec.Raw, path: Path) -> None:
    found = msgspec.json.decode(raw, type=_Format).format
    if found > FORMAT:
        raise Quarantined(
            f"{str(path)!r} has format {found}, this program knows up to {FORMAT}",
            hint="start the newer version of bulkhead that wrote it",
        )


def write_catalogue(path: Path, catalogue: Catalogue) -> None:
    """Replace the file by this catalogue. Durable on return."""
    raw = msgspec.json.encode(catalogue)
    content = msgspec.json.encode(_Sealed(sha256=hashlib.sha256(raw).hexdigest(), catalogue=msgspec.Raw(raw)))
    temporary = path.with_suffix(".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(path)
    fsync_directory(path.parent)
