"""The log under every disaster: nothing is raised, nothing blocks, what is lost is counted, and it comes back."""

import errno
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor import logs
from supervisor.config import LogLimits
from supervisor.logs import LogFile, LogThread, rotate_stderr, write_incident
from tests.unit.supervisor.test_ballast import file_size_limit

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "logs"


class Log:
    """A logger of the test's own, with the handler under test."""

    def __init__(self, folder: Path, **limits: int) -> None:
        self.handler = LogThread(folder, LogLimits(**limits))  # type: ignore[arg-type]
        self.logger = logging.Logger("bulkhead.test", logging.INFO)
        self.logger.addHandler(self.handler)

    def wait_written(self, count: int) -> logs.LogStatistics:
        return self.until(lambda counts: counts.written == count)

    def until(self, predicate: Callable[[logs.LogStatistics], bool]) -> logs.LogStatistics:
        give_up = time.monotonic() + 20
        while not predicate(self.handler.statistics()):
            assert time.monotonic() < give_up, self.handler.statistics()
            time.sleep(0.002)
        return self.handler.statistics()


@pytest.fixture
def log(folder: Path) -> Iterator[Log]:
    made = Log(folder)
    yield made
    made.handler.close()


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_line_is_one_object_with_the_known_fields(log: Log, folder: Path) -> None:
    log.logger.info("state", extra={"actor": "searcher", "secret": "no"})
    log.wait_written(1)
    (line,) = lines_of(folder / "daemon.log")
    assert line["event"] == "state" and line["actor"] == "searcher" and "secret" not in line


def test_closing_writes_what_waits(folder: Path) -> None:
    log = Log(folder)
    for number in range(500):
        log.logger.info("line", extra={"count": number})
    log.handler.close()
    assert [line["count"] for line in lines_of(folder / "daemon.log")] == list(range(500))


def test_the_files_are_bounded_in_size_and_number(folder: Path) -> None:
    log = Log(folder, file_bytes_max=2000, files_kept=2)
    for number in range(300):
        log.logger.info("line", extra={"count": number})
        log.wait_written(number + 1)
    log.handler.close()
    files = sorted(folder.iterdir())
    assert [path.name for path in files] == ["daemon.log", "daemon.log.1", "daemon.log.2"]
    assert all(path.stat().st_size <= 2000 for path in files)
    assert lines_of(files[0])[-1]["count"] == 299, "the newest lines are in the file without a number"
    assert lines_of(files[1])[-1]["count"] == lines_of(files[0])[0]["count"] - 1  # type: ignore[operator]


def test_none_kept_means_none(folder: Path) -> None:
    log = Log(folder, file_bytes_max=200, files_kept=0)
    for number in range(9):
        log.logger.info("line", extra={"count": number})
        log.wait_written(number + 1)
    log.handler.close()
    assert [path.name for path in folder.iterdir()] == ["daemon.log"]


def test_a_full_disk_costs_lines_and_no_more(log: Log, folder: Path) -> None:
    log.logger.info("before")
    log.wait_written(1)
    size = (folder / "daemon.log").stat().st_size
    with file_size_limit(size + 10):
        log.logger.info("lost")
        counts = log.until(lambda counts: counts.dropped == 1)
        assert counts.error is not None and "File too large" in counts.error
        assert (folder / "daemon.log").stat().st_size == size, "no part of a line is left"
    log.logger.info("after")
    counts = log.wait_written(2)
    assert counts.error is None
    assert [line["event"] for line in lines_of(folder / "daemon.log")] == ["before", "after"]


def test_a_full_disk_during_the_rotation_is_survived(folder: Path) -> None:
    log = Log(folder, file_bytes_max=150, files_kept=1)
    log.logger.info("before")
    log.wait_written(1)
    with file_size_limit(0):
        for _ in range(3):
            log.logger.info("lost" * 20)
        log.until(lambda counts: counts.dropped == 3)
    log.logger.info("after")
    log.wait_written(2)
    log.handler.close()


def test_a_folder_that_is_removed_comes_back(log: Log, folder: Path) -> None:
    log.logger.info("before")
    log.wait_written(1)
    (folder / "daemon.log").unlink()
    folder.rmdir()
    log.logger.info("after")
    log.wait_written(2)
    assert [line["event"] for line in lines_of(folder / "daemon.log")] == ["after"]


def test_a_folder_that_cannot_be_made_is_counted_until_it_can(tmp_path: Path) -> None:
    """The user that runs the tests may be allowed everything, so the folder's name is taken instead of forbidden."""
    folder = tmp_path / "logs"
    folder.write_text("in the way")
    log = Log(folder)
    log.logger.info("lost")
    assert log.until(lambda counts: counts.dropped == 1).error is not None
    folder.unlink()
    log.logger.info("after")
    log.wait_written(1)
    log.handler.close()


def test_no_permission_is_counted(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", forbid)
    log.logger.info("lost")
    log.until(lambda counts: counts.dropped == 1)


def test_a_disk_that_hangs_delays_nobody_and_holds_a_bounded_number_of_lines(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = threading.Event()
    write = LogFile.write

    def slow(self: LogFile, lines: bytes) -> None:
        hang.wait(30)
        write(self, lines)

    monkeypatch.setattr(LogFile, "write", slow)
    log = Log(folder, lines_waiting_max=10)
    log.logger.info("in the thread")
    log.until(lambda counts: counts.waiting == 0)
    for _ in range(100):
        log.logger.info("line")
    counts = log.handler.statistics()
    assert (counts.waiting, counts.dropped) == (10, 90)
    hang.set()
    log.wait_written(11)
    log.handler.close()


def test_what_cannot_be_formatted_is_counted(log: Log) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no")

    log.logger.info("line", extra={"cause": Unprintable()})
    assert log.handler.statistics().dropped == 1
    log.logger.info("surrogate \ud800")
    log.wait_written(1)


def test_an_incident_that_cannot_be_written_is_given_up(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("in the way")
    assert write_incident(taken, LogLimits(), "name", "text") is None
    with file_size_limit(0):
        assert write_incident(tmp_path / "incidents", LogLimits(), "name", "text") is None
    assert write_incident(tmp_path / "incidents", LogLimits(), "name", "text") is not None


NOISY = """
import os, sys
from pathlib import Path
from supervisor.logs import rotate_stderr
for number in range(50):
    os.write(int(sys.argv[2]), b"noise %04d" % number + b"." * 90 + b"\\n")
    rotate_stderr(Path(sys.argv[1]), 1000)
"""


@pytest.mark.parametrize("fd", [1, 2])
def test_our_stderr_file_is_put_aside_while_it_is_written(tmp_path: Path, fd: int) -> None:
    path = tmp_path / "daemon.err"
    with path.open("ab") as file:
        command = [sys.executable, "-c", NOISY, str(path), str(fd)]
        subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, check=True, timeout=60)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["daemon.err", "daemon.err.1"]
    assert all(each.stat().st_size <= 1200 for each in tmp_path.iterdir())
    text = (tmp_path / "daemon.err.1").read_text() + path.read_text()
    assert "noise 0049" in text, "the end is kept"


def test_a_stderr_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.txt"
    with theirs.open("ab") as file:
        command = [sys.executable, "-c", NOISY, str(tmp_path / "daemon.err"), "2"]
        subprocess.run(command, cwd=ROOT, stderr=file, check=True, timeout=60)
    assert theirs.stat().st_size == 50 * 101
    assert [each.name for each in tmp_path.iterdir()] == ["theirs.txt"]


def test_looking_at_a_stderr_file_never_raises(tmp_path: Path) -> None:
    rotate_stderr(tmp_path / "absent" / "daemon.err", 0)
