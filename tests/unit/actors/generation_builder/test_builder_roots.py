"""Roots at their own pace: one that hangs or is slow keeps nobody waiting, one that is read hangs alone."""

import errno
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from actors.generation import SourceState
from actors.generation_builder import roots as roots_module
from actors.generation_builder.chunk import ChunkLimits
from actors.generation_builder.documents import DocumentReader, Place, in_places
from actors.generation_builder.patience import Patience
from actors.generation_builder.roots import Roots
from actors.generation_builder.scan import ScanLimits, Walked, scan_sources, walk_root
from actors.messages.core_writer import SourceRoot
from actors.notes import BLOCK_BYTES, open_note
from tests.hung_mount import can_hang, hung_mount
from tests.unit.actors.generation_builder.builder_kit import write_notes

LIMITS = ScanLimits((".md",), 1 << 30, 1000, 200, 400)
HANG_S = 0.5
GIVE_UP_S = 20.0


def known(root: SourceRoot, files: int) -> dict[str, SourceState]:
    state = SourceState(source_id=root.source_id, path=root.path, name="n", tenant="default", files=files, digest="d")
    return {root.source_id: state}


class Gate:
    """Lets the walks of a root go on, or not; what they do meanwhile is up to the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: SourceRoot) -> None:
        self.open = threading.Event()
        self.walks = 0
        self.stirs = False
        self.found: Callable[[], None] = lambda: None

        def walk(source: SourceRoot, limits: ScanLimits, check: Callable[[], None]) -> Walked:
            if source == root:
                self.walks += 1
                while not self.open.wait(0.02):
                    if self.stirs:
                        check()
            walked = walk_root(source, limits, check)
            if source == root:
                self.found()
            return walked

        monkeypatch.setattr(roots_module, "walk_root", walk)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[SourceRoot, SourceRoot]:
    return write_notes(tmp_path / "one", {"a.md": "x"}), write_notes(tmp_path / "two", {"b.md": "y", "c.md": "z"})


def wait_for(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + GIVE_UP_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_a_scan_of_roots_is_that_of_a_walk_one_by_one(pair: tuple[SourceRoot, SourceRoot]) -> None:
    found = Roots(LIMITS, hang_s=HANG_S).scan(pair, {})
    plain = scan_sources(pair, LIMITS, {})
    assert found.digest == plain.digest and found.roots == plain.roots and found.unfinished == ()


def test_a_root_that_hangs_is_held_and_comes_back(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[SourceRoot, SourceRoot]
) -> None:
    one, _ = pair
    gate = Gate(monkeypatch, one)
    roots = Roots(LIMITS, hang_s=HANG_S)
    for _ in range(3):
        found = roots.scan(pair, known(one, 7))
        assert [held.reason for held in found.held] == ["does_not_answer"]
        assert found.roots[0].held == [""] and found.roots[0].state.files == 7
        assert [note.relative for note in found.roots[1].notes] == ["b.md", "c.md"]
        assert found.unfinished == (one.source_id,)
    assert gate.walks == 1, "one thread hangs, not one more with each scan"
    gate.open.set()
    wait_for(lambda: not roots.scan(pair, {}, only=[]).unfinished)
    assert [note.relative for note in roots.scan(pair, {}, only=[]).roots[0].notes] == ["a.md"]


def test_a_root_that_takes_long_is_as_it_was_until_its_walk_is_done(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[SourceRoot, SourceRoot]
) -> None:
    one, _ = pair
    gate = Gate(monkeypatch, one)
    gate.stirs = True
    roots = Roots(LIMITS, hang_s=HANG_S)
    first = roots.scan(pair, {}, patience_s=0.1)
    assert [held.reason for held in first.held] == ["not_walked_yet"] and first.unfinished == (one.source_id,)
    gate.open.set()
    wait_for(lambda: not roots.scan(pair, {}, only=[]).unfinished)
    gate.open.clear()
    (Path(one.path) / "new.md").touch()
    second = roots.scan(pair, {}, patience_s=0.1)
    assert [note.relative for note in second.roots[0].notes] == ["a.md"] and second.held == []
    gate.open.set()
    wait_for(lambda: len(roots.scan(pair, {}, only=[]).roots[0].notes) == 2)


def test_only_the_roots_that_are_named_are_walked_again(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[SourceRoot, SourceRoot]
) -> None:
    one, two = pair
    gate = Gate(monkeypatch, one)
    gate.open.set()
    roots = Roots(LIMITS, hang_s=HANG_S)
    roots.scan(pair, {}, only=[])
    assert gate.walks == 1, "one that was never walked is"
    roots.scan(pair, {}, only=[two.source_id])
    assert gate.walks == 1
    roots.scan(pair, {})
    assert gate.walks == 2


def test_a_note_that_is_moved_while_it_is_walked_is_never_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is moved out of a folder that is still to be walked into one that was: the walk sees it in neither."""
    root = write_notes(tmp_path / "root", {"z/note.md": "x", "a/other.md": "y"})
    roots = Roots(LIMITS, hang_s=HANG_S)
    assert len(roots.scan([root], {}).roots[0].notes) == 2
    walks = 0

    def walk(source: SourceRoot, limits: ScanLimits, check: Callable[[], None]) -> Walked:
        nonlocal walks
        walks += 1
        found = walk_root(source, limits, check)
        if walks == 1:
            (tmp_path / "root" / "z" / "note.md").rename(tmp_path / "root" / "a" / "moved.md")
            return found._replace(notes=[note for note in found.notes if note.relative != "z/note.md"])
        return found

    monkeypatch.setattr(roots_module, "walk_root", walk)
    found = roots.scan([root], {})
    assert sorted(note.relative for note in found.roots[0].notes) == ["a/moved.md", "a/other.md"]


def test_a_bug_in_a_walk_is_raised_not_swallowed(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[SourceRoot, SourceRoot]
) -> None:
    def walk(source: SourceRoot, limits: ScanLimits, check: Callable[[], None]) -> Walked:
        raise ValueError("a bug")

    monkeypatch.setattr(roots_module, "walk_root", walk)
    with pytest.raises(ValueError, match="a bug"):
        Roots(LIMITS, hang_s=HANG_S).scan(pair, {})


def test_notes_beyond_the_limit_are_those_of_the_last_root(pair: tuple[SourceRoot, SourceRoot]) -> None:
    found = Roots(LIMITS._replace(files_max=2), hang_s=HANG_S).scan(pair, {})
    assert [[note.relative for note in root.notes] for root in found.roots] == [["a.md"], ["b.md"]]
    assert [(Path(skip.path).name, skip.reason) for skip in found.skipped.list()] == [("c.md", "too_many_files")]
    assert found.roots[1].state.files == 1


# ---------------------------------------------------------------- reading


def read_all(reader: DocumentReader) -> list[str]:
    texts = []
    while (rows := reader.next_file(lambda: None)) is not None:
        texts += [row.text for row in rows]
    return texts


def test_one_that_hangs_while_it_is_read_holds_its_root_and_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad = write_notes(tmp_path / "bad", {f"{number}.md": "x" for number in range(20)})
    good = write_notes(tmp_path / "good", {"b.md": "sound"})
    answers = threading.Event()
    opened = 0

    def hang(path: str) -> BinaryIO:
        nonlocal opened
        if "/bad/" in path:
            opened += 1
            answers.wait(GIVE_UP_S)
        return open_note(path)

    monkeypatch.setattr("actors.generation_builder.documents.open_note", hang)
    patience = Patience(HANG_S)
    scan = scan_sources([bad, good], LIMITS, {})
    reader = DocumentReader(scan, ChunkLimits(200, 400), patience=patience)
    assert read_all(reader) == ["sound"]
    assert opened == 1, "the others of its root are not even tried"
    assert {held.reason for held in reader.held.list()} == {"offline"} and len(reader.held.list()) == 20
    assert len(reader.unread) == 20 and len(reader.places) == 20
    answers.set()
    wait_for(lambda: len(read_all(DocumentReader(scan, ChunkLimits(200, 400), patience=patience))) == 21)


def test_a_large_note_is_read_block_by_block_each_with_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "large"
    content = os.urandom(BLOCK_BYTES // 2) * 5
    path.write_bytes(content)
    with Patience(HANG_S).open("root", lambda: open_note(str(path))) as file:
        assert not isinstance(file, io.BytesIO)
        assert file.read() == content
        file.seek(10)
        assert file.read(5) == content[10:15]


def test_errors_of_the_file_are_those_of_the_file(tmp_path: Path) -> None:
    patience = Patience(HANG_S)
    with pytest.raises(FileNotFoundError):
        patience.open("root", lambda: open_note(str(tmp_path / "nowhere")))

    def offline() -> BinaryIO:
        raise TimeoutError(errno.ETIMEDOUT, "the service is away")

    with pytest.raises(TimeoutError, match="the service is away"):
        patience.open("root", offline)
    assert patience.call("root", lambda: 1) == 1, "that was an answer: the root does not hang"


def test_places_are_found_by_what_lies_above() -> None:
    places = {Place("t", "notes/a"), Place("t", "whole"), Place("t", "odd/")}
    assert in_places(places, "t", "notes/a") and in_places(places, "t", "notes/a/b/c.md")
    assert in_places(places, "t", "whole/x.md") and in_places(places, "t", "odd//x.md")
    assert not in_places(places, "t", "notes/ab.md") and not in_places(places, "u", "whole/x.md")


# ---------------------------------------------------------------- a real one


@pytest.fixture
def covered(tmp_path: Path) -> Iterator[SourceRoot]:
    yield write_notes(tmp_path / "covered", {"a.md": "x"})


@pytest.mark.skipif(not can_hang(), reason="needs root and FUSE")
def test_a_mount_that_hangs_for_real_is_held_and_seen_again(covered: SourceRoot, tmp_path: Path) -> None:
    good = write_notes(tmp_path / "good", {"b.md": "y"})
    roots = Roots(LIMITS, hang_s=HANG_S)
    before = roots.scan([covered, good], {})
    with hung_mount(Path(covered.path)):
        found = roots.scan([covered, good], {})
        assert [held.reason for held in found.held] == ["does_not_answer"]
        (Path(good.path) / "c.md").touch()
        assert len(roots.scan([covered, good], {}).roots[1].notes) == 2
    (Path(good.path) / "c.md").unlink()
    wait_for(lambda: not roots.scan([covered, good], {}).unfinished)
    assert roots.scan([covered, good], {}).digest == before.digest
