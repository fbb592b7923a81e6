"""SIGKILL between the steps of sealing and restoring, and what a restore takes and refuses."""

import shutil
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.errors import BulkheadError, Conflict, InvalidParams, Quarantined
from actors.messages.base import Row
from actors.messages.core_writer import RestoreTruth
from actors.settings import TranscriptAppenderSettings
from actors.transcript_appender.store import file_kind
from tests.unit.actors.transcript_appender import segment_kit as kit
from tests.unit.actors.transcript_appender.segment_kit import (
    Asks,
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
from tests.unit.actors.transcript_appender.steps import killed_at

STEPS_MAX = 100


def restore(client: Asks, path: Path | None) -> dict[str, Any]:
    answer = client.call(RestoreTruth(path=None if path is None else str(path)), Row)
    return msgspec.json.decode(answer.row, type=dict[str, Any])


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Path, dict[str, int]]:
    """Give a folder with a damaged segment that nobody has looked at yet, and beside it a good one."""
    folder = tmp_path / "room"
    seqs = filled(folder, 60)
    settle(folder / "00000001.db")
    shutil.copytree(folder, tmp_path / "good")
    kit.garble_middle_page(folder / "00000001.db")
    return folder, seqs


def test_a_kill_at_any_step_of_sealing_ends_in_the_same_state(
    damaged: tuple[Path, dict[str, int]], tmp_path: Path
) -> None:
    folder, seqs = damaged
    before = digests(folder / "00000001.db")

    def start(copy: Path) -> None:
        with room(copy):
            pass

    for step in range(1, STEPS_MAX):
        copy = tmp_path / "copies" / str(step)
        shutil.copytree(folder, copy)
        died = killed_at(step, partial(start, copy))
        with room(copy) as made:
            client = RoomClient(made)
            assert append(client, draft(1000)) == [2_000_001]
            assert states(copy) == ["damaged", "active"]
            require_right(everything(client), {**seqs, "r1000": 2_000_001})
        assert digests(copy / "00000001.db") == before
        assert sorted(path.name for path in copy.glob("*.db")) == ["00000001.db", "00000002.db", "keywords.db"]
        if not died:
            assert step > 10
            return
    raise AssertionError("it never got through")


def test_a_kill_at_any_step_of_restoring_leaves_the_old_or_the_new_segment(
    damaged: tuple[Path, dict[str, int]], tmp_path: Path
) -> None:
    folder, seqs = damaged
    with room(folder) as made:
        append(RoomClient(made), draft(1000))
    seqs = {**seqs, "r1000": 2_000_001}
    good = tmp_path / "good" / "00000001.db"
    outcomes: set[str] = set()

    def start_and_restore(copy: Path) -> None:
        with room(copy) as made:
            restore(RoomClient(made), good)

    for step in range(1, STEPS_MAX):
        copy = tmp_path / "copies" / str(step)
        shutil.copytree(folder, copy)
        died = killed_at(step, partial(start_and_restore, copy))
        with room(copy) as made:
            client = RoomClient(made)
            state = states(copy)[0]
            outcomes.add(state if died else "restored")
            require_right(everything(client), seqs)
            if state == "damaged":
                assert restore(client, good)["last_seq"] == 60
            assert states(copy) == ["sealed", "active"]
            events = everything(client)
            assert sorted(events) == [*range(1, 61), 2_000_001]
            require_right(events, seqs)
            assert append(client, draft(1001)) == [2_000_002]
        (kept,) = copy.glob("damaged-*/00000001.db")
        assert kept.read_bytes() == (folder / "00000001.db").read_bytes()
        assert not list(copy.glob("restore-*")) and not (copy / "RESTORE").exists()
        if not died:
            assert outcomes == {"damaged", "sealed", "restored"}
            return
    raise AssertionError("it never got through")


def test_a_restored_segment_ends_the_limitation(damaged: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    folder, seqs = damaged
    with worker(folder) as client:
        append(client, draft(1000))
        lacking = len(everything(client))
        assert lacking < 61
        report = restore(client, tmp_path / "good" / "00000001.db")
        assert (report["segment"], report["first_seq"], report["last_seq"]) == ("00000001.db", 1, 60)
        assert report["tables"] == {"events": {"kept": 60, "lost": 0}}
        assert states(folder) == ["sealed", "active"]
        events = everything(client)
        require_right(events, {**seqs, "r1000": 2_000_001})
        assert len(events) == 61 == status(client)["events"]
        assert status(client)["degraded"] is None
        assert status(client)["gaps"] == "61-2000000"
        for session in ("s0", "s1", "s2"):
            assert history(client, session)[1].degraded == ()
        answer = found(client, "common")
        assert answer.degraded == ()
        assert {each.seq for each in found(client, "word30").found if "word30 " in each.snippet} == {31}
        assert append(client, draft(30), draft(1001)) == [31, 2_000_002]
        assert not (folder / "readable" / "00000001.db").exists()
    (folder / "segments.json").unlink()
    with worker(folder) as client:
        assert states(folder) == ["sealed", "active"], "the file itself says that it was restored"
        assert len(everything(client)) == 62


def test_what_could_still_be_read_behind_an_older_backup_is_added_to_it(tmp_path: Path) -> None:
    folder, older = tmp_path / "room", tmp_path / "older.db"
    seqs = filled(folder, 40)
    settle(folder / "00000001.db")
    shutil.copyfile(folder / "00000001.db", older)
    seqs |= filled(folder, 20, start=40)
    settle(folder / "00000001.db")
    zero_pages_of_low_events(folder / "00000001.db")
    with worker(folder) as client:
        before = everything(client)
        assert not {*range(1, 21)} <= set(before)
        assert {*range(41, 61)} <= set(before)
        report = restore(client, older)
        assert (report["last_seq"], report["tables"]) == (60, {"events": {"kept": 60, "lost": 0}})
        events = everything(client)
        assert sorted(events) == list(range(1, 61))
        require_right(events, seqs)
        assert status(client)["events"] == 60
        assert append(client, draft(59), draft(1000)) == [60, 2_000_001]


def zero_pages_of_low_events(path: Path) -> None:
    content = path.read_bytes()
    for at in range(kit.PAGE, len(content), kit.PAGE):
        if content[at] == 13 and b"word5 " in content[at : at + kit.PAGE]:
            kit.zero(path, at, kit.PAGE)


def test_a_backup_that_was_made_by_vacuum_is_taken(damaged: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    folder, seqs = damaged
    connection = sqlite3.connect(tmp_path / "good" / "00000001.db")
    connection.execute("DROP TABLE recent")
    schema = file_kind(TranscriptAppenderSettings()).schema
    connection.executescript(schema[schema.index("CREATE TABLE recent") :])
    connection.execute(f"VACUUM INTO '{tmp_path / 'vacuumed.db'}'")
    connection.close()
    with worker(folder) as client:
        assert restore(client, tmp_path / "vacuumed.db")["last_seq"] == 60
        require_right(everything(client), seqs)
        assert len(everything(client)) == 60


def test_what_is_not_that_segment_is_refused_and_changes_nothing(
    damaged: tuple[Path, dict[str, int]], tmp_path: Path
) -> None:
    folder, _ = damaged
    good = tmp_path / "good" / "00000001.db"

    def made(name: str, sql: str) -> Path:
        path = tmp_path / name
        shutil.copyfile(good, path)
        connection = sqlite3.connect(path)
        connection.execute(sql)
        connection.commit()
        connection.close()
        return path

    cases: list[tuple[Path | None, type[BulkheadError], str]] = [
        (None, InvalidParams, "nothing to salvage"),
        (tmp_path / "nowhere.db", InvalidParams, "is no file"),
        (made("foreign.db", "UPDATE meta SET value = 'd2' WHERE name = 'identity'"), InvalidParams, "'d2'"),
        (made("other.db", "UPDATE meta SET value = 5 WHERE name = 'first_seq'"), Quarantined, "of its last"),
        (made("gap.db", "DELETE FROM events WHERE seq = 50"), Quarantined, "has 59 of its last 60 events"),
        (made("bits.db", "UPDATE events SET content = 'x' WHERE seq = 5"), Quarantined, "event 5 of the file"),
        (made("empty.db", "PRAGMA application_id = 7"), Quarantined, "application_id"),
    ]
    with worker(folder) as client:
        append(client, draft(1000))
        before = (folder / "segments.json").read_bytes(), digests(folder / "00000001.db")
        for path, kind, words in cases:
            with pytest.raises(kind, match=words):
                restore(client, path)
            assert ((folder / "segments.json").read_bytes(), digests(folder / "00000001.db")) == before
        assert not list(folder.glob("restore-*"))
        restore(client, good)
        with pytest.raises(Conflict, match=r"00000001.db, which the file is a copy of, is sealed"):
            restore(client, good)
        assert catalogue(folder).segments[0].reason == "restored"
