"""Core on damaged files: what is still served, what is refused, and that nobody touches what is damaged."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.core_writer.store import VERSIONS
from actors.core_writer.worker import CoreRoom
from actors.errors import NotFound, Quarantined
from actors.messages.base import Candidates, Row, Rows, Statistics
from actors.messages.core_writer import (
    CoreStatus,
    GetSession,
    GetUnit,
    ListUnits,
    OpenSession,
    PageUnits,
    PutUnit,
    SearchUnits,
)
from actors.settings import RoomSetup
from actors.sql.set_aside import FINDING
from tests.unit.actors.room_kit import ask, core, refused_start

WORKER = "actors.core_writer.worker"
PAGE = 4096
UNITS = 40
Damage = Callable[[Path], None]


def put(room: CoreRoom, number: int, text: str | None = None) -> None:
    message = PutUnit(unit_id=f"u{number}", type="plan", scope="user", text=text or f"text {number} " + "x" * 900)
    ask(room, message, Row)


def get(room: CoreRoom, number: int) -> dict[str, Any]:
    return msgspec.json.decode(ask(room, GetUnit(unit_id=f"u{number}"), Row).row, type=dict[str, Any])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a room with forty units and a session, checkpointed: everything stands in core.db itself."""
    path = tmp_path / "core_writer"
    with core(path, identity="mine") as room:
        ask(room, OpenSession(session_id="s"), Row)
        for number in range(UNITS):
            put(room, number)
    assert not (path / "core.db-wal").exists()
    return path


def files(folder: Path) -> dict[str, bytes]:
    """Return the bytes of the truth, which nobody may change."""
    return {name: (folder / name).read_bytes() for name in ("core.db", "core.db-wal") if (folder / name).exists()}


def content(folder: Path) -> dict[str, bytes]:
    """Return them without a WAL that is empty: SQLite makes one when it looks."""
    return {name: data for name, data in files(folder).items() if data}


def root_page(folder: Path, table: str) -> int:
    with closing(sqlite3.connect(f"file:{folder / 'core.db'}?mode=ro", uri=True)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    return int(page)


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def damage_table(folder: Path, table: str) -> None:
    overwrite(folder / "core.db", (root_page(folder, table) - 1) * PAGE, b"\xff" * PAGE)


def lose_a_change(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "core.db")) as connection:
        connection.execute("DELETE FROM units WHERE core_seq = 40")
        connection.commit()


def lose_one_in_the_tail(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "core.db")) as connection:
        connection.execute("DELETE FROM units WHERE core_seq = 30")
        connection.commit()


def foreign_mark(folder: Path) -> None:
    overwrite(folder / "core.db", 68, b"\0\0\0\7")


READABLE: dict[str, tuple[Damage, str]] = {
    "a page of another table": (lambda folder: damage_table(folder, "requests"), "is damaged"),
    "a page of an index": (lambda folder: damage_table(folder, "sessions_present"), "is damaged"),
    "the mark of the application": (foreign_mark, "application_id is 0x7"),
    "the last change": (lose_a_change, "counts 40 changes of units, the last one there is 39"),
    "a change before the last": (lose_one_in_the_tail, "has 39 of its last 40 changes"),
}


@pytest.mark.parametrize("kind", READABLE)
def test_what_can_be_read_is_served_and_nothing_is_written(folder: Path, kind: str) -> None:
    damage, words = READABLE[kind]
    damage(folder)
    before = content(folder)
    with core(folder, identity="mine") as room:
        assert get(room, 7)["text"].startswith("text 7 ")
        assert len(msgspec.json.decode(ask(room, ListUnits(limit=5), Rows).rows)) == 5
        with pytest.raises(Quarantined, match=words) as refused:
            put(room, 99)
        assert "bulkhead restore core_writer --from FILE, or --salvage" in (refused.value.hint or "")
        with pytest.raises(Quarantined):
            ask(room, PageUnits(after=0, until=40, limit=10), Rows)
        assert words in str(ask(room, CoreStatus(), Statistics).values["quarantined"])
        while room.idle("write"):
            pass
        assert not room.idle("search")
    assert content(folder) == before


def test_a_search_says_that_it_knows_nothing_and_the_index_is_left_alone(folder: Path) -> None:
    with core(folder, identity="mine") as room:
        assert ask(room, SearchUnits(query="text"), Candidates).behind == 0
    lose_a_change(folder)
    index = (folder / "keywords.db").read_bytes()
    with core(folder, identity="mine") as room:
        answer = ask(room, SearchUnits(query="text"), Candidates)
        assert answer.found == []
        assert answer.behind == answer.latest == 39
    assert (folder / "keywords.db").read_bytes() == index, "it is the only witness of the change that is gone"


def test_a_damaged_table_is_refused_and_the_others_are_not(folder: Path) -> None:
    damage_table(folder, "units")
    with core(folder, identity="mine") as room:
        for message in (GetUnit(unit_id="u7"), ListUnits(limit=5), SearchUnits(query="text")):
            with pytest.raises(Quarantined, match="units"):
                ask(room, message, message.answer)
        assert b'"s"' in ask(room, GetSession(session_id="s"), Row).row
        with pytest.raises(Quarantined):
            put(room, 99)


def test_a_row_that_is_no_text_any_more_is_refused_and_the_next_one_is_read(folder: Path) -> None:
    lose_a_change(folder)
    data = (folder / "core.db").read_bytes()
    overwrite(folder / "core.db", data.index(b"text 7 xxx"), b"\xff\xff")
    with core(folder, identity="mine") as room:
        with pytest.raises(Quarantined, match="GetUnit refused"):
            get(room, 7)
        assert get(room, 8)["text"].startswith("text 8 ")


def test_what_is_not_found_in_a_damaged_truth_is_not_said_to_be_absent(folder: Path) -> None:
    with core(folder, identity="mine") as room, pytest.raises(NotFound):
        get(room, 99)
    lose_a_change(folder)
    with core(folder, identity="mine") as room, pytest.raises(Quarantined, match="in what is left"):
        get(room, 39)


def cut_to_nothing(folder: Path) -> None:
    os.truncate(folder / "core.db", 0)
    overwrite_wal(folder)


def overwrite_wal(folder: Path) -> None:
    (folder / "core.db-wal").write_bytes(b"\x37\x7f\x06\x82" + b"x" * 5000)


def newer(folder: Path) -> None:
    overwrite(folder / "core.db", 60, (99).to_bytes(4, "big"))


UNREADABLE: dict[str, tuple[Damage, str]] = {
    "the header": (lambda folder: overwrite(folder / "core.db", 0, b"\xff" * 100), "is damaged"),
    "the schema": (lambda folder: overwrite(folder / "core.db", 100, b"\xff" * 3000), "is damaged"),
    "a newer version": (newer, f"schema version 99, this program knows up to {len(VERSIONS)}"),
    "all but the WAL": (cut_to_nothing, "WAL"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_file_of_which_nothing_can_be_said_is_not_served_at_all(folder: Path, kind: str) -> None:
    damage, words = UNREADABLE[kind]
    damage(folder)
    before = content(folder)
    refusal = refused_start(WORKER, RoomSetup(directory=str(folder), identity="mine"))
    assert (refusal.code, words in refusal.error) == (Quarantined.code, True), refusal.error
    assert content(folder) == before


def test_a_file_of_another_directory_is_not_served(folder: Path) -> None:
    refusal = refused_start(WORKER, RoomSetup(directory=str(folder), identity="other"))
    assert refusal.code == Quarantined.code
    assert "belongs to data directory 'mine', this is 'other'" in refusal.error
    assert not list(folder.glob("damaged-*")), "it is not damaged"


def test_a_foreign_mark_and_no_identity_is_a_file_of_somebody_else(folder: Path) -> None:
    foreign_mark(folder)
    with closing(sqlite3.connect(folder / "core.db")) as connection:
        connection.execute("DELETE FROM meta WHERE name = 'identity'")
        connection.commit()
    assert refused_start(WORKER, RoomSetup(directory=str(folder), identity="mine")).code == Quarantined.code


# ---------------------------------------------------------------- setting aside


def aside(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("damaged-*") if not path.name.endswith(".tmp"))


def test_damaged_files_are_set_aside_once(folder: Path) -> None:
    damage_table(folder, "requests")
    before = (folder / "core.db").read_bytes()
    for _ in range(2):
        with core(folder, identity="mine") as room:
            while room.idle("write"):
                pass
    (copy,) = aside(folder)
    assert (copy / "core.db").read_bytes() == before
    assert "is damaged" in (copy / FINDING).read_text()
    damage_table(folder, "sources")
    with core(folder, identity="mine") as room:
        while room.idle("write"):
            pass
    assert len(list(aside(folder))) == 2, "another damage is another finding"


def test_files_that_can_not_be_opened_are_set_aside_as_well(folder: Path) -> None:
    overwrite(folder / "core.db", 0, b"\xff" * 100)
    for _ in range(2):
        refused_start(WORKER, RoomSetup(directory=str(folder), identity="mine"))
    (copy,) = aside(folder)
    assert (copy / "core.db").read_bytes() == (folder / "core.db").read_bytes()


def test_without_room_for_a_copy_reads_are_served_all_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damage_table(folder, "requests")
    monkeypatch.setattr("actors.sql.set_aside.FREE_BYTES_MIN", 2**62)
    room = CoreRoom(RoomSetup(directory=str(folder), identity="mine"))
    facts = room.open("write")
    assert "must stay free" in str(facts["set_aside"])
    assert not room.idle("write")
    assert not list(aside(folder))
    room.open("read")
    assert get(room, 7)["unit_id"] == "u7"
    room._databases["read"].close()


# ---------------------------------------------------------------- what is derived


def test_a_damaged_index_of_keywords_is_made_again(folder: Path) -> None:
    overwrite(folder / "keywords.db", 0, b"\xff" * 100)
    with core(folder, identity="mine") as room:
        put(room, 99)
        assert "u7" in [each.id for each in ask(room, SearchUnits(query="text 7"), Candidates).found]
    assert not list(folder.glob("damaged-*"))


def test_garbage_in_the_shared_memory_file_changes_nothing(folder: Path) -> None:
    (folder / "core.db-shm").write_bytes(os.urandom(32768))
    with core(folder, identity="mine") as room:
        put(room, 99)
        assert get(room, 7)["unit_id"] == "u7"
    assert not list(folder.glob("damaged-*"))
