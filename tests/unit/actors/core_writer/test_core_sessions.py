"""Sessions that are put away and come back, and the lists of them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.core_writer.worker import CoreRoom
from actors.errors import NotFound
from actors.messages.base import Done, Row, Rows
from actors.messages.core_writer import (
    AdoptSessions,
    ArchiveSession,
    CloseSession,
    GetSession,
    ListSessions,
    OpenSession,
    SessionActivity,
)
from tests.unit.actors.room_kit import ask, core

Json = dict[str, Any]


def row(room: CoreRoom, message: Any) -> Json:
    return msgspec.json.decode(ask(room, message, Row).row, type=Json)


def listed(room: CoreRoom, **members: Any) -> list[str]:
    page = ask(room, ListSessions(**{"limit": 100, **members}), Rows)
    return [each["session_id"] for each in msgspec.json.decode(page.rows, type=list[Json])]


def adopted(room: CoreRoom, session_id: str, *, ts: int, seq: int) -> None:
    activity = SessionActivity(session_id=session_id, tenant="default", first_ts=ts, last_ts=ts, last_seq=seq, events=1)
    ask(room, AdoptSessions(sessions=[activity], cursor=seq), Done)


def test_an_archived_session_is_listed_on_demand_and_comes_back(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        row(room, OpenSession(session_id="s1", title="一"))
        row(room, OpenSession(session_id="s2"))
        archived = row(room, ArchiveSession(session_id="s1"))
        assert archived["status"] == "archived"
        assert archived["archived_at"] is not None and archived["closed_at"] is not None
        assert row(room, ArchiveSession(session_id="s1"))["archived_at"] == archived["archived_at"]
        assert listed(room) == ["s2"]
        assert listed(room, status="closed") == []
        assert listed(room, status="archived") == ["s1"]
        assert row(room, GetSession(session_id="s1"))["title"] == "一"
        opened = row(room, OpenSession(session_id="s1"))
        assert (opened["status"], opened["archived_at"]) == ("open", None)
        assert listed(room, status="archived") == []
        row(room, CloseSession(session_id="s1"))
        assert listed(room, status="closed") == ["s1"]
        with pytest.raises(NotFound, match="there is no session"):
            row(room, ArchiveSession(session_id="s1", tenant="another"))


def test_appending_to_an_archived_session_brings_it_back_and_older_events_do_not(tmp_path: Path) -> None:
    far = 4_000_000_000_000_000
    with core(tmp_path) as room:
        row(room, OpenSession(session_id="s"))
        row(room, ArchiveSession(session_id="s"))
        adopted(room, "s", ts=1_000_000, seq=1)
        assert row(room, GetSession(session_id="s"))["status"] == "archived"
        adopted(room, "s", ts=far, seq=2)
        found = row(room, GetSession(session_id="s"))
        assert (found["status"], found["archived_at"]) == ("open", None)


def test_lists_are_narrowed_by_agent_and_time(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        for number in range(6):
            adopted(room, f"s{number}", ts=number * 1_000_000, seq=number + 1)
        connection = room._databases["write"].connection
        connection.execute("UPDATE sessions SET agent = 'a' || (last_seq % 2)")
        assert listed(room, agent="a0") == ["s5", "s3", "s1"]
        assert listed(room, since=2_000_000, until=5_000_000) == ["s4", "s3", "s2"]
        assert listed(room, since=2_000_000, agent="a1") == ["s4", "s2"]
        page = ask(room, ListSessions(limit=2, agent="a0"), Rows)
        last = msgspec.json.decode(page.rows, type=list[Json])[-1]
        assert page.more
        assert listed(room, agent="a0", before=last["cursor"]) == ["s1"]


@pytest.mark.parametrize(
    ("members", "index"),
    [
        ({}, "sessions_present "),
        ({"status": "open"}, "sessions_present_by_status"),
        ({"status": "closed", "until": 5}, "sessions_present_by_status"),
        ({"status": "archived"}, "sessions_archived"),
        ({"agent": "a"}, "sessions_by_agent"),
        ({"since": 1, "until": 5}, "sessions_present "),
    ],
)
def test_the_statement_of_every_list_is_served_by_an_index_without_sorting(
    tmp_path: Path, members: dict[str, Any], index: str
) -> None:
    with core(tmp_path) as room:
        told: list[str] = []
        reader = room.reader()
        reader.set_trace_callback(told.append)
        listed(room, **members)
        reader.set_trace_callback(None)
        (statement,) = [each for each in told if "FROM sessions" in each]
        plan = " ".join(str(each[3]) for each in reader.execute(f"EXPLAIN QUERY PLAN {statement}"))
    assert index in plan + " "
    assert "TEMP B-TREE" not in plan


def test_a_page_begins_at_the_earlier_of_cursor_and_until(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        for number in range(6):
            adopted(room, f"s{number}", ts=number * 1_000_000, seq=number + 1)
        page = ask(room, ListSessions(limit=2, until=5_000_000), Rows)
        rows = msgspec.json.decode(page.rows, type=list[Json])
        assert [row["session_id"] for row in rows] == ["s4", "s3"]
        assert listed(room, until=5_000_000, before=rows[-1]["cursor"]) == ["s2", "s1", "s0"]
        assert listed(room, until=1_000_000, before=rows[-1]["cursor"]) == ["s0"]
