"""What a generation is on disk, without LanceDB: names, the pointer, the pending texts, what is made durable."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import generation as generations
from actors.errors import GenerationSuspect
from actors.generation import PENDING, PendingText, Pointer, encode_pending, read_pending
from actors.messages.index import Covers

texts = st.lists(st.builds(PendingText, st.binary(min_size=32, max_size=32), st.text(max_size=30)), max_size=12)


def test_only_whole_names_are_generations(tmp_path: Path) -> None:
    for name in ("gen-000002", "gen-000010", "gen-1000000", "gen-000003.tmp", "gen-000004.gone.tmp", "gen-7", "x"):
        (tmp_path / name).mkdir()
    (tmp_path / "gen-000005").touch()
    (tmp_path / "gen-000006").symlink_to("gen-000002")
    assert generations.sealed_numbers(tmp_path) == [2, 10, 1_000_000]
    assert generations.sealed_numbers(tmp_path / "nowhere") == []
    assert generations.sealed_numbers(tmp_path / "gen-000005") == []


def test_paths_say_what_they_are(tmp_path: Path) -> None:
    assert generations.generation_path(tmp_path, 42).name == "gen-000042"
    for path in (
        generations.build_path(tmp_path, 42),
        generations.doomed_path(tmp_path, 42),
        generations.scratch_path(tmp_path),
    ):
        assert path.name.endswith(generations.TEMPORARY)
    assert generations.document_path("notes", "a/b.md") == "notes/a/b.md"
    assert generations.embedded_text(None, "text") == "text" and generations.embedded_text("A", "text") == "A\ntext"


def test_the_pointer_is_replaced_and_read_back(tmp_path: Path) -> None:
    for number in (1, 2):
        generations.write_current(tmp_path, Pointer(generation=number, delta=None))
        assert generations.read_current(tmp_path) == Pointer(generation=number)
    assert [path.name for path in tmp_path.iterdir()] == ["CURRENT"]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"generation": "1"}', b'{"generation": 1}' + b" " * 4096])
def test_a_pointer_that_we_did_not_write_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / generations.CURRENT).write_bytes(content)
    assert generations.read_current(tmp_path) is None


class Syncs:
    """Records which names are fsynced, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.names: list[str] = []
        real = os.fsync

        def record(fd: int) -> None:
            self.names.append(os.path.relpath(Path(f"/proc/self/fd/{fd}").readlink(), root))
            real(fd)

        monkeypatch.setattr(os, "fsync", record)


linux = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to tell which file was synced")


@linux
def test_the_pointer_is_durable_before_and_after_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(monkeypatch, tmp_path)
    generations.write_current(tmp_path, Pointer(generation=1))
    assert syncs.names == ["CURRENT.tmp", "."]


@linux
def test_every_file_and_folder_is_made_durable_the_inner_ones_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LanceDB itself syncs nothing."""
    (tmp_path / "events.lance" / "data").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "events.lance" / "data" / "a.lance").write_bytes(b"a")
    (tmp_path / "PENDING.msgpack").write_bytes(b"")
    for sync in (generations.fsync_tree, generations.fsync_files):
        syncs = Syncs(monkeypatch, tmp_path)
        sync(tmp_path)
        assert set(syncs.names) == {
            "events.lance/data/a.lance",
            "events.lance/data",
            "events.lance",
            "empty",
            "PENDING.msgpack",
            ".",
        }
        order = syncs.names.index
        assert order("events.lance/data/a.lance") < order("events.lance/data") < order("events.lance") < order(".")


@given(texts, st.integers(1, 5))
def test_pending_texts_are_read_in_pieces_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, pending: list[PendingText], at_once: int
) -> None:
    folder = tmp_path_factory.mktemp("gen")
    (folder / PENDING).write_bytes(encode_pending(pending))
    found: list[PendingText] = []
    offset: int | None = 0
    while offset is not None:
        piece, offset = read_pending(folder, offset, at_once)
        assert len(piece) <= at_once and (piece or offset is None)
        found += piece
    assert found == pending


@pytest.mark.parametrize("content", [b"\0", b"\0\0\0\5abc", b"\xff\xff\xff\xff", b"\0\0\0\1\xc1"])
def test_a_torn_list_is_suspect(tmp_path: Path, content: bytes) -> None:
    (tmp_path / PENDING).write_bytes(encode_pending([PendingText(b"k" * 32, "text")]) + content)
    with pytest.raises(GenerationSuspect, match="not readable at"):
        read_pending(tmp_path, 0, 10)


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b"\0" * 100])
def test_a_manifest_that_is_none_is_suspect(tmp_path: Path, content: bytes) -> None:
    (tmp_path / generations.MANIFEST).write_bytes(content)
    with pytest.raises(GenerationSuspect, match="manifest not readable"):
        generations.read_manifest(tmp_path)


def test_a_format_of_the_future_is_not_read(tmp_path: Path) -> None:
    manifest = generations.Manifest(
        format=generations.FORMAT + 1,
        generation=1,
        delta=None,
        covers=Covers(),
        identity=None,
        rows={},
        vectors_have=0,
        vectors_want=0,
        lancedb_version="",
        table_versions={},
        built_at=0,
        skipped=[],
        held=[],
        sources=[],
        files=[],
    )
    generations.write_manifest(tmp_path, manifest)
    with pytest.raises(GenerationSuspect, match="this version reads"):
        generations.read_manifest(tmp_path)
