"""Forgetting a session or a tenant in core: also what is kept beside events and units leaves the file."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.core_writer.worker import CoreRoom
from actors.messages.approvals import RequestApproval
from actors.messages.base import Row
from actors.messages.claims import AcquireClaim
from actors.messages.core_writer import OpenSession, PutUnit
from actors.messages.forgetting import EraseUnits, ForgetScope, ForgetSlice, ForgetUnits, OrderForget, ScourWal
from actors.messages.jobs import AddJob
from tests.unit.actors.room_kit import ask, core, rows_of

SECRET = "abracadabra"


def row(room: CoreRoom, message: Any) -> dict[str, Any]:
    return msgspec.json.decode(ask(room, message, Row).row, type=dict[str, Any])


def fill(room: CoreRoom, session_id: str) -> None:
    """Say the word wherever core keeps what a client says."""
    row(room, OpenSession(session_id=session_id, title=SECRET, request_id=f"o{session_id}"))
    row(room, RequestApproval(action=SECRET, detail={"k": SECRET}, session_id=session_id, request_id=f"a{session_id}"))
    row(room, AcquireClaim(session_id=session_id, holder=SECRET, request_id=f"c{session_id}"))
    row(room, AddJob(kind="embed", payload={"k": SECRET}, session_id=session_id))
    unit = PutUnit(type="plan", scope="session", text=SECRET, session_id=session_id, request_id=f"u{session_id}")
    row(room, unit)


def forget(room: CoreRoom, scope: ForgetScope) -> None:
    """Carry an order out, as far as core is concerned."""
    row(room, OrderForget(scope=scope, reason="asked", event_until=0, tenant="default"))
    for step in (ForgetUnits, EraseUnits):
        while ask(room, step(forget_seq=1), ForgetSlice).more:
            pass
    assert not ask(room, ScourWal(), ForgetSlice).more


@pytest.mark.parametrize(
    "scope", [ForgetScope(session_id="s1"), ForgetScope(everything_of_tenant=True)], ids=["a session", "all"]
)
def test_nothing_that_was_said_is_left_in_the_file(tmp_path: Path, scope: ForgetScope) -> None:
    with core(tmp_path) as room:
        fill(room, "s1")
        forget(room, scope)
        # The indexes follow the cursor of the keyword index, which is another file.
        content = room.path.read_bytes()
        assert rows_of(room.path, "SELECT status FROM jobs") == [("cancelled",)]
        assert rows_of(room.path, "SELECT count(*) FROM claims") == [(0,)]
        assert row(room, RequestApproval(action="x", request_id="as1")) == {"status": "forgotten", "deduplicated": True}
    assert SECRET.encode() not in content


def test_another_session_keeps_what_it_has(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        for session_id in ("s1", "s2"):
            fill(room, session_id)
        forget(room, ForgetScope(session_id="s1"))
        for table, column in (
            ("approvals", "action"),
            ("sessions", "title"),
            ("claims", "holder"),
            ("jobs", "payload"),
        ):
            kept = rows_of(room.path, f"SELECT session_id, {column} FROM {table} WHERE {column} LIKE '%{SECRET}%'")
            assert [each[0] for each in kept] == ["s2"], table
        assert row(room, OpenSession(session_id="s2", request_id="os2"))["title"] == SECRET
