"""Sources, folders and files that cannot be read at the moment: unreadable is not deleted."""

import errno
import os
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import BinaryIO

import pytest

from actors import generation as generations
from actors.generation import SourceState
from actors.generation_builder.chunk import ChunkLimits
from actors.generation_builder.documents import DocumentReader, Place
from actors.generation_builder.scan import ScanLimits, scan_sources
from actors.generation_builder.scan_report import FileRetries
from actors.messages.builder_work import ScanResult, ScanSources
from actors.messages.core_writer import SourceRoot
from actors.messages.index import GenerationRef
from actors.notes import open_note
from tests.unit.actors.generation_builder.builder_kit import Builder, rows_of, source, write_notes

numbers = count(1)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    with Builder(tmp_path_factory.mktemp("data") / "index") as builder:
        yield builder


def build(builder: Builder, sources: list[SourceRoot], previous: GenerationRef | None = None) -> GenerationRef:
    return builder.build(next(numbers), events=[], units=[], sources=sources, previous=previous)


def scan(builder: Builder, sources: list[SourceRoot]) -> ScanResult:
    return builder.worker.call(ScanSources(sources=sources), ScanResult)


def notes_in(ref: GenerationRef) -> list[str]:
    return sorted({str(row["path"]) for row in rows_of(ref, "documents")})


def test_a_source_that_vanished_keeps_its_rows_with_their_vectors(builder: Builder, tmp_path: Path) -> None:
    gone, there = write_notes(tmp_path / "gone"), source(tmp_path / "there", "other")
    write_notes(tmp_path / "there", {"b.md": "# B\nother text\n"})
    before = build(builder, [gone, there])
    first = scan(builder, [gone, there])
    (tmp_path / "gone").rename(tmp_path / "unplugged")
    second = scan(builder, [gone, there])
    assert [(held.path, held.reason) for held in second.held] == [(gone.path, "vanished")]
    assert second.digest == first.digest, "no reason to build: the rows would be the same"
    assert second.files == first.files
    (tmp_path / "there" / "c.md").write_text("new\n")
    after = build(builder, [gone, there], before)
    assert notes_in(after) == sorted([*notes_in(before), "other/c.md"])
    assert after.vectors_have == after.vectors_want
    kept = [row for row in rows_of(after, "documents") if str(row["path"]).startswith("notes/")]
    assert kept == [row for row in rows_of(before, "documents") if str(row["path"]).startswith("notes/")]
    # And once more, from the generation that has them only because they were held.
    again = build(builder, [gone, there], after)
    assert notes_in(again) == notes_in(after)
    (tmp_path / "there" / "c.md").unlink()
    (tmp_path / "unplugged").rename(tmp_path / "gone")
    third = scan(builder, [gone, there])
    assert (third.held, third.digest) == ([], first.digest)
    assert rows_of(build(builder, [gone, there], again), "documents") == rows_of(before, "documents")


def test_a_source_that_is_suddenly_empty_keeps_its_rows_until_it_is_removed(builder: Builder, tmp_path: Path) -> None:
    root = write_notes(tmp_path / "root")
    before = build(builder, [root])
    shutil.rmtree(root.path)
    (tmp_path / "root").mkdir()
    assert [held.reason for held in scan(builder, [root]).held] == ["emptied"]
    after = build(builder, [root], before)
    assert rows_of(after, "documents") == rows_of(before, "documents")
    assert build(builder, [], after).rows["documents"] == 0


def test_a_deleted_note_is_gone(builder: Builder, tmp_path: Path) -> None:
    root = write_notes(tmp_path / "root")
    before = build(builder, [root])
    (tmp_path / "root" / "plain.md").unlink()
    assert notes_in(build(builder, [root], before)) == ["notes/linux/ls.md", "notes/日记.md"]


def test_a_source_that_was_never_there_is_empty_and_told(builder: Builder, tmp_path: Path) -> None:
    ref = build(builder, [source(tmp_path / "nowhere")])
    assert ref.rows["documents"] == 0
    manifest = generations.read_manifest(Path(ref.path))
    assert [(held.path, held.reason) for held in manifest.held] == [(str(tmp_path / "nowhere"), "vanished")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything; the rule itself is tested below")
def test_a_folder_that_may_not_be_listed_keeps_its_rows(builder: Builder, tmp_path: Path) -> None:
    root = write_notes(tmp_path / "root")
    before = build(builder, [root])
    (tmp_path / "root" / "linux").chmod(0)
    try:
        after = build(builder, [root], before)
    finally:
        (tmp_path / "root" / "linux").chmod(0o700)
    assert notes_in(after) == notes_in(before)


# ---------------------------------------------------------------- the rule, without a worker

LIMITS = ScanLimits((".md",), 1 << 20, 1000, 200, 400)


def read_all(root: SourceRoot) -> DocumentReader:
    reader = DocumentReader(scan_sources([root], LIMITS, {}), ChunkLimits(200, 400))
    while (rows := reader.next_file(lambda: None)) is not None:
        for _ in rows:
            pass
    return reader


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.EACCES, "unreadable"), (errno.EIO, "unreadable"), (errno.EAGAIN, "offline"), (errno.ETIMEDOUT, "offline")],
)
def test_a_file_that_cannot_be_opened_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    """W2: a placeholder of a sync service answers EAGAIN or ETIMEDOUT; it is not deleted."""
    root = write_notes(tmp_path / "root")

    def refuse(path: str) -> BinaryIO:
        if path.endswith("ls.md"):
            raise OSError(number, os.strerror(number))
        return open_note(path)

    monkeypatch.setattr("actors.generation_builder.documents.open_note", refuse)
    reader = read_all(root)
    assert [(Path(held.path).name, held.reason) for held in reader.held.list()] == [("ls.md", reason)]
    assert reader.places == [Place("default", "notes/linux/ls.md")]
    assert reader.skipped.list() == []


def test_a_file_that_was_deleted_since_the_scan_is_skipped_not_held(tmp_path: Path) -> None:
    root = write_notes(tmp_path / "root")
    found = scan_sources([root], LIMITS, {})
    (tmp_path / "root" / "plain.md").unlink()
    reader = DocumentReader(found, ChunkLimits(200, 400))
    while (rows := reader.next_file(lambda: None)) is not None:
        list(rows)
    assert [skip.reason for skip in reader.skipped.list()] == ["vanished"]
    assert reader.places == []


def test_a_file_that_became_a_way_out_since_the_scan_is_not_read(tmp_path: Path) -> None:
    root = write_notes(tmp_path / "root")
    (tmp_path / "secret.md").write_text("secret")
    found = scan_sources([root], LIMITS, {})
    (tmp_path / "root" / "plain.md").unlink()
    (tmp_path / "root" / "plain.md").symlink_to(tmp_path / "secret.md")
    reader = DocumentReader(found, ChunkLimits(200, 400))
    texts = []
    while (rows := reader.next_file(lambda: None)) is not None:
        texts += [row.text for row in rows]
    assert "secret" not in texts
    assert [skip.reason for skip in reader.skipped.list()] == ["symlink_outside"]


def test_a_place_is_a_path_and_what_is_below_it() -> None:
    place = Place("default", "notes/a")
    assert place.holds("default", "notes/a") and place.holds("default", "notes/a/b.md")
    assert not place.holds("default", "notes/ab.md") and not place.holds("other", "notes/a/b.md")


def known(root: SourceRoot, files: int) -> dict[str, SourceState]:
    state = SourceState(source_id=root.source_id, path=root.path, name="n", tenant="default", files=files, digest="d")
    return {root.source_id: state}


@pytest.mark.parametrize(
    ("files", "bare", "held"), [(1, True, True), (1, False, False), (5, False, True), (0, True, False)]
)
def test_only_a_disappearance_that_looks_like_an_accident_is_held(
    tmp_path: Path, files: int, bare: bool, held: bool
) -> None:
    if not bare:
        (tmp_path / "other.txt").touch()
    root = source(tmp_path)
    found = scan_sources([root], LIMITS, known(root, files))
    assert [skip.reason for skip in found.held] == (["emptied"] if held else [])
    assert found.roots[0].held == ([""] if held else [])


def test_files_that_were_held_are_tried_again_after_a_growing_time(tmp_path: Path) -> None:
    retries = FileRetries()
    path = tmp_path / "placeholder.md"
    paths = [str(path)]
    assert not retries.any_readable(paths, 0.0)
    path.write_text("here now")
    assert not retries.any_readable(paths, 59.0), "not before its time"
    assert retries.any_readable(paths, 60.0)
    assert not retries.any_readable(paths, 179.0), "twice the time: a build that fails on it again must not spin"
    assert retries.any_readable(paths, 180.0)
    assert not retries.any_readable([], 181.0) and retries.any_readable(paths, 182.0), "a new hold is tried at once"


def test_a_scan_probes_a_few_files_and_the_next_one_the_next(tmp_path: Path) -> None:
    """A probe of a placeholder may take long, and there may be thousands."""
    paths = [str(tmp_path / f"{number:02d}.md") for number in range(20)]
    (tmp_path / "19.md").touch()
    retries = FileRetries()
    assert [retries.any_readable(paths, float(now)) for now in range(4)] == [False, False, True, False]
