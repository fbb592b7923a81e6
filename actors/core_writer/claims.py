"""Turn claims: whose turn a session is. Statements and rules; wall times in µs, leases in ms.

A claim is a lease and nothing else: no crash, of a client, a worker or the machine, leaves a session unable to take the
next message for longer than the lease that was given. Each claim has a token that is higher than that of every claim
before, also over a restart and a restore, so that whatever the holder writes elsewhere can be fenced by it.
"""

import sqlite3
from typing import Any, NamedTuple

import msgspec

from actors.core_writer import clock
from actors.core_writer.leases import MS_NS, left_ns
from actors.core_writer.subject import Subject, Writing
from actors.errors import Conflict, Held, InvalidParams
from actors.messages.base import Row
from actors.messages.claims import AcquireClaim, ClaimState, GetClaim, ReleaseClaim, RenewClaim
from actors.settings import CoreWriterSettings
from actors.sql import meta
from actors.sql.limits import check_ids
from actors.sql.rows import encode_row, rfc3339

COUNTER = "claim_token"  # in `meta`: the last one that was given
_COLUMNS = "session_id, claim_id, holder, token, lease_ms, granted_at, expires_at, boot, expires_ns"
_PRUNE_ROWS = 128


class ClaimRow(NamedTuple):
    """A row of `claims`, in the order of _COLUMNS."""

    session_id: str
    claim_id: str
    holder: str | None
    token: int
    lease_ms: int
    granted_at: int
    expires_at: int
    boot: str
    expires_ns: int

    def left_ns(self) -> int:
        """Return how long it still holds, 0 when it is over."""
        return left_ns(
            boot=self.boot,
            expires_ns=self.expires_ns,
            lease_ms=self.lease_ms,
            now_boot=clock.boot(),
            now_ns=clock.monotonic_ns(),
        )


def acquire(writing: Writing, message: AcquireClaim) -> Row:
    """Take the turn. Raises Held."""
    held = _holding(writing.connection, message.tenant, message.session_id)
    if held is not None:
        left_ms = -(-held.left_ns() // MS_NS)
        raise Held(
            f"claim.acquire refused: session {message.session_id!r} is held by {held.holder or 'another client'!r} "
            f"(claim {held.claim_id}) for {left_ms} ms more",
            retry_after_ms=max(1, left_ms),
            hint="try again when it has been released or its lease is over",
        )
    lease_ms = message.lease_ms or writing.limits.claim_lease_ms
    claim = ClaimRow(
        session_id=message.session_id,
        claim_id=writing.new_id(),
        holder=message.holder,
        token=_next_token(writing),
        lease_ms=lease_ms,
        granted_at=writing.now,
        expires_at=writing.now + lease_ms * 1000,
        boot=clock.boot(),
        expires_ns=clock.monotonic_ns() + lease_ms * MS_NS,
    )
    names = ", ".join(f":{name}" for name in ClaimRow._fields)
    writing.connection.execute(
        f"INSERT OR REPLACE INTO claims (tenant, {_COLUMNS}) VALUES (:tenant, {names})",
        {"tenant": message.tenant, **claim._asdict()},
    )
    return Row(row=client_row(claim))


def renew(writing: Writing, message: RenewClaim) -> Row:
    """Give it more time. Raises Conflict when it does not hold any more."""
    claim = _holding(writing.connection, message.tenant, message.session_id)
    if claim is None or claim.claim_id != message.claim_id:
        now_held = "" if claim is None else f"; {claim.holder or 'another client'!r} holds the session now"
        raise Conflict(
            f"claim.renew refused: claim {message.claim_id!r} on session {message.session_id!r} is over{now_held}",
            hint="stop working on the session, and acquire a new claim before going on",
        )
    lease_ms = message.lease_ms or writing.limits.claim_lease_ms
    renewed = claim._replace(
        lease_ms=lease_ms,
        expires_at=writing.now + lease_ms * 1000,
        boot=clock.boot(),
        expires_ns=clock.monotonic_ns() + lease_ms * MS_NS,
    )
    writing.connection.execute(
        """
        UPDATE claims SET lease_ms = :lease_ms, expires_at = :expires_at, boot = :boot, expires_ns = :expires_ns
        WHERE tenant = :tenant AND session_id = :session_id
        """,
        {"tenant": message.tenant, **renewed._asdict()},
    )
    return Row(row=client_row(renewed))


def release(writing: Writing, message: ReleaseClaim) -> Row:
    """End it. One that is over or unknown is no error: what its holder wanted is so."""
    claim = _holding(writing.connection, message.tenant, message.session_id)
    mine = claim is not None and message.claim_id in (None, claim.claim_id)
    if mine:
        writing.connection.execute(
            "DELETE FROM claims WHERE tenant = :tenant AND session_id = :session_id",
            {"tenant": message.tenant, "session_id": message.session_id},
        )
    return Row(row=encode_row({"session_id": message.session_id, "released": mine}))


def get(connection: sqlite3.Connection, message: GetClaim) -> ClaimState:
    """Return the claim that holds, if any."""
    claim = _holding(connection, message.tenant, message.session_id)
    return ClaimState(claim=None if claim is None else client_row(claim))


def client_row(claim: ClaimRow) -> bytes:
    """Return a claim as JSON."""
    return encode_row(
        {
            "session_id": claim.session_id,
            "claim_id": claim.claim_id,
            "holder": claim.holder,
            "token": claim.token,
            "lease_ms": claim.lease_ms,
            "granted_at": rfc3339(claim.granted_at),
            "expires_at": rfc3339(claim.expires_at),
        }
    )


def drop_ended(writing: Writing) -> bool:
    """Delete some rows of claims that are over; return whether there may be more."""
    rows = writing.connection.execute(
        f"SELECT tenant, {_COLUMNS} FROM claims ORDER BY expires_at LIMIT {_PRUNE_ROWS}"
    ).fetchall()
    ended = [(tenant, claim[0]) for tenant, *claim in rows if not ClaimRow(*claim).left_ns()]
    writing.connection.executemany("DELETE FROM claims WHERE tenant = ? AND session_id = ?", ended)
    return len(ended) == _PRUNE_ROWS


def _check(message: Any, limits: CoreWriterSettings) -> None:
    method = f"claim.{type(message).__name__.removesuffix('Claim').lower()}"
    members = msgspec.structs.asdict(message)
    ids = {name: members.get(name) for name in ("tenant", "session_id", "claim_id", "holder", "request_id")}
    check_ids(method, ids, limits.id_chars_max, "core_writer.id_chars_max")
    lease_ms = members.get("lease_ms")
    if lease_ms is not None and not 1 <= lease_ms <= limits.claim_lease_ms_max:
        raise InvalidParams(
            f"{method} refused: lease_ms is {lease_ms}, the limits are 1 and {limits.claim_lease_ms_max} "
            "(core_writer.claim_lease_ms_max)",
            hint="take a short lease and renew it",
        )


def _holding(connection: sqlite3.Connection, tenant: str, session_id: str) -> ClaimRow | None:
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM claims WHERE tenant = :tenant AND session_id = :session_id",
        {"tenant": tenant, "session_id": session_id},
    ).fetchone()
    claim = None if row is None else ClaimRow(*row)
    return claim if claim is not None and claim.left_ns() else None


def _next_token(writing: Writing) -> int:
    """Return a token above every one before; the time keeps it so after a restore from an older file."""
    token = max(meta.read_counter(writing.connection, COUNTER) + 1, writing.now)
    meta.write(writing.connection, COUNTER, token)
    return token


SUBJECT = Subject(
    writes={AcquireClaim: acquire, RenewClaim: renew, ReleaseClaim: release},
    reads={GetClaim: get},
    check=_check,
    upkeep=drop_ended,
)
