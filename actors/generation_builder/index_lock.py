"""One builder a folder: an flock on LOCK, held for the life of the process.

LanceDB has no such guard (two writers duplicate rows in silence), and the daemon's own lock says nothing about a
worker that outlived it. The folder may be deleted at any time, with the lock file in it; `hold` then locks the new one.
"""

import fcntl
import os
from pathlib import Path
from time import monotonic, sleep

from actors.errors import StoreBusy
from actors.generation import LOCK

# A worker that was killed keeps the lock until the kernel is done with it.
WAIT_S = 2.0
_POLL_S = 0.02


class IndexLock:
    """The lock of an index folder."""

    def __init__(self, index: Path) -> None:
        self._index = index
        self._fd: int | None = None

    def hold(self) -> None:
        """Make sure that this process holds the lock, creating folder and file. Raises StoreBusy after WAIT_S."""
        if self._is_held():
            return
        self.release()
        self._index.mkdir(mode=0o700, parents=True, exist_ok=True)
        until = monotonic() + WAIT_S
        while not self._try():
            if monotonic() >= until:
                raise StoreBusy(
                    f"index folder {str(self._index)!r} is held by another builder process for more than {WAIT_S:g} s",
                    hint="one daemon a data directory; `fuser` on its LOCK file names the holder",
                )
            sleep(_POLL_S)

    def release(self) -> None:
        """Give the lock up."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _try(self) -> bool:
        fd = os.open(self._index / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        self._fd = fd
        if not self._is_held():
            self.release()  # the folder was deleted in between; lock the new one
        return self._fd is not None

    def _is_held(self) -> bool:
        """Say whether the file we locked is still the one that others would lock."""
        if self._fd is None:
            return False
        try:
            ours, theirs = os.fstat(self._fd), (self._index / LOCK).stat()
        except OSError:
            return False
        return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)
