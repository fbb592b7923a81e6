"""A full segment is sealed and the next one begun while the process, its readers and its index go on."""

import calendar
import shutil
import threading
from functools import partial
from pathlib import Path

import msgspec
import pytest

from actors.child import StoreLost
from actors.messages.transcript_appender import AppendEvents, AppendResult, EventPage, PageEvents
from actors.sql.database import file_bytes, wal_bytes
from actors.transcript_appender import rotation
from actors.transcript_appender.catalogue import Book, Segment
from actors.transcript_appender.worker import TranscriptRoom
from tests.unit.actors.room_kit import killed
from tests.unit.actors.transcript_appender.segment_kit import (
    RoomClient,
    append,
    catalogue,
    draft,
    everything,
    found,
    history,
    require_right,
    room,
    setup,
    states,
    status,
    worker,
)
from tests.unit.actors.transcript_appender.steps import killed_at

SMALL = 128 * 1024
STEPS_MAX = 100


def at(*date: int) -> int:
    """Return a time in µs."""
    return calendar.timegm((*date, 0, 0, 0)) * 1_000_000


def filled(client: RoomClient, numbers: range) -> dict[str, int]:
    """Append events, a few in a message; return request_id → seq."""
    seqs: dict[str, int] = {}
    for first in range(numbers.start, numbers.stop, 10):
        part = range(first, min(first + 10, numbers.stop))
        seqs.update(zip((f"r{n}" for n in part), append(client, *(draft(n) for n in part)), strict=True))
    return seqs


@pytest.mark.parametrize(
    ("since", "now", "due"),
    [
        (at(2026, 11, 1), at(2026, 11, 30), False),
        (at(2026, 11, 30), at(2026, 12, 1), True),
        (at(2026, 12, 31), at(2027, 1, 1), True),
        (at(2026, 12, 1), at(2026, 11, 30), False),  # the clock went back
        (0, at(2026, 11, 30), False),
    ],
)
def test_a_segment_is_full_by_its_size_or_at_the_end_of_its_month(since: int, now: int, due: bool) -> None:
    segment = Segment(number=1, state="active", first_seq=1, at=since)
    assert rotation.is_due(segment, size=99, bytes_max=100, now_us=now) is due
    assert rotation.is_due(segment, size=100, bytes_max=100, now_us=now)


def test_everything_goes_on_over_many_segments(tmp_path: Path) -> None:
    with room(tmp_path, bytes_max=SMALL) as made:
        client = RoomClient(made)
        seqs = filled(client, range(1000))
        count = len(catalogue(tmp_path).segments)
        assert count > 4
        assert states(tmp_path) == ["sealed"] * (count - 1) + ["active"]
        assert list(seqs.values()) == list(range(1, 1001)), "the seqs have no gap"
        require_right(everything(client), seqs)
        assert append(client, *(draft(n) for n in (3, 500, 999))) == [4, 501, 1000], "a repetition is found"
        assert status(client)["events"] == 1000
        assert made.segments.gaps() == []
        for number in (0, 400, 999):
            assert found(client, f"word{number}").found[0].seq == number + 1
        assert found(client, "common").behind == 0
        page = RoomClient(made).call(PageEvents(after=0, until=1000, limit=5000, bytes_max=1 << 30), EventPage)
        assert (page.count, page.last_seq, page.more) == (1000, 1000, False)
    with room(tmp_path, acknowledged=1000) as made:
        assert states(tmp_path)[-1] == "active"
        require_right(everything(RoomClient(made)), seqs)
        assert append(RoomClient(made), draft(1000)) == [1001]


def test_a_sealed_segment_ends_as_one_file(tmp_path: Path) -> None:
    with room(tmp_path, bytes_max=SMALL) as made:
        seqs = filled(RoomClient(made), range(600))
        sealed = [tmp_path / each.name for each in catalogue(tmp_path).segments[:-1]]
        assert len(sealed) > 2
        made._upkeep_at = 0.0
        for _ in range(20):
            made.idle("write")
        assert [wal_bytes(path) for path in sealed] == [0] * len(sealed)
        before = [path.read_bytes() for path in sealed]
        seqs |= filled(RoomClient(made), range(600, 700))
        assert [path.read_bytes() for path in sealed] == before, "nothing is written to it any more"
        require_right(everything(RoomClient(made)), seqs)
        total = status(RoomClient(made))["sealed_bytes"]
    assert total == sum(map(file_bytes, (tmp_path / each.name for each in catalogue(tmp_path).segments[:-1])))


def test_an_empty_segment_is_not_sealed(tmp_path: Path) -> None:
    with room(tmp_path, bytes_max=1) as made:
        for _ in range(3):
            made.idle("write")
        assert states(tmp_path) == ["active"]
        append(RoomClient(made), draft(1))
        for _ in range(2):
            made._rotate_at = 0.0
            made.idle("write")
        assert states(tmp_path) == ["sealed", "active"]


def test_an_empty_segment_of_an_earlier_month_is_of_this_one(tmp_path: Path) -> None:
    with room(tmp_path) as made:
        made._book.change(lambda now: now.with_segment(msgspec.structs.replace(now.active, at=at(2020, 1, 1))))
        for number in range(3):
            append(RoomClient(made), draft(number))
        assert states(tmp_path) == ["active"]


def test_a_new_month_begins_a_new_segment(tmp_path: Path) -> None:
    with room(tmp_path) as made:
        append(RoomClient(made), draft(1))
        made._book.change(lambda now: now.with_segment(msgspec.structs.replace(now.active, at=at(2020, 1, 1))))
        append(RoomClient(made), draft(2))
        append(RoomClient(made), draft(3))
        assert states(tmp_path) == ["sealed", "active"]
        assert catalogue(tmp_path).segments[0].last_seq == 1


def test_readers_see_each_event_once_while_segments_are_sealed(tmp_path: Path) -> None:
    """Pages are read on their lane all the time: none has a hole, or an event twice."""
    with room(tmp_path, bytes_max=SMALL) as made:
        client, ended = RoomClient(made), threading.Event()
        wrong: list[list[int]] = []
        looks = 0

        def look() -> None:
            nonlocal looks
            while not ended.is_set():
                page = client.call(PageEvents(after=0, until=10**6, limit=10**4, bytes_max=1 << 30), EventPage)
                rows, _ = history(client, "s0")
                seqs = [row["seq"] for row in rows]
                if page.count != page.last_seq or seqs != sorted(set(seqs)):
                    wrong.append([page.count, page.last_seq, *seqs])
                looks += 1

        reader = threading.Thread(target=look)
        reader.start()
        try:
            filled(client, range(800))
        finally:
            ended.set()
            reader.join(60)
        assert not wrong
        assert looks > 3
        assert len(catalogue(tmp_path).segments) > 3


def test_a_kill_at_any_step_of_a_rotation_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "room"
    with room(folder) as made:
        seqs = filled(RoomClient(made), range(40))

    def rotate(copy: Path) -> None:
        with room(copy, bytes_max=1) as made:
            append(RoomClient(made), draft(40))

    for step in range(1, STEPS_MAX):
        copy = tmp_path / "copies" / str(step)
        shutil.copytree(folder, copy)
        died = killed_at(step, partial(rotate, copy))
        with room(copy, acknowledged=40) as made:
            client = RoomClient(made)
            assert append(client, draft(40), draft(41)) == [41, 42]
            require_right(everything(client), {**seqs, "r40": 41, "r41": 42})
            assert len(everything(client)) == 42
            assert "damaged" not in states(copy)
        if not died:
            assert step > 10
            assert states(copy) == ["sealed", "active"]
            return
    raise AssertionError("it never got through")


def test_who_was_replaced_without_knowing_it_seals_nothing(tmp_path: Path) -> None:
    """Its successor has opened the transcript; the catalogue stays as that one knows it."""
    with room(tmp_path) as made:
        append(RoomClient(made), draft(1))
        with room(tmp_path) as successor:
            assert append(RoomClient(successor), draft(2)) == [2]
            known = catalogue(tmp_path)
            made.setup = setup(tmp_path, bytes_max=1)
            with pytest.raises(StoreLost):
                made.idle("write")
            assert catalogue(tmp_path) == known
            assert append(RoomClient(successor), draft(3)) == [3]


def test_a_catalogue_that_changes_while_the_transcript_is_opened_is_noticed(tmp_path: Path) -> None:
    with room(tmp_path) as made:
        append(RoomClient(made), draft(1))
    late = TranscriptRoom(setup(tmp_path))
    late._prepare_files()
    with room(tmp_path, bytes_max=1) as made:
        append(RoomClient(made), draft(2))
        assert not late._book.is_current()


def test_a_catalogue_that_can_not_be_written_leaves_the_active_segment(tmp_path: Path) -> None:
    with room(tmp_path, bytes_max=1) as made:
        client = RoomClient(made)
        append(client, draft(1))
        obstacle = tmp_path / "segments.tmp"
        obstacle.mkdir()
        made._rotate_at = 0.0
        assert append(client, draft(2), draft(3)) == [2, 3]
        assert states(tmp_path) == ["active"]
        assert (tmp_path / "00000002.db").exists(), "it was tried"
        obstacle.rmdir()
        made._rotate_at = 0.0
        assert append(client, draft(4)) == [4]
        assert states(tmp_path) == ["sealed", "active"]
        assert len(everything(client)) == 4


def test_a_worker_that_is_killed_while_it_fills_segments_loses_nothing(tmp_path: Path) -> None:
    known: dict[str, int] = {}
    for life in range(4):
        client = worker(tmp_path, acknowledged=max(known.values(), default=0), bytes_max=SMALL)
        for first in range(life * 200, life * 200 + 200, 10):
            drafts = tuple(draft(number) for number in range(first, first + 10))
            results = client.call(AppendEvents(events=drafts), AppendResult).results
            known.update({f"r{first + index}": result.seq for index, result in enumerate(results)})
        killed(client)
    with worker(tmp_path, acknowledged=max(known.values()), bytes_max=SMALL) as client:
        events = everything(client)
        assert len(events) == len(known) == status(client)["events"]
        require_right(events, known)
        assert len(catalogue(tmp_path).segments) > 2
        assert "damaged" not in states(tmp_path)


def test_the_catalogue_of_many_segments_is_made_again_from_the_files(tmp_path: Path) -> None:
    with room(tmp_path, bytes_max=SMALL) as made:
        seqs = filled(RoomClient(made), range(500))
    before = [(each.number, each.state, each.first_seq, each.last_seq) for each in catalogue(tmp_path).segments]
    Book(tmp_path).path.unlink()
    with room(tmp_path, acknowledged=500) as made:
        after = [(each.number, each.state, each.first_seq, each.last_seq) for each in catalogue(tmp_path).segments]
        assert after == before
        require_right(everything(RoomClient(made)), seqs)
