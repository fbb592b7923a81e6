"""What is said to core_writer about approvals: what an agent asks a person for, and what was decided."""

from typing import Literal

from actors.messages.base import JsonValue, Message, Row, Rows

Decision = Literal["approved", "denied"]
ApprovalStatus = Literal["pending", "approved", "denied", "expired"]


class RequestApproval(Message, frozen=True, kw_only=True):
    """Ask for something to be approved. It expires after `expires_in_ms`, None: never."""

    answer = Row
    action: str
    detail: dict[str, JsonValue] | None = None
    session_id: str | None = None
    expires_in_ms: int | None = None
    tenant: str = "default"
    request_id: str | None = None

    def may_repeat(self) -> bool:
        """Say whether it has an id by which a repetition is recognised."""
        return self.request_id is not None


class DecideApproval(Message, frozen=True, kw_only=True):
    """Decide, once. The same decision again returns the first; another one, or one that is late, is a Conflict."""

    answer = Row
    approval_id: str
    decision: Decision
    by: str | None = None
    reason: str | None = None
    tenant: str = "default"


class GetApproval(Message, frozen=True, kw_only=True):
    """Return an approval; NotFound when there is none."""

    answer = Row
    approval_id: str
    tenant: str = "default"


class ListApprovals(Message, frozen=True, kw_only=True):
    """Return approvals, the newest first, older than the one with the id `before`."""

    answer = Rows
    limit: int
    before: str | None = None
    status: ApprovalStatus | None = None
    session_id: str | None = None
    tenant: str = "default"


ApprovalMessage = RequestApproval | DecideApproval | GetApproval | ListApprovals
READS = (GetApproval, ListApprovals)
