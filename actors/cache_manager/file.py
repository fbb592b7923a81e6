"""The file of the cache: whoever deletes it, whatever is in it, there is a usable one again at the next write.

Deleting it, even with the whole folder, is allowed and noticed before each use: the file at the path is then not the
one that is open. Damage (also by another program or a newer version) is different: it may have a cause that
comes back, so the file is replaced at most REPLACED_MAX times within an hour.
"""

import time
from pathlib import Path

from actors.child import StoreLost
from actors.errors import BulkheadError, Quarantined, StoreBroken
from actors.sql.database import Database, FileKind, open_reader, open_writer, prepare_directory, remove_database

REPLACED_MAX = 3
REPLACED_WINDOW_S = 3600.0


class CacheFile:
    """The two connections of the cache, each used by the thread of its lane."""

    def __init__(self, path: Path, kind: FileKind) -> None:
        self.path = path
        self.recreated = 0
        self._kind = kind
        self._writer: Database | None = None
        self._reader: Database | None = None
        self._replaced: list[float] = []
        # Set by the reading lane, which must not delete what the writing lane has open.
        self._suspect = False

    def writer(self) -> Database:
        """Return the writing connection, on a new file when the old one is gone, damaged or not ours."""
        if self._suspect:
            self.replace()
        if self._writer is not None and not self._writer.in_place():
            self._close_writer()
            remove_database(self.path)  # what may be left of it does not fit together
            self.recreated += 1
        if self._writer is None:
            self._writer = self._open_writer()
        return self._writer

    def reader(self) -> Database | None:
        """Return the reading connection; None when there is no usable file, which is a miss for every key."""
        if self._reader is not None and not self._reader.in_place():
            self._reader.close()
            self._reader = None
        if self._reader is None and self.path.exists():
            try:
                self._reader = Database(open_reader(self.path, self._kind), self.path)
            except BulkheadError:
                return None  # the writer is about to make or replace it
        return self._reader

    def suspect(self) -> None:
        """Say that the file was found damaged while reading; the writing lane replaces it."""
        self._suspect = True

    def replace(self) -> None:
        """Delete a damaged file; raises StoreLost when that happens too often to be chance."""
        now = time.monotonic()
        self._replaced = [at for at in self._replaced if now - at < REPLACED_WINDOW_S]
        if len(self._replaced) >= REPLACED_MAX:
            raise StoreLost(
                StoreBroken(
                    f"cache refused: {str(self.path)!r} was damaged {len(self._replaced) + 1} times within an hour, "
                    f"the limit is {REPLACED_MAX}",
                    outcome="not_executed",
                    hint="look for the cause on the disk; memory works without the cache",
                )
            )
        self._replaced.append(now)
        self.recreated += 1
        self.clear()

    def clear(self) -> None:
        """Delete the file; the next use of the writer makes an empty one."""
        self._close_writer()
        remove_database(self.path)
        self._suspect = False

    def interrupt(self, lane: str) -> None:
        """Stop the running statement of a lane when its call has expired."""
        database = self._writer if lane == "write" else self._reader
        if database is not None:
            database.interrupt()

    def close(self) -> None:
        """Close both connections."""
        self._close_writer()
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _open_writer(self) -> Database:
        prepare_directory(self.path.parent)
        try:
            return Database(open_writer(self.path, self._kind), self.path)
        except Quarantined:
            self.replace()  # to be kept as it is, if it were a truth
            return Database(open_writer(self.path, self._kind), self.path)

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
