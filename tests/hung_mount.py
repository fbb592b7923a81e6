"""A mount that hangs, for real: a FUSE file system whose server never answers. Linux, as root."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DEVICE = Path("/dev/fuse")
MNT_DETACH = 2


def can_hang() -> bool:
    """Say whether this machine lets us make one."""
    return os.geteuid() == 0 and os.access(DEVICE, os.R_OK | os.W_OK)


class HungMount:
    """What is asked of the folder hangs until `answer` ends it with an error."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder).encode()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0".encode()
        if self._libc.mount(b"hung", self._folder, b"fuse", 0, options) != 0:
            os.close(self._device)
            raise OSError(ctypes.get_errno(), "mount")

    def end(self) -> None:
        """Fail what hangs, and take the mount away, so that the folder below it is there again."""
        with suppress(OSError):
            os.close(self._device)
        self._libc.umount2(self._folder, MNT_DETACH)


@contextmanager
def hung_mount(folder: Path) -> Iterator[HungMount]:
    """Cover a folder with a mount that hangs."""
    mount = HungMount(folder)
    try:
        yield mount
    finally:
        mount.end()
