"""Where a daemon refuses to begin: one that is taken, on a network, emptied, without its identity, or newer than it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor import claim, exit_codes, paths
from supervisor.claim import NETWORK_FILE_SYSTEMS, Claim, Refused, file_system_of


@pytest.fixture(autouse=True)
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the sockets and notes of each test apart."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir(mode=0o700)


@contextmanager
def claimed(data: Path) -> Iterator[Claim]:
    found = Claim(data)
    try:
        yield found
    finally:
        found.release()


def test_an_identity_is_given_once(tmp_path: Path) -> None:
    with claimed(tmp_path / "data") as first:
        pass
    with claimed(tmp_path / "data") as second:
        assert second.identity == first.identity
    with claimed(tmp_path / "other") as other:
        assert other.identity != first.identity


def test_one_daemon_a_directory(tmp_path: Path) -> None:
    with claimed(tmp_path / "data"), pytest.raises(Refused, match="another daemon") as refused:
        Claim(tmp_path / "data")
    assert refused.value.code == exit_codes.TEMPORARY


def test_a_memory_without_its_identity_is_refused(tmp_path: Path) -> None:
    with claimed(tmp_path / "data"):
        pass
    (tmp_path / "data" / "core_writer").mkdir()
    (tmp_path / "data" / "core_writer" / "core.db").write_bytes(b"x")
    (tmp_path / "data" / "IDENTITY").unlink()
    with pytest.raises(Refused, match="IDENTITY file is gone") as refused:
        Claim(tmp_path / "data")
    assert refused.value.code == exit_codes.CANNOT_CREATE


@pytest.mark.parametrize("mount_point_is_there", [True, False])
def test_a_directory_that_was_emptied_is_not_filled_anew(tmp_path: Path, mount_point_is_there: bool) -> None:
    data = tmp_path / "disk" / "data"
    with claimed(data) as first:
        pass
    data.rename(tmp_path / "unmounted")
    if mount_point_is_there:
        data.mkdir()
    with pytest.raises(Refused, match=r"is empty now: is its disk mounted") as refused:
        Claim(data)
    assert refused.value.code == exit_codes.CANNOT_CREATE
    assert not (data / "IDENTITY").exists()
    shutil.rmtree(data)
    (tmp_path / "unmounted").rename(data)
    with claimed(data) as again:
        assert again.identity == first.identity
    # Whoever means it deletes the note that the message names.
    shutil.rmtree(data)
    Path(paths.known_path(str(data))).unlink()
    with claimed(data) as anew:
        assert anew.identity != first.identity


def test_a_home_that_takes_no_note_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with claimed(tmp_path / "data") as found:
        assert found.identity


@pytest.mark.parametrize("kind", sorted(NETWORK_FILE_SYSTEMS))
def test_network_file_systems_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(claim, "file_system_of", lambda path: kind)
    with pytest.raises(Refused, match=kind) as refused:
        Claim(tmp_path / "data")
    assert refused.value.code == exit_codes.CANNOT_CREATE


def test_the_file_system_of_a_path_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    here = file_system_of(tmp_path)
    assert here is None or here == file_system_of(tmp_path / "not" / "there")
    assert file_system_of(Path("/proc/self")) in (None, "proc")


def test_a_directory_that_is_being_restored_is_refused(tmp_path: Path) -> None:
    draft = claim.draft_of(tmp_path / "data")
    draft.mkdir()
    (draft / claim.INTERRUPTED_RESTORE).write_text("{}")
    with pytest.raises(Refused, match="bulkhead restore") as refused:
        Claim(tmp_path / "data")
    assert refused.value.code == exit_codes.TEMPORARY
    assert not (tmp_path / "data").exists()
