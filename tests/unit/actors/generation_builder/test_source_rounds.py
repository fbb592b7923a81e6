"""When a root is looked at, and whether it is watched: the pure parts, with times as arguments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.generation import NoteState
from actors.generation_builder.deferring import beyond, too_large
from actors.generation_builder.rounds import CHANGE_FACTOR, CLOCK_FACTOR, Periods, Rounds
from actors.generation_builder.watch_mode import Debounce, Mount, kind_of, matters, moves_folders, why_not_watched
from actors.messages.builder_work import RootWatch
from actors.messages.core_writer import SourceRoot

A, B = (SourceRoot(source_id=name, path=f"/{name}", name=name, added_at=1) for name in "ab")
PERIODS = Periods(polled_s=15.0, watched_s=300.0, unfinished_s=1.0)
FOLDERS = frozenset({"/notes", "/notes/sub"})
MD = (".md",)


def watched(source: SourceRoot, changes: int = 1) -> RootWatch:
    return RootWatch(source_id=source.source_id, mode="events", changes=changes)


# ---------------------------------------------------------------- the debounce


def test_a_burst_is_over_when_nothing_has_changed_for_a_while() -> None:
    burst = Debounce(1.5, 10.0)
    assert not burst.take(100.0), "there was no change"
    for now in (0.0, 1.0, 2.0):
        burst.note(now)
        assert not burst.take(now + 1.4)
    assert burst.due_at() == 3.5
    assert burst.take(3.5)
    assert not burst.take(99.0), "it is told once"


def test_what_is_written_all_the_time_is_picked_up_all_the_same() -> None:
    burst = Debounce(1.5, 10.0)
    taken = []
    for tenth in range(300):
        burst.note(tenth / 10)
        if burst.take(tenth / 10):
            taken.append(tenth / 10)
    assert taken == [10.0, 20.1]


@given(st.lists(st.floats(0, 100), min_size=1).map(sorted), st.floats(0, 5), st.floats(5, 20))
def test_no_burst_waits_longer_than_its_bounds(times: list[float], quiet_s: float, limit_s: float) -> None:
    burst = Debounce(quiet_s, limit_s)
    for now in times:
        burst.note(now)
    assert burst.due_at() == min(times[-1] + quiet_s, times[0] + limit_s)


# ---------------------------------------------------------------- events or polling

MOUNTS = [
    Mount("/", "ext4"),
    Mount("/home", "btrfs"),
    Mount("/home/anna/nas", "autofs"),
    Mount("/home/anna/nas", "nfs4"),
    Mount("/mnt/c", "9p"),
]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/homes/x", "ext4"),
        ("/home/anna/notes", "btrfs"),
        ("/home/anna/nas", "nfs4"),
        ("/home/anna/nas/deep/er", "nfs4"),
        ("/mnt/c/Users", "9p"),
    ],
)
def test_the_file_system_is_that_of_the_innermost_mount(path: str, kind: str) -> None:
    assert kind_of(path, MOUNTS) == kind
    assert kind_of(path, []) == ""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse", "vboxsf", "virtiofs"])
def test_remote_file_systems_are_polled(kind: str) -> None:
    reason = why_not_watched(kind, 1, folders_left=10, folders_max=10)
    assert reason is not None and kind in reason


@pytest.mark.parametrize("kind", ["ext4", "btrfs", "xfs", "zfs", "tmpfs", "overlay", "fuseblk", "apfs", ""])
def test_local_file_systems_are_watched(kind: str) -> None:
    assert why_not_watched(kind, 10, folders_left=10, folders_max=10) is None


def test_too_many_folders_are_polled_and_the_limit_is_named() -> None:
    reason = why_not_watched("ext4", 11, folders_left=10, folders_max=100)
    assert reason is not None and "11 folders" in reason and "100" in reason and "watch_folders_max" in reason


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/notes/a.md", True),
        ("/notes/A.MD", True),
        ("/notes/sub", True),
        ("/notes", True),
        ("/notes/.gitignore", True),
        ("/notes/sub/pyvenv.cfg", True),
        ("/notes/.a.md.swp", False),
        ("/notes/.#a.md", False),
        ("/notes/a.md~", False),
        ("/notes/4913", False),
    ],
)
def test_only_events_that_can_change_the_notes_matter(path: str, expected: bool) -> None:
    assert matters(path, MD, FOLDERS) is expected


def test_a_note_moves_no_folders() -> None:
    assert not moves_folders("/notes/a.md", FOLDERS)
    assert moves_folders("/notes/sub", FOLDERS) and moves_folders("/notes/sub/.gitignore", FOLDERS)


# ---------------------------------------------------------------- rounds


def test_a_new_root_is_due_and_one_that_was_walked_by_the_clock() -> None:
    rounds = Rounds(PERIODS)
    assert rounds.due([A, B], 0.0) == ["a", "b"]
    rounds.end([A, B], ["a"], 0.0)
    assert rounds.due([A, B], 14.9) == ["b"]
    assert rounds.due([A, B], 15.0) == ["a", "b"]


def test_a_watched_root_is_due_when_it_changed_and_seldom_by_the_clock() -> None:
    rounds = Rounds(PERIODS)
    assert rounds.told([watched(A)]), "a new watch tells of a change: what came before it is seen by nobody else"
    rounds.begin(["a"])
    rounds.end([A], ["a"], 0.0)
    assert not rounds.told([watched(A)])
    assert rounds.due([A], 299.0) == []
    assert rounds.told([watched(A, 2)])
    assert rounds.due([A], 1.0) == ["a"]
    rounds.begin(["a"])
    rounds.end([A], ["a"], 1.0)
    assert rounds.due([A], 300.9) == [] and rounds.due([A], 301.0) == ["a"]


def test_a_root_whose_watch_is_lost_is_polled_from_then_on() -> None:
    rounds = Rounds(PERIODS)
    rounds.told([watched(A)])
    rounds.begin(["a"])
    rounds.end([A], ["a"], 0.0)
    rounds.told([RootWatch(source_id="a", reason="lost", changes=1)])
    assert rounds.due([A], 15.0) == ["a"]


def test_a_change_during_a_walk_is_for_the_next_one() -> None:
    rounds = Rounds(PERIODS)
    rounds.told([watched(A)])
    rounds.begin(["a"])
    rounds.told([watched(A, 2)])
    rounds.end([A], ["a"], 0.0)
    assert rounds.due([A], 0.0) == ["a"]


def test_a_scan_that_failed_is_made_again() -> None:
    rounds = Rounds(PERIODS)
    rounds.end([A], ["a"], 0.0)
    rounds.begin(["a"])
    rounds.changed(["a"])
    assert rounds.due([A], 1.0) == ["a"]


def test_a_walk_that_takes_long_is_asked_for_and_not_begun_again() -> None:
    rounds = Rounds(PERIODS)
    rounds.end([A, B], ["a", "b"], 0.0, unfinished=["a"])
    assert not rounds.is_waiting(0.9) and rounds.is_waiting(1.0)
    assert rounds.due([A, B], 100.0) == ["b"]
    rounds.end([A, B], [], 1.0)
    assert not rounds.is_waiting(100.0) and rounds.due([A], 16.0) == ["a"]


def test_a_slow_root_takes_its_share_of_the_time_and_no_more() -> None:
    rounds = Rounds(PERIODS)
    rounds.end([A], ["a"], 0.0, took_s={"a": 3.0})
    assert rounds.due([A], CLOCK_FACTOR * 3.0 - 0.1) == [] and rounds.due([A], CLOCK_FACTOR * 3.0) == ["a"]
    rounds.changed(["a"])
    assert rounds.due([A], CHANGE_FACTOR * 3.0 - 0.1) == [] and rounds.due([A], CHANGE_FACTOR * 3.0) == ["a"]


def test_a_root_that_was_added_anew_elsewhere_is_another_root() -> None:
    rounds = Rounds(PERIODS)
    rounds.end([A], ["a"], 0.0)
    moved = SourceRoot(source_id="a", path="/elsewhere", name="a", added_at=2)
    assert rounds.due([moved], 1.0) == ["a"]


# ---------------------------------------------------------------- large notes


def state(name: str, size: int, age: int) -> tuple[tuple[str, str], NoteState]:
    return ("a", name), NoteState(name, size, 1000 - age, 1, 0o644)


def test_what_is_too_large_waits_and_the_newest_of_the_rest_go_first() -> None:
    notes = [state("huge", 100, 0), state("new", 5, 1), state("old", 5, 9), state("middle", 5, 5)]
    assert {name for _, name in beyond(notes, note_bytes_max=10, bytes_max=10)} == {"huge", "old"}
    assert {name for _, name in beyond(notes, note_bytes_max=10, bytes_max=1000)} == {"huge"}
    assert beyond(notes, note_bytes_max=1000, bytes_max=1000) == set()
    assert {name for _, name in too_large(notes, 5)} == {"huge"}


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=20), st.integers(1, 50), st.integers(50, 200)
)
def test_what_is_read_fits_and_nothing_small_waits_without_need(
    sizes: list[tuple[int, int]], note_max: int, total_max: int
) -> None:
    notes = [state(str(number), size, age) for number, (size, age) in enumerate(sizes)]
    waiting = beyond(notes, note_bytes_max=note_max, bytes_max=total_max)
    read = sum(note.size for key, note in notes if key not in waiting)
    assert read <= total_max
    for key, note in notes:
        if key in waiting and note.size <= note_max:
            assert read + note.size > total_max
