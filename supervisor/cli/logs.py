"""logs: the last lines of the daemon's log, also while there is no daemon.

Reads from the end, in blocks, so a file of any size takes the same memory and time. A line without an end that is
longer than a line can be is cut to its last part.
"""

import argparse
import os
from pathlib import Path
from typing import BinaryIO

from supervisor import paths
from supervisor.cli.answers import FAILED, OK, note, say
from supervisor.cli.arguments import Verbs

FILE = "daemon.log"
BLOCK_BYTES = 64 * 1024
# Lines of the log are a few hundred bytes; what holds no line ends is no log, and is not read into memory.
TAIL_BYTES_MAX = 16 * 1024 * 1024
LINES, LINES_MAX = 50, 100_000


def register(verbs: Verbs) -> None:
    """Add the verb of this file."""
    logs = verbs.add("logs", run_logs, "print the last lines of the daemon's log")
    logs.add_argument("-n", "--lines", type=_lines, default=LINES, help=f"how many ({LINES})")


def run_logs(options: argparse.Namespace) -> int:
    """Print the lines as they are: each is an object in JSON, so `--json` changes nothing."""
    path = Path(paths.data_directory(options.data)) / paths.LOGS / FILE
    try:
        with path.open("rb") as file:
            lines = last_lines(file, options.lines)
    except OSError as error:
        note(f"bulkhead: log {str(path)!r} not read: {error.strerror or error}")
        return FAILED
    for line in lines:
        say(line.decode("utf-8", "replace"))
    return OK


def last_lines(file: BinaryIO, count: int) -> list[bytes]:
    """Return the last `count` lines, without their ends."""
    position = file.seek(0, os.SEEK_END)
    blocks: list[bytes] = []
    ends = size = 0
    # One end more than lines: the last one closes the last line, the first one stands before the first.
    while position > 0 and ends <= count and size < TAIL_BYTES_MAX:
        length = min(BLOCK_BYTES, position)
        position = file.seek(position - length)
        blocks.append(file.read(length))
        ends += blocks[-1].count(b"\n")
        size += length
    lines = b"".join(reversed(blocks)).split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines[-count:]


def _lines(text: str) -> int:
    count = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= count <= LINES_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines, 1 to {LINES_MAX}")
    return count
