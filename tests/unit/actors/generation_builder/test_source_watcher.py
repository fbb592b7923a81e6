"""The process that watches the sources, spoken to over its pipe: what it tells, and why it does not watch."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors.generation_builder.root_watch import Budget
from actors.messages.builder_work import RootWatch, RootWatches, WatchSources
from actors.messages.core_writer import SourceRoot
from actors.settings import GenerationBuilderSettings, RoomSetup
from tests.hung_mount import can_hang, hung_mount
from tests.unit.actors.generation_builder.builder_kit import source, write_notes
from tests.worker_client import WorkerClient

MODULE = "actors.generation_builder.watcher"
GIVE_UP_S = 60.0


class Watcher:
    """The process, and what it last told."""

    def __init__(self, **limits: int) -> None:
        given = {"watch_debounce_ms": 100, "watch_debounce_ms_max": 1000, "scan_every_ms": 200, **limits}
        settings = GenerationBuilderSettings(**given)  # type: ignore[arg-type]
        self.worker = WorkerClient(MODULE, RoomSetup(directory="", generation_builder=settings))
        self.seen: list[RootWatch] = []

    def __enter__(self) -> "Watcher":
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.close()

    def ask(self, *roots: SourceRoot, wait_ms: int = 500) -> list[RootWatch]:
        message = WatchSources(sources=list(roots), seen=self.seen, wait_ms=wait_ms)
        self.seen = self.worker.call(message, RootWatches).watches
        return self.seen

    def until(self, holds: Callable[[list[RootWatch]], bool], *roots: SourceRoot) -> list[RootWatch]:
        give_up = time.monotonic() + GIVE_UP_S
        while not holds(now := self.ask(*roots)):
            assert time.monotonic() < give_up, now
        return now

    def watched(self, *roots: SourceRoot) -> list[RootWatch]:
        return self.until(lambda now: all(watch.mode == "events" for watch in now), *roots)

    def told_of_change(self, root: SourceRoot) -> None:
        before = self.seen[0].changes
        self.until(lambda now: now[0].mode == "events" and now[0].changes > before, root)


@pytest.fixture
def root(tmp_path: Path) -> SourceRoot:
    return write_notes(tmp_path / "root", {"a.md": "x", "sub/b.md": "y", "node_modules/c.md": "z", ".git/d.md": "z"})


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    with Watcher() as watcher:
        yield watcher


def test_a_watch_tells_of_itself_and_then_of_every_burst(watcher: Watcher, root: SourceRoot) -> None:
    (watch,) = watcher.watched(root)
    assert (watch.changes, watch.reason) == (1, None), "what came before the watch is for one scan to find"
    for name in ("a.md", "sub/b.md", "sub/new.md"):
        (Path(root.path) / name).write_text("other")
        watcher.told_of_change(root)
    (Path(root.path) / "sub" / "new.md").unlink()
    watcher.told_of_change(root)


def test_what_cannot_be_a_note_is_not_told(watcher: Watcher, root: SourceRoot) -> None:
    watcher.watched(root)
    for name in ("picture.png", ".a.md.swp", "node_modules/c.md", ".git/d.md", "4913"):
        (Path(root.path) / name).write_text("other")
    (Path(root.path) / "a.md").write_text("the burst that is told")
    watcher.told_of_change(root)
    assert watcher.seen[0].changes == 2
    (Path(root.path) / "node_modules" / "c.md").write_text("again")
    assert watcher.ask(root)[0].changes == 2


def test_new_folders_are_watched_and_ignored_ones_no_more(watcher: Watcher, root: SourceRoot) -> None:
    watcher.watched(root)
    (Path(root.path) / "new" / "deep").mkdir(parents=True)
    watcher.told_of_change(root)
    (Path(root.path) / "new" / "deep" / "c.md").write_text("x")
    watcher.told_of_change(root)
    (Path(root.path) / ".gitignore").write_text("new/\n")
    watcher.told_of_change(root)
    before = watcher.seen[0].changes
    (Path(root.path) / "new" / "deep" / "c.md").write_text("y")
    assert watcher.ask(root)[0].changes == before


def test_a_root_that_is_gone_is_polled_until_it_is_back(watcher: Watcher, root: SourceRoot, tmp_path: Path) -> None:
    watcher.watched(root)
    before = watcher.seen[0].changes
    Path(root.path).rename(tmp_path / "away")
    (watch,) = watcher.until(lambda now: now[0].mode == "polling", root)
    assert watch.changes > before and watch.reason is not None and watch.reason.startswith("vanished")
    (tmp_path / "away").rename(root.path)
    watcher.told_of_change(root)
    (Path(root.path) / "a.md").write_text("other")
    watcher.told_of_change(root)


def test_a_root_that_was_replaced_by_another_folder_is_watched_anew(
    watcher: Watcher, root: SourceRoot, tmp_path: Path
) -> None:
    watcher.watched(root)
    other = write_notes(tmp_path / "other", {"n.md": "x"})
    Path(root.path).rename(tmp_path / "old")
    Path(other.path).rename(root.path)
    watcher.told_of_change(root)
    (Path(root.path) / "n.md").write_text("y")
    watcher.told_of_change(root)


def test_each_root_is_told_of_by_itself(watcher: Watcher, root: SourceRoot, tmp_path: Path) -> None:
    gone = source(tmp_path / "gone", "gone")
    watches = watcher.until(lambda now: now[0].mode == "events" and "vanished" in str(now[1].reason), root, gone)
    assert [watch.source_id for watch in watches] == [root.source_id, gone.source_id]
    assert watcher.ask(root)[0].mode == "events" and len(watcher.seen) == 1, "one that was removed is not told of"


@pytest.mark.skipif(not can_hang(), reason="needs root and FUSE")
def test_a_root_that_hangs_is_told_of_and_watched_again(root: SourceRoot, tmp_path: Path) -> None:
    """LOOK_EVERY_S after the mount came the watch looks whether its root is the same, and hangs."""
    other = write_notes(tmp_path / "other", {"n.md": "x"})
    other = SourceRoot(source_id="other", path=other.path, name="other", added_at=1)
    with Watcher(root_hang_ms=1000) as watcher:
        before = watcher.watched(root, other)
        with hung_mount(Path(root.path)):
            now = watcher.until(lambda now: "has not answered" in str(now[0].reason), root, other)
            assert now[0].mode == "polling" and now[0].changes > before[0].changes
            (Path(other.path) / "n.md").write_text("y")
            watcher.until(lambda now: now[1].changes > before[1].changes, root, other)
        watcher.watched(root, other)
        after = watcher.seen[0].changes
        (Path(root.path) / "a.md").write_text("other")
        watcher.until(lambda now: now[0].changes > after, root, other)


def test_an_answer_that_was_lost_is_given_again(watcher: Watcher, root: SourceRoot) -> None:
    seen = watcher.watched(root)
    (Path(root.path) / "a.md").write_text("other")
    watcher.told_of_change(root)
    watcher.seen = seen
    assert watcher.ask(root)[0].changes == 2


def test_a_call_without_news_ends_in_time(watcher: Watcher, root: SourceRoot) -> None:
    watches = watcher.watched(root)
    assert watcher.ask(root, wait_ms=1) == watches


@pytest.mark.parametrize("folders_max", [0, 1])
def test_a_root_with_more_folders_than_may_be_watched_is_polled(root: SourceRoot, folders_max: int) -> None:
    with Watcher(watch_folders_max=folders_max) as watcher:
        (watch,) = watcher.until(lambda now: "watch_folders_max" in str(now[0].reason), root)
        assert watch.mode == "polling" and f"{folders_max} are watched at most" in str(watch.reason)


def test_folders_are_counted_over_all_roots_and_given_back() -> None:
    budget = Budget(10)
    budget.take("a", 6)
    assert (budget.left("a"), budget.left("b")) == (10, 4)
    budget.take("a", 0)
    assert budget.left("b") == 10
