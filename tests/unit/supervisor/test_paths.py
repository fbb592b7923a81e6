"""Where things are, for every process alike."""

import json
import os
from pathlib import Path

import pytest

from supervisor import paths


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BULKHEAD_DATA", "BULKHEAD_CONFIG", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


def test_the_default_data_directory_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.data_directory() == str(tmp_path / ".local/share/bulkhead/default")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert paths.data_directory() == str(tmp_path / "share/bulkhead/default")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert paths.data_directory() == str(tmp_path / ".local/share/bulkhead/default")


def test_what_is_given_wins_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BULKHEAD_DATA", str(tmp_path / "environment"))
    monkeypatch.setenv("BULKHEAD_CONFIG", str(tmp_path / "environment.toml"))
    assert paths.data_directory() == str(tmp_path / "environment")
    assert paths.data_directory(str(tmp_path / "given")) == str(tmp_path / "given")
    assert paths.config_file() == str(tmp_path / "environment.toml")
    assert paths.config_file(str(tmp_path / "given.toml")) == str(tmp_path / "given.toml")


def test_one_directory_has_one_socket_under_all_its_names(tmp_path: Path, runtime: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    first = paths.socket_path(str(tmp_path / "data"))
    assert first == paths.socket_path(str(tmp_path / "link")) == paths.socket_path(f"{tmp_path}/data/../data/")
    assert first != paths.socket_path(str(tmp_path / "other"))
    assert Path(first).parent == runtime / "bulkhead"
    assert paths.start_lock_path(str(tmp_path / "data")) == first.removesuffix(".sock") + ".start.lock"


def test_the_runtime_directory_is_private(runtime: Path) -> None:
    folder = Path(paths.runtime_directory())
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    paths.runtime_directory()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_runtime_directory_that_is_a_link_is_refused(runtime: Path, tmp_path: Path) -> None:
    (runtime / "bulkhead").symlink_to(tmp_path)
    with pytest.raises(paths.DirectoryRefused, match="must be a folder of user"):
        paths.runtime_directory()


def test_a_long_path_still_gives_a_socket_that_can_be_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    path = paths.socket_path(str(tmp_path / ("y" * 200)))
    assert len(os.fsencode(path)) <= paths.SOCKET_BYTES_MAX
    assert not path.startswith(str(long))


def test_a_folder_of_another_user_is_no_runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(foreign))
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 4242)
    monkeypatch.setattr(paths, "_ensure_private", lambda path, _uid: path)
    assert paths.runtime_directory() == f"/tmp/bulkhead-{uid + 4242}"


def test_the_lock_tells_where_the_daemon_listens(tmp_path: Path, runtime: Path) -> None:
    data = str(tmp_path / "data")
    Path(data).mkdir()
    assert paths.advertised_socket(data) is None
    elsewhere = f"/elsewhere/{Path(paths.socket_path(data)).name}"
    (Path(data) / "LOCK").write_text(json.dumps({"pid": 1, "socket": elsewhere}))
    assert paths.advertised_socket(data) == elsewhere


@pytest.mark.parametrize("content", ["", "{", "[]", '{"socket": 5}', '{"socket": "relative.sock"}', "\0" * 9999])
def test_an_unusable_lock_tells_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "LOCK").write_text(content)
    assert paths.advertised_socket(str(tmp_path)) is None


def test_a_copied_directory_does_not_lead_to_the_daemon_of_the_original(tmp_path: Path, runtime: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    original = paths.socket_path(str(tmp_path / "original"))
    (copy / "LOCK").write_text(json.dumps({"socket": original}))
    assert paths.advertised_socket(str(copy)) is None


def test_the_data_directory_is_made_private_and_once(tmp_path: Path) -> None:
    data = tmp_path / "a" / "b"
    assert paths.make_data_directory(str(data))
    assert data.stat().st_mode & 0o777 == 0o700
    assert not paths.make_data_directory(str(data))
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        paths.make_data_directory(str(tmp_path / "file"))
