"""Approvals: what an agent asks a person for, and what was decided. Statements and rules; times in µs.

Asked once, decided once, or expired. Whether a pending one has expired is seen by its time at every look; the upkeep
notes it, and once noted it stays so whatever the clock does.
"""

import sqlite3
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from actors.core_writer.subject import Subject, Writing
from actors.errors import Conflict, InvalidParams, NotFound
from actors.messages.approvals import DecideApproval, GetApproval, ListApprovals, RequestApproval
from actors.messages.base import Row, Rows
from actors.settings import CoreWriterSettings
from actors.sql.limits import check_ids, check_json, check_text
from actors.sql.rows import encode_row, page, raw_json, rfc3339, rows_limit

_COLUMNS = (
    "approval_id, session_id, action, detail, status, requested_by, requested_at, expires_at, decided_by, decided_at,"
    " reason"
)
_EXPIRE_ROWS = 128
_DETAIL = "core_writer.meta_bytes_max"
EXPIRES_IN_MS_MAX = 366 * 86_400_000


class ApprovalRow(NamedTuple):
    """A row of `approvals`, in the order of _COLUMNS."""

    approval_id: str
    session_id: str | None
    action: str
    detail: str | None
    status: str
    requested_by: str
    requested_at: int
    expires_at: int | None
    decided_by: str | None = None
    decided_at: int | None = None
    reason: str | None = None

    def status_at(self, now: int) -> str:
        """Return what it is at a time."""
        over = self.status == "pending" and self.expires_at is not None and self.expires_at <= now
        return "expired" if over else self.status


def request(writing: Writing, message: RequestApproval) -> Row:
    """Ask."""
    expires_at = None if message.expires_in_ms is None else writing.now + message.expires_in_ms * 1000
    made = ApprovalRow(
        approval_id=writing.new_id(),
        session_id=message.session_id,
        action=message.action,
        detail=check_json("approval.request", "detail", message.detail, writing.limits.meta_bytes_max, _DETAIL),
        status="pending",
        requested_by=message.caller.principal,
        requested_at=writing.now,
        expires_at=expires_at,
    )
    names = ", ".join(f":{name}" for name in ApprovalRow._fields)
    writing.connection.execute(
        f"INSERT INTO approvals (tenant, {_COLUMNS}) VALUES (:tenant, {names})",
        {"tenant": message.tenant, **made._asdict()},
    )
    return Row(row=client_row(made, writing.now))


def decide(writing: Writing, message: DecideApproval) -> Row:
    """Decide. Raises NotFound, and Conflict when it is decided otherwise or has expired."""
    found = _find(writing.connection, message.tenant, message.approval_id)
    status = found.status_at(writing.now)
    if status == message.decision:
        return Row(row=client_row(found, writing.now))
    if status != "pending":
        when = found.expires_at if status == "expired" else found.decided_at
        by = f" by {found.decided_by!r}" if found.decided_by else ""
        raise Conflict(
            f"approval.decide refused: approval {message.approval_id!r} is {status}{by} since {rfc3339(when or 0)}",
            hint="an approval is decided once; request a new one",
        )
    decided = found._replace(
        status=message.decision,
        decided_by=message.by or message.caller.principal,
        decided_at=writing.now,
        reason=message.reason,
    )
    writing.connection.execute(
        """
        UPDATE approvals SET status = :status, decided_by = :decided_by, decided_at = :decided_at, reason = :reason
        WHERE approval_id = :approval_id
        """,
        decided._asdict(),
    )
    return Row(row=client_row(decided, writing.now))


def get(connection: sqlite3.Connection, message: GetApproval) -> Row:
    """Return one; raises NotFound."""
    return Row(row=client_row(_find(connection, message.tenant, message.approval_id), _now()))


def list_approvals(connection: sqlite3.Connection, message: ListApprovals) -> Rows:
    """Return a page, the newest first."""
    limit, now = rows_limit(message.limit), _now()
    rows = _listed(connection, message, limit + 1, now)
    return page((client_row(each, now) for each in rows), limit)


def client_row(approval: ApprovalRow, now: int) -> bytes:
    """Return an approval as JSON, as it is at a time."""
    return encode_row(
        {
            "approval_id": approval.approval_id,
            "session_id": approval.session_id,
            "action": approval.action,
            "detail": raw_json(approval.detail),
            "status": approval.status_at(now),
            "requested_by": approval.requested_by,
            "requested_at": rfc3339(approval.requested_at),
            "expires_at": None if approval.expires_at is None else rfc3339(approval.expires_at),
            "decided_by": approval.decided_by,
            "decided_at": None if approval.decided_at is None else rfc3339(approval.decided_at),
            "reason": approval.reason,
        }
    )


def note_expired(writing: Writing) -> bool:
    """Note of some pending ones that their time is over; return whether there may be more."""
    expired = writing.connection.execute(
        """
        UPDATE approvals SET status = 'expired'
        WHERE approval_id IN (
            SELECT approval_id FROM approvals
            WHERE status = 'pending' AND expires_at IS NOT NULL AND expires_at <= :now
            ORDER BY expires_at
            LIMIT :limit
        )
        """,
        {"now": writing.now, "limit": _EXPIRE_ROWS},
    ).rowcount
    return expired == _EXPIRE_ROWS


def _listed(connection: sqlite3.Connection, message: ListApprovals, limit: int, now: int) -> Iterator[ApprovalRow]:
    conditions, parameters = ["tenant = :tenant"], dict[str, str | int | None]()
    if message.before is not None:
        conditions.append("approval_id < :before")
        parameters["before"] = message.before
    if message.session_id is not None:
        conditions.append("session_id = :session_id")
        parameters["session_id"] = message.session_id
    if message.status is not None:
        conditions.append(_STATUS_IS[message.status])
        parameters["status"] = message.status
    rows = connection.execute(
        f"""
        SELECT {_COLUMNS} FROM approvals
        WHERE {" AND ".join(conditions)}
        ORDER BY approval_id DESC
        LIMIT :limit
        """,
        {"tenant": message.tenant, "now": now, "limit": limit, **parameters},
    )
    return (ApprovalRow(*row) for row in rows)


# One that is over and not noted yet is among the pending ones of the index.
_STATUS_IS = {
    "pending": "status = 'pending' AND (expires_at IS NULL OR expires_at > :now)",
    "expired": "status IN ('pending', 'expired') AND (status = 'expired' OR expires_at <= :now)",
    "approved": "status = 'approved'",
    "denied": "status = 'denied'",
}


def _find(connection: sqlite3.Connection, tenant: str, approval_id: str) -> ApprovalRow:
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM approvals WHERE approval_id = :approval_id AND tenant = :tenant",
        {"approval_id": approval_id, "tenant": tenant},
    ).fetchone()
    if row is None:
        raise NotFound(f"there is no approval {approval_id!r}")
    return ApprovalRow(*row)


def _now() -> int:
    return time.time_ns() // 1000


def _check(message: Any, limits: CoreWriterSettings) -> None:
    chars, key = limits.id_chars_max, "core_writer.id_chars_max"
    if isinstance(message, RequestApproval):
        ids = {"tenant": message.tenant, "session_id": message.session_id, "request_id": message.request_id}
        check_ids("approval.request", ids, chars, key)
        if not message.action:
            raise InvalidParams("approval.request refused: action is empty")
        check_text("approval.request", "action", message.action, limits.meta_bytes_max, _DETAIL)
        check_json("approval.request", "detail", message.detail, limits.meta_bytes_max, _DETAIL)
        if message.expires_in_ms is not None and not 1 <= message.expires_in_ms <= EXPIRES_IN_MS_MAX:
            raise InvalidParams(
                f"approval.request refused: expires_in_ms is {message.expires_in_ms}, the limits are 1 and "
                f"{EXPIRES_IN_MS_MAX} (a year)"
            )
    elif isinstance(message, DecideApproval):
        check_ids("approval.decide", {"tenant": message.tenant, "by": message.by}, chars, key)
        text = message.reason or ""
        check_text("approval.decide", "reason", text, limits.meta_bytes_max, _DETAIL)


SUBJECT = Subject(
    writes={RequestApproval: request, DecideApproval: decide},
    reads={GetApproval: get, ListApprovals: list_approvals},
    check=_check,
    upkeep=note_expired,
)
