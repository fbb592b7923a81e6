"""A copy of damaged files of the truth, made once per damage: the disk that broke them may go on breaking them.

It goes to `damaged-<UTC stamp>/` beside them, with FINDING.json, which says what was found and which files these are.
It is made in slices, so that reads can be served meanwhile, under a name that ends in .tmp until it is complete and
durable. The copied files themselves are only read. Opening and closing them drops the locks that SQLite holds on them
in this process, which is harmless as long as nobody writes to them: that is the case after a finding.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from actors.sql.database import fsync_directory, wal_of
from actors.sql.swap import DAMAGED_PREFIX, stamp

FINDING = "FINDING.json"
BYTES_MAX = 4 * 1024 * 1024 * 1024
# What a copy must leave free: the truth of the other rooms needs it more.
FREE_BYTES_MIN = 512 * 1024 * 1024
_PIECE_BYTES = 4 * 1024 * 1024


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. A file is the same as long as its inode, size and time (ns) are."""

    finding: str
    files: dict[str, tuple[int, int, int]]


class SetAside:
    """The copy of one damaged database. `note` says what became of it, for the log."""

    def __init__(self, path: Path, finding: str) -> None:
        self.note = ""
        self._room = path.parent
        self._files = [file for file in (path, wal_of(path)) if file.is_file()]
        self._finding = Finding(finding=finding, files={file.name: _identify(file) for file in self._files})
        self._folder = self._room / f"{DAMAGED_PREFIX}{stamp()}"
        self._draft = self._folder.with_name(self._folder.name + ".tmp")
        self._steps: Iterator[None] | None = self._copy() if self._is_wanted() else None

    def step(self, seconds: float) -> bool:
        """Copy for a while; return whether there is more to do. Never raises for the disk: without a copy goes on."""
        until = time.monotonic() + seconds
        try:
            while self._steps is not None and time.monotonic() < until:
                if next(self._steps, self) is self:
                    self._steps = None
        except OSError as error:
            self._steps = None
            self.note = f"damaged files not set aside: {error}"
            shutil.rmtree(self._draft, ignore_errors=True)
        return self._steps is not None

    def _is_wanted(self) -> bool:
        size = sum(file_bytes for _, file_bytes, _ in self._finding.files.values())
        if not self._files:
            self.note = "there are no files to set aside"
        elif (earlier := self._find_earlier()) is not None:
            self.note = f"set aside before: {earlier.name}"
        elif size > BYTES_MAX:
            self.note = f"damaged files not set aside: {size} bytes, the limit is {BYTES_MAX}"
        elif (free := shutil.disk_usage(self._room).free) - size < FREE_BYTES_MIN:
            self.note = f"damaged files not set aside: {size} bytes, {free} free, {FREE_BYTES_MIN} must stay free"
        else:
            self.note = f"set aside: {self._folder.name}"
            return True
        return False

    def _find_earlier(self) -> Path | None:
        for note in sorted(self._room.glob(f"{DAMAGED_PREFIX}*/{FINDING}")):
            try:
                earlier = msgspec.json.decode(note.read_bytes(), type=Finding)
            except (OSError, msgspec.MsgspecError):
                continue
            if earlier.files == self._finding.files and not note.parent.name.endswith(".tmp"):
                return note.parent
        return None

    def _copy(self) -> Iterator[None]:
        """Copy piece by piece; the copy has its name when the last one is done."""
        self._draft.mkdir(mode=0o700)
        for file in self._files:
            with file.open("rb") as source, _durable(self._draft / file.name) as target:
                while piece := os.read(source.fileno(), _PIECE_BYTES):
                    _write(target, piece)
                    yield
        with _durable(self._draft / FINDING) as target:
            _write(target, msgspec.json.encode(self._finding))
        fsync_directory(self._draft)
        self._draft.replace(self._folder)
        fsync_directory(self._room)


def _identify(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


@contextmanager
def _durable(path: Path) -> Iterator[int]:
    """Give the descriptor of a new file, which is synced at the end."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        yield fd
        os.fsync(fd)
    finally:
        os.close(fd)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
