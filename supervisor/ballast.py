"""The ballast: a file that holds some room of the disk, to be given back when there is none left.

On a full disk SQLite can neither delete nor checkpoint, so a memory could not even be made smaller. With the ballast
gone there is room for that. It holds nothing and may be deleted by anybody at any time. These functions block; the
caller runs them in a thread.
"""

import contextlib
import errno
import os
from pathlib import Path

NAME = "ballast"
CHUNK_BYTES = 1024 * 1024
BLOCK_BYTES = 512  # the unit of st_blocks, on every system


def size(path: Path) -> int:
    """Return how many bytes of the disk the ballast holds; 0 when there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    return min(found.st_size, found.st_blocks * BLOCK_BYTES)


def make(path: Path, count: int) -> None:
    """Allocate a ballast of `count` bytes for real, not as a hole. Raises OSError, and leaves none then."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _allocate(fd, count)
    except OSError:
        free(path)
        raise
    finally:
        os.close(fd)


def free(path: Path) -> None:
    """Give the room back. Raises OSError when the disk does not let us."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def has_room_for(path: Path, count: int) -> bool:
    """Say whether `count` more bytes can be had now, by taking them: a quota shows in no statistics of the disk."""
    try:
        make(path, count)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return False
        raise
    free(path)
    return True


def _allocate(fd: int, count: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, count)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise
        else:
            return
    # Noise, because a file system that compresses would keep nothing for zeros.
    chunk = os.urandom(CHUNK_BYTES)
    while count > 0:
        count -= os.write(fd, chunk[:count])
