"""The daemon's log: JSON lines, one file, rotated and bounded; nothing about it can harm the daemon.

The event is a constant phrase, facts are fields from one list. Contents of memories and queries are never logged.
A thread writes the lines. What it cannot write (a full disk, a folder that is gone, a mount that hangs) is dropped and
counted in system.metrics, never raised into an actor, and nobody waits for it. Incidents, stack dumps for the most
part, are separate bounded files in <data>/incidents.
"""

import contextlib
import json
import logging
import os
import queue
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from supervisor import paths
from supervisor.config import LogLimits
from supervisor.connect import STDERR_BYTES_MAX

STDOUT, STDERR = 1, 2
STDERR_LOOK_S = 10.0
LINES_PER_WRITE = 256
CLOSE_S = 1.0

FIELDS = (
    "actor",
    "principal",
    "epoch",
    "pid",
    "before",
    "after",
    "cause",
    "reason",
    "error",
    "request_id",
    "method",
    "client",
    "principal",
    "generation",
    "build",
    "rows",
    "duration_ms",
    "outcome",
    "error_code",
    "lag_ms",
    "count",
    "path",
    "version",
)


class JsonLines(logging.Formatter):
    """One record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, object] = {"at": at, "level": record.levelname.lower(), "event": record.getMessage()}
        line.update({name: getattr(record, name) for name in FIELDS if hasattr(record, name)})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)[-4000:]
        return json.dumps(line, ensure_ascii=False, default=str)


class LogFile:
    """The file and those rotated away, all of bounded size. Used by one thread, blocks, raises OSError.

    After an error it is opened anew at the next write, so a folder that comes back or a disk that has room again needs
    no restart. A file that was moved or deleted under us is left for a new one. Lines are written whole or not at all.
    """

    def __init__(self, path: Path, *, bytes_max: int, kept: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._kept = kept
        self._fd: int | None = None

    def write(self, lines: bytes) -> None:
        """Append some lines."""
        fd = self._current()
        size = os.fstat(fd).st_size
        if size and size + len(lines) > self._bytes_max:
            self._rotate()
            fd, size = self._current(), 0
        view = memoryview(lines)
        try:
            while view:
                view = view[os.write(fd, view) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, size)
            self.close()
            raise

    def _current(self) -> int:
        if self._fd is not None and not _is_file(self._fd, self._path):
            self.close()
        if self._fd is None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._fd

    def _rotate(self) -> None:
        self.close()
        for number in range(self._kept, 0, -1):
            source = self._path if number == 1 else self._numbered(number - 1)
            with contextlib.suppress(FileNotFoundError):
                source.replace(self._numbered(number))
        if not self._kept:
            self._path.unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)


class LogStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the lines of the log."""

    written: int = 0
    dropped: int = 0
    waiting: int = 0
    error: str | None = None  # the last one, None once writing works again


class LogThread(logging.Handler):
    """Writes the log in a thread of its own: a disk that hangs costs lines, never the caller's time."""

    def __init__(self, folder: Path, limits: LogLimits) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self._file = LogFile(folder / "daemon.log", bytes_max=limits.file_bytes_max, kept=limits.files_kept)
        self._stderr = folder / paths.DAEMON_STDERR
        self._waiting_max = limits.lines_waiting_max
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._written = 0
        self._lost = 0  # refused by the disk; counted by the thread
        self._refused = 0  # found the queue full; counted by the callers, under the lock of the handler
        self._error: str | None = None
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line. Never blocks and never raises."""
        try:
            line = self.format(record).encode("utf-8", "backslashreplace") + b"\n"
        except Exception:
            self._refused += 1
            return
        if self._queue.qsize() < self._waiting_max:
            self._queue.put(line)
        else:
            self._refused += 1

    def statistics(self) -> LogStatistics:
        """Return the counters."""
        return LogStatistics(
            written=self._written,
            dropped=self._lost + self._refused,
            waiting=self._queue.qsize(),
            error=self._error,
        )

    def close(self) -> None:
        """Write what waits, for a moment at most, and end."""
        self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)
        super().close()

    def _run(self) -> None:
        ended = False
        while not ended:
            lines = self._take()
            ended = None in lines
            self._write([line for line in lines if line is not None])
            rotate_stderr(self._stderr, STDERR_BYTES_MAX)
        self._file.close()

    def _take(self) -> list[bytes | None]:
        """Wait for lines, not for ever, and return all that are there, up to a bound."""
        lines: list[bytes | None] = []
        with contextlib.suppress(queue.Empty):
            lines.append(self._queue.get(timeout=STDERR_LOOK_S))
            while len(lines) < LINES_PER_WRITE:
                lines.append(self._queue.get_nowait())
        return lines

    def _write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        try:
            self._file.write(b"".join(lines))
        except OSError as error:
            self._lost += len(lines)
            self._error = str(error)
        else:
            self._written += len(lines)
            self._error = None


def set_up(folder: Path, limits: LogLimits) -> None:
    """Send the log of the house to <folder>/daemon.log; while that cannot be written, lines are lost and counted."""
    root = logging.getLogger("bulkhead")
    root.setLevel(limits.level.upper())
    root.propagate = False
    root.addHandler(LogThread(folder, limits))


def statistics() -> LogStatistics:
    """Return what became of the lines so far."""
    for handler in logging.getLogger("bulkhead").handlers:
        if isinstance(handler, LogThread):
            return handler.statistics()
    return LogStatistics()


def rotate_stderr(path: Path, bytes_max: int) -> None:
    """Put our stderr file aside when it has grown large; only if stderr is that file. Never raises.

    A daemon in the background has a file for what libraries print and for the stacks of a crash. Whoever started it
    bounds it at the start, but a daemon runs for months.
    """
    try:
        if not _is_file(STDERR, path) or os.fstat(STDERR).st_size <= bytes_max:
            return
        stdout_too = _is_file(STDOUT, path)
        path.replace(f"{path}.1")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(fd, STDERR)
        if stdout_too:
            os.dup2(fd, STDOUT)
        os.close(fd)
    except OSError:
        return


def _is_file(fd: int, path: Path) -> bool:
    """Say whether a descriptor is the file of this name. Raises OSError, but not when there is none."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def write_incident(folder: Path, limits: LogLimits, name: str, text: str) -> Path | None:
    """Keep a bounded text file about something that should not have happened; the oldest ones give way."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        old = sorted(folder.glob("*.txt"))
        for path in old[: max(0, len(old) - limits.incidents_kept + 1)]:
            path.unlink(missing_ok=True)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        path = folder / f"{stamp}-{time.monotonic_ns() % 1_000_000:06d}-{name}.txt"
        path.write_text(text[-limits.incident_bytes_max :], encoding="utf-8", errors="backslashreplace")
    except OSError:
        return None
    return path
