"""A damaged segment is sealed as it is and a new one started: whatever was damaged, and whenever."""

import dataclasses
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.child import EXIT_CRASH
from actors.errors import BulkheadError, Quarantined, StoreBroken
from actors.messages.transcript_appender import (
    AppendEvents,
    AppendResult,
    EventPage,
    PageEvents,
    SessionPage,
    SessionsSince,
)
from actors.settings import TranscriptAppenderSettings
from actors.transcript_appender.catalogue import Book, Suspicion
from actors.transcript_appender.examine import Expected, examine
from actors.transcript_appender.store import file_kind
from tests.unit.actors.room_kit import killed, refused_start
from tests.unit.actors.transcript_appender import segment_kit as kit
from tests.unit.actors.transcript_appender.segment_kit import (
    RoomClient,
    append,
    catalogue,
    digests,
    draft,
    everything,
    filled,
    found,
    history,
    require_right,
    room,
    settle,
    states,
    status,
    worker,
)
from tests.worker_client import WorkerClient

IN_FILE = [
    kit.zero_header,
    kit.zero_first_page,
    kit.garble_middle_page,
    kit.garble_last_page,
    kit.truncate,
    kit.truncate_to_nothing,
    kit.delete,
]
IN_WAL = [kit.zero_wal, kit.truncate_wal, kit.delete_wal, kit.delete]
# How many of 200 events can still be read after it, at least.
READABLE: dict[kit.Damage, int] = {
    kit.zero_header: 200,
    kit.zero_first_page: 200,
    kit.garble_middle_page: 180,
    kit.garble_last_page: 180,
    kit.truncate: 1,
}


def check_sealed(folder: Path, seqs: dict[str, int], damage: kit.Damage, *, acknowledged: int = 0) -> None:
    """Start on a damaged segment; assert all that must hold then."""
    path = folder / "00000001.db"
    before = digests(path)
    with worker(folder, acknowledged=acknowledged) as client:
        (new,) = append(client, draft(1000))
        assert new > max(seqs.values())
        assert states(folder) == ["damaged", "active"]
        assert new == catalogue(folder).active.first_seq
        assert "segment 00000001.db is sealed as damaged: " in str(client.ready.info["degraded"])
        events = everything(client)
        assert new in events
        require_right(events, {**seqs, "r1000": new})
        assert len(events) - 1 >= READABLE.get(damage, 0)
        readable = {seq for seq in events if seq != new}
        _, page = history(client, "s0")
        assert [code for code, _ in page.degraded] == ["segment_damaged"]
        assert [code for code, _ in found(client, "common").degraded] == ["segment_damaged"]
        assert [each.seq for each in found(client, "word1000").found][:1] == [new]
        for request_id, seq in list(seqs.items())[::40]:
            if seq in readable:
                again = client.call(AppendEvents(events=(draft(int(request_id[1:])),)), AppendResult).results[0]
                assert (again.seq, again.deduplicated) == (seq, True)
        values = status(client)
        assert values["events"] == len(events)
        assert values["segments_damaged"] == 1
    assert digests(path) == before, "the damaged file stays as it is"
    with worker(folder) as client:  # and it stays so
        assert states(folder) == ["damaged", "active"]
        assert append(client, draft(1001)) == [new + 1]
        assert everything(client).keys() == {*events, new + 1}
    assert digests(path) == before


@pytest.mark.parametrize("damage", IN_FILE)
def test_a_file_that_was_damaged_while_stopped_is_sealed(tmp_path: Path, damage: kit.Damage) -> None:
    seqs = filled(tmp_path, 200)
    settle(tmp_path / "00000001.db")
    damage(tmp_path / "00000001.db")
    check_sealed(tmp_path, seqs, damage)


@pytest.mark.parametrize("damage", IN_WAL)
def test_a_wal_that_was_damaged_while_stopped_is_missed(tmp_path: Path, damage: kit.Damage) -> None:
    seqs = filled(tmp_path, 200)
    damage(tmp_path / "00000001.db")
    check_sealed(tmp_path, seqs, damage)


@pytest.mark.parametrize("damage", [*IN_FILE, *IN_WAL])
def test_damage_while_it_runs_is_sealed_by_the_next_process(tmp_path: Path, damage: kit.Damage) -> None:
    """The index knows nothing of the last events; the daemon does, and tells the new worker."""
    first = filled(tmp_path, 100)
    if damage in IN_FILE:
        settle(tmp_path / "00000001.db")
    client = worker(tmp_path)
    seqs = {**first, "r500": append(client, draft(500))[0]}
    if damage in IN_FILE:
        kit.delete_wal(tmp_path / "00000001.db")
    damage(tmp_path / "00000001.db")
    killed(client)
    check_sealed_loosely(tmp_path, seqs)


def check_sealed_loosely(folder: Path, seqs: dict[str, int]) -> None:
    before = digests(folder / "00000001.db")
    with worker(folder, acknowledged=max(seqs.values())) as client:
        (new,) = append(client, draft(1000))
        assert new > max(seqs.values())
        assert states(folder) == ["damaged", "active"]
        require_right(everything(client), {**seqs, "r1000": new})
    assert digests(folder / "00000001.db") == before


def test_a_tail_that_a_power_cut_took_is_missed_by_what_the_daemon_remembers(tmp_path: Path) -> None:
    seqs = filled(tmp_path, 40, indexed=False)
    settle(tmp_path / "00000001.db")
    shorter = (tmp_path / "00000001.db").read_bytes()
    seqs |= filled(tmp_path, 20, start=40, indexed=False)
    kit.delete(tmp_path / "00000001.db")
    (tmp_path / "00000001.db").write_bytes(shorter)
    for file in tmp_path.glob("keywords.db*"):
        file.unlink()
    with worker(tmp_path, acknowledged=60) as client:
        (new,) = append(client, draft(1000))
        assert new > 60
        assert "ends at event 40, but events up to 60 were acknowledged" in str(client.ready.info["degraded"])
        events = everything(client)
        assert sorted(events) == [*range(1, 41), new]
        require_right(events, {**seqs, "r1000": new})


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit on another process is of Linux")
def test_an_io_error_that_went_away_seals_nothing(tmp_path: Path) -> None:
    seqs = filled(tmp_path, 40)
    client = worker(tmp_path)
    resource.prlimit(client.process.pid, resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
    with pytest.raises(StoreBroken, match="SQLITE_IOERR"):
        append(client, draft(40, content="x" * 400_000))
    assert client.process.wait(10) == EXIT_CRASH
    killed(client)
    with worker(tmp_path, acknowledged=40) as client:
        assert states(tmp_path) == ["active"]
        assert client.ready.info["degraded"] is None
        assert append(client, draft(40)) == [41]
        require_right(everything(client), {**seqs, "r40": 41})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_now_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    filled(tmp_path, 20)
    (tmp_path / "00000001.db").chmod(0)
    assert refused_start(kit.WORKER, kit.setup(tmp_path)).code == StoreBroken.code
    (tmp_path / "00000001.db").chmod(0o600)
    with worker(tmp_path) as client:
        assert states(tmp_path) == ["active"]
        assert append(client, draft(20)) == [21]


def test_a_changed_letter_is_never_served_and_seals_the_segment(tmp_path: Path) -> None:
    seqs = filled(tmp_path, 60)
    settle(tmp_path / "00000001.db")
    kit.flip_bit_of_content(tmp_path / "00000001.db")
    client = worker(tmp_path)
    assert states(tmp_path) == ["active"], "SQLite's checks don't see it"
    with pytest.raises(BulkheadError, match="event 8 is not what was written"):
        history(client, "s1")
    assert client.process.wait(10) != 0
    killed(client)
    with worker(tmp_path, acknowledged=60) as client:
        assert states(tmp_path) == ["damaged", "active"]
        events = everything(client)
        assert sorted(events) == [seq for seq in range(1, 61) if seq != 8]
        require_right(events, seqs)
        assert [each.seq for each in found(client, "word7").found if each.seq < 61 and "word7 " in each.snippet] == []


def read_history(client: WorkerClient) -> None:
    for session in ("s0", "s1", "s2"):
        history(client, session)


def search(client: WorkerClient) -> None:
    found(client, "common")


def append_known_ids(client: WorkerClient) -> None:
    for number in range(200):
        append(client, draft(number))


@pytest.mark.parametrize("use", [read_history, search, append_known_ids])
def test_damage_that_is_met_in_use_ends_the_process_and_is_sealed_by_the_next(
    tmp_path: Path, use: Callable[[WorkerClient], None]
) -> None:
    seqs = filled(tmp_path, 200)
    settle(tmp_path / "00000001.db")
    client = worker(tmp_path)
    kit.garble_all_pages(tmp_path / "00000001.db")
    # Its idle work may meet the damage before the call does; then it leaves without an answer.
    with pytest.raises((StoreBroken, AssertionError, EOFError)):
        use(client)
    assert client.process.wait(10) == EXIT_CRASH
    killed(client)
    suspicion = catalogue(tmp_path).suspicion
    assert suspicion is not None and suspicion.number == 1
    before = digests(tmp_path / "00000001.db")
    with worker(tmp_path, acknowledged=200) as client:
        assert states(tmp_path) == ["damaged", "active"]
        assert catalogue(tmp_path).suspicion is None
        assert append(client, draft(1000)) == [2_000_001]
        require_right(everything(client), {**seqs, "r1000": 2_000_001})
        assert status(client)["keyword_rebuilt"] == 0, "the index was not to blame"
    assert digests(tmp_path / "00000001.db") == before


def test_a_suspicion_that_proves_wrong_is_dropped(tmp_path: Path) -> None:
    filled(tmp_path, 20)
    book = Book(tmp_path)
    for suspicion in (Suspicion(number=1, reason="it looked odd"), Suspicion(number=1, reason="a bit", seq=5)):
        assert book.load()
        book.suspect(suspicion)
        with worker(tmp_path) as client:
            assert client.ready.info["degraded"] is None
        assert catalogue(tmp_path).suspicion is None
        assert states(tmp_path) == ["active"]
    assert book.load()
    book.suspect(Suspicion(number=1, reason="odd for the third time"))
    with worker(tmp_path) as client:
        assert "odd for the third time" in str(client.ready.info["degraded"])
        assert append(client, draft(1000)) == [2_000_001]
        assert len(everything(client)) == 21, "nothing is lost by it"


def test_indexes_that_contradict_their_table_are_found_once_they_are_met(tmp_path: Path) -> None:
    seqs = filled(tmp_path, 60)
    settle(tmp_path / "00000001.db")
    kit.empty_an_index(tmp_path / "00000001.db")
    client = worker(tmp_path)
    assert states(tmp_path) == ["active"], "a quick check does not compare them"
    with pytest.raises(StoreBroken):
        append(client, draft(60))
    assert client.process.wait(10) == EXIT_CRASH
    killed(client)
    with worker(tmp_path, acknowledged=60) as client:
        assert states(tmp_path) == ["damaged", "active"]
        assert append(client, draft(60)) == [2_000_001]
        require_right(everything(client), {**seqs, "r60": 2_000_001})


def test_a_file_that_is_too_large_for_a_quick_check_is_looked_at_when_suspected(tmp_path: Path) -> None:
    filled(tmp_path, 200)
    settle(tmp_path / "00000001.db")
    kit.garble_indexes(tmp_path / "00000001.db")
    path = tmp_path / "00000001.db"
    kind = dataclasses.replace(file_kind(TranscriptAppenderSettings()), check_bytes_max=1)
    expected = Expected(identity=kit.IDENTITY, first_seq=1, floor=200)
    assert examine(path, kind, expected).damage is None
    suspected = expected._replace(suspicion=Suspicion(number=1, reason="a page was malformed"))
    assert "00000001.db" in str(examine(path, kind, suspected).damage)


def test_two_seals_in_a_row_leave_three_segments_that_read_as_one(tmp_path: Path) -> None:
    seqs = filled(tmp_path, 60)
    settle(tmp_path / "00000001.db")
    kit.garble_last_page(tmp_path / "00000001.db")
    seqs |= filled(tmp_path, 60, start=60, acknowledged=60)
    settle(tmp_path / "00000002.db")
    kit.zero_first_page(tmp_path / "00000002.db")
    seqs |= filled(tmp_path, 20, start=120)
    assert states(tmp_path) == ["damaged", "damaged", "active"]
    with worker(tmp_path) as client:
        events = everything(client)
        require_right(events, seqs)
        assert set(seqs.values()) - set(events) <= set(range(1, 61)), "what is lost was in the first one"
        assert len(events) >= 120
        firsts = [each.first_seq for each in catalogue(tmp_path).segments]
        for after in (0, firsts[1] - 1, firsts[2] - 1):
            rows, page = history(client, "s1", after_seq=after, limit=3)
            assert [row["seq"] for row in rows] == sorted(seq for seq in events if seq > after and in_s1(seq, seqs))[:3]
            assert page.more
        backwards: list[int] = []
        before: int | None = None
        while True:
            rows, page = history(client, "s1", before_seq=before, limit=7)
            backwards = [row["seq"] for row in rows] + backwards
            if not page.more:
                break
            before = rows[0]["seq"]
        assert backwards == sorted(seq for seq in events if in_s1(seq, seqs))
        for seq in (min(events), firsts[1], firsts[2]):
            assert kit.event(client, events[seq]["event_id"]) == events[seq]
        assert {each.seq for each in found(client, "word60").found if "word60 " in each.snippet} == {seqs["r60"]}
        # A page that lies in the last segment lacks nothing.
        _, page = history(client, "s1", after_seq=firsts[2] - 1)
        assert page.degraded == ()
        check_builder_pages(client, events)
        check_sessions(client, events)


def test_more_segments_than_sqlite_can_attach_are_searched_as_one(tmp_path: Path) -> None:
    known: dict[str, int] = {}
    for number in range(12):
        with room(tmp_path, acknowledged=max(known.values(), default=0)) as made:
            client = RoomClient(made)
            known[f"r{number}"] = append(client, draft(number, content=f"word{number} common"))[0]
            assert {each.seq for each in found(client, "common").found} == set(known.values())
        if number < 11:
            kit.zero_header(tmp_path / f"{number + 1:08}.db")
    with room(tmp_path) as made:
        client = RoomClient(made)
        assert states(tmp_path) == ["damaged"] * 11 + ["active"]
        for number in (0, 5, 11, 0):
            assert found(client, f"word{number}").found[0].seq == known[f"r{number}"]
        assert len(everything(client)) == 12 == status(client)["events"]
        rows, page = history(client, "s0", before_seq=max(known.values()), limit=2)
        assert [row["seq"] for row in rows] == [known["r6"], known["r9"]]
        assert page.more


def in_s1(seq: int, seqs: dict[str, int]) -> bool:
    return next(int(key[1:]) for key, value in seqs.items() if value == seq) % 3 == 1


def check_builder_pages(client: WorkerClient, events: dict[int, kit.Event]) -> None:
    after, paged = 0, 0
    until = status(client)["seq"]
    assert until == max(events)
    while True:
        page = client.call(PageEvents(after=after, until=until, limit=13, bytes_max=10**6), EventPage)
        paged += page.count
        assert page.last_seq > after or not page.more
        if not page.more:
            break
        after = page.last_seq
    assert paged == len(events) == status(client)["events"]


def check_sessions(client: WorkerClient, events: dict[int, kit.Event]) -> None:
    """The last report of each session has the total over all segments."""
    last: dict[str, tuple[int, int]] = {}
    cursor, more = 0, True
    while more:
        page = client.call(SessionsSince(cursor=cursor, limit=2), SessionPage)
        last.update({each.session_id: (each.last_seq, each.events) for each in page.sessions})
        assert page.cursor > cursor
        cursor, more = page.cursor, page.more
    for session in ("s0", "s1", "s2"):
        mine = [seq for seq, row in events.items() if row["session_id"] == session]
        assert last[session] == (max(mine), len(mine))


def test_the_window_and_the_clock_carry_over_a_seal(tmp_path: Path) -> None:
    client = worker(tmp_path, window_s=3600)
    plain = draft(1, request_id=None, ts=5_000_000)
    future = 4_000_000_000_000_000
    assert append(client, draft(0, ts=future), plain) == [1, 2]
    killed(client)
    settle(tmp_path / "00000001.db")
    kit.zero_header(tmp_path / "00000001.db")
    with worker(tmp_path, window_s=3600, acknowledged=2) as client:
        again = client.call(AppendEvents(events=(plain, draft(7, request_id=None))), AppendResult).results
        assert (again[0].seq, again[0].deduplicated) == (2, True)
        merged = draft(1, request_id="late", ts=5_000_001)
        assert client.call(AppendEvents(events=(merged,)), AppendResult).results[0].seq == 2
        after = draft(1, request_id="late", ts=5_000_000 + 10**13)
        assert client.call(AppendEvents(events=(after,)), AppendResult).results[0].seq == 2, "it stays merged"
        assert not again[1].deduplicated


def test_the_catalogue_is_made_again_from_the_files(tmp_path: Path) -> None:
    seqs = filled(tmp_path, 40)
    settle(tmp_path / "00000001.db")
    kit.garble_middle_page(tmp_path / "00000001.db")
    seqs |= filled(tmp_path, 20, start=40, acknowledged=40)
    before = catalogue(tmp_path)
    (tmp_path / "segments.json").write_bytes(b"{garbage")
    with worker(tmp_path) as client:
        after = catalogue(tmp_path)
        shape = [(each.number, each.state, each.first_seq) for each in before.segments]
        assert [(each.number, each.state, each.first_seq) for each in after.segments] == shape
        require_right(everything(client), seqs)
        assert append(client, draft(60)) == [max(seqs.values()) + 1]


def test_a_folder_of_another_data_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    filled(tmp_path, 20)
    for catalogued in (True, False):
        if not catalogued:
            (tmp_path / "segments.json").unlink()
        crash = refused_start(kit.WORKER, kit.setup(tmp_path, identity="other"))
        assert crash.code == Quarantined.code
        assert "belongs to data directory 'd1', this is 'other'" in crash.error
        assert (tmp_path / "segments.json").exists() == catalogued
    with worker(tmp_path) as client:
        assert append(client, draft(20)) == [21]
        assert states(tmp_path) == ["active"]


def test_a_sealed_segment_that_vanishes_is_marked_and_the_rest_goes_on(tmp_path: Path) -> None:
    filled(tmp_path, 40)
    settle(tmp_path / "00000001.db")
    kit.zero_header(tmp_path / "00000001.db")
    with worker(tmp_path, acknowledged=40) as client:
        assert len(everything(client)) == 40
    kit.delete(tmp_path / "00000001.db")
    with worker(tmp_path) as client:
        assert len(everything(client)) == 40, "its readable copy is still there"
    for file in (tmp_path / "readable").iterdir():
        file.unlink()
    with worker(tmp_path) as client:
        assert everything(client) == {}
        assert append(client, draft(1000))[0] == catalogue(tmp_path).active.first_seq
