"""Where the two sides of a fault meet, inside the data directory that is being hurt.

    <data>/faults/<worker>.<pid>.sock      the control door of a live worker
    <data>/faults/<worker>.start.json      what the next incarnation must have from its start
    <data>/faults/fired.jsonl              every fault that happened; outlives the worker that it killed

Both sides compute the names here. Standard library only, no trio.
"""

import os
import sys
from pathlib import Path

SOCKET_BYTES_MAX = 107 if sys.platform == "linux" else 103


def folder(data: Path) -> Path:
    """Return the folder of the faults of a data directory."""
    return data / "faults"


def door(data: Path, worker: str, pid: int) -> Path:
    """Return the socket of a worker; raise ValueError when the name is longer than a socket's may be."""
    path = folder(data) / f"{worker}.{pid}.sock"
    length = len(os.fsencode(path))
    if length > SOCKET_BYTES_MAX:
        raise ValueError(
            f"control door of {worker!r} refused: its path has {length} bytes, the limit is {SOCKET_BYTES_MAX}; "
            "use a data directory with a shorter name"
        )
    return path


def doors(data: Path, worker: str) -> dict[int, Path]:
    """Return the doors of the live workers with this name, by pid."""
    found = {}
    for path in folder(data).glob(f"{worker}.*.sock"):
        pid = path.name.removeprefix(f"{worker}.").removesuffix(".sock")
        if pid.isdigit() and _runs(int(pid)):
            found[int(pid)] = path
    return found


def start_file(data: Path, worker: str) -> Path:
    """Return the file that a worker reads before its room opens anything."""
    return folder(data) / f"{worker}.start.json"


def fired_file(data: Path) -> Path:
    """Return the list of what has fired."""
    return folder(data) / "fired.jsonl"


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
