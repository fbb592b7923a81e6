"""Jobs: put down, leased, reported on, looked up, dropped. Statements; what may become of a job is in `job_rules.py`.

Leasing is a walk of an index whatever is in the table: a job that must wait is not in the index of those that can be
leased. What time does to jobs (a pause is over, a lease has expired) is therefore written down, in slices, by the next
lease and by the upkeep.
"""

import random
import sqlite3
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import islice
from typing import get_args

import msgspec

from actors.core_writer import job_rules, requests
from actors.core_writer.job_checks import check
from actors.core_writer.job_rules import Job
from actors.core_writer.subject import Subject, Writing
from actors.errors import Conflict, NotFound
from actors.messages.base import Row, Rows
from actors.messages.jobs import (
    AddJob,
    CancelJob,
    CompleteJob,
    FailJob,
    GetJob,
    JobKind,
    JobStatus,
    LeaseJobs,
    ListJobs,
    RenewJob,
    ReplayJob,
)
from actors.settings import CoreWriterSettings
from actors.sql.rows import encode_row, page, raw_json, rfc3339, rows_limit

_MS = 1000
_DAY_US = 86_400_000_000
_SLICE_ROWS = 64
_COLUMNS = ", ".join(Job._fields)
_KINDS: tuple[str, ...] = get_args(JobKind)
_STATUSES: tuple[str, ...] = get_args(JobStatus)
_NONE = b'{"jobs":[]}'


class _NothingToLease(Exception):
    """There is no work: nothing is kept of the question."""


# ---------------------------------------------------------------- what clients do


def _add(writing: Writing, message: AddJob) -> Row:
    if message.key is not None and (known := _find_open(writing.connection, message)) is not None:
        return Row(row=_client_row(known, deduplicated=True))
    return Row(row=_client_row(add_job(writing, message)))


def add_job(writing: Writing, message: AddJob) -> Job:
    """Write a new job down and return it."""
    not_before = _not_before(writing, message)
    row = writing.connection.execute(
        f"""
        INSERT INTO jobs (
            job_id, tenant, kind, status, priority, key, session_id, created_at, updated_at, ready_at, attempts,
            attempts_max, token, causes, payload
        )
        VALUES (
            :job_id, :tenant, :kind, 'queued', :priority, :key, :session_id, :now, :now, :ready_at, 0,
            :attempts_max, 0, '[]', :payload
        )
        RETURNING {_COLUMNS}
        """,
        {
            "job_id": writing.new_id(),
            "tenant": message.tenant,
            "kind": message.kind,
            "priority": message.priority,
            "key": message.key,
            "session_id": message.session_id,
            "now": writing.now,
            "ready_at": not_before if not_before > writing.now else None,
            "attempts_max": writing.limits.job_attempts_max,
            "payload": _json(message.payload),
        },
    ).fetchone()
    return Job(*row)


def _lease(writing: Writing, message: LeaseJobs) -> Row:
    """Lease what there is. Only an answer with jobs is kept for a repetition, so asking in vain writes nothing."""
    keep_time(writing)
    _ripen(writing, message.tenant)
    try:
        row = requests.once(
            writing.connection,
            tenant=message.tenant,
            request_id=message.lease_id,
            method="LeaseJobs",
            now=writing.now,
            effect=lambda: _lease_first(writing, message),
        )
    except _NothingToLease:
        return Row(row=_NONE)
    return Row(row=row)


def _lease_first(writing: Writing, message: LeaseJobs) -> bytes:
    lease_us = _lease_us(message.lease_ms, writing.limits)
    taken = [
        job_rules.leased(job, now=writing.now, lease_us=lease_us, worker=message.worker)
        for job in _leasable(writing.connection, message)
    ]
    if not taken:
        raise _NothingToLease
    for job in taken:
        _save(writing.connection, job)
    return encode_row({"jobs": [msgspec.Raw(_lease_row(job)) for job in taken]})


def _renew(writing: Writing, message: RenewJob) -> Row:
    lease_us = _lease_us(message.lease_ms, writing.limits)
    return _change(
        writing, message, lambda job: job_rules.renewed(job, message.token, now=writing.now, lease_us=lease_us)
    )


def _complete(writing: Writing, message: CompleteJob) -> Row:
    result = _json(message.result)
    return _change(
        writing, message, lambda job: job_rules.completed(job, message.token, now=writing.now, result=result)
    )


def _fail(writing: Writing, message: FailJob) -> Row:
    def fail(job: Job) -> Job:
        return job_rules.failed(
            job,
            message.token,
            now=writing.now,
            error=message.error,
            wait_us=_pause_us(job, message.retry_after_ms, writing.limits),
            permanent=message.permanent,
        )

    return _change(writing, message, fail)


def _cancel(writing: Writing, message: CancelJob) -> Row:
    return _change(writing, message, lambda job: job_rules.cancelled(job, now=writing.now))


def _replay(writing: Writing, message: ReplayJob) -> Row:
    try:
        return _change(writing, message, lambda job: job_rules.replayed(job, now=writing.now))
    except sqlite3.IntegrityError as error:
        raise Conflict(
            f"job.replay refused: other work with the key of job {message.job_id!r} is queued already",
            hint="let that one be done, or cancel it",
        ) from error


def _get(connection: sqlite3.Connection, message: GetJob) -> Row:
    return Row(row=_client_row(get_job(connection, message.tenant, message.job_id)))


def _list(connection: sqlite3.Connection, message: ListJobs) -> Rows:
    """List by the index, one walk for each status and kind: what is not asked for is not read."""
    limit = rows_limit(message.limit)
    kinds = _KINDS if message.kind is None else (message.kind,)
    statuses = _STATUSES if message.status is None else (message.status,)
    before = 2**63 - 1 if message.before is None else message.before
    walks = [
        _numbers(connection, (message.tenant, status, kind, before, limit + 1)) for status in statuses for kind in kinds
    ]
    numbers = islice(merge(*walks, reverse=True), limit + 1)
    return page((_client_row(job) for number in numbers for job in _by_number(connection, number)), limit)


# ---------------------------------------------------------------- what time does


def keep_time(writing: Writing) -> bool:
    """End some of the leases that have expired, and shorten what a clock that went back made too long.

    Returns whether there may be more.
    """
    expired = _select(
        writing.connection,
        "status = 'leased' AND lease_expires_at <= :now ORDER BY lease_expires_at LIMIT :limit",
        {"now": writing.now, "limit": _SLICE_ROWS},
    )
    for job in expired:
        _save(writing.connection, job_rules.expired(job, now=writing.now))
    shortened = _shorten(
        writing,
        "lease_expires_at",
        "status = 'leased'",
        writing.now + writing.limits.job_lease_ms_max * _MS,
    ) + _shorten(
        writing,
        "ready_at",
        "status = 'queued' AND ready_at IS NOT NULL AND attempts > 0",
        writing.now + writing.limits.job_backoff_ms_max * _MS,
    )
    return len(expired) == _SLICE_ROWS or shortened >= _SLICE_ROWS


def _shorten(writing: Writing, column: str, which: str, at_most: int) -> int:
    """Bring times back that lie further ahead than any that is ever given: the clock was set back since."""
    return writing.connection.execute(
        f"""
        UPDATE jobs SET {column} = :at_most
        WHERE job_seq IN (SELECT job_seq FROM jobs WHERE {which} AND {column} > :at_most LIMIT :limit)
        """,
        {"at_most": at_most, "limit": _SLICE_ROWS},
    ).rowcount


def _ripen(writing: Writing, tenant: str) -> None:
    """Let some jobs of a tenant whose pause is over be leased."""
    writing.connection.execute(
        """
        UPDATE jobs SET ready_at = NULL
        WHERE job_seq IN (
            SELECT job_seq
            FROM jobs
            WHERE tenant = :tenant AND status = 'queued' AND ready_at IS NOT NULL AND ready_at <= :now
            ORDER BY ready_at
            LIMIT :limit
        )
        """,
        {"tenant": tenant, "now": writing.now, "limit": _SLICE_ROWS},
    )


def _drop_finished(writing: Writing) -> bool:
    """Drop some of the jobs that were done or cancelled long ago. Dead ones stay until somebody looks at them."""
    dropped = writing.connection.execute(
        """
        DELETE FROM jobs
        WHERE job_seq IN (
            SELECT job_seq FROM jobs WHERE finished_at IS NOT NULL AND finished_at <= :before LIMIT :limit
        )
        """,
        {"before": writing.now - writing.limits.jobs_kept_days * _DAY_US, "limit": _SLICE_ROWS},
    ).rowcount
    return dropped == _SLICE_ROWS


def _upkeep(writing: Writing) -> bool:
    return keep_time(writing) | _drop_finished(writing)


# ---------------------------------------------------------------- statements


def get_job(connection: sqlite3.Connection, tenant: str, job_id: str) -> Job:
    """Return a job; raises NotFound."""
    found = _select(connection, "job_id = :job_id AND tenant = :tenant", {"job_id": job_id, "tenant": tenant})
    if not found:
        raise NotFound(f"there is no job {job_id!r}")
    return found[0]


def unbegun_payload(connection: sqlite3.Connection, job_id: str) -> str | None:
    """Return what a queued job is about, None when somebody has had it already or it is over."""
    found = _select(connection, "job_id = :job_id AND status = 'queued' AND token = 0", {"job_id": job_id})
    return found[0].payload if found else None


def replace_payload(connection: sqlite3.Connection, job_id: str, payload: str) -> None:
    """Change what a job is about."""
    connection.execute(
        "UPDATE jobs SET payload = :payload WHERE job_id = :job_id", {"job_id": job_id, "payload": payload}
    )


def _change(
    writing: Writing,
    message: RenewJob | CompleteJob | FailJob | CancelJob | ReplayJob,
    rule: Callable[[Job], Job],
) -> Row:
    job = get_job(writing.connection, message.tenant, message.job_id)
    changed = rule(job)
    if changed != job:
        _save(writing.connection, changed)
    return Row(row=_client_row(changed))


def _find_open(connection: sqlite3.Connection, message: AddJob) -> Job | None:
    found = _select(
        connection,
        "tenant = :tenant AND kind = :kind AND key = :key AND status IN ('queued', 'leased')",
        {"tenant": message.tenant, "kind": message.kind, "key": message.key},
    )
    return found[0] if found else None


def _leasable(connection: sqlite3.Connection, message: LeaseJobs) -> list[Job]:
    """Return the most urgent jobs of these kinds, the oldest of equals first; one walk of the index for each kind."""
    walks = [
        _select(
            connection,
            "tenant = :tenant AND kind = :kind AND status = 'queued' AND ready_at IS NULL"
            " ORDER BY priority DESC, job_seq LIMIT :limit",
            {"tenant": message.tenant, "kind": kind, "limit": message.limit},
        )
        for kind in dict.fromkeys(message.kinds)
    ]
    return list(islice(merge(*walks, key=lambda job: (-job.priority, job.job_seq)), message.limit))


def _numbers(connection: sqlite3.Connection, place: tuple[str, str, str, int, int]) -> Iterator[int]:
    rows = connection.execute(
        """
        SELECT job_seq
        FROM jobs
        WHERE tenant = ? AND status = ? AND kind = ? AND job_seq < ?
        ORDER BY job_seq DESC
        LIMIT ?
        """,
        place,
    )
    return (number for (number,) in rows)


def _by_number(connection: sqlite3.Connection, job_seq: int) -> list[Job]:
    """Return the job, or nothing when it has been dropped since its number was read."""
    return _select(connection, "job_seq = :job_seq", {"job_seq": job_seq})


def _select(connection: sqlite3.Connection, where: str, values: dict[str, object]) -> list[Job]:
    rows = connection.execute(f"SELECT {_COLUMNS} FROM jobs WHERE {where}", values)
    return [Job(*row) for row in rows]


def _save(connection: sqlite3.Connection, job: Job) -> None:
    """Write what may change of a job."""
    connection.execute(
        """
        UPDATE jobs SET
            status = :status,
            updated_at = :updated_at,
            ready_at = :ready_at,
            attempts = :attempts,
            token = :token,
            worker = :worker,
            lease_expires_at = :lease_expires_at,
            finished_at = :finished_at,
            causes = :causes,
            result = :result
        WHERE job_seq = :job_seq
        """,
        job._asdict(),
    )


# ---------------------------------------------------------------- rows and values


def _client_row(job: Job, *, deduplicated: bool = False) -> bytes:
    """Return a job as JSON. Its token is for who leases it."""
    row: dict[str, object] = {
        "job_id": job.job_id,
        "job_seq": job.job_seq,
        "kind": job.kind,
        "status": job.status,
        "priority": job.priority,
        "key": job.key,
        "session_id": job.session_id,
        "payload": raw_json(job.payload),
        "result": raw_json(job.result),
        "attempts": job.attempts,
        "attempts_max": job.attempts_max,
        "worker": job.worker,
        "created_at": rfc3339(job.created_at),
        "updated_at": rfc3339(job.updated_at),
        "not_before": _time(job.ready_at),
        "lease_expires_at": _time(job.lease_expires_at),
        "finished_at": _time(job.finished_at),
        "causes": [{**msgspec.structs.asdict(cause), "at": rfc3339(cause.at)} for cause in job_rules.causes_of(job)],
    }
    return encode_row({**row, "deduplicated": True} if deduplicated else row)


def _lease_row(job: Job) -> bytes:
    return encode_row(
        {
            "job_id": job.job_id,
            "kind": job.kind,
            "session_id": job.session_id,
            "payload": raw_json(job.payload),
            "attempt": job.attempts,
            "attempts_max": job.attempts_max,
            "token": job.token,
            "lease_expires_at": _time(job.lease_expires_at),
        }
    )


def _time(ts: int | None) -> str | None:
    return None if ts is None else rfc3339(ts)


def _json(value: dict[str, object] | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _not_before(writing: Writing, message: AddJob) -> int:
    if message.delay_ms is not None:
        return writing.now + message.delay_ms * _MS
    return writing.now if message.not_before is None else message.not_before


def _lease_us(lease_ms: int | None, limits: CoreWriterSettings) -> int:
    return (limits.job_lease_ms if lease_ms is None else lease_ms) * _MS


def _pause_us(job: Job, retry_after_ms: int | None, limits: CoreWriterSettings) -> int:
    if retry_after_ms is not None:
        return retry_after_ms * _MS
    return job_rules.backoff_us(
        max(1, job.attempts),
        us_min=limits.job_backoff_ms_min * _MS,
        us_max=limits.job_backoff_ms_max * _MS,
        random=random.random(),  # noqa: S311 (jitter)
    )


SUBJECT = Subject(
    writes={
        AddJob: _add,
        LeaseJobs: _lease,
        RenewJob: _renew,
        CompleteJob: _complete,
        FailJob: _fail,
        CancelJob: _cancel,
        ReplayJob: _replay,
    },
    reads={GetJob: _get, ListJobs: _list},
    check=check,
    upkeep=_upkeep,
)
