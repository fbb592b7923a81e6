"""When sessions get summarize jobs, and which events these cover: all of them, each once."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.core_writer.summary_rules import due_at, horizon
from actors.core_writer.worker import CoreRoom
from actors.messages.base import Done, Row, Rows
from actors.messages.core_writer import AdoptSessions, CloseSession, OpenSession, SessionActivity
from actors.messages.jobs import CancelJob, LeaseJobs, ListJobs
from actors.settings import CoreWriterSettings
from tests.unit.actors.room_kit import ask, call_within, core

Json = dict[str, Any]
SECOND = 1_000_000
DAY = 86_400 * SECOND
START = 1_800_000_000 * SECOND
OFF = CoreWriterSettings(summarize_on_close=False)
SETTLE = CoreWriterSettings().summarize_settle_ms * 1000


class Clock:
    """The wall clock of core (µs)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = START
        monkeypatch.setattr("time.time_ns", lambda: self.now * 1000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def adopt(room: CoreRoom, session_id: str, *, last_seq: int, events: int, at: int, tenant: str = "default") -> None:
    activity = SessionActivity(
        session_id=session_id, tenant=tenant, first_ts=1, last_ts=at, last_seq=last_seq, events=events
    )
    ask(room, AdoptSessions(sessions=[activity], cursor=0), Done)


def close(room: CoreRoom, session_id: str) -> None:
    ask(room, CloseSession(session_id=session_id), Row)


def ranges(room: CoreRoom, tenant: str = "default") -> list[tuple[str, int, int, int]]:
    connection = room._databases["write"].connection
    while room.upkeep(connection, call_within(60)):
        pass
    rows = ask(room, ListJobs(limit=500, kind="summarize", tenant=tenant), Rows).rows
    payloads = [job["payload"] for job in reversed(msgspec.json.decode(rows, type=list[Json]))]
    assert all(set(each) == {"session_id", "after_seq", "until_seq", "events"} for each in payloads)
    return [(each["session_id"], each["after_seq"], each["until_seq"], each["events"]) for each in payloads]


def begin(room: CoreRoom) -> str:
    (job,) = msgspec.json.decode(ask(room, LeaseJobs(kinds=("summarize",)), Row).row)["jobs"]
    return str(job["job_id"])


def test_a_closed_session_gets_a_job_once_its_events_have_settled(tmp_path: Path, clock: Clock) -> None:
    with core(tmp_path) as room:
        adopt(room, "s", last_seq=7, events=5, at=START)
        close(room, "s")
        clock.now += SETTLE - 1
        assert ranges(room) == []
        clock.now += 1
        assert ranges(room) == [("s", 0, 7, 5)]
        assert ranges(room) == [("s", 0, 7, 5)]


def test_a_session_that_was_closed_before_its_events_were_known_gets_its_job(tmp_path: Path, clock: Clock) -> None:
    with core(tmp_path) as room:
        ask(room, OpenSession(session_id="s"), Row)
        close(room, "s")
        clock.now += DAY
        assert ranges(room) == []
        adopt(room, "s", last_seq=9, events=3, at=START - 1)
        clock.now += SETTLE
        assert ranges(room) == [("s", 0, 9, 3)]


def test_a_session_without_events_and_an_open_one_get_none(tmp_path: Path, clock: Clock) -> None:
    with core(tmp_path) as room:
        ask(room, OpenSession(session_id="empty"), Row)
        close(room, "empty")
        adopt(room, "open", last_seq=7, events=5, at=START)
        clock.now += DAY
        assert ranges(room) == []


def test_a_job_that_nobody_has_begun_grows_and_one_that_was_begun_is_followed(tmp_path: Path, clock: Clock) -> None:
    with core(tmp_path) as room:
        adopt(room, "s", last_seq=5, events=5, at=START)
        close(room, "s")
        clock.now += SETTLE
        assert ranges(room) == [("s", 0, 5, 5)]
        for last_seq in (8, 12):
            adopt(room, "s", last_seq=last_seq, events=last_seq, at=clock.now + 1)
            close(room, "s")
            clock.now += SETTLE
        assert ranges(room) == [("s", 0, 12, 12)]
        first = begin(room)
        adopt(room, "s", last_seq=20, events=14, at=clock.now + 1)
        close(room, "s")
        clock.now += SETTLE
        assert ranges(room) == [("s", 0, 12, 12), ("s", 12, 20, 2)]
        ask(room, CancelJob(job_id=first), Row)
        assert ranges(room) == [("s", 0, 12, 12), ("s", 12, 20, 2)]


def test_by_count(tmp_path: Path, clock: Clock) -> None:
    limits = msgspec.structs.replace(OFF, summarize_every_events=10)
    with core(tmp_path, core_writer=limits) as room:
        adopt(room, "s", last_seq=90, events=9, at=START)
        close(room, "s")
        assert ranges(room) == []
        adopt(room, "s", last_seq=110, events=11, at=START)
        assert ranges(room) == [("s", 0, 110, 11)]
        begin(room)
        adopt(room, "s", last_seq=200, events=20, at=START)
        assert ranges(room) == [("s", 0, 110, 11)]
        adopt(room, "s", last_seq=210, events=21, at=START)
        assert ranges(room) == [("s", 0, 110, 11), ("s", 110, 210, 10)]


def test_by_age(tmp_path: Path, clock: Clock) -> None:
    limits = msgspec.structs.replace(OFF, summarize_after_s=100)
    with core(tmp_path, core_writer=limits) as room:
        adopt(room, "s", last_seq=1, events=1, at=START)
        clock.now += 99 * SECOND
        adopt(room, "s", last_seq=2, events=2, at=clock.now)
        clock.now += 99 * SECOND
        assert ranges(room) == []
        clock.now += SECOND
        assert ranges(room) == [("s", 0, 2, 2)]


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_a_clock_that_jumps_delays_no_job(tmp_path: Path, clock: Clock, jump: int) -> None:
    with core(tmp_path) as room:
        adopt(room, "s", last_seq=1, events=1, at=START)
        close(room, "s")
        clock.now += jump
        assert ranges(room) == [("s", 0, 1, 1)]


def test_what_is_due_outlives_the_process_and_tenants_are_kept_apart(tmp_path: Path, clock: Clock) -> None:
    with core(tmp_path) as room:
        for number in range(80):
            adopt(room, f"s{number}", last_seq=number + 1, events=1, at=START)
            close(room, f"s{number}")
        adopt(room, "s1", last_seq=500, events=1, at=START, tenant="other")
        ask(room, CloseSession(session_id="s1", tenant="other"), Row)
    clock.now += SETTLE
    with core(tmp_path) as room:
        assert sorted(ranges(room)) == sorted((f"s{number}", 0, number + 1, 1) for number in range(80))
        assert ranges(room, tenant="other") == [("s1", 0, 500, 1)]


@given(
    closed=st.booleans(),
    policy=st.builds(
        CoreWriterSettings,
        summarize_on_close=st.booleans(),
        summarize_every_events=st.sampled_from([0, 1, 10]),
        summarize_after_s=st.sampled_from([0, 1, 100]),
    ),
    new_events=st.integers(-1, 20),
    ago=st.integers(-DAY, DAY),
)
def test_a_session_is_due_for_the_first_reason_that_applies(
    closed: bool, policy: CoreWriterSettings, new_events: int, ago: int
) -> None:
    found = due_at(closed=closed, new_events=new_events, changed_at=START - ago, now=START, limits=policy)
    enough = 0 < policy.summarize_every_events <= new_events
    asked = (closed and policy.summarize_on_close) or enough or policy.summarize_after_s > 0
    assert (found is not None) == (new_events > 0 and asked)
    if found is not None:
        assert found <= (START if enough else horizon(now=START, limits=policy))
