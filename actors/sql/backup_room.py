"""A room's part in a backup: where it goes, whether there is room for it, and how a copy is stopped.

It is made on a lane of its own, with connections of its own: reads, searches and writes go on as ever. Whatever fails
is the backup's failure and nobody else's, so no error from in here ends the process.
"""

import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from actors.child import CallContext, StoreLost
from actors.errors import DiskFull, Interrupted, NotFound
from actors.settings import RoomSetup
from actors.sql.backup_files import Pace
from actors.sql.backup_folder import BackupFolder
from actors.sql.database import map_error, map_os_error

LANE = "backup"
FOLDER = "backups"


class BackupRoom:
    """What a room needs to copy itself. Used on the lane `backup`; `stop` from any other."""

    def __init__(self, setup: RoomSetup) -> None:
        self.folder = BackupFolder(_folder_of(setup))
        data = Path(setup.directory).parent
        self.archives = Path(setup.archive_directory) if setup.archive_directory else data / "archives"
        self._free_bytes_min = setup.backup.free_bytes_min
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let what is being copied fail; nothing is copied any more in this process."""
        self._stopped.set()

    def draft(self, name: str) -> Path:
        """Return the folder of a backup that was begun."""
        draft = self.folder.draft_of(name)
        if not draft.is_dir():
            raise NotFound(f"backup {name!r} was not begun, or given up since")
        return draft

    def check(self, call: CallContext) -> Callable[[], None]:
        """Return what raises Interrupted when the work for this call should end."""

        def raise_at_the_end() -> None:
            call.check()
            if self._stopped.is_set():
                raise Interrupted("the backup was stopped: the daemon goes down", outcome="not_executed")

        return raise_at_the_end

    def pace(self, call: CallContext) -> Pace:
        """Return the pace of work that nobody waits for."""
        return Pace(self.check(call))

    def require_room(self, size: int) -> None:
        """Raise DiskFull unless so many bytes can be written and enough stay free."""
        free = shutil.disk_usage(self.folder.folder).free
        if free - size < self._free_bytes_min:
            raise DiskFull(
                f"backup refused: it needs {size} bytes, {free} are free, and {self._free_bytes_min} must stay free "
                "(config: backup.free_bytes_min)",
                hint="free space, keep fewer backups, or set backup.directory to another disk",
            )


def _folder_of(setup: RoomSetup) -> Path:
    """Return where the backups are; elsewhere each data directory has a folder of its own."""
    if setup.backup.directory:
        return Path(setup.backup.directory) / (setup.identity or "unnamed")
    return Path(setup.directory).parent / FOLDER


@contextmanager
def as_failures() -> Iterator[None]:
    """Turn every error of disk or SQLite into an answer: the truth itself has not been touched."""
    try:
        yield
    except OSError as error:
        raise map_os_error(error, "backup failed") from error
    except sqlite3.Error as error:
        known = map_error(error, "backup failed")
        if known is None:
            raise
        raise known from error
    except StoreLost as lost:
        raise lost.error from lost
