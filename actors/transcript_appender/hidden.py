"""Which events are hidden: nobody is answered with them any more, whether their content is erased yet or not.

`forgotten.db` beside the segments names them by seq, for ever and without content; so a segment that is restored from
a backup brings nothing back. It is made with the first forgotten event. Core has the same as tombstones, and gives
them again when the file is lost (`core_writer/forgetter.py`).

An erased event keeps its id and place, so that it is not taken for a lost one, and a repeated append finds it.
"""

import hashlib
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from actors.errors import DiskFull, Quarantined, StoreBusy
from actors.sql.database import Call, FileKind, checkpoint, fsync_directory, open_writer, transaction
from actors.transcript_appender.store import EventRow

FILE_NAME = "forgotten.db"
ERASED_SCOPE = "forgotten"
EMPTY_HASH = hashlib.sha256(b"").digest()
KIND = FileKind(
    name="hidden events",
    application_id=0x62684844,  # "bhHD"
    user_version=1,
    schema=f"""
        PRAGMA application_id = {0x62684844};
        PRAGMA user_version = 1;
        CREATE TABLE hidden (seq INTEGER PRIMARY KEY) STRICT;
    """,
    synchronous="FULL",
)


def erased(event: EventRow) -> EventRow:
    """Return an event as it is once its content is erased: with its place, its id, its session and its time."""
    return event._replace(
        scope=ERASED_SCOPE,
        channel=None,
        project=None,
        trace_id=None,
        request_id=None,
        content_hash=EMPTY_HASH,
        tags="[]",
        meta=None,
        content="",
    )


class Hidden:
    """The hidden events of one worker. Added to on the write lane, looked at on every lane."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._connection: sqlite3.Connection | None = None
        self._seqs: set[int] = set()

    def __len__(self) -> int:
        return len(self._seqs)

    def __contains__(self, seq: object) -> bool:
        return seq in self._seqs

    def hides(self, event: EventRow) -> bool:
        """Say whether nobody may be answered with this event."""
        return event.seq in self._seqs or (event.scope == ERASED_SCOPE and not event.content)

    def load(self) -> None:
        """Read the file if there is one. A damaged one is set aside: core knows what stood in it."""
        if not self.path.exists():
            return
        try:
            self._open()
        except Quarantined:
            self.path.replace(self.path.with_suffix(".damaged"))
            fsync_directory(self.path.parent)
        except (DiskFull, StoreBusy):
            with closing(
                sqlite3.connect(f"file:{quote(str(self.path.absolute()))}?mode=ro&immutable=1", uri=True)
            ) as it:
                self._take(it)

    def add(self, seqs: Sequence[int], call: Call) -> None:
        """Hide events; durable on return. They are hidden at once, even if it can't be made durable."""
        self._seqs.update(seqs)
        connection = self._open()
        with transaction(connection, call):
            connection.executemany("INSERT OR IGNORE INTO hidden (seq) VALUES (?)", [(seq,) for seq in seqs])
        checkpoint(connection, "TRUNCATE")  # so that a start on a full disk can read all of it

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = open_writer(self.path, KIND)
            fsync_directory(self.path.parent)
            self._take(self._connection)
        return self._connection

    def _take(self, connection: sqlite3.Connection) -> None:
        self._seqs.update(seq for (seq,) in connection.execute("SELECT seq FROM hidden"))
