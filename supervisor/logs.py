"""The daemon's log: JSON lines, one file, rotated and bounded; nothing about it can harm the daemon.

The event is a constant phrase, facts are fields from one list. Contents of memories and queries are never logged.
A log that cannot be written (a full disk) is dropped and counted, never raised into an actor. Incidents, stack
dumps for the most part, are separate bounded files in <data>/incidents.
"""

import json
import logging
import logging.handlers
import time
from datetime import UTC, datetime
from pathlib import Path

from supervisor.config import LogLimits

FIELDS = (
    "actor",
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


class BoundedFile(logging.handlers.RotatingFileHandler):
    """A rotating file that swallows its own failures and counts them."""

    dropped = 0

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        """Count a line that could not be written."""
        self.dropped += 1


def set_up(folder: Path, limits: LogLimits) -> None:
    """Send the log of the house to <folder>/daemon.log; on failure there is none, and the daemon goes on."""
    root = logging.getLogger("bulkhead")
    root.setLevel(limits.level.upper())
    root.propagate = False
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handler = BoundedFile(
            folder / "daemon.log",
            maxBytes=limits.file_bytes_max,
            backupCount=limits.files_kept,
            encoding="utf-8",
            errors="backslashreplace",
        )
    except OSError:
        root.addHandler(logging.NullHandler())
        return
    handler.setFormatter(JsonLines())
    root.addHandler(handler)


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
