"""Jobs on a real core: leased in order, reported on once, bounded whatever the clock does, and found by index."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.core_writer.jobs import _COLUMNS
from actors.core_writer.worker import CoreRoom
from actors.errors import Conflict, InvalidParams, NotFound
from actors.messages.base import Message, Row, Rows
from actors.messages.jobs import (
    AddJob,
    CancelJob,
    CompleteJob,
    FailJob,
    GetJob,
    JobKind,
    LeaseJobs,
    ListJobs,
    RenewJob,
    ReplayJob,
)
from actors.settings import CoreWriterSettings
from tests.unit.actors.room_kit import ask, call_within, core, rows_of

Json = dict[str, Any]
SECOND = 1_000_000
DAY = 86_400 * SECOND
START = 1_800_000_000 * SECOND
KINDS: tuple[JobKind, ...] = ("summarize", "embed")


class Clock:
    """The wall clock of core (µs)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = START
        monkeypatch.setattr("time.time_ns", lambda: self.now * 1000)

    def move(self, us: int) -> None:
        """Let it go on, or back."""
        self.now += us


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def row(room: CoreRoom, message: Message) -> Json:
    return msgspec.json.decode(ask(room, message, Row).row, type=Json)


def add(room: CoreRoom, **members: Any) -> str:
    return str(row(room, AddJob(**{"kind": "summarize", **members}))["job_id"])


def lease(room: CoreRoom, **members: Any) -> list[Json]:
    found: list[Json] = row(room, LeaseJobs(**{"kinds": KINDS, "limit": 1, **members}))["jobs"]
    return found


def get(room: CoreRoom, job_id: str) -> Json:
    return row(room, GetJob(job_id=job_id))


def keep_up(room: CoreRoom) -> None:
    connection = room._databases["write"].connection
    while room.upkeep(connection, call_within(60)):
        pass


def listed(room: CoreRoom, **members: Any) -> list[str]:
    names: list[str] = []
    before, more = None, True
    while more:
        answer = ask(room, ListJobs(limit=3, before=before, **members), Rows)
        found = msgspec.json.decode(answer.rows, type=list[Json])
        names += [each["job_id"] for each in found]
        before, more = (found[-1]["job_seq"] if found else None), answer.more
    return names


def test_a_job_is_added_leased_and_completed(tmp_path: Path, clock: Clock) -> None:
    with core(tmp_path) as room:
        job_id = add(room, payload={"a": [1]}, session_id="s")
        (taken,) = lease(room, worker="w", lease_ms=5000)
        assert taken == {
            "job_id": job_id,
            "kind": "summarize",
            "session_id": "s",
            "payload": {"a": [1]},
            "attempt": 1,
            "attempts_max": 5,
            "token": 1,
            "lease_expires_at": "2027-01-15T08:00:05.000000Z",
        }
        assert lease(room) == []
        assert (get(room, job_id)["status"], get(room, job_id)["worker"]) == ("leased", "w")
        done = row(room, CompleteJob(job_id=job_id, token=1, result={"unit": "u"}))
        assert (done["status"], done["result"], done["finished_at"]) == ("done", {"unit": "u"}, done["updated_at"])
        assert row(room, CompleteJob(job_id=job_id, token=1, result={"unit": "u"})) == done
        assert lease(room) == []


def test_the_most_urgent_comes_first_then_the_oldest(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        names = {
            name: add(room, kind=kind, priority=priority)
            for name, kind, priority in [
                ("a", "embed", 0),
                ("b", "summarize", 5),
                ("c", "embed", 5),
                ("d", "summarize", -1),
                ("e", "verify", 9),
            ]
        }
        taken = [each["job_id"] for each in lease(room, limit=3)] + [each["job_id"] for each in lease(room, limit=3)]
        assert taken == [names[name] for name in "bcad"]


def test_a_key_stands_for_one_open_job(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        first = add(room, key="k")
        again = row(room, AddJob(kind="summarize", key="k"))
        assert (again["job_id"], again["deduplicated"]) == (first, True)
        assert len({first, add(room, key="k", kind="embed"), add(room, key="k", tenant="other"), add(room)}) == 4
        (taken,) = lease(room, kinds=("summarize",))
        assert add(room, key="k") == first
        row(room, FailJob(job_id=first, token=taken["token"], error="no", permanent=True))
        second = add(room, key="k")
        assert second != first
        with pytest.raises(Conflict, match="other work with the key"):
            row(room, ReplayJob(job_id=first, request_id="r"))
        row(room, CancelJob(job_id=second))
        assert row(room, ReplayJob(job_id=first, request_id="r"))["status"] == "queued"


def test_a_repeated_lease_gives_the_same_jobs_and_asking_in_vain_writes_nothing(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        for _ in range(3):
            assert lease(room, lease_id="l") == []
        assert rows_of(room.path, "SELECT count(*) FROM requests") == [(0,)]
        add(room)
        add(room)
        first = row(room, LeaseJobs(kinds=KINDS, lease_id="l"))
        assert row(room, LeaseJobs(kinds=KINDS, lease_id="l")) == {**first, "deduplicated": True}
        assert lease(room, lease_id="m")[0]["job_id"] != first["jobs"][0]["job_id"]


def test_an_expired_lease_makes_the_job_leasable_and_the_late_report_changes_nothing(
    tmp_path: Path, clock: Clock
) -> None:
    with core(tmp_path) as room:
        job_id = add(room)
        (old,) = lease(room, lease_ms=1000)
        clock.move(SECOND)
        reports = (
            CompleteJob(job_id=job_id, token=old["token"]),
            FailJob(job_id=job_id, token=old["token"], error="no"),
            RenewJob(job_id=job_id, token=old["token"]),
        )
        for message in reports:
            with pytest.raises(Conflict, match="has expired"):
                row(room, message)
        (new,) = lease(room, lease_ms=1000)
        assert (new["attempt"], new["token"]) == (2, 2)
        before = get(room, job_id)
        for message in reports:
            with pytest.raises(Conflict, match="not its last one"):
                row(room, message)
        assert get(room, job_id) == before
        assert [cause["expired"] for cause in before["causes"]] == [True]
        assert row(room, CompleteJob(job_id=job_id, token=2))["status"] == "done"


def test_attempts_are_limited_and_the_causes_stay_with_the_dead_job(tmp_path: Path, clock: Clock) -> None:
    with core(tmp_path) as room:
        job_id = add(room)
        for attempt in range(1, 6):
            (taken,) = lease(room)
            assert taken["attempt"] == attempt
            if attempt == 2:
                clock.move(60 * SECOND)
                continue
            row(room, FailJob(job_id=job_id, token=taken["token"], error=f"reason {attempt}"))
            assert lease(room) == []
            clock.move(10 * 2**attempt * SECOND)
        dead = get(room, job_id)
        assert dead["status"] == "dead"
        assert [cause["error"].split(":")[0] for cause in dead["causes"]] == [
            "reason 1",
            "the lease expired",
            "reason 3",
            "reason 4",
            "reason 5",
        ]
        again = row(room, ReplayJob(job_id=job_id))
        assert (again["status"], again["attempts"], again["causes"]) == ("queued", 0, dead["causes"])
        assert lease(room)[0]["attempt"] == 1


def test_a_failed_attempt_waits_as_long_as_it_was_told(tmp_path: Path, clock: Clock) -> None:
    with core(tmp_path) as room:
        job_id = add(room)
        (taken,) = lease(room)
        failed = row(room, FailJob(job_id=job_id, token=taken["token"], error="no", retry_after_ms=2000))
        assert failed["not_before"] == "2027-01-15T08:00:02.000000Z"
        assert row(room, FailJob(job_id=job_id, token=taken["token"], error="no")) == failed
        clock.move(2 * SECOND - 1)
        assert lease(room) == []
        clock.move(1)
        assert len(lease(room)) == 1


def test_a_job_is_held_back(tmp_path: Path, clock: Clock) -> None:
    with core(tmp_path) as room:
        later, soon = add(room, not_before=START + 9 * SECOND), add(room, delay_ms=2000)
        past = add(room, not_before=1)
        assert [each["job_id"] for each in lease(room, limit=5)] == [past]
        clock.move(2 * SECOND)
        assert [each["job_id"] for each in lease(room, limit=5)] == [soon]
        clock.move(7 * SECOND)
        assert [each["job_id"] for each in lease(room, limit=5)] == [later]


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_a_clock_that_jumps_keeps_no_job_from_being_leased(tmp_path: Path, clock: Clock, jump: int) -> None:
    """A lease lasts at most job_lease_ms_max from the first look after the jump, a pause at most job_backoff_ms_max."""
    limits = CoreWriterSettings(job_lease_ms_max=10_000, job_lease_ms=5000, job_backoff_ms_max=10_000)
    with core(tmp_path, core_writer=limits) as room:
        add(room)
        failing = add(room)
        lease(room)
        (taken,) = lease(room)
        row(room, FailJob(job_id=failing, token=taken["token"], error="no"))
        clock.move(jump)
        keep_up(room)
        clock.move(10 * SECOND)
        assert len(lease(room, limit=5)) == 2


def test_renewing_goes_on_from_now(tmp_path: Path, clock: Clock) -> None:
    with core(tmp_path) as room:
        job_id = add(room)
        (taken,) = lease(room, lease_ms=1000)
        for _ in range(3):
            clock.move(SECOND - 1)
            row(room, RenewJob(job_id=job_id, token=taken["token"], lease_ms=1000))
        assert row(room, CompleteJob(job_id=job_id, token=taken["token"]))["attempts"] == 1


def test_a_cancelled_job_is_nobodys(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        job_id = add(room)
        (taken,) = lease(room)
        gone = row(room, CancelJob(job_id=job_id))
        assert gone["status"] == "cancelled"
        assert row(room, CancelJob(job_id=job_id)) == gone
        with pytest.raises(Conflict, match="is cancelled"):
            row(room, CompleteJob(job_id=job_id, token=taken["token"]))
        with pytest.raises(Conflict, match="is cancelled, not dead"):
            row(room, ReplayJob(job_id=job_id))


def test_jobs_of_another_tenant_are_neither_found_nor_leased(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        job_id = add(room, tenant="a")
        assert lease(room, tenant="b") == []
        (taken,) = lease(room, tenant="a")
        token = taken["token"]
        messages: tuple[Message, ...] = (
            GetJob(job_id=job_id, tenant="b"),
            RenewJob(job_id=job_id, token=token, tenant="b"),
            CompleteJob(job_id=job_id, token=token, tenant="b"),
            FailJob(job_id=job_id, token=token, error="no", tenant="b"),
            CancelJob(job_id=job_id, tenant="b"),
            ReplayJob(job_id=job_id, tenant="b"),
        )
        for message in messages:
            with pytest.raises(NotFound, match="there is no job"):
                row(room, message)
        assert ask(room, ListJobs(limit=5, tenant="b"), Rows).count == 0


def test_jobs_are_listed_in_pages_the_newest_first(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        made = [add(room, kind="embed" if n % 3 == 0 else "summarize") for n in range(10)]
        taken = [each["job_id"] for each in lease(room, kinds=("embed",), limit=2)]
        assert listed(room) == made[::-1]
        assert listed(room, status="leased") == taken[::-1]
        assert listed(room, kind="embed") == [made[n] for n in (9, 6, 3, 0)]
        assert listed(room, kind="embed", status="queued") == [made[9], made[6]]
        assert listed(room, status="dead") == []


def test_old_finished_jobs_are_dropped_and_dead_ones_are_not(tmp_path: Path, clock: Clock) -> None:
    with core(tmp_path) as room:
        for _ in range(100):
            row(room, CancelJob(job_id=add(room)))
        dead, open_job = add(room), add(room)
        row(room, FailJob(job_id=dead, token=lease(room)[0]["token"], error="no", permanent=True))
        clock.move(30 * DAY - 1)
        keep_up(room)
        assert len(listed(room)) == 102
        clock.move(1)
        keep_up(room)
        assert listed(room) == [open_job, dead]


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (AddJob(kind="embed", priority=1001), "priority is 1001"),
        (AddJob(kind="embed", key=""), "key is empty"),
        (AddJob(kind="embed", payload={"x": "x" * 70_000}), "payload is 70008 bytes, the limit is 65536"),
        (AddJob(kind="embed", not_before=1, delay_ms=1), "not both"),
        (LeaseJobs(kinds=()), "kinds is empty"),
        (LeaseJobs(kinds=KINDS, limit=33), "limit is 33, the limits are 1 and 32 \\(core_writer.jobs_per_lease_max"),
        (LeaseJobs(kinds=KINDS, lease_ms=3_600_001), "lease_ms is 3600001"),
        (RenewJob(job_id="j", token=1, lease_ms=0), "lease_ms is 0"),
        (FailJob(job_id="j", token=1, error="no", retry_after_ms=-1), "retry_after_ms is -1"),
        (FailJob(job_id="j", token=1, error="x" * 70_000), "error is 70000 bytes"),
        (CompleteJob(job_id="j", token=1, result={"x": "x" * 70_000}), "result is 70008 bytes"),
    ],
)
def test_what_is_beyond_a_limit_is_refused(tmp_path: Path, message: Message, found: str) -> None:
    with core(tmp_path) as room:
        with pytest.raises(InvalidParams, match=found):
            row(room, message)
        assert listed(room) == []


def statements(room: CoreRoom, work: Callable[[], object]) -> list[str]:
    seen: list[str] = []
    connection = room._databases["write"].connection
    connection.set_trace_callback(seen.append)
    try:
        work()
    finally:
        connection.set_trace_callback(None)
    return seen


def test_no_statement_of_the_queue_reads_all_jobs(tmp_path: Path, clock: Clock) -> None:
    """A lease from a million jobs is a walk of an index: no scan and no sort in any plan, upkeep's neither."""
    with core(tmp_path) as room:
        add(room)
        add(room, key="k")
        seen = statements(room, lambda: lease(room, lease_id="l"))
        seen += statements(room, lambda: add(room, key="k"))
        seen += statements(room, lambda: keep_up(room))
        connection = sqlite3.connect(room.path)
        plans = 0
        for statement in seen:
            if " jobs" in statement and not statement.lstrip().startswith("INSERT"):
                plan = [str(step[3]) for step in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
                assert not any(step.startswith("SCAN") or "TEMP B-TREE" in step for step in plan), (statement, plan)
                plans += 1
        connection.close()
        assert plans >= 8
        for column in _COLUMNS.split(", "):
            assert column in rows_of(room.path, "SELECT sql FROM sqlite_schema WHERE name = 'jobs'")[0][0]  # type: ignore[operator]
