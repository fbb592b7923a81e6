"""Answers on their way to one client, bounded in lines and bytes, so that a client that does not read costs little."""

from collections import deque

import trio

from supervisor.config import ProtocolLimits

CHUNK_BYTES = 256 * 1024


class Outbox:
    """A queue of lines with one writer. Who puts waits for room; the writer's stall limit bounds that wait."""

    def __init__(self, limits: ProtocolLimits) -> None:
        self._limits = limits
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._changed = trio.Event()
        self._closed = False

    async def put(self, line: bytes) -> None:
        """Queue a line, waiting for room. One line larger than the limit fits into an empty outbox."""
        while self._lines and not self._closed and not self._has_room(len(line)):
            await self._changed.wait()
        self._lines.append(line)
        self._bytes += len(line)
        self._wake()

    def offer(self, line: bytes) -> bool:
        """Queue a line that may be lost, if the client has taken everything before it; say whether it was queued."""
        if self._lines or self._closed or len(line) > self._limits.outbox_bytes_max:
            return False
        self._lines.append(line)
        self._bytes += len(line)
        self._wake()
        return True

    def _has_room(self, size: int) -> bool:
        return len(self._lines) < self._limits.outbox_lines_max and self._bytes + size <= self._limits.outbox_bytes_max

    async def take(self) -> bytes | None:
        """Return the next chunk to write, several lines at once where they are short; None after `close`."""
        while not self._lines:
            if self._closed:
                return None
            await self._changed.wait()
        chunk = [self._lines.popleft()]
        size = len(chunk[0])
        while self._lines and size + len(self._lines[0]) <= CHUNK_BYTES:
            chunk.append(self._lines.popleft())
            size += len(chunk[-1])
        self._bytes -= size
        self._wake()
        return b"".join(chunk)

    def close(self) -> None:
        """Let the writer end once everything is written."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
