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
from tests.unit.actors.room_kit import ask, core, rows_of

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
        plan = rows_of(
            room.path,
            "EXPLAIN QUERY PLAN SELECT * FROM sessions WHERE tenant = 't' AND (last_active_at, session_id) < (1, 'x')"
            " AND archived_at IS NULL AND agent = 'a' ORDER BY last_active_at DESC, session_id DESC LIMIT 5",
        )
        told = " ".join(str(each[3]) for each in plan)
        assert "sessions_by_agent" in told
        assert "TEMP B-TREE" not in told
