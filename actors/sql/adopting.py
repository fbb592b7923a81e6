"""What a room finds beside its files when they have come out of a backup, and what it does with it before all else.

    RESTORED.json   {"given_out": {"core_seq": 1000120, …}}

The files are as they were when the backup was made. What was numbered after that is gone, but the numbers were given
out: who restores a data directory writes down how far they may have gone (`supervisor/restoring.py`), and the room that
opens it next goes on above that. The note goes when that is durable; doing it twice changes nothing more.
"""

from contextlib import closing
from pathlib import Path

import msgspec

from actors.errors import Quarantined
from actors.sql.database import Database, FileKind, Until, fsync_directory, open_writer, transaction
from actors.sql.restore import Keeper

NOTE = "RESTORED.json"
_SETTLE_S = 10.0


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Up to where numbers may have been given out, by the name of the counter."""

    given_out: dict[str, int]


def read_note(room: Path) -> Note | None:
    """Return the note of a restore, None when there is none. Raises Quarantined when it cannot be read."""
    try:
        return msgspec.json.decode((room / NOTE).read_bytes(), type=Note)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Quarantined(f"{str(room / NOTE)!r} can't be read: {error}", hint="restore the backup again") from error


def remove_note(room: Path) -> None:
    """Forget the note; what it asks for must be durable."""
    (room / NOTE).unlink()
    fsync_directory(room)


def adopt_counters(path: Path, kind: FileKind, keeper: Keeper) -> None:
    """Let the counters of a database go on above what a note says; nothing without one."""
    if (note := read_note(path.parent)) is None:
        return
    with closing(open_writer(path, kind)) as connection:
        call = Until.after(_SETTLE_S)
        with Database(connection, path).during(call, "adopting a backup failed"), transaction(connection, call):
            keeper.settle(connection, note.given_out)
    remove_note(path.parent)
