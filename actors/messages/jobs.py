"""What is said to core_writer about jobs: work that is put down durably, and leased to whoever does it."""

from typing import Literal

from actors.messages.base import JsonValue, Message, Row, Rows

JobKind = Literal["embed", "summarize", "replay", "backfill", "archive", "verify"]
JobStatus = Literal["queued", "leased", "done", "dead", "cancelled"]


class AddJob(Message, frozen=True, kw_only=True):
    """Put down work. With a `key`, work of that kind and key that is not finished yet is returned instead.

    `not_before` (µs) or `delay_ms` hold it back. `priority`: larger ones are leased first.
    """

    answer = Row
    kind: JobKind
    payload: dict[str, JsonValue] | None = None
    priority: int = 0
    not_before: int | None = None
    delay_ms: int | None = None
    key: str | None = None
    session_id: str | None = None
    tenant: str = "default"
    request_id: str | None = None

    def may_repeat(self) -> bool:
        """Say whether it has an id by which a repetition is recognised."""
        return self.request_id is not None


class LeaseJobs(Message, frozen=True, kw_only=True):
    """Take up to `limit` jobs of these kinds for `lease_ms`: the most urgent, then the oldest.

    `lease_id` recognises a repetition, as a request_id does; an answer without jobs is not kept for it, so that a
    worker may ask for work once a second for years.
    """

    answer = Row
    kinds: tuple[JobKind, ...]
    lease_ms: int | None = None
    worker: str | None = None
    limit: int = 1
    tenant: str = "default"
    lease_id: str | None = None

    def may_repeat(self) -> bool:
        """Say whether it has an id by which a repetition is recognised."""
        return self.lease_id is not None


class RenewJob(Message, frozen=True, kw_only=True):
    """Let the lease last `lease_ms` from now. Conflict when it is over."""

    answer = Row
    job_id: str
    token: int
    lease_ms: int | None = None
    tenant: str = "default"


class CompleteJob(Message, frozen=True, kw_only=True):
    """Report the work as done. Conflict when the lease is over; the same report again gets the same answer."""

    answer = Row
    job_id: str
    token: int
    result: dict[str, JsonValue] | None = None
    tenant: str = "default"
    request_id: str | None = None


class FailJob(Message, frozen=True, kw_only=True):
    """Report an attempt as failed: the job is leased again later, or is dead when it was its last or `permanent`."""

    answer = Row
    job_id: str
    token: int
    error: str
    retry_after_ms: int | None = None
    permanent: bool = False
    tenant: str = "default"
    request_id: str | None = None


class CancelJob(Message, frozen=True, kw_only=True):
    """Give work up, whoever holds it. Conflict when it is done."""

    answer = Row
    job_id: str
    tenant: str = "default"
    request_id: str | None = None


class ReplayJob(Message, frozen=True, kw_only=True):
    """Queue a dead job again, with all its attempts before it and its history kept. Conflict when it is not dead."""

    answer = Row
    job_id: str
    tenant: str = "default"
    request_id: str | None = None

    def may_repeat(self) -> bool:
        """Say whether it has an id by which a repetition is recognised."""
        return self.request_id is not None


class GetJob(Message, frozen=True, kw_only=True):
    """Return one job; NotFound when there is none."""

    answer = Row
    job_id: str
    tenant: str = "default"


class ListJobs(Message, frozen=True, kw_only=True):
    """Return jobs, the newest first. `before` is the `job_seq` of the last row of the page before."""

    answer = Rows
    limit: int
    kind: JobKind | None = None
    status: JobStatus | None = None
    before: int | None = None
    tenant: str = "default"


JobMessage = AddJob | LeaseJobs | RenewJob | CompleteJob | FailJob | CancelJob | ReplayJob | GetJob | ListJobs
