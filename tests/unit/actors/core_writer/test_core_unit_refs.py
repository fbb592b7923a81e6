"""Units and what they rest on, in both directions; the difference of two versions."""

import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.core_writer import store
from actors.core_writer.worker import CoreRoom
from actors.errors import InvalidParams, NotFound
from actors.messages.base import Row, Rows
from actors.messages.core_writer import ListUnits, PutUnit
from actors.messages.unit_refs import DiffUnit, UnitsOfEvent
from actors.settings import CoreWriterSettings
from actors.sql.database import read_schema
from tests.unit.actors.room_kit import ask, core, rows_of

Json = dict[str, Any]


def put(room: CoreRoom, unit_id: str, refs: tuple[str, ...] = (), text: str = "tea", **members: Any) -> Json:
    message = PutUnit(
        **{"type": "profile", "scope": "user", "text": text, "unit_id": unit_id, "event_refs": refs, **members}
    )
    return msgspec.json.decode(ask(room, message, Row).row, type=Json)


def resting_on(room: CoreRoom, event_id: str, **members: Any) -> list[str]:
    page = ask(room, UnitsOfEvent(**{"event_id": event_id, "limit": 100, **members}), Rows)
    return [row["unit_id"] for row in msgspec.json.decode(page.rows, type=list[Json])]


def diff(room: CoreRoom, unit_id: str, one: int, other: int | None = None, **members: Any) -> Json:
    message = DiffUnit(unit_id=unit_id, from_version=one, to_version=other, **members)
    return msgspec.json.decode(ask(room, message, Row).row, type=Json)


def test_units_are_found_by_what_their_latest_versions_rest_on(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        put(room, "u1", ("e1", "e2", "e1"))
        put(room, "u2", ("e2",))
        assert (resting_on(room, "e1"), resting_on(room, "e2")) == (["u1"], ["u1", "u2"])
        put(room, "u1", ("e3",))
        assert (resting_on(room, "e1"), resting_on(room, "e2"), resting_on(room, "e3")) == ([], ["u2"], ["u1"])
        put(room, "u2", ("e2",), status="deprecated")
        assert resting_on(room, "e2") == ["u2"]
        assert resting_on(room, "e2", status="active") == []
        assert resting_on(room, "e3", tenant="another") == []
        assert resting_on(room, "unknown") == []


def test_pages_of_units_that_rest_on_one_event(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        for number in range(7):
            put(room, f"u{number}", ("e",))
        first = ask(room, UnitsOfEvent(event_id="e", limit=3), Rows)
        assert (first.count, first.more) == (3, True)
        assert resting_on(room, "e", after="u4") == ["u5", "u6"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.sampled_from("xyz"), max_size=3)), max_size=12))
def test_the_two_directions_agree_whatever_is_put(changes: list[tuple[str, list[str]]]) -> None:
    with tempfile.TemporaryDirectory() as folder, core(Path(folder)) as room:
        latest: dict[str, list[str]] = {}
        for unit_id, refs in changes:
            put(room, unit_id, tuple(refs))
            latest[unit_id] = refs
        for event_id in "xyz":
            assert resting_on(room, event_id) == sorted(unit for unit, refs in latest.items() if event_id in refs)


def test_a_file_of_the_first_version_gets_its_references(tmp_path: Path) -> None:
    path = tmp_path / store.FILE_NAME
    connection = sqlite3.connect(path)
    connection.executescript(read_schema("actors.core_writer", *store.VERSIONS[0]))
    connection.execute(
        """
        INSERT INTO units VALUES (1, 'u', 1, 0, 'default', NULL, 'profile', 'user', 'deprecated', NULL, NULL, 1, 1,
                                  '[]', '["old"]', NULL, 't'),
                                 (2, 'u', 2, 1, 'default', NULL, 'profile', 'user', 'active', NULL, NULL, 1, 2,
                                  '[]', '["e1","e2"]', NULL, 't')
        """
    )
    connection.execute("INSERT INTO meta VALUES ('core_seq', 2)")
    connection.commit()
    connection.close()
    with core(tmp_path) as room:
        assert (resting_on(room, "e1"), resting_on(room, "e2"), resting_on(room, "old")) == (["u"], ["u"], [])
        assert rows_of(path, "PRAGMA user_version") == [(store.file_kind(CoreWriterSettings()).user_version,)]


def test_two_versions_are_compared(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        put(room, "u", ("e1",), "likes tea\nlives in 北京", facts={"drink": "tea"}, tags=("a",), confidence=0.5)
        put(room, "u", ("e2",), "likes coffee\nlives in 北京", facts={"drink": "coffee"}, tags=("a",), confidence=0.9)
        put(room, "u", ("e2",), "likes coffee\nlives in 上海", facts={"drink": "coffee"}, tags=("a",), confidence=0.9)
        found = diff(room, "u", 1, 2)
        assert found["changed"] == {
            "confidence": {"from": 0.5, "to": 0.9},
            "event_refs": {"from": ["e1"], "to": ["e2"]},
            "facts": {"from": {"drink": "tea"}, "to": {"drink": "coffee"}},
        }
        assert found["text"].splitlines() == [
            *("--- version 1", "+++ version 2", "@@ -1,2 +1,2 @@"),
            *("-likes tea", "+likes coffee", " lives in 北京"),
        ]
        latest = diff(room, "u", 2)
        assert latest["to_version"] == 3
        assert "+lives in 上海" in latest["text"]
        assert diff(room, "u", 3, 3) == {
            "unit_id": "u",
            "from_version": 3,
            "to_version": 3,
            "changed": {},
            "text": "",
        }
        with pytest.raises(NotFound, match="version 9"):
            diff(room, "u", 9)
        with pytest.raises(NotFound):
            diff(room, "u", 1, 2, tenant="another")


def test_texts_too_long_to_compare_are_refused(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        for number in range(2):
            put(room, "u", text=f"{number} " + "long " * 20_000)
        with pytest.raises(InvalidParams, match="the two texts are"):
            diff(room, "u", 1, 2)


def test_units_are_listed_by_session_and_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0
    monkeypatch.setattr("time.time_ns", lambda: now * 1_000_000_000)
    with core(tmp_path) as room:
        for number in range(6):
            now = 100 + number
            put(room, f"u{number}", session_id=f"s{number % 2}")

        def listed(**members: Any) -> list[str]:
            page = ask(room, ListUnits(limit=10, **members), Rows)
            return [row["unit_id"] for row in msgspec.json.decode(page.rows, type=list[Json])]

        assert listed(session_id="s1") == ["u5", "u3", "u1"]
        assert listed(since=102_000_000, until=104_000_000) == ["u3", "u2"]
        assert listed(since=103_000_000, session_id="s0") == ["u4"]
