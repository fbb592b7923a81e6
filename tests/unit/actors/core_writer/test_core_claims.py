"""Turn claims: one holder at a time, and nothing that a crash or a clock does leaves a session held."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.core_writer import clock
from actors.core_writer.claims import COUNTER
from actors.core_writer.leases import MS_NS, left_ns
from actors.core_writer.restoring import CoreKeeper
from actors.core_writer.worker import CoreRoom
from actors.errors import Conflict, Held, InvalidParams
from actors.messages.base import Row
from actors.messages.claims import AcquireClaim, ClaimState, GetClaim, ReleaseClaim, RenewClaim
from actors.settings import CoreWriterSettings
from tests.unit.actors.room_kit import ask, core, rows_of

Json = dict[str, Any]
LEASE_MS = 1000


class Clocks:
    """The monotonic clock and the boot, as a test wants them; the wall clock goes as it likes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_ns = 5_000_000_000
        self.boot = "one"
        patch.setattr(clock, "monotonic_ns", lambda: self.now_ns)
        patch.setattr(clock, "boot", lambda: self.boot)

    def pass_ms(self, ms: int) -> None:
        self.now_ns += ms * MS_NS


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def acquire(room: CoreRoom, session: str = "s", *, lease_ms: int | None = LEASE_MS, **members: Any) -> Json:
    message = AcquireClaim(session_id=session, lease_ms=lease_ms, **members)
    return msgspec.json.decode(ask(room, message, Row).row, type=Json)


def renew(room: CoreRoom, claim: Json, lease_ms: int = LEASE_MS) -> Json:
    message = RenewClaim(session_id=claim["session_id"], claim_id=claim["claim_id"], lease_ms=lease_ms)
    return msgspec.json.decode(ask(room, message, Row).row, type=Json)


def release(room: CoreRoom, claim: Json) -> bool:
    message = ReleaseClaim(session_id=claim["session_id"], claim_id=claim["claim_id"])
    return bool(msgspec.json.decode(ask(room, message, Row).row, type=Json)["released"])


def holder(room: CoreRoom, session: str = "s", tenant: str = "default") -> Json | None:
    state = ask(room, GetClaim(session_id=session, tenant=tenant), ClaimState)
    return None if state.claim is None else msgspec.json.decode(state.claim, type=Json)


@pytest.mark.parametrize(
    ("boot", "expires_ns", "left"),
    [
        ("one", 10 * MS_NS, 10 * MS_NS),
        ("one", 0, 0),
        ("one", -1, 0),
        ("another", 10 * MS_NS, 0),
        ("one", 100 * MS_NS, 100 * MS_NS),
        ("one", 101 * MS_NS, 0),  # longer than it was given: of a boot that can't be told from this one
    ],
)
def test_when_a_lease_is_over(boot: str, expires_ns: int, left: int) -> None:
    assert left_ns(boot=boot, expires_ns=expires_ns, lease_ms=100, now_boot="one", now_ns=0) == left


def test_one_holds_until_it_is_released_or_over(tmp_path: Path, clocks: Clocks) -> None:
    with core(tmp_path) as room:
        first = acquire(room, holder="a")
        with pytest.raises(Held, match=r"held by 'a' \(claim .*\) for 1000 ms more") as held:
            acquire(room)
        assert held.value.retry_after_ms == LEASE_MS
        assert held.value.info().retryable
        assert holder(room) == first
        assert acquire(room, "another")["token"] > first["token"]
        assert release(room, first)
        assert not release(room, first)
        assert holder(room) is None
        second = acquire(room)
        assert second["token"] > first["token"]
        clocks.pass_ms(LEASE_MS - 1)
        with pytest.raises(Held):
            acquire(room)
        clocks.pass_ms(1)
        assert holder(room) is None
        third = acquire(room)
        assert third["token"] > second["token"]
        with pytest.raises(Conflict, match="is over; 'another client' holds the session now"):
            renew(room, second)
        assert not release(room, second), "who is late ends nobody's claim"
        assert holder(room) == third


def test_a_claim_is_renewed_from_now_on(tmp_path: Path, clocks: Clocks) -> None:
    with core(tmp_path) as room:
        claim = acquire(room)
        for _ in range(5):
            clocks.pass_ms(LEASE_MS - 1)
            assert renew(room, claim)["token"] == claim["token"]
        clocks.pass_ms(LEASE_MS)
        with pytest.raises(Conflict, match="is over"):
            renew(room, claim)


def test_a_request_that_is_repeated_is_the_same_claim(tmp_path: Path, clocks: Clocks) -> None:
    with core(tmp_path) as room:
        first = acquire(room, request_id="r")
        again = acquire(room, request_id="r")
        assert again == {**first, "deduplicated": True}


def test_a_restart_of_the_machine_ends_all_claims_and_one_of_the_worker_none(tmp_path: Path, clocks: Clocks) -> None:
    with core(tmp_path) as room:
        first = acquire(room, lease_ms=600_000)
    with core(tmp_path) as room:
        assert holder(room) == first
    clocks.boot, clocks.now_ns = "two", 1_000_000_000
    with core(tmp_path) as room:
        assert holder(room) is None
        assert acquire(room)["token"] > first["token"]


@pytest.mark.parametrize("hours", [-24, 24])
def test_the_wall_clock_has_no_say(tmp_path: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    wall = 1_800_000_000_000_000_000
    monkeypatch.setattr("time.time_ns", lambda: wall)
    with core(tmp_path) as room:
        first = acquire(room)
        wall += hours * 3_600_000_000_000
        with pytest.raises(Held):
            acquire(room)
        clocks.pass_ms(LEASE_MS)
        assert acquire(room)["token"] > first["token"]


def test_tenants_hold_sessions_of_their_own(tmp_path: Path, clocks: Clocks) -> None:
    with core(tmp_path) as room:
        mine = acquire(room)
        theirs = acquire(room, tenant="another")
        assert holder(room) == mine
        assert holder(room, tenant="another") == theirs
        message = ReleaseClaim(session_id="s", claim_id=mine["claim_id"], tenant="another")
        assert not msgspec.json.decode(ask(room, message, Row).row, type=Json)["released"]
        assert holder(room) == mine


@pytest.mark.parametrize(
    ("members", "said"),
    [({"lease_ms": 0}, "lease_ms is 0"), ({"lease_ms": 600_001}, "claim_lease_ms_max"), ({"holder": ""}, "holder")],
)
def test_bad_input_is_refused(tmp_path: Path, members: Json, said: str) -> None:
    with core(tmp_path) as room, pytest.raises(InvalidParams, match=said):
        acquire(room, **members)


def test_claims_that_are_over_are_dropped(tmp_path: Path, clocks: Clocks) -> None:
    with core(tmp_path) as room:
        for number in range(200):
            acquire(room, f"s{number}", lease_ms=LEASE_MS if number % 2 else 600_000)
        clocks.pass_ms(LEASE_MS)
        room._upkeep_at = 0.0
        while room.idle("write"):
            pass
        left = rows_of(room.path, "SELECT count(*) FROM claims")
    assert left == [(100,)]


def test_a_restore_from_an_older_file_gives_no_token_twice(tmp_path: Path, clocks: Clocks) -> None:
    given = 9_000_000_000_000_000_000  # by a clock that was far ahead
    with core(tmp_path) as room:
        CoreKeeper(CoreWriterSettings()).settle(room._databases["write"].connection, {COUNTER: given})
        assert acquire(room)["token"] > given


class ClaimMachine(RuleBasedStateMachine):
    """Claims on two sessions against a model, with time, restarts and reboots in between."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="bh-claims-"))
        self.patch = pytest.MonkeyPatch()
        self.clocks = Clocks(self.patch)
        self.open()
        self.held: dict[str, tuple[Json, int]] = {}  # session: the claim, and when it ends (ns)
        self.known: list[Json] = []
        self.token = 0

    def open(self) -> None:
        self.context = core(self.folder)
        self.room = self.context.__enter__()

    def teardown(self) -> None:
        self.context.__exit__(None, None, None)
        self.patch.undo()
        shutil.rmtree(self.folder)

    def holding(self, session: str) -> Json | None:
        claim, ends_ns = self.held.get(session, ({}, 0))
        return claim if self.clocks.now_ns < ends_ns else None

    @rule(session=st.sampled_from("ab"), lease_ms=st.integers(1, 5000))
    def take(self, session: str, lease_ms: int) -> None:
        if self.holding(session) is not None:
            with pytest.raises(Held):
                acquire(self.room, session, lease_ms=lease_ms)
            return
        claim = acquire(self.room, session, lease_ms=lease_ms)
        assert claim["token"] > self.token
        self.token = claim["token"]
        self.held[session] = (claim, self.clocks.now_ns + lease_ms * MS_NS)
        self.known.append(claim)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), lease_ms=st.integers(1, 5000))
    def prolong(self, data: st.DataObject, lease_ms: int) -> None:
        claim = data.draw(st.sampled_from(self.known))
        holding = self.holding(claim["session_id"])
        if holding is None or holding["claim_id"] != claim["claim_id"]:
            with pytest.raises(Conflict):
                renew(self.room, claim, lease_ms)
            return
        renew(self.room, claim, lease_ms)
        self.held[claim["session_id"]] = (holding, self.clocks.now_ns + lease_ms * MS_NS)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.known))
        holding = self.holding(claim["session_id"])
        mine = holding is not None and holding["claim_id"] == claim["claim_id"]
        assert release(self.room, claim) is mine
        if mine:
            del self.held[claim["session_id"]]

    @rule(ms=st.integers(0, 6000))
    def wait(self, ms: int) -> None:
        self.clocks.pass_ms(ms)

    @rule()
    def tend(self) -> None:
        self.room._upkeep_at = 0.0
        self.room.idle("write")

    @rule(reboot=st.booleans())
    def begin_anew(self, reboot: bool) -> None:
        self.context.__exit__(None, None, None)
        if reboot:
            self.clocks.boot += "'"
            self.clocks.now_ns = 1_000_000_000
            self.held.clear()
        self.open()

    @invariant()
    def the_right_one_holds(self) -> None:
        for session in "ab":
            expected, found = self.holding(session), holder(self.room, session)
            assert (found or {}).get("claim_id") == (expected or {}).get("claim_id")


ClaimMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)
TestClaims = ClaimMachine.TestCase
