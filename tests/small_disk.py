"""A real file system of a few MiB for a test, and someone who fills it to the last byte."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk_at(path: Path, size_mib: int) -> Iterator[Path]:
    """Mount a file system of that size; the test is skipped where that is not allowed."""
    path.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=0700", "bulkhead-test", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


class Filler:
    """Takes all the room that is left, and gives it back."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "filler"

    def take_all(self) -> None:
        """Write until not one byte more is taken."""
        with self._path.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue

    def give_back(self) -> None:
        """Make room for everything."""
        self._path.unlink()
