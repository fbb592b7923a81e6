"""The end of a log, whatever its size."""

import io
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.cli.logs import BLOCK_BYTES, last_lines

ROOT = Path(__file__).resolve().parents[3]
MIB = 1024 * 1024
GIB = 1024 * MIB


@pytest.mark.parametrize(
    ("text", "count", "lines"),
    [
        (b"", 5, []),
        (b"\n", 5, [b""]),
        (b"a\nb\nc\n", 2, [b"b", b"c"]),
        (b"a\nb\nhalf", 2, [b"b", b"half"]),
        (b"a\nb\n", 5, [b"a", b"b"]),
        (b"x" * BLOCK_BYTES + b"\n" + b"y" * (BLOCK_BYTES - 1) + b"\nz\n", 2, [b"y" * (BLOCK_BYTES - 1), b"z"]),
    ],
)
def test_the_last_lines_are_whole(text: bytes, count: int, lines: list[bytes]) -> None:
    assert last_lines(io.BytesIO(text), count) == lines


def bulkhead(data: Path, *arguments: str, memory: int | None = None) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        if memory is not None:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    command = [sys.executable, "-P", "-m", "supervisor", "logs", "--data", str(data), *arguments]
    return subprocess.run(
        command, check=False, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, text=True, capture_output=True, preexec_fn=limit
    )


def test_b3_a_log_of_5_gb_is_read_from_its_end_in_little_memory(tmp_path: Path) -> None:
    """The file is sparse, so it takes no room here; whoever reads it whole runs into the limit of memory."""
    (tmp_path / "logs").mkdir()
    with (tmp_path / "logs" / "daemon.log").open("wb") as file:
        file.truncate(5 * GIB)
        file.seek(0, 2)
        file.write(b"\n" + b"".join(b'{"event": "line %d"}\n' % number for number in range(1000)))
    done = bulkhead(tmp_path, "-n", "50", memory=512 * MIB)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f'{{"event": "line {number}"}}' for number in range(950, 1000)]


def test_a_file_without_lines_is_not_read_into_memory(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with (tmp_path / "logs" / "daemon.log").open("wb") as file:
        file.truncate(5 * GIB)
    assert bulkhead(tmp_path, memory=512 * MIB).returncode == 0


@pytest.mark.parametrize("count", ["0", "-1", "many", "1000000"])
def test_a_number_of_lines_that_is_none_is_refused(tmp_path: Path, count: str) -> None:
    done = bulkhead(tmp_path, f"--lines={count}")
    assert done.returncode == 2 and "number of lines" in done.stderr


def test_without_a_log_it_says_which_file_is_missing(tmp_path: Path) -> None:
    done = bulkhead(tmp_path)
    assert done.returncode == 1 and "daemon.log" in done.stderr
