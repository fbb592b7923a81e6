"""The ballast: really allocated, gone without a trace when it cannot be."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor import ballast

MIB = 2**20


@contextmanager
def file_size_limit(count: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size: the nearest thing to a full disk that needs no rights."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_ballast_holds_blocks_and_not_a_hole(tmp_path: Path) -> None:
    path = tmp_path / ballast.NAME
    assert ballast.size(path) == 0
    ballast.make(path, MIB)
    assert ballast.size(path) == MIB == path.stat().st_size
    assert path.stat().st_blocks * 512 >= MIB
    ballast.free(path)
    assert ballast.size(path) == 0 and not path.exists()
    ballast.free(path)


def test_a_hole_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / ballast.NAME
    with path.open("wb") as file:
        file.truncate(MIB)
    assert ballast.size(path) < MIB


def test_without_fallocate_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, offset: int, count: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    path = tmp_path / ballast.NAME
    ballast.make(path, 2 * MIB + 17)
    assert path.stat().st_size == 2 * MIB + 17
    assert ballast.size(path) == 2 * MIB + 17


def test_on_a_system_that_knows_no_fallocate_it_is_written_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    ballast.make(tmp_path / ballast.NAME, 100)
    assert (tmp_path / ballast.NAME).stat().st_size == 100


@pytest.mark.parametrize("fallocate", [True, False])
def test_a_ballast_that_does_not_fit_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fallocate: bool
) -> None:
    if not fallocate:
        monkeypatch.delattr(os, "posix_fallocate")
    path = tmp_path / ballast.NAME
    with file_size_limit(64 * 1024), pytest.raises(OSError, match="File too large"):
        ballast.make(path, 4 * MIB)
    assert not path.exists()


def test_whether_there_is_room_is_found_out_by_taking_it(tmp_path: Path) -> None:
    path = tmp_path / "probe"
    assert ballast.has_room_for(path, MIB)
    with file_size_limit(64 * 1024):
        assert not ballast.has_room_for(path, MIB)
    assert not path.exists()


def test_a_folder_that_is_gone_says_nothing_about_room(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ballast.has_room_for(tmp_path / "absent" / "probe", MIB)
