"""Exactly once: the first result of a request is kept in the transaction of its effect, and given again.

A request id belongs to its tenant. Only successes are kept: a refused request changed nothing and may be tried again.
"""

import sqlite3
from collections.abc import Callable

import msgspec

from actors.errors import Conflict


def once(
    connection: sqlite3.Connection,
    *,
    tenant: str,
    request_id: str | None,
    method: str,
    now: int,
    effect: Callable[[], bytes],
) -> bytes:
    """Run the effect and keep its result (JSON) under the request id, or return the kept one marked as a repeat.

    Must run inside a transaction. Raises Conflict when the id was used for another method.
    """
    if request_id is None:
        return effect()
    kept = _kept(connection, tenant, request_id)
    if kept is not None:
        kept_method, result = kept
        if kept_method != method:
            raise Conflict(
                f"{method} refused: request_id {request_id!r} was used for {kept_method}",
                hint="use a new request_id for every request",
            )
        return _as_repeat(result)
    result = effect()
    connection.execute(
        """
        INSERT INTO requests (tenant, request_id, method, result, ts)
        VALUES (:tenant, :request_id, :method, :result, :ts)
        """,
        {"tenant": tenant, "request_id": request_id, "method": method, "result": result.decode(), "ts": now},
    )
    return result


def prune(connection: sqlite3.Connection, kept: int, rows_max: int) -> int:
    """Drop the oldest results beyond the number to be kept, at most `rows_max`; return how many."""
    return connection.execute(
        """
        DELETE FROM requests
        WHERE id IN (
            SELECT id FROM requests WHERE id <= (SELECT max(id) FROM requests) - :kept ORDER BY id LIMIT :rows_max
        )
        """,
        {"kept": kept, "rows_max": rows_max},
    ).rowcount


def _kept(connection: sqlite3.Connection, tenant: str, request_id: str) -> tuple[str, bytes] | None:
    row = connection.execute(
        """
        SELECT method, CASE
            WHEN EXISTS (
                SELECT 1 FROM tombstones AS d
                WHERE d.corpus = 'units' AND d.id = json_extract(requests.result, '$.unit_id')
            )
            THEN json_object('unit_id', json_extract(result, '$.unit_id'), 'status', 'forgotten')
            ELSE result
        END
        FROM requests
        WHERE tenant = :tenant AND request_id = :request_id
        """,
        {"tenant": tenant, "request_id": request_id},
    ).fetchone()
    return None if row is None else (row[0], row[1].encode())


def _as_repeat(result: bytes) -> bytes:
    members = msgspec.json.decode(result, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({**members, "deduplicated": True})
