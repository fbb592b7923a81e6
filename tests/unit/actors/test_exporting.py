"""Everything of a tenant comes out in order and goes in as it was, twice to the same effect."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.errors import InvalidParams
from actors.messages.base import Candidates, Row, Rows
from actors.messages.core_writer import GetSession, GetUnit, OpenSession, PutUnit, SearchUnits, UnitHistory
from actors.messages.exporting import (
    Exported,
    ExportEvents,
    ExportUnits,
    Imported,
    ImportSessions,
    ImportUnits,
    SessionAsItWas,
    UnitVersion,
)
from actors.sql.rows import PAGE_BYTES_MAX
from tests.unit.actors.backup_kit import decoded
from tests.unit.actors.room_kit import ask, core, say, transcript

Json = dict[str, Any]


def version(number: int, *, unit_id: str = "u", text: str = "text", **more: Any) -> UnitVersion:
    members = {"type": "plan", "scope": "user", "text": f"{text} {number}", "created_at": 1, "updated_at": number}
    return UnitVersion(unit_id=unit_id, version=number, **{**members, **more})


def put_in(room: Any, *units: UnitVersion, tenant: str = "default") -> tuple[str, ...]:
    return ask(room, ImportUnits(units=units, tenant=tenant), Imported).outcomes


def paged(room: Any, message: type[Any], *, limit: int = 2, tenant: str = "default") -> list[Json]:
    rows: list[Json] = []
    after, more = 0, True
    while more:
        page = ask(room, message(after=after, limit=limit, tenant=tenant), Exported)
        rows += msgspec.json.decode(page.rows)
        assert page.last > after or not page.more
        after, more = page.last, page.more
    return rows


def test_events_of_a_tenant_come_in_order_whoever_wrote_between(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        for number in range(7):
            say(room, f"mine {number}", session_id=f"s{number % 2}")
            say(room, *("theirs" for _ in range(number)), tenant="other", session_id="t")
        assert [row["content"] for row in paged(room, ExportEvents)] == [f"mine {number}" for number in range(7)]
        assert len(paged(room, ExportEvents, tenant="other")) == 21
        assert paged(room, ExportEvents, tenant="nobody") == []


def test_a_page_is_of_bounded_size(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        for _ in range(6):
            say(room, "x" * 1_500_000)
        page = ask(room, ExportEvents(after=0, limit=100), Exported)
        assert page.more and page.count < 6 and len(page.rows) < PAGE_BYTES_MAX * 1.1
        assert len(paged(room, ExportEvents, limit=100)) == 6


def test_all_versions_of_units_come_out_and_go_in(tmp_path: Path) -> None:
    with core(tmp_path / "one") as room:
        for number in range(9):
            unit = PutUnit(unit_id=f"u{number % 3}", type="skill", scope="user", text=f"{number}", facts={"n": number})
            ask(room, unit, Row)
        ask(room, PutUnit(unit_id="x", type="skill", scope="user", text="theirs", tenant="other"), Row)
        out = paged(room, ExportUnits)
    assert [(row["unit_id"], row["version"]) for row in out] == [(f"u{n % 3}", n // 3 + 1) for n in range(9)]
    micros = {"created_at": 5, "updated_at": 7}
    rows = [msgspec.convert({**row, **micros}, UnitVersion) for row in out]
    with core(tmp_path / "two") as room:
        assert put_in(room, *rows) == ("imported",) * 9
        assert put_in(room, *rows) == ("present",) * 9
        again = paged(room, ExportUnits)
        for before, after in zip(out, again, strict=True):
            assert {**after, "created_at": 0, "updated_at": 0} == {**before, "created_at": 0, "updated_at": 0}
        assert len(ask(room, SearchUnits(query="8"), Candidates).found) == 1
    with core(tmp_path / "two") as room:  # what must hold of the numbers holds
        assert decoded(ask(room, GetUnit(unit_id="u2"), Row))["text"] == "8"


def test_what_says_something_else_stays(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        assert put_in(room, version(1), version(2)) == ("imported", "imported")
        assert put_in(room, version(2, text="another")) == ("conflict",)
        assert put_in(room, version(4)) == ("conflict",), "a version is missing before it"
        assert put_in(room, version(2, unit_id="new")) == ("conflict",)
        assert put_in(room, version(3)) == ("imported",)
        assert put_in(room, version(1), tenant="other") == ("conflict",)
        assert put_in(room, version(4), tenant="other") == ("conflict",)
        history = msgspec.json.decode(ask(room, UnitHistory(unit_id="u", limit=9), Rows).rows)
        assert [(row["version"], row["status"]) for row in history] == [
            (3, "active"),
            (2, "deprecated"),
            (1, "deprecated"),
        ]


def test_one_row_over_a_limit_and_none_is_written(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        for bad in (version(2, text="x" * 2_000_000), version(0), version(2, tags=("",) * 100)):
            with pytest.raises(InvalidParams):
                put_in(room, version(1), bad)
        with pytest.raises(InvalidParams, match="101 rows"):
            put_in(room, *(version(number + 1) for number in range(101)))
        assert paged(room, ExportUnits) == []


def test_a_session_goes_in_as_it_was_and_one_that_is_there_stays(tmp_path: Path) -> None:
    old = SessionAsItWas(
        session_id="old", created_at=1, updated_at=3, last_active_at=2, title="T", agent="a", meta={"k": 1}, closed_at=3
    )
    here = SessionAsItWas(session_id="here", created_at=1, updated_at=1, last_active_at=1, title="from the file")
    with core(tmp_path) as room:
        ask(room, OpenSession(session_id="here", title="of its own"), Row)
        message = ImportSessions(sessions=(old, here))
        assert ask(room, message, Imported).outcomes == ("imported", "present")
        assert ask(room, message, Imported).outcomes == ("present", "present")
        row = decoded(ask(room, GetSession(session_id="old"), Row))
        assert (row["status"], row["title"], row["meta"], row["events"]) == ("closed", "T", {"k": 1}, 0)
        assert row["closed_at"] == "1970-01-01T00:00:00.000003Z"
        assert decoded(ask(room, GetSession(session_id="here"), Row))["title"] == "of its own"
