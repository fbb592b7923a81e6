"""The most memory and disk that a system took while it had its turn."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from bench.incident.results import Usage

EVERY_S = 1.0


class Meter:
    """Looks once a second, in a thread, while it is entered; keeps the largest of what it saw over all its turns."""

    def __init__(self, folder: Path, pids: Callable[[], list[int]]) -> None:
        self._folder = folder
        self._pids = pids
        self._rss_bytes = 0
        self._disk_bytes = 0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self._thread.start()

    def __exit__(self, *_exception: object) -> None:
        assert self._thread is not None
        self._stopping.set()
        self._thread.join()

    @property
    def usage(self) -> Usage:
        """Return the most so far."""
        return Usage(rss_bytes=self._rss_bytes, disk_bytes=self._disk_bytes)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._rss_bytes = max(self._rss_bytes, sum(map(resident_bytes, self._pids())))
            self._disk_bytes = max(self._disk_bytes, allocated_bytes(self._folder))
            self._stopping.wait(EVERY_S)


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 when it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def allocated_bytes(folder: Path) -> int:
    """Return what the files below a folder take of the disk, leaving out those that vanish meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total
