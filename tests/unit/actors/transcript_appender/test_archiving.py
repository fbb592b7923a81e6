"""A list takes the place of a sealed segment: what it still knows, what it refuses, and a kill at any step."""

import shutil
import threading
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.errors import Conflict, NotFound
from actors.messages.archives import (
    ArchiveFile,
    FindArchived,
    ListSegments,
    PageWholeEvents,
    RetireSegment,
    SegmentInfo,
    SegmentList,
    WholeEvents,
)
from actors.messages.base import Done, Row, Rows
from actors.messages.transcript_appender import EventPage, GetEvent, PageEvents
from actors.transcript_appender.catalogue import Book
from tests.unit.actors.transcript_appender.segment_kit import (
    Asks,
    RoomClient,
    append,
    catalogue,
    draft,
    event,
    everything,
    found,
    history,
    require_right,
    room,
    states,
    status,
)
from tests.unit.actors.transcript_appender.steps import killed_at

SMALL = 128 * 1024
STEPS_MAX = 200


def filled(folder: Path, count: int) -> dict[str, int]:
    """Fill a folder with several segments; return request_id → seq."""
    with room(folder, bytes_max=SMALL) as made:
        seqs: dict[str, int] = {}
        for first in range(0, count, 10):
            part = range(first, first + 10)
            given = append(RoomClient(made), *(draft(n, event_id=f"e{n}") for n in part))
            seqs.update(zip((f"r{n}" for n in part), given, strict=True))
        return seqs


def segments(client: Asks) -> list[SegmentInfo]:
    return client.call(ListSegments(), SegmentList).segments


def archive_of(segment: SegmentInfo, **changes: object) -> ArchiveFile:
    """Return an archive as the builder would have sealed it."""
    assert segment.last_seq is not None
    sealed = ArchiveFile(
        name=f"events-{segment.number}.parquet",
        bytes=1000,
        sha256="0" * 64,
        digest="1" * 64,
        rows=segment.last_seq - segment.first_seq + 1,
        first_seq=segment.first_seq,
        last_seq=segment.last_seq,
        first_ts=1,
        last_ts=2,
    )
    return msgspec.structs.replace(sealed, **changes)


def retire(client: Asks, segment: SegmentInfo, **changes: object) -> None:
    client.call(RetireSegment(number=segment.number, archive=archive_of(segment, **changes)), Done)


def archived(client: Asks, **members: Any) -> list[dict[str, Any]]:
    page = client.call(FindArchived(**{"limit": 500, **members}), Rows)
    return msgspec.json.decode(page.rows, type=list[dict[str, Any]])


def test_a_list_takes_the_place_of_a_segment(tmp_path: Path) -> None:
    seqs = filled(tmp_path, 400)
    with room(tmp_path) as made:
        client = RoomClient(made)
        before = everything(client)
        second = segments(client)[1]
        gone = range(second.first_seq, (second.last_seq or 0) + 1)
        size = (tmp_path / "00000002.db").stat().st_size
        retire(client, second)
        assert states(tmp_path)[:3] == ["sealed", "archived", "sealed"]
        assert not (tmp_path / "00000002.db").exists()
        assert 0 < (tmp_path / "archived" / "00000002.db").stat().st_size < size

        left = {seq: row for seq, row in before.items() if seq not in gone}
        assert everything(client) == left
        require_right(left, seqs)
        assert status(client)["events"] == len(left)
        assert made.segments.gaps() == [(gone.start, gone.stop - 1)]
        assert client.call(PageEvents(after=0, until=400, limit=999, bytes_max=1 << 30), EventPage).count == len(left)
        assert found(client, "common").behind == 0
        hits = {hit.seq for hit in found(client, f"word{gone.start}").found}
        assert not hits & set(gone), "what is archived is found by no search"

        again = [draft(seq - 1, event_id=f"e{seq - 1}") for seq in (gone.start, gone.stop - 1)]
        assert append(client, *again) == [gone.start, gone.stop - 1], "a repetition is recognised"
        assert append(client, draft(gone.start - 1, event_id=None)) == [gone.start], "by its request as well"
        with pytest.raises(NotFound, match=r"is archived, in events-2\.parquet"):
            client.call(GetEvent(event_id=f"e{gone.start - 1}"), Row)
        with pytest.raises(NotFound, match="there is no event"):
            client.call(GetEvent(event_id=f"e{gone.start - 1}", tenant="another"), Row)
        assert event(client, "e0") is not None

        rows = archived(client)
        assert [row["seq"] for row in rows] == list(gone)
        assert "content" not in rows[0] and rows[0]["archive"] == "events-2.parquet"
        assert rows[0]["content_hash"] == before[gone.start]["content_hash"]
    with room(tmp_path, acknowledged=400) as made:
        assert everything(RoomClient(made)) == left
        assert append(RoomClient(made), *again) == [gone.start, gone.stop - 1]
        assert append(RoomClient(made), draft(400)) == [401]


def test_a_session_says_what_of_it_is_archived_and_counts_it_still(tmp_path: Path) -> None:
    filled(tmp_path, 400)
    with room(tmp_path) as made:
        client = RoomClient(made)
        before = status(client)["sessions"]
        first = segments(client)[0]
        retire(client, first)
        _, page = history(client, "s0", after_seq=0, limit=5)
        assert [code for code, _ in page.degraded] == ["archived"]
        assert "events of the session are archived, in events-1.parquet" in page.degraded[0][1]
        _, page = history(client, "s0", after_seq=first.last_seq, limit=5)
        assert page.degraded == ()
        _, page = history(client, "unknown", after_seq=0, limit=5)
        assert page.degraded == ()
        assert status(client)["sessions"] == before


def test_archived_events_are_found_by_what_is_known_of_them(tmp_path: Path) -> None:
    filled(tmp_path, 300)
    with room(tmp_path) as made:
        client = RoomClient(made)
        first, second = segments(client)[:2]
        retire(client, second)
        retire(client, first)
        assert second.last_seq is not None
        everything_archived = [row["seq"] for row in archived(client)]
        assert everything_archived == list(range(1, second.last_seq + 1))
        by_pages: list[int] = []
        while rows := archived(client, after_seq=by_pages[-1] if by_pages else 0, limit=37):
            by_pages += [row["seq"] for row in rows]
        assert by_pages == everything_archived
        assert [row["event_id"] for row in archived(client, event_id="e7")] == ["e7"]
        assert {row["session_id"] for row in archived(client, session_id="s1")} == {"s1"}
        assert archived(client, tenant="another") == []
        assert archived(client, kind="tool_call") == []
        times = [row["ts"] for row in archived(client, actor="user")]
        assert times == sorted(times)


def test_what_does_not_fit_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    filled(tmp_path, 200)
    with room(tmp_path) as made:
        client = RoomClient(made)
        before = everything(client)
        first, active = segments(client)[0], segments(client)[-1]
        for changes in ({"rows": 3}, {"first_seq": 2}, {"last_seq": 5}):
            with pytest.raises(Conflict, match="archiving refused"):
                retire(client, first, **changes)
        with pytest.raises(Conflict, match="only a sealed one is archived"):
            retire(client, active)
        with pytest.raises(NotFound, match="there is no segment 99"):
            client.call(RetireSegment(number=99, archive=archive_of(first)), Done)
        with pytest.raises(Conflict, match="not a sealed one"):
            client.call(PageWholeEvents(number=active.number, after=0, limit=1, bytes_max=1), WholeEvents)
        assert everything(client) == before
        retire(client, first)
        retire(client, first)  # again: nothing changes
        assert states(tmp_path)[0] == "archived"


def test_a_segment_is_paged_whole(tmp_path: Path) -> None:
    filled(tmp_path, 200)
    with room(tmp_path) as made:
        client = RoomClient(made)
        first = segments(client)[0]
        rows: list[dict[str, Any]] = []
        after, more = 0, True
        while more:
            page = client.call(PageWholeEvents(number=1, after=after, limit=23, bytes_max=4000), WholeEvents)
            rows += msgspec.msgpack.decode(page.rows, type=list[dict[str, Any]])
            assert page.last_seq > after
            after, more = page.last_seq, page.more
        assert [row["seq"] for row in rows] == list(range(1, (first.last_seq or 0) + 1))
        assert rows[3]["content"] == draft(3).content
        assert rows[3]["request_id"] == "r3"
        assert rows[3]["tags"] == '["t"]'


def test_a_kill_at_any_step_leaves_the_segment_or_the_list(tmp_path: Path) -> None:
    folder = tmp_path / "room"
    filled(folder, 20)
    with room(folder, bytes_max=1) as made:
        append(RoomClient(made), draft(20))
        before = everything(RoomClient(made))

    def work(copy: Path) -> None:
        with room(copy) as made:
            retire(RoomClient(made), segments(RoomClient(made))[0])

    seen = set()
    for step in range(1, STEPS_MAX):
        copy = tmp_path / "copies" / str(step)
        shutil.copytree(folder, copy)
        died = killed_at(step, partial(work, copy))
        with room(copy, acknowledged=21) as made:
            client = RoomClient(made)
            seen.add(states(copy)[0])
            if states(copy)[0] == "archived":
                assert len(archived(client)) == 20
                assert sorted(everything(client)) == [21]
                assert not list(copy.glob("00000001.db*"))
            else:
                assert everything(client) == before
            assert append(client, draft(7, event_id="e7"), draft(20)) == [8, 21]
            retire(client, segments(client)[0])
            assert len(archived(client)) == 20
        if not died:
            assert seen == {"sealed", "archived"}
            return
    raise AssertionError("it never got through")


def test_a_lost_catalogue_is_made_again_with_what_is_archived(tmp_path: Path) -> None:
    filled(tmp_path, 300)
    with room(tmp_path) as made:
        retire(RoomClient(made), segments(RoomClient(made))[0])
        before = everything(RoomClient(made))
    archive = catalogue(tmp_path).segments[0].archive
    Book(tmp_path).path.unlink()
    with room(tmp_path, acknowledged=300) as made:
        assert states(tmp_path)[0] == "archived"
        assert catalogue(tmp_path).segments[0].archive == archive
        assert everything(RoomClient(made)) == before


def test_a_lost_list_is_said_and_costs_only_what_it_knew(tmp_path: Path) -> None:
    filled(tmp_path, 300)
    with room(tmp_path) as made:
        retire(RoomClient(made), segments(RoomClient(made))[0])
        before = everything(RoomClient(made))
    (tmp_path / "archived" / "00000001.db").unlink()
    with room(tmp_path, acknowledged=300) as made:
        assert everything(RoomClient(made)) == before
        assert catalogue(tmp_path).segments[0].reason == "the list of its events is lost"
        assert catalogue(tmp_path).segments[0].archive is not None, "the archive is known all the same"
        assert archived(RoomClient(made)) == []


def test_who_reads_while_segments_are_archived_is_served(tmp_path: Path) -> None:
    """A lane that began before a segment was archived, and had not opened it yet, goes on without it."""
    filled(tmp_path, 600)
    with room(tmp_path) as made:
        client, ended = RoomClient(made), threading.Event()
        failed: list[BaseException] = []
        looks = 0

        def look() -> None:
            nonlocal looks
            while not ended.is_set():
                try:
                    history(client, "s0", after_seq=0)
                    found(client, "common")
                    looks += 1
                except BaseException as error:
                    failed.append(error)
                    return

        reader = threading.Thread(target=look)
        reader.start()
        try:
            for segment in segments(client)[:-1]:
                retire(client, segment)
        finally:
            ended.set()
            reader.join(60)
        assert not failed
        assert looks
        assert set(states(tmp_path)[:-1]) == {"archived"}
