"""What is refused of what clients say about jobs, before anything is begun. Pure."""

from typing import get_args

from actors.errors import InvalidParams
from actors.messages.jobs import (
    AddJob,
    CancelJob,
    CompleteJob,
    FailJob,
    JobKind,
    LeaseJobs,
    RenewJob,
    ReplayJob,
)
from actors.settings import CoreWriterSettings
from actors.sql.limits import check_ids, check_json, check_text, check_ts

PRIORITY_MAX = 1000
_KINDS: tuple[str, ...] = get_args(JobKind)


def check(message: object, limits: CoreWriterSettings) -> None:
    """Refuse what is beyond a limit; InvalidParams."""
    match message:
        case AddJob():
            _check_ids("job.add", message, ("tenant", "key", "session_id", "request_id"), limits)
            _check_payload("job.add", "payload", message.payload, limits)
            _check_between("job.add", "priority", message.priority, (-PRIORITY_MAX, PRIORITY_MAX), "fixed")
            check_ts("job.add", "not_before", message.not_before)
            if message.delay_ms is not None and message.not_before is not None:
                raise InvalidParams("job.add refused: give not_before or delay_ms, not both")
        case LeaseJobs():
            _check_ids("job.lease", message, ("tenant", "worker", "lease_id"), limits)
            _check_lease_ms("job.lease", message.lease_ms, limits)
            _check_between(
                "job.lease", "limit", message.limit, (1, limits.jobs_per_lease_max), "core_writer.jobs_per_lease_max"
            )
            if not message.kinds:
                raise InvalidParams("job.lease refused: kinds is empty", hint=f"name some of {', '.join(_KINDS)}")
        case RenewJob():
            _check_ids("job.renew", message, ("tenant", "job_id"), limits)
            _check_lease_ms("job.renew", message.lease_ms, limits)
        case CompleteJob():
            _check_ids("job.complete", message, ("tenant", "job_id", "request_id"), limits)
            _check_payload("job.complete", "result", message.result, limits)
        case FailJob():
            _check_ids("job.fail", message, ("tenant", "job_id", "request_id"), limits)
            check_text(
                "job.fail", "error", message.error, limits.job_payload_bytes_max, "core_writer.job_payload_bytes_max"
            )
            if message.retry_after_ms is not None:
                _check_between(
                    "job.fail",
                    "retry_after_ms",
                    message.retry_after_ms,
                    (0, limits.job_backoff_ms_max),
                    "core_writer.job_backoff_ms_max",
                )
        case CancelJob():
            _check_ids("job.cancel", message, ("tenant", "job_id", "request_id"), limits)
        case ReplayJob():
            _check_ids("job.replay", message, ("tenant", "job_id", "request_id"), limits)


def _check_ids(what: str, message: object, fields: tuple[str, ...], limits: CoreWriterSettings) -> None:
    ids = {field: getattr(message, field) for field in fields}
    check_ids(what, ids, limits.id_chars_max, "core_writer.id_chars_max")


def _check_payload(what: str, field: str, value: dict[str, object] | None, limits: CoreWriterSettings) -> None:
    check_json(what, field, value, limits.job_payload_bytes_max, "core_writer.job_payload_bytes_max")


def _check_lease_ms(what: str, lease_ms: int | None, limits: CoreWriterSettings) -> None:
    if lease_ms is not None:
        _check_between(what, "lease_ms", lease_ms, (1, limits.job_lease_ms_max), "core_writer.job_lease_ms_max")


def _check_between(what: str, field: str, value: int, limits: tuple[int, int], key: str) -> None:
    least, most = limits
    if not least <= value <= most:
        raise InvalidParams(f"{what} refused: {field} is {value}, the limits are {least} and {most} ({key})")
