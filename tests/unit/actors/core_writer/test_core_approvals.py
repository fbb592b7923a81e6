"""Approvals: asked once, decided once, or expired."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.core_writer.worker import CoreRoom
from actors.errors import Conflict, InvalidParams, NotFound
from actors.messages.approvals import DecideApproval, GetApproval, ListApprovals, RequestApproval
from actors.messages.base import Caller, Row, Rows
from tests.unit.actors.room_kit import ask, core, rows_of

Json = dict[str, Any]
STATUSES = ("pending", "approved", "denied", "expired")


class Wall:
    """The wall clock, as a test wants it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_ms = 1_800_000_000_000
        patch.setattr("time.time_ns", lambda: self.now_ms * 1_000_000)


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    return Wall(monkeypatch)


def request(room: CoreRoom, action: str = "rm -r build", **members: Any) -> Json:
    return msgspec.json.decode(ask(room, RequestApproval(action=action, **members), Row).row, type=Json)


def decide(room: CoreRoom, approval: Json, decision: Any = "approved", **members: Any) -> Json:
    message = DecideApproval(approval_id=approval["approval_id"], decision=decision, **members)
    return msgspec.json.decode(ask(room, message, Row).row, type=Json)


def get(room: CoreRoom, approval: Json, tenant: str = "default") -> Json:
    message = GetApproval(approval_id=approval["approval_id"], tenant=tenant)
    return msgspec.json.decode(ask(room, message, Row).row, type=Json)


def listed(room: CoreRoom, **members: Any) -> list[str]:
    page = ask(room, ListApprovals(**{"limit": 1000, **members}), Rows)
    return [row["approval_id"] for row in msgspec.json.decode(page.rows, type=list[Json])]


def test_an_approval_is_asked_for_and_decided_once(tmp_path: Path, wall: Wall) -> None:
    with core(tmp_path) as room:
        caller = Caller(principal="agent-1")
        asked = request(room, "删除 build/", detail={"paths": ["build"]}, session_id="s", caller=caller)
        assert asked["status"] == "pending"
        assert (asked["requested_by"], asked["detail"]) == ("agent-1", {"paths": ["build"]})
        decided = decide(room, asked, "denied", by="owner", reason="not now")
        assert (decided["status"], decided["decided_by"], decided["reason"]) == ("denied", "owner", "not now")
        wall.now_ms += 1000
        assert decide(room, asked, "denied", by="somebody else") == decided, "the first decision stands"
        with pytest.raises(Conflict, match=r"is denied by 'owner' since 2027-01-15T08:00:00"):
            decide(room, asked, "approved")
        assert get(room, asked) == decided
    with core(tmp_path) as room:
        assert get(room, asked) == decided


def test_one_that_nobody_decides_expires(tmp_path: Path, wall: Wall) -> None:
    with core(tmp_path) as room:
        asked, patient = request(room, expires_in_ms=1000), request(room)
        wall.now_ms += 999
        assert get(room, asked)["status"] == "pending"
        wall.now_ms += 1
        assert get(room, asked)["status"] == "expired"
        assert listed(room, status="expired") == [asked["approval_id"]]
        assert listed(room, status="pending") == [patient["approval_id"]]
        with pytest.raises(Conflict, match="is expired since"):
            decide(room, asked)
        room._upkeep_at = 0.0
        room.idle("write")
        assert rows_of(room.path, "SELECT status FROM approvals ORDER BY approval_id") == [("expired",), ("pending",)]
        wall.now_ms -= 86_400_000
        assert get(room, asked)["status"] == "expired", "what was noted stays, whatever the clock does"


def test_a_request_that_is_repeated_is_one(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        first = request(room, request_id="r")
        assert request(room, request_id="r") == {**first, "deduplicated": True}
        assert listed(room) == [first["approval_id"]]


def test_lists_are_paged_and_each_is_served_by_an_index(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        made = [request(room, f"a{n}", session_id=f"s{n % 2}")["approval_id"] for n in range(20)]
        newest_first = made[::-1]
        assert listed(room) == newest_first
        assert listed(room, before=made[5]) == newest_first[15:]
        assert listed(room, session_id="s1", limit=3) == newest_first[0:6:2]
        assert listed(room, tenant="another") == []
        for condition in ("tenant = 't'", "tenant = 't' AND status = 'pending'", "tenant = 't' AND session_id = 's'"):
            plan = rows_of(
                room.path,
                f"EXPLAIN QUERY PLAN SELECT * FROM approvals WHERE {condition} AND approval_id < 'x' "
                "ORDER BY approval_id DESC LIMIT 5",
            )
            told = " ".join(str(row[3]) for row in plan)
            assert "SEARCH approvals" in told
            assert "TEMP B-TREE" not in told


def test_another_tenant_sees_and_decides_nothing(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        asked = request(room)
        with pytest.raises(NotFound, match="there is no approval"):
            get(room, asked, "another")
        with pytest.raises(NotFound, match="there is no approval"):
            decide(room, asked, tenant="another")
        assert get(room, asked)["status"] == "pending"


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"action": ""}, "action is empty"),
        ({"action": "x" * 70_000}, "meta_bytes_max"),
        ({"detail": {"k": "x" * 70_000}}, "meta_bytes_max"),
        ({"expires_in_ms": 0}, "expires_in_ms is 0"),
        ({"expires_in_ms": 400 * 86_400_000}, "a year"),
        ({"session_id": ""}, "session_id is empty"),
    ],
)
def test_bad_input_is_refused(tmp_path: Path, members: Json, said: str) -> None:
    with core(tmp_path) as room:
        with pytest.raises(InvalidParams, match=said):
            request(room, **members)
        assert listed(room) == []


class ApprovalMachine(RuleBasedStateMachine):
    """Approvals against a model, with time, upkeep and restarts in between."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="bh-approvals-"))
        self.patch = pytest.MonkeyPatch()
        self.wall = Wall(self.patch)
        self.known: dict[str, tuple[str, int | None]] = {}  # id: what was decided, and when it expires (ms)
        self.open()

    def open(self) -> None:
        self.context = core(self.folder)
        self.room = self.context.__enter__()

    def teardown(self) -> None:
        self.context.__exit__(None, None, None)
        self.patch.undo()
        shutil.rmtree(self.folder)

    def status(self, key: str) -> str:
        decided, expires_ms = self.known[key]
        over = decided == "pending" and expires_ms is not None and expires_ms <= self.wall.now_ms
        return "expired" if over else decided

    @rule(expires_in_ms=st.one_of(st.none(), st.integers(1, 3000)))
    def ask_for(self, expires_in_ms: int | None) -> None:
        made = request(self.room, expires_in_ms=expires_in_ms)
        expires_ms = None if expires_in_ms is None else self.wall.now_ms + expires_in_ms
        self.known[made["approval_id"]] = ("pending", expires_ms)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), decision=st.sampled_from(["approved", "denied"]))
    def settle(self, data: st.DataObject, decision: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.known)))
        before = self.status(key)
        if before in ("pending", decision):
            assert decide(self.room, {"approval_id": key}, decision)["status"] == decision
            self.known[key] = (decision, None)
        else:
            with pytest.raises(Conflict):
                decide(self.room, {"approval_id": key}, decision)

    @rule(ms=st.integers(0, 4000))
    def wait(self, ms: int) -> None:
        self.wall.now_ms += ms

    @rule()
    def tend(self) -> None:
        self.room._upkeep_at = 0.0
        self.room.idle("write")

    @rule()
    def begin_anew(self) -> None:
        self.context.__exit__(None, None, None)
        self.open()

    @invariant()
    def every_list_is_right(self) -> None:
        for status in STATUSES:
            expected = sorted((key for key in self.known if self.status(key) == status), reverse=True)
            assert listed(self.room, status=status) == expected


ApprovalMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
TestApprovals = ApprovalMachine.TestCase
