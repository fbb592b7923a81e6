"""The library that kills a process at one of its calls on files: it counts what is called, and kills exactly there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.clock import NoShim
from chaos.syscalls import KINDS, SyscallKiller

# Does each kind of call a known number of times in the folder of its argument, and says how far it came.
WORK = """
import os, shutil, sys
from pathlib import Path
folder = Path(sys.argv[1]) / "gen-000001.tmp"
print("begin", flush=True)
sys.stdin.readline()
folder.mkdir()
for number in range(3):
    fd = os.open(folder / f"file-{number}", os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"x")
    os.fsync(fd)
    os.close(fd)
    print("file", number, flush=True)
folder.rename(folder.with_name("gen-000001"))
print("renamed", flush=True)
shutil.rmtree(folder.with_name("gen-000001"))
print("end", flush=True)
"""


@pytest.fixture
def killer(tmp_path: Path) -> SyscallKiller:
    try:
        return SyscallKiller(tmp_path)
    except NoShim as error:
        pytest.skip(str(error))


class Work:
    """The process, which waits until `go`."""

    def __init__(self, killer: SyscallKiller, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORK, str(folder)],
            env={**os.environ, **killer.environment()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "begin\n"
        self.pid = self._process.pid

    def go(self) -> tuple[int, list[str]]:
        """Let it work; return its status and what it said."""
        said, _ = self._process.communicate("\n", timeout=60)
        return self._process.returncode, said.splitlines()


def test_calls_are_counted_by_kind_and_path(killer: SyscallKiller, tmp_path: Path) -> None:
    work = Work(killer, tmp_path)
    killer.count(work.pid, "/gen-000001.tmp")
    assert work.go()[0] == 0
    counts = killer.counts()
    assert (counts["mkdir"], counts["write"], counts["sync"], counts["rename"]) == (1, 3, 3, 1)
    assert counts["open"] >= 3 and counts["close"] >= 3
    assert killer.fired() is None
    assert set(counts) == set(KINDS)


@pytest.mark.parametrize(("after", "files"), [(False, 1), (True, 1)])
def test_it_dies_at_the_call_that_was_named(killer: SyscallKiller, tmp_path: Path, after: bool, files: int) -> None:
    work = Work(killer, tmp_path)
    killer.arm(work.pid, "sync", 2, "/gen-000001.tmp", after=after)
    status, said = work.go()
    assert status == -9
    assert said == ["file 0"], "the second file was written, and its fsync was the end"
    assert killer.fired() is not None


@pytest.mark.parametrize(("after", "there"), [(False, "gen-000001.tmp"), (True, "gen-000001")])
def test_before_and_after_a_rename(killer: SyscallKiller, tmp_path: Path, after: bool, there: str) -> None:
    work = Work(killer, tmp_path)
    killer.arm(work.pid, "rename", 1, "/gen-000001", after=after)
    status, said = work.go()
    assert status == -9 and said[-1] == "file 2"
    assert [path.name for path in tmp_path.glob("gen-*")] == [there]


def test_another_process_and_another_path_are_left_alone(killer: SyscallKiller, tmp_path: Path) -> None:
    work = Work(killer, tmp_path)
    killer.arm(os.getpid(), "sync", 1, "/gen-000001.tmp")
    assert work.go()[0] == 0
    work = Work(killer, tmp_path)
    killer.arm(work.pid, "sync", 1, "/gen-000002.tmp")
    assert work.go()[0] == 0
    assert killer.fired() is None
