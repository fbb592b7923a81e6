"""The condemned messages on disk: <data>/poison.json, so that a new daemon does not learn them by dying again.

Written by a thread whenever they change, whole and atomically; read once at the start. Losing it costs two deaths per
message and nothing else, so a failure to read or write it is logged and never in anybody's way. What was condemned by
another version of the program is not taken over: the fault was often the program's.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import trio

from actors.quarantine import Condemned
from supervisor.version import VERSION

FILE_NAME = "poison.json"
WRITE_S = 5.0
BYTES_MAX = 4 * 1024 * 1024

log = logging.getLogger("bulkhead.poison")


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    condemned: list[Condemned]


def load(data: Path) -> list[Condemned]:
    """Return what this version of the program condemned on this data directory; nothing when that cannot be read."""
    path = data / FILE_NAME
    try:
        if path.stat().st_size > BYTES_MAX:
            raise ValueError(f"{path.stat().st_size} bytes, the limit is {BYTES_MAX}")
        content = msgspec.json.decode(path.read_bytes(), type=_Content)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        log.warning("poison file not read", extra={"path": str(path), "error": str(error)})
        return []
    return content.condemned if content.version == VERSION else []


def save(data: Path, condemned: Iterable[Condemned]) -> None:
    """Replace the file; raise OSError. Without fsync: see above what losing it costs."""
    path = data / FILE_NAME
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.encode(_Content(version=VERSION, condemned=list(condemned))))
    temporary.replace(path)


class PoisonFile:
    """Keeps the file up with the quarantine."""

    def __init__(self, data: Path, condemned: Callable[[], list[Condemned]]) -> None:
        self._data = data
        self._condemned = condemned
        self._changed = trio.Event()
        self._limiter = trio.CapacityLimiter(1)

    def changed(self) -> None:
        """Note that there is something to write."""
        self._changed.set()

    async def run(self) -> None:
        """Write after each change, for ever; changes during a write are one more write."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            try:
                with trio.move_on_after(WRITE_S):
                    await trio.to_thread.run_sync(
                        save, self._data, self._condemned(), abandon_on_cancel=True, limiter=self._limiter
                    )
            except OSError as error:
                log.warning("poison file not written", extra={"error": str(error)})
