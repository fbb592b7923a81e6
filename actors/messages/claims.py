"""What is said to core_writer about turn claims: whose turn a session is."""

from typing import ClassVar

import msgspec

from actors.messages.base import Message, Row, Struct


class AcquireClaim(Message, frozen=True, kw_only=True):
    """Take the turn of a session for `lease_ms`. Held while another claim on it has time left."""

    answer = Row
    session_id: str
    holder: str | None = None
    lease_ms: int | None = None
    tenant: str = "default"
    request_id: str | None = None


class RenewClaim(Message, frozen=True, kw_only=True):
    """Give a claim `lease_ms` from now. Conflict when its time is over or it is not the one that holds."""

    answer = Row
    session_id: str
    claim_id: str
    lease_ms: int | None = None
    tenant: str = "default"


class ReleaseClaim(Message, frozen=True, kw_only=True):
    """End a claim; without `claim_id` whichever there is. Says whether there was one."""

    answer = Row
    session_id: str
    claim_id: str | None = None
    tenant: str = "default"


class ClaimState(Struct, frozen=True, kw_only=True):
    """Whose turn a session is: a claim as JSON, None when nobody has it."""

    claim: bytes | None


class GetClaim(Message, frozen=True, kw_only=True):
    """Return the claim that holds a session."""

    answer: ClassVar[type[msgspec.Struct]] = ClaimState
    session_id: str
    tenant: str = "default"


ClaimMessage = AcquireClaim | RenewClaim | ReleaseClaim | GetClaim
READS = (GetClaim,)
