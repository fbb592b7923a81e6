"""What may become of a job: the table of its states, and nothing else. Pure; times in µs, `now` comes from the caller.

    queued → leased → done
       ↑        ├──→ queued (failed or expired, attempts left) or dead (none left, or failed for good)
       └── dead, replayed            queued, leased, dead → cancelled

A lease is named by its token, which counts the leases of the job and never goes back. Only who has the token of a
lease that still runs can report on the job, so two who believe to hold it cannot both be right.
"""

from typing import NamedTuple

import msgspec

from actors.errors import Conflict

CAUSES_MAX = 10
ERROR_CHARS_MAX = 1000
_EXPIRED = "the lease expired: whoever held the job did not report in time"
_HINT = "drop this attempt and lease the job again; what an attempt writes must be safe to repeat"


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt came to nothing. `attempt` counts from the last replay, `token` from the beginning."""

    at: int
    attempt: int
    token: int
    error: str
    worker: str | None = None
    expired: bool = False


class Job(NamedTuple):
    """A row of `jobs`, in the order of its columns. `causes`, `payload` and `result` are JSON."""

    job_seq: int
    job_id: str
    tenant: str
    kind: str
    status: str
    priority: int
    key: str | None
    session_id: str | None
    created_at: int
    updated_at: int
    ready_at: int | None
    attempts: int
    attempts_max: int
    token: int
    worker: str | None
    lease_expires_at: int | None
    finished_at: int | None
    causes: str
    payload: str | None
    result: str | None


def leased(job: Job, *, now: int, lease_us: int, worker: str | None) -> Job:
    """Give a queued job to somebody."""
    assert job.status == "queued" and job.ready_at is None
    return job._replace(
        status="leased",
        attempts=job.attempts + 1,
        token=job.token + 1,
        worker=worker,
        lease_expires_at=now + lease_us,
        updated_at=now,
    )


def renewed(job: Job, token: int, *, now: int, lease_us: int) -> Job:
    """Let a lease last longer; raises Conflict when it is over."""
    _require_held(job, token, now, "job.renew")
    return job._replace(lease_expires_at=now + lease_us, updated_at=now)


def completed(job: Job, token: int, *, now: int, result: str | None) -> Job:
    """Finish a job, or return it as it is when this lease has finished it; raises Conflict."""
    if job.status == "done" and job.token == token:
        return job
    _require_held(job, token, now, "job.complete")
    return job._replace(status="done", lease_expires_at=None, finished_at=now, updated_at=now, result=result)


def failed(job: Job, token: int, *, now: int, error: str, wait_us: int, permanent: bool) -> Job:
    """End an attempt: the job waits for the next one, or is dead. Returned as it is when this was said already.

    Raises Conflict when the lease is over.
    """
    if job.status in ("queued", "dead") and _last_failure(job) == token:
        return job
    _require_held(job, token, now, "job.fail")
    return _ended(job, now=now, error=error[:ERROR_CHARS_MAX], wait_us=wait_us, dead=permanent)


def expired(job: Job, *, now: int) -> Job:
    """End an attempt that nobody reported on. The next one need not wait: the lease was the pause."""
    assert job.status == "leased"
    return _ended(job, now=now, error=_EXPIRED, wait_us=0, dead=False, expired=True)


def cancelled(job: Job, *, now: int) -> Job:
    """Give a job up; one that is given up already stays as it is. Raises Conflict when it is done."""
    if job.status == "cancelled":
        return job
    if job.status == "done":
        raise Conflict(f"job.cancel refused: job {job.job_id!r} is done")
    return job._replace(status="cancelled", ready_at=None, lease_expires_at=None, finished_at=now, updated_at=now)


def replayed(job: Job, *, now: int) -> Job:
    """Queue a dead job again; raises Conflict when it is not dead."""
    if job.status != "dead":
        raise Conflict(
            f"job.replay refused: job {job.job_id!r} is {job.status}, not dead",
            hint="only dead jobs are replayed; add a new job to do finished work once more",
        )
    return job._replace(status="queued", attempts=0, ready_at=None, worker=None, updated_at=now)


def backoff_us(attempt: int, *, us_min: int, us_max: int, random: float) -> int:
    """Return the pause after a failed attempt (from 1): it doubles from `us_min` to `us_max`, less up to half of it.

    `random` is in [0, 1). Equal jobs that failed together do not come back together.
    """
    assert attempt >= 1 and 0 <= random < 1
    whole = min(us_max, us_min << min(attempt - 1, 40))
    return whole - int(whole / 2 * random)


def causes_of(job: Job) -> list[Cause]:
    """Return why attempts came to nothing, the last ones, oldest first."""
    return msgspec.json.decode(job.causes, type=list[Cause])


def _require_held(job: Job, token: int, now: int, what: str) -> None:
    if job.status != "leased":
        raise Conflict(f"{what} refused: job {job.job_id!r} is {job.status}, lease {token} is over", hint=_HINT)
    if job.token != token:
        raise Conflict(f"{what} refused: lease {token} of job {job.job_id!r} is not its last one", hint=_HINT)
    assert job.lease_expires_at is not None
    if job.lease_expires_at <= now:
        raise Conflict(f"{what} refused: lease {token} of job {job.job_id!r} has expired", hint=_HINT)


def _ended(job: Job, *, now: int, error: str, wait_us: int, dead: bool, expired: bool = False) -> Job:
    cause = Cause(at=now, attempt=job.attempts, token=job.token, error=error, worker=job.worker, expired=expired)
    causes = [*causes_of(job), cause][-CAUSES_MAX:]
    dead = dead or job.attempts >= job.attempts_max
    return job._replace(
        status="dead" if dead else "queued",
        ready_at=None if dead or wait_us == 0 else now + wait_us,
        worker=None,
        lease_expires_at=None,
        updated_at=now,
        causes=msgspec.json.encode(causes).decode(),
    )


def _last_failure(job: Job) -> int | None:
    """Return the token of the lease whose failure was reported last, None when the last one expired."""
    causes = causes_of(job)
    return causes[-1].token if causes and not causes[-1].expired and causes[-1].token == job.token else None
