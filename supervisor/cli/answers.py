"""What a verb prints, and the code it exits with: the same for all of them.

stdout carries results: UTF-8 with `--json` and into pipes, the terminal's own encoding on a terminal, and a
character that this encoding lacks is escaped rather than an error. Memories are other people's text, so control
characters are taken out before anything reaches a terminal. Tables count wide characters as two columns.
"""

import json
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from supervisor.client import Client, DaemonUnavailable, RequestFailed

OK, FAILED, UNAVAILABLE, TEMPORARY = 0, 1, 69, 75
INTERRUPTED, BROKEN_PIPE = 130, 141
ATTEMPTS = 3
PAUSE_S, PAUSE_S_MAX = 0.2, 2.0
SHUTTING_DOWN = 1007
# They change how the text around them is shown, so a memory could hide what it says.
_BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def prepare_output() -> None:
    """Make stdout and stderr accept every text; what is closed becomes a place where text gets lost."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            nowhere = Path(os.devnull).open("w", encoding="utf-8", errors="replace")  # noqa: SIM115 (for good)
            setattr(sys, name, nowhere)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="backslashreplace")


def quiet_stdout() -> None:
    """Let the interpreter's last flush go nowhere: the reader has left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def ask(client: Client, method: str, params: Mapping[str, object] | None = None, deadline_s: float = 30.0) -> object:
    """Make a request that may be repeated (a read, or a write with an id of its own) and return its result.

    A failure that says it is temporary is tried again a few times, waiting as long as the daemon advises.
    """
    pause_s = PAUSE_S
    for _ in range(ATTEMPTS - 1):
        try:
            return client.request(method, params, deadline_s)
        except RequestFailed as error:
            if not error.retryable or error.code == SHUTTING_DOWN:
                raise
            after_ms = error.data.get("retry_after_ms")
            wait_s = after_ms / 1000 if isinstance(after_ms, int) else pause_s
        time.sleep(min(wait_s, PAUSE_S_MAX))
        pause_s *= 2
    return client.request(method, params, deadline_s)


def explain(error: RequestFailed | DaemonUnavailable, *, as_json: bool) -> int:
    """Say on stderr what went wrong and what to do; return the exit code."""
    code = getattr(error, "code", None)
    if as_json:
        data = getattr(error, "data", {"hint": error.hint, "retryable": True})
        sys.stderr.write(to_json({"error": {"code": code, "message": str(error), "data": data}}) + "\n")
    else:
        sys.stderr.write(f"bulkhead: {clean(str(error))}\n")
        if error.hint:
            sys.stderr.write(f"hint: {clean(error.hint)}\n")
    if isinstance(error, DaemonUnavailable):
        return UNAVAILABLE
    return TEMPORARY if error.retryable else FAILED


def note(text: str) -> None:
    """Say something on stderr that is not a result."""
    sys.stderr.write(clean(text) + "\n")


def say(text: str = "") -> None:
    """Print a line of a result."""
    sys.stdout.write(text + "\n")


def say_json(value: object) -> None:
    """Print a result as JSON: one line, or indented on a terminal."""
    say(to_json(value, indent=2 if sys.stdout.isatty() else None))


def to_json(value: object, indent: int | None = None) -> str:
    """Return JSON text with its characters as they are."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def table(rows: Sequence[Sequence[object]], headers: Sequence[str], widths: Sequence[int | None] | None = None) -> str:
    """Return a table; cells wider than their entry of `widths` are wrapped."""
    from tabulate import tabulate

    cells = [[clean(str(cell)) for cell in row] for row in rows]
    # Numbers are not parsed: an id such as 1e5 would come out as 100000.
    return tabulate(
        cells, headers=list(headers), tablefmt="simple", disable_numparse=True, maxcolwidths=list(widths or ()) or None
    )


def clean(text: str, *, lines: bool = False) -> str:
    """Return text that cannot steer a terminal: no control characters, on one line unless `lines`."""
    if not lines:
        text = " ".join(text.split())
    return "".join(_harmless(character) for character in text)


def cut(text: str, columns: int) -> str:
    """Return the beginning of a text that fits into so many columns, wide characters counted as two."""
    from wcwidth import wcwidth

    used = 0
    for at, character in enumerate(text):
        used += max(0, wcwidth(character))
        if used > columns:
            return text[: max(0, at - 3)] + "..."
    return text


def columns() -> int:
    """Return the width to print for."""
    return shutil.get_terminal_size((100, 24)).columns


def when(ts: object) -> str:
    """Return a time (RFC 3339, or µs since the epoch) in local time to the minute, "" when there is none."""
    try:
        if isinstance(ts, str):
            at = datetime.fromisoformat(ts)
        elif isinstance(ts, int) and ts:
            at = datetime.fromtimestamp(ts / 1_000_000, UTC)
        else:
            return ""
        return at.astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        # The years 1 and 9999 have no local time in every zone.
        return str(ts)


def member(value: object, *names: str) -> object:
    """Return a member of nested JSON objects, None when there is none."""
    for name in names:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def members(value: object, *names: str) -> list[dict[str, object]]:
    """Return a member that is a list of JSON objects; empty when there is none."""
    found = member(value, *names)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def number(value: object, *names: str) -> int:
    """Return a member that is a whole number; 0 when there is none."""
    found = member(value, *names)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def _harmless(character: str) -> str:
    if character in _BIDI or (unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t"):
        return f"\\x{ord(character):02x}" if ord(character) < 0x100 else f"\\u{ord(character):04x}"
    return character
