"""Reading lines of a note: which paths are notes, which lines come back, and what a huge file costs."""

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.errors import BulkheadError, Interrupted, InvalidParams, NotFound
from actors.messages.core_writer import SourceRoot
from actors.messages.searcher import ReadLines
from actors.searcher import documents
from actors.searcher.documents import DocumentLimits, DocumentLines, read_lines, resolve_folder

LIMITS = DocumentLimits(lines_max=100, bytes_max=10_000, suffixes=(".md", ".markdown"))
Read = Callable[..., DocumentLines]


def nothing() -> None:
    """Never ask to stop."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "notes"
    root.mkdir()
    return root


@pytest.fixture
def read(root: Path) -> Read:
    def read(
        path: str, from_line: int = 1, lines: int | None = None, *, limits: DocumentLimits = LIMITS
    ) -> DocumentLines:
        source = SourceRoot(source_id="s", path=str(root), name="my notes", added_at=0)
        request = ReadLines(path=path, from_line=from_line, lines=lines, sources=[source])
        return msgspec.json.decode(read_lines(request, limits, nothing), type=DocumentLines)

    return read


def test_a_note_is_found_by_its_absolute_its_named_and_its_relative_path(root: Path, read: Read) -> None:
    (root / "日记").mkdir()
    (root / "日记" / "a b.md").write_text("one\ntwo\n")
    for path in (str(root / "日记/a b.md"), "my notes/日记/a b.md", "日记/a b.md", "日记/../日记/a b.md"):
        assert read(path) == DocumentLines(
            path=path, from_line=1, to_line=2, total_lines=2, text="one\ntwo", truncated=False, next_from_line=None
        )


def test_the_first_root_that_has_the_file_answers(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "n.md").write_text(name)
    sources = [SourceRoot(source_id=n, path=str(tmp_path / n), name=n, added_at=0) for n in ("x", "y")]
    for path, text in (("n.md", "x"), ("y/n.md", "y"), (str(tmp_path / "y/n.md"), "y")):
        answer = read_lines(ReadLines(path=path, from_line=1, lines=None, sources=sources), LIMITS, nothing)
        assert msgspec.json.decode(answer, type=DocumentLines).text == text


def test_what_lies_outside_is_refused_like_what_does_not_exist(tmp_path: Path, root: Path, read: Read) -> None:
    outside = tmp_path / "secret.md"
    outside.write_text("secret")
    (tmp_path / "notes-of-others").mkdir()
    (tmp_path / "notes-of-others" / "x.md").write_text("secret")
    (root / "link.md").symlink_to(outside)
    (root / "folder").symlink_to(tmp_path)
    (root / "key.pem").write_text("secret")
    (root / "loop.md").symlink_to(root / "loop.md")
    (root / "dir.md").mkdir()
    os.mkfifo(root / "pipe.md")
    refused = {}
    for path in (
        "../secret.md",
        str(outside),
        str(tmp_path / "notes-of-others/x.md"),
        "../notes-of-others/x.md",
        "link.md",
        "folder/secret.md",
        "key.pem",
        "loop.md",
        "dir.md",
        "pipe.md",
        "/etc/passwd",
        "missing.md",
        "x" * 4000 + ".md",
    ):
        with pytest.raises(NotFound) as caught:
            read(path)
        refused[path] = caught.value.message.replace(repr(path), "PATH")
    assert len(set(refused.values())) == 1


def test_a_symlink_within_the_root_is_followed(root: Path, read: Read) -> None:
    (root / "real.md").write_text("text")
    (root / "alias.md").symlink_to(root / "real.md")
    assert read("alias.md").text == "text"


@pytest.mark.parametrize("path", ["", "a\0.md", "x" * 5000])
def test_a_path_that_no_file_can_have_is_refused(path: str, read: Read) -> None:
    with pytest.raises(InvalidParams, match="path of"):
        read(path)


def test_without_roots_nothing_is_readable(root: Path) -> None:
    (root / "a.md").write_text("x")
    with pytest.raises(NotFound):
        read_lines(ReadLines(path=str(root / "a.md"), from_line=1, lines=None, sources=[]), LIMITS, nothing)


def test_pages_go_on_where_the_last_one_ended(root: Path, read: Read) -> None:
    (root / "n.md").write_text("".join(f"line {n}\n" for n in range(1, 251)))
    page = read("n.md")
    assert (page.from_line, page.to_line, page.total_lines) == (1, 100, 250)
    assert page.truncated and page.next_from_line == 101
    page = read("n.md", 101, 50)
    assert page.text.splitlines()[0] == "line 101" and page.to_line == 150
    assert not page.truncated and page.next_from_line == 151
    page = read("n.md", 201, 500)
    assert page.to_line == 250 and not page.truncated and page.next_from_line is None
    page = read("n.md", 100, 500)
    assert page.to_line == 199 and page.truncated and page.next_from_line == 200


def test_lines_are_clamped_and_beyond_the_end_is_empty(root: Path, read: Read) -> None:
    (root / "n.md").write_text("a\nb")
    assert read("n.md", -5, 0).text == "a"
    past = read("n.md", 9)
    assert (past.text, past.total_lines, past.next_from_line, past.truncated) == ("", 2, None, False)
    (root / "empty.md").write_text("")
    assert read("empty.md").total_lines == 0


def test_bytes_limit_the_page_at_the_end_of_a_line(root: Path, read: Read) -> None:
    (root / "n.md").write_text("x" * 60 + "\n" + "y" * 60 + "\n" + "z\n")
    limits = DocumentLimits(lines_max=100, bytes_max=100, suffixes=(".md",))
    page = read("n.md", limits=limits)
    assert (page.text, page.truncated, page.next_from_line, page.total_lines) == ("x" * 60, True, 2, 3)
    assert read("n.md", 2, limits=limits).text == "y" * 60 + "\nz"


def test_a_line_longer_than_the_limit_is_cut_between_characters(root: Path, read: Read) -> None:
    (root / "n.md").write_text("记" * 100 + "\nnext\n")
    limits = DocumentLimits(lines_max=100, bytes_max=100, suffixes=(".md",))
    page = read("n.md", limits=limits)
    assert (page.text, page.truncated, page.next_from_line) == ("记" * 33, True, 2)
    assert read("n.md", 2, limits=limits).text == "next"


def test_odd_bytes_become_text(root: Path, read: Read) -> None:
    (root / "n.md").write_bytes(b"\xef\xbb\xbfcaf\xe9\r\n\x00end\xff")
    page = read("n.md")
    assert page.text == "caf\ufffd\n⟨U+0000⟩end\ufffd" and page.total_lines == 2


@pytest.mark.parametrize("encoding", ["utf-16", "gb18030", "utf-8-sig"])
def test_notes_in_other_encodings_are_read_as_the_index_reads_them(root: Path, read: Read, encoding: str) -> None:
    lines = ["我们在上海的时候，你说这个地方很好。", "那里的人都是我的朋友", "第三行"]
    (root / "n.md").write_bytes("\r\n".join(lines).encode(encoding))
    assert read("n.md").text.split("\n") == lines
    assert (read("n.md", 2, 1).text, read("n.md").total_lines) == (lines[1], 3)


def test_a_huge_file_is_never_held_in_memory(root: Path, read: Read) -> None:
    with (root / "log.md").open("wb") as file:
        file.truncate(64 << 20)  # one line of 64 MiB
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast line\n")
    tracemalloc.start()
    try:
        page = read("log.md", 2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert page.text == "last line" and page.total_lines == 2
    assert peak < 8 * documents.BLOCK_BYTES


def test_reading_stops_when_asked_to(root: Path) -> None:
    (root / "n.md").write_bytes(b"x\n" * documents.BLOCK_BYTES)
    source = SourceRoot(source_id="s", path=str(root), name="n", added_at=0)
    calls = []

    def stop_before_the_second_block() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise Interrupted("stopped")

    with pytest.raises(BulkheadError, match="stopped"):
        read_lines(ReadLines(path="n.md", from_line=1, lines=1, sources=[source]), LIMITS, stop_before_the_second_block)
    assert len(calls) == 1


@settings(max_examples=200, deadline=None)
@given(
    lines=st.lists(st.text(st.sampled_from("ab记é\r "), max_size=6), max_size=12),
    ends=st.booleans(),
    first=st.integers(-1, 14),
    count=st.one_of(st.none(), st.integers(-1, 14)),
    block=st.integers(1, 9),
)
def test_any_page_equals_the_slice_of_the_lines(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    lines: list[str],
    ends: bool,
    first: int,
    count: int | None,
    block: int,
) -> None:
    """Against `split`, with blocks so small that every boundary falls into the middle of something."""
    root = tmp_path_factory.mktemp("pages")
    text = "\n".join(lines) + ("\n" if ends and lines else "")
    (root / "n.md").write_text(text, newline="")
    expected = text.split("\n")
    if expected[-1] == "":
        expected.pop()
    source = SourceRoot(source_id="s", path=str(root), name="n", added_at=0)
    request = ReadLines(path="n.md", from_line=first, lines=count, sources=[source])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "BLOCK_BYTES", block)
        page = msgspec.json.decode(read_lines(request, LIMITS, nothing), type=DocumentLines)
    start = max(1, first)
    wanted = len(expected) if count is None else max(1, count)
    slice_ = expected[start - 1 : start - 1 + wanted]
    assert page.text == "\n".join(line.removesuffix("\r") for line in slice_)
    assert page.total_lines == len(expected)
    assert page.to_line == start + len(slice_) - 1
    assert page.next_from_line == (page.to_line + 1 if slice_ and page.to_line < len(expected) else None)
    assert not page.truncated


def test_a_folder_is_resolved_and_what_is_none_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "file").write_text("x")
    assert resolve_folder(str(tmp_path / "link")) == str(folder)
    for path, complaint in (
        ("notes", "must be absolute"),
        (str(tmp_path / "none"), "no folder"),
        (str(tmp_path / "file"), "no folder"),
        ("/a\0b", "must be absolute"),
    ):
        with pytest.raises(InvalidParams, match=complaint):
            resolve_folder(path)
