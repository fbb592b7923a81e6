"""Calls to file systems that may never return, each root's in a thread of its own.

A dead network mount lets `stat`, `open` and `read` hang for hours, and nothing but the end of the process ends such a
call. So whoever reads notes has it done by the root's own thread and waits for a bounded time: then the root *hangs*,
and everything else asked of it is refused at once until that one call has returned. The others are not concerned, and
at most one thread a root is lost.

A hop to such a thread costs 0.03 ms of CPU, which is why a small note takes one for all it needs.
"""

import contextlib
import errno
import io
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from actors.notes import BLOCK_BYTES

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Result = TypeVar("Result")

PATIENCE_S = 5.0  # where nobody says otherwise


class Patience:
    """Threads by root. Used from one thread; a call that is given up is remembered until it returns."""

    def __init__(self, hang_s: float) -> None:
        self._hang_s = hang_s
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._returned: dict[str, Callable[[], bool]] = {}  # of the call that was given up: has it returned

    def call(self, root: str, function: Callable[[], Result]) -> Result:
        """Return what the function returns, or raise what it raises; TimeoutError (ETIMEDOUT) when the root hangs."""
        returned = self._returned.get(root)
        if returned is not None:
            if not returned():
                raise self._hangs()
            del self._returned[root]
        if root not in self._threads:
            self._threads[root] = ThreadPoolExecutor(1, thread_name_prefix=f"root-{root}")
        future = self._threads[root].submit(function)
        try:
            return future.result(self._hang_s)
        except TimeoutError:
            if future.done():
                return future.result()  # it returned at the last moment, or the error is its own
            self._returned[root] = future.done
            future.add_done_callback(_close_late)
            raise self._hangs() from None

    def open(self, root: str, opener: Callable[[], BinaryIO]) -> BinaryIO:
        """Open a file for reading, each of whose reads has the same bound; a small one is read at once.

        Raises what `opener` raises, and TimeoutError as `call` does, which every read may do as well.
        """

        def open_and_read() -> BinaryIO:
            file = opener()
            if len(head := file.read(BLOCK_BYTES + 1)) > BLOCK_BYTES:
                file.seek(0)
                return file
            file.close()
            return io.BytesIO(head)

        file = self.call(root, open_and_read)
        if isinstance(file, io.BytesIO):
            return file
        return io.BufferedReader(_BoundedFile(self, root, file), BLOCK_BYTES)

    def _hangs(self) -> TimeoutError:
        return TimeoutError(errno.ETIMEDOUT, f"its file system has not answered for {self._hang_s:g} s")


class _BoundedFile(io.RawIOBase):
    """A file whose reads are made by the thread of its root."""

    def __init__(self, patience: Patience, root: str, file: BinaryIO) -> None:
        self._patience = patience
        self._root = root
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer)
        data = self._patience.call(self._root, lambda: self._file.read(len(view)))
        view[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def close(self) -> None:
        if not self.closed:
            with contextlib.suppress(OSError):
                self._patience.call(self._root, self._file.close)
        super().close()


def _close_late(future: "Future[Result]") -> None:
    """Close a file that was opened after nobody waited for it any more."""
    if future.exception() is None and isinstance(result := future.result(), io.IOBase):
        result.close()
