"""The condemned messages survive the daemon, and nothing about their file can harm it."""

from pathlib import Path

import pytest
import trio

from actors.quarantine import Condemned
from supervisor import poison_file
from supervisor.poison_file import FILE_NAME, PoisonFile, load, save

ONE = Condemned(key="00ff", actor="searcher", kind="Search", bytes=12, causes=("a", "b"), at=7)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    save(tmp_path, [ONE])
    assert load(tmp_path) == [ONE]
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_another_version_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, [ONE])
    monkeypatch.setattr(poison_file, "VERSION", "another")
    assert load(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 1}', b"\xff\xfe", b"[]"])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert load(tmp_path) == []


def test_a_file_of_absurd_size_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / FILE_NAME).open("wb") as file:
        file.truncate(poison_file.BYTES_MAX + 1)
    assert load(tmp_path) == []


async def test_every_change_is_written(tmp_path: Path) -> None:
    condemned = [ONE]
    file = PoisonFile(tmp_path, lambda: condemned)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.run)
        for expected in ([ONE], []):
            condemned[:] = expected
            file.changed()
            with trio.fail_after(10):
                while load(tmp_path) != expected or not (tmp_path / FILE_NAME).exists():  # noqa: ASYNC110
                    await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


async def test_a_folder_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    file = PoisonFile(tmp_path / "gone", lambda: [ONE])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.run)
        file.changed()
        await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
