"""Walking real folders: what is a note, what is passed over in silence, what is passed over and told."""

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import Interrupted
from actors.generation_builder import skips
from actors.generation_builder.scan import Scan, ScanLimits, is_offline, scan_sources
from actors.generation_builder.skips import SKIPS_MAX, SkipList
from actors.messages.core_writer import SourceRoot

LIMITS = ScanLimits((".md", ".markdown"), 1000, 10_000, 200, 400)


def write(root: Path, *names: str, text: str = "text\n") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def root_at(path: Path) -> SourceRoot:
    return SourceRoot(source_id=f"id {path.name}", path=str(path), name=path.name, added_at=1)


def scan(*roots: Path, limits: ScanLimits = LIMITS) -> Scan:
    return scan_sources([root_at(root) for root in roots], limits, {})


def found(root: Path, limits: ScanLimits = LIMITS) -> list[str]:
    return [note.relative for note in scan(root, limits=limits).roots[0].notes]


def told(root: Path, limits: ScanLimits = LIMITS) -> list[tuple[str, str]]:
    """Return what was skipped by name: path below the root, and reason."""
    listed = scan(root, limits=limits).skipped.list()
    return [(os.path.relpath(skip.path, root), skip.reason) for skip in listed if skip.reason != skips.ROUTINE]


def routine(root: Path) -> str:
    return "".join(skip.detail for skip in scan(root).skipped.list() if skip.reason == skips.ROUTINE)


def test_notes_are_found_by_their_suffix_in_a_fixed_order(tmp_path: Path) -> None:
    write(tmp_path, "b.md", "a/z.markdown", "a/B.MD", "c.txt", "md", "中文/笔记.md", "a.md/x.md")
    assert found(tmp_path) == ["a.md/x.md", "a/B.MD", "a/z.markdown", "b.md", "中文/笔记.md"]
    assert told(tmp_path) == []


def test_what_everybody_expects_to_be_left_out_is_counted_not_listed(tmp_path: Path) -> None:
    write(tmp_path, "good.md", ".hidden.md", ".git/x.md", "node_modules/p/README.md", "a/__pycache__/x.md")
    write(tmp_path, "work/env/pyvenv.cfg", "work/env/lib/README.md", "work/note.md", "venv/note.md")
    assert found(tmp_path) == ["good.md", "venv/note.md", "work/note.md"], (
        "a folder is no environment by its name alone"
    )
    assert told(tmp_path) == []
    assert routine(tmp_path) == "1 __pycache__, 2 hidden, 1 node_modules, 1 virtual environments"


def test_a_root_that_is_hidden_or_an_environment_itself_was_added_on_purpose(tmp_path: Path) -> None:
    write(tmp_path, ".notes/pyvenv.cfg", ".notes/a.md")
    assert found(tmp_path / ".notes") == ["a.md"]


def test_gitignore_is_honoured_at_every_level(tmp_path: Path) -> None:
    write(tmp_path, ".gitignore", text="*.tmp.md\n/build/\ndrafts/\n!keep.tmp.md\n# comment\n\n[z-a]\n!\n")
    write(tmp_path, "a.md", "a.tmp.md", "keep.tmp.md", "build/x.md", "sub/build/x.md", "sub/drafts/x.md", "sub/b.md")
    write(tmp_path, "sub/.gitignore", text="b.md\n!c.tmp.md\n/deep/*.md\n")
    write(tmp_path, "sub/c.tmp.md", "sub/deep/d.md", "sub/deep/e/f.md", "b.md")
    assert found(tmp_path) == ["a.md", "b.md", "keep.tmp.md", "sub/build/x.md", "sub/c.tmp.md", "sub/deep/e/f.md"]
    assert told(tmp_path) == []
    assert "ignored by .gitignore" in routine(tmp_path)


def test_a_strange_gitignore_is_no_obstacle(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "one/b.md", "two/c.md", "three/d.md")
    (tmp_path / ".gitignore").mkdir()
    (tmp_path / "one" / ".gitignore").write_bytes(b"\xff\xfe\x00*.md\n" * 10)
    (tmp_path / "two" / ".gitignore").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "three" / ".gitignore")
    assert found(tmp_path) == ["a.md", "one/b.md", "three/d.md", "two/c.md"]


def test_a_note_over_the_limit_is_told_with_both_sizes(tmp_path: Path) -> None:
    write(tmp_path, "large.md", text="x" * 1001)
    write(tmp_path, "just.md", text="x" * 1000)
    assert found(tmp_path) == ["just.md"]
    skip = scan(tmp_path).skipped.list()[0]
    assert (skip.path, skip.reason) == (str(tmp_path / "large.md"), "too_large")
    assert "1001 bytes" in skip.detail and "limit 1000 (config: generation_builder.file_bytes_max)" in skip.detail


def test_more_notes_than_the_limit_are_told(tmp_path: Path) -> None:
    write(tmp_path, *(f"{number}.md" for number in range(5)))
    limits = LIMITS._replace(files_max=3)
    assert len(found(tmp_path, limits)) == 3
    assert [reason for _, reason in told(tmp_path, limits)] == ["too_many_files"] * 2


def test_something_that_is_no_file_is_told_and_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.md")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s.md"))
    listener.close()
    assert found(tmp_path) == []
    assert sorted(told(tmp_path)) == [("fifo.md", "not_a_file"), ("s.md", "not_a_file")]


def test_a_name_that_is_not_utf8_is_told(tmp_path: Path) -> None:
    raw = os.fsencode(tmp_path)
    try:
        Path(os.fsdecode(raw + b"/caf\xe9.md")).write_text("x")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    Path(os.fsdecode(raw + b"/\xff")).mkdir()
    Path(os.fsdecode(raw + b"/\xff/below.md")).write_text("x")
    assert found(tmp_path) == []
    assert sorted(told(tmp_path)) == [("\\xff", "name_not_utf8"), ("caf\\xe9.md", "name_not_utf8")]


# ---------------------------------------------------------------- symlinks


def test_a_symlink_out_of_the_root_is_told_and_not_followed(tmp_path: Path) -> None:
    """W4: symlinked sub-folders were skipped without a word, 26 of about 1,180 files were indexed."""
    write(tmp_path, "outside/secret.md", "root/a.md", "root-too/b.md")
    root = tmp_path / "root"
    (root / "folder").symlink_to(tmp_path / "outside")
    (root / "file.md").symlink_to(tmp_path / "outside" / "secret.md")
    (root / "sibling").symlink_to(tmp_path / "root-too")
    (root / "picture.png").symlink_to(tmp_path / "outside" / "secret.md")
    assert found(root) == ["a.md"]
    assert sorted(told(root)) == [
        ("file.md", "symlink_outside"),
        ("folder", "symlink_outside"),
        ("sibling", "symlink_outside"),
    ]
    assert str(tmp_path / "outside") in next(s.detail for s in scan(root).skipped.list() if s.path.endswith("folder"))


def test_a_symlink_inside_the_root_is_followed_once(tmp_path: Path) -> None:
    write(tmp_path, "real/a.md", ".hidden/b.md", ".hidden/sub/c.md", ".other.md")
    (tmp_path / "0-to-real").symlink_to("real")
    (tmp_path / "to-hidden").symlink_to(".hidden")
    (tmp_path / "also-hidden").symlink_to(".hidden")
    (tmp_path / "0-a.md").symlink_to("real/a.md")
    (tmp_path / "other.md").symlink_to(".other.md")
    assert found(tmp_path) == ["also-hidden/b.md", "also-hidden/sub/c.md", "other.md", "real/a.md"]
    assert told(tmp_path) == []
    assert "3 symlinks to what is indexed already" in routine(tmp_path)


def test_symlinks_in_a_circle_end(tmp_path: Path) -> None:
    write(tmp_path, "a/b/c.md", "z.md")
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "self").symlink_to("self")
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    (tmp_path / "here").symlink_to(".")
    assert found(tmp_path) == ["a/b/c.md", "z.md"]
    assert sorted(told(tmp_path)) == [("a/self", "symlink_loop"), ("one", "symlink_loop"), ("two", "symlink_loop")]


def test_a_dangling_symlink_is_told_when_it_looks_like_a_note(tmp_path: Path) -> None:
    (tmp_path / "gone.md").symlink_to("nowhere.md")
    (tmp_path / "gone").symlink_to("nowhere")
    assert told(tmp_path) == [("gone.md", "symlink_dangling")]


def test_a_symlink_is_subject_to_the_rules_of_where_it_lies(tmp_path: Path) -> None:
    write(tmp_path, ".gitignore", text="ignored*\n")
    write(tmp_path, ".hidden/a.md")
    (tmp_path / "ignored").symlink_to(".hidden")
    (tmp_path / ".b.md").symlink_to(".hidden/a.md")
    assert found(tmp_path) == []


def test_a_root_behind_a_symlink_is_walked(tmp_path: Path) -> None:
    write(tmp_path, "real/a.md", "real/.h/b.md")
    (tmp_path / "real" / "in").symlink_to(".h")
    (tmp_path / "root").symlink_to("real")
    assert found(tmp_path / "root") == ["a.md", "in/b.md"]


# ---------------------------------------------------------------- roots that cannot be walked


def test_a_root_that_cannot_be_walked_is_held_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path, "file")
    (tmp_path / "dangling").symlink_to("nowhere")
    result = scan(tmp_path / "gone", tmp_path / "file", tmp_path / "dangling", tmp_path / "file" / "below")
    assert [held.reason for held in result.held] == ["vanished", "not_a_folder", "vanished", "vanished"]
    assert [root.held for root in result.roots] == [[""]] * 4


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_held(tmp_path: Path) -> None:
    write(tmp_path, "open/a.md", "closed/b.md")
    (tmp_path / "closed").chmod(0)
    try:
        result = scan(tmp_path, tmp_path / "closed")
    finally:
        (tmp_path / "closed").chmod(0o700)
    assert [(Path(held.path).name, held.reason) for held in result.held] == [("closed", "unreadable")] * 2
    assert result.roots[0].held == ["closed"] and [note.relative for note in result.roots[0].notes] == ["open/a.md"]


def test_a_path_that_is_too_long_for_the_system_is_held_not_fatal(tmp_path: Path) -> None:
    """As root, too: a folder so deep that its path cannot be opened."""
    write(tmp_path, "a.md")
    depth, fd = 0, os.open(tmp_path, os.O_RDONLY)
    while depth < 20:
        os.mkdir("d" * 250, dir_fd=fd)
        fd, parent = os.open("d" * 250, os.O_RDONLY, dir_fd=fd), fd
        os.close(parent)
        depth += 1
    os.close(fd)
    result = scan(tmp_path)
    assert [note.relative for note in result.roots[0].notes] == ["a.md"]
    assert [held.reason for held in result.held] == ["unreadable"]


# ---------------------------------------------------------------- the digest


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    write(tmp_path, "a.md", "sub/b.md", "sub/c.txt")
    yield tmp_path


def test_the_digest_is_that_of_the_tree_and_nothing_else(tree: Path) -> None:
    assert scan(tree).digest == scan(tree).digest
    write(tree, "sub/d.txt", ".hidden.md")
    before = scan(tree).digest
    os.utime(tree / "sub" / "c.txt", ns=(0, 0))
    assert scan(tree).digest == before, "a file that is no note"


@pytest.mark.parametrize("change", ["content", "time", "add", "delete", "rename", "replace", "mode", "ignore"])
def test_the_digest_changes_with_every_note(tree: Path, change: str) -> None:
    before = scan(tree).digest
    note = tree / "sub" / "b.md"
    status = note.stat()
    if change == "content":
        note.write_text("other text\n")
    elif change == "time":
        os.utime(note, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    elif change == "add":
        write(tree, "new.md")
    elif change == "delete":
        note.unlink()
    elif change == "rename":
        note.rename(tree / "sub" / "bb.md")
    elif change == "replace":
        (tree / "copy").write_text("TEXT\n")
        os.utime(tree / "copy", ns=(status.st_atime_ns, status.st_mtime_ns))
        (tree / "copy").rename(note)  # the same name, size and time; another file
    elif change == "mode":
        note.chmod(0o640)
    else:
        write(tree, ".gitignore", text="b.md\n")
    assert scan(tree).digest != before


def test_the_digest_changes_with_the_limits_and_the_roots(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    digests = {
        scan(tree).digest,
        scan(tree, other).digest,
        scan(other, tree).digest,
        scan().digest,
        *(scan(tree, limits=LIMITS._replace(chunk_tokens=tokens)).digest for tokens in (100, 150)),
        scan(tree, limits=LIMITS._replace(suffixes=(".md",))).digest,
    }
    assert len(digests) == 7 and all(digests)


def test_a_scan_can_be_stopped_between_folders(tree: Path) -> None:
    def stop() -> None:
        raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        scan_sources([root_at(tree)], LIMITS, {}, stop)


# ---------------------------------------------------------------- telling


def test_a_long_list_of_skips_is_bounded_and_says_so() -> None:
    listed = SkipList()
    for number in range(SKIPS_MAX + 5):
        listed.add(f"/{number}", "too_large")
    listed.count("/root", "hidden")
    result = listed.list()
    assert len(result) == SKIPS_MAX + 2
    assert (result[-2].reason, result[-2].detail) == ("more", "5 more are not listed")
    again = SkipList()
    again.extend(result)
    assert again.list()[-1].detail == "6 more are not listed", "those of the list that was taken in are not forgotten"


@given(st.binary(max_size=30))
def test_any_path_can_be_printed(raw: bytes) -> None:
    skips.printable(os.fsdecode(raw)).encode()


def test_errors_of_sync_services_are_told_from_others() -> None:
    assert is_offline(OSError(errno.ETIMEDOUT, "")) and is_offline(OSError(errno.EAGAIN, ""))
    assert not is_offline(OSError(errno.EACCES, "")) and not is_offline(OSError(errno.EIO, ""))
