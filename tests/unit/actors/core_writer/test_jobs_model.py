"""Jobs against a model: any order of events, a clock that jumps, requests undone before their commit, reopening.

The model says what must be true of each job after each step; work is never lost, and never done twice under two leases.
"""

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.core_writer.worker import CoreRoom
from actors.errors import Conflict, Interrupted
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
from tests.unit.actors.room_kit import ask, call_within, core

Json = dict[str, Any]
MS = 1000
DAY = 86_400_000 * MS
START = 1_800_000_000_000 * MS
LIMITS = CoreWriterSettings(
    job_attempts_max=3,
    job_lease_ms=1000,
    job_lease_ms_max=5000,
    job_backoff_ms_min=100,
    job_backoff_ms_max=4000,
    jobs_kept_days=1,
)
KINDS: tuple[JobKind, ...] = ("summarize", "embed")


@dataclass
class Known:
    """What the model knows of one job."""

    number: int
    kind: str
    priority: int
    key: str | None
    ready_at: int | None
    status: str = "queued"
    attempts: int = 0
    token: int = 0
    expires_at: int | None = None
    finished_at: int | None = None
    causes: list[tuple[int, bool]] = field(default_factory=list)  # token, expired

    def end(self, *, expired: bool, ready_at: int | None, dead: bool = False) -> None:
        """End an attempt that came to nothing."""
        self.causes = [*self.causes, (self.token, expired)][-10:]
        self.status = "dead" if dead or self.attempts >= LIMITS.job_attempts_max else "queued"
        self.ready_at = None if self.status == "dead" else ready_at
        self.expires_at = None


class JobsMachine(RuleBasedStateMachine):
    """The queue and its model, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.jobs: dict[str, Known] = {}
        self.dropped: set[str] = set()
        self.leases: list[tuple[str, int]] = []
        self.completed: dict[str, int] = {}
        self.names = 0
        self.added = 0
        self.stack = ExitStack()
        self.stack.enter_context(patch("time.time_ns", lambda: self.now * 1000))
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.room_stack = ExitStack()
        self.room: CoreRoom

    @initialize()
    def open(self) -> None:
        """Open the room on its files."""
        self.room = self.room_stack.enter_context(core(self.folder, core_writer=LIMITS))

    def teardown(self) -> None:
        """Close everything."""
        self.room_stack.close()
        self.stack.close()

    # ------------------------------------------------------------ steps

    @rule(
        kind=st.sampled_from(KINDS),
        priority=st.integers(-1, 1),
        delay_ms=st.sampled_from([None, 0, 500, 2000]),
        key=st.sampled_from([None, None, "k"]),
    )
    def add(self, kind: JobKind, priority: int, delay_ms: int | None, key: str | None) -> None:
        message = AddJob(
            kind=kind, priority=priority, delay_ms=delay_ms, key=key, payload={"n": self.added}, request_id=self.name()
        )
        answer = self.twice(message)
        known = [
            job_id
            for job_id, job in self.jobs.items()
            if key is not None and job.key == key and job.kind == kind and job.status in ("queued", "leased")
        ]
        if known:
            assert ([answer["job_id"]], answer["deduplicated"]) == (known, True)
            return
        self.added += 1
        self.jobs[answer["job_id"]] = Known(
            answer["job_seq"], kind, priority, key, self.now + delay_ms * MS if delay_ms else None
        )

    @rule(
        kinds=st.sampled_from([KINDS, KINDS[:1], KINDS[1:]]),
        limit=st.integers(1, 3),
        lease_ms=st.sampled_from([None, 100, 5000]),
        with_id=st.booleans(),
    )
    def lease(self, kinds: tuple[JobKind, ...], limit: int, lease_ms: int | None, with_id: bool) -> None:
        self.time_passes()
        for job in self.jobs.values():
            if job.status == "queued" and job.ready_at is not None and job.ready_at <= self.now:
                job.ready_at = None
        ready = [
            (-job.priority, job.number, job_id)
            for job_id, job in self.jobs.items()
            if job.status == "queued" and job.ready_at is None and job.kind in kinds
        ]
        expected = [job_id for _, _, job_id in sorted(ready)][:limit]
        message = LeaseJobs(
            kinds=kinds, limit=limit, lease_ms=lease_ms, worker="w", lease_id=self.name() if with_id else None
        )
        answer = self.twice(message) if with_id and expected else self.row(message)
        taken = answer["jobs"]
        assert [each["job_id"] for each in taken] == expected
        for each in taken:
            job = self.jobs[each["job_id"]]
            job.status, job.attempts, job.token = "leased", job.attempts + 1, job.token + 1
            job.expires_at = self.now + (lease_ms or LIMITS.job_lease_ms) * MS
            assert (each["token"], each["attempt"]) == (job.token, job.attempts)
            self.leases.append((each["job_id"], each["token"]))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), by_id=st.booleans())
    def complete(self, data: st.DataObject, by_id: bool) -> None:
        job_id, token = data.draw(st.sampled_from(self.leases))
        job = self.jobs[job_id]
        message = CompleteJob(
            job_id=job_id, token=token, result={"token": token}, request_id=self.name() if by_id else None
        )
        if job.status == "done" and job.token == token:
            assert self.row(message)["result"] == {"token": token}
        elif not self.holds(job, token):
            self.refused(message)
        else:
            assert job_id not in self.completed
            self.completed[job_id] = token
            self.twice(message)
            job.status, job.expires_at, job.finished_at = "done", None, self.now

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), retry_ms=st.sampled_from([None, 0, 300]), permanent=st.booleans())
    def fail(self, data: st.DataObject, retry_ms: int | None, permanent: bool) -> None:
        job_id, token = data.draw(st.sampled_from(self.leases))
        job = self.jobs[job_id]
        message = FailJob(
            job_id=job_id, token=token, error="no", retry_after_ms=retry_ms, permanent=permanent, request_id=self.name()
        )
        if job.status in ("queued", "dead") and job.causes[-1:] == [(token, False)] and job.token == token:
            self.row(message)
        elif not self.holds(job, token):
            self.refused(message)
        else:
            answer = self.twice(message)
            whole = min(LIMITS.job_backoff_ms_min << (job.attempts - 1), LIMITS.job_backoff_ms_max) * MS
            ready_at = None if answer["not_before"] is None else microseconds(answer["not_before"])
            if retry_ms is None and ready_at is not None:
                assert self.now + whole // 2 <= ready_at <= self.now + whole
            elif ready_at is not None:
                assert ready_at == self.now + (retry_ms or 0) * MS
            job.end(expired=False, ready_at=ready_at, dead=permanent)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), lease_ms=st.sampled_from([None, 100, 5000]))
    def renew(self, data: st.DataObject, lease_ms: int | None) -> None:
        job_id, token = data.draw(st.sampled_from(self.leases))
        message = RenewJob(job_id=job_id, token=token, lease_ms=lease_ms)
        if self.holds(self.jobs[job_id], token):
            self.row(message)
            self.jobs[job_id].expires_at = self.now + (lease_ms or LIMITS.job_lease_ms) * MS
        else:
            self.refused(message)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.jobs)))
        job = self.jobs[job_id]
        if job.status == "done":
            self.refused(CancelJob(job_id=job_id, request_id=self.name()))
        else:
            self.twice(CancelJob(job_id=job_id, request_id=self.name()))
            if job.status != "cancelled":
                job.status, job.ready_at, job.expires_at, job.finished_at = "cancelled", None, None, self.now

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        dead = sorted(job_id for job_id, job in self.jobs.items() if job.status == "dead")
        job_id = data.draw(st.sampled_from(dead or sorted(self.jobs)))
        job = self.jobs[job_id]
        blocked = job.key is not None and any(
            other.key == job.key and other.kind == job.kind and other.status in ("queued", "leased")
            for other in self.jobs.values()
        )
        message = ReplayJob(job_id=job_id, request_id=self.name())
        if job.status != "dead" or blocked:
            self.refused(message)
        else:
            self.twice(message)
            job.status, job.attempts, job.ready_at = "queued", 0, None

    @rule(by_ms=st.sampled_from([1, 50, 100, 1000, 5000]))
    def wait(self, by_ms: int) -> None:
        self.now += by_ms * MS

    @rule(by=st.sampled_from([DAY, -DAY]))
    def jump(self, by: int) -> None:
        self.now += by

    @rule()
    def keep_up(self) -> None:
        connection = self.room._databases["write"].connection
        while self.room.upkeep(connection, call_within(60)):
            pass
        self.time_passes()
        for job_id, job in list(self.jobs.items()):
            if job.finished_at is not None and job.finished_at <= self.now - DAY:
                del self.jobs[job_id]
                self.leases = [each for each in self.leases if each[0] != job_id]

    @rule()
    def reopen(self) -> None:
        self.room_stack.close()
        self.room_stack = ExitStack()
        self.open()

    @rule(what=st.sampled_from(["add", "lease", "complete", "fail"]))
    def undone(self, what: str) -> None:
        """A request whose deadline passes between its statements and its commit changes nothing."""
        job_id, token = self.leases[-1] if self.leases else ("none", 1)
        messages: dict[str, Message] = {
            "add": AddJob(kind="embed"),
            "lease": LeaseJobs(kinds=KINDS, limit=3),
            "complete": CompleteJob(job_id=job_id, token=token),
            "fail": FailJob(job_id=job_id, token=token, error="no"),
        }
        if what in ("complete", "fail") and (job_id == "none" or not self.holds(self.jobs[job_id], token)):
            return
        with patch("actors.child.CallContext.check", side_effect=Interrupted("too late")), pytest.raises(Interrupted):
            self.row(messages[what])

    # ------------------------------------------------------------ what must hold

    @invariant()
    def every_job_is_what_the_model_says(self) -> None:
        for job_id, job in self.jobs.items():
            found = self.row(GetJob(job_id=job_id))
            told = {
                "status": job.status,
                "attempts": job.attempts,
                "not_before": job.ready_at,
                "lease_expires_at": job.expires_at,
                "finished_at": job.finished_at,
                "causes": job.causes,
            }
            assert told == {
                "status": found["status"],
                "attempts": found["attempts"],
                "not_before": microseconds(found["not_before"]),
                "lease_expires_at": microseconds(found["lease_expires_at"]),
                "finished_at": microseconds(found["finished_at"]),
                "causes": [(cause["token"], cause["expired"]) for cause in found["causes"]],
            }
        if self.jobs:
            listed = msgspec.json.decode(ask(self.room, ListJobs(limit=500), Rows).rows, type=list[Json])
            by_number = sorted(self.jobs.items(), key=lambda each: each[1].number, reverse=True)
            assert [each["job_id"] for each in listed] == [job_id for job_id, _ in by_number]

    # ------------------------------------------------------------ helpers

    def name(self) -> str:
        self.names += 1
        return f"r{self.names}"

    def row(self, message: Message) -> Json:
        return msgspec.json.decode(ask(self.room, message, Row).row, type=Json)

    def twice(self, message: Message) -> Json:
        """Send a request and send it again; the second answer is the first."""
        first = self.row(message)
        again = self.row(message)
        assert {**again, "deduplicated": True} == {**first, "deduplicated": True}
        return first

    def refused(self, message: Message) -> None:
        with pytest.raises(Conflict):
            self.row(message)

    def holds(self, job: Known, token: int) -> bool:
        return job.status == "leased" and job.token == token and (job.expires_at or 0) > self.now

    def time_passes(self) -> None:
        """Do to the model what a lease and the upkeep do first."""
        for job in self.jobs.values():
            if job.status == "leased" and job.expires_at is not None and job.expires_at <= self.now:
                job.end(expired=True, ready_at=None)
            if job.expires_at is not None:
                job.expires_at = min(job.expires_at, self.now + LIMITS.job_lease_ms_max * MS)
            if job.status == "queued" and job.ready_at is not None and job.attempts:
                job.ready_at = min(job.ready_at, self.now + LIMITS.job_backoff_ms_max * MS)


def microseconds(text: str | None) -> int | None:
    """Return a time of a row in µs."""
    from supervisor.times import parse_ts

    return None if text is None else parse_ts(text, "time")


TestJobs = JobsMachine.TestCase
TestJobs.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # Every step is a commit on a disk: making an example smaller would take longer than a test may.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
