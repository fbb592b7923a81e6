"""Forgetting in core.db: the orders, the tombstones, and the units that get one.

    ordered ──▶ masked ──▶ erased ──▶ gone

An order is durable before anything is done about it, so a death at any step costs nothing: the steps are repeated,
and each does again only what is left (`forgetter.py` takes them). A forgotten unit gets one more version, without
content, as its latest: that is what hides it from every read, and what tells keyword index and deltas that the one
before is out of date. Its id never names another unit.
"""

import sqlite3
from typing import Any

import msgspec

from actors.core_writer import store, unit_refs, units
from actors.core_writer.subject import Subject, Writing
from actors.errors import InvalidParams, NotFound
from actors.messages.base import Corpus, Done, Filters, Row, Rows
from actors.messages.forgetting import (
    OPEN_STATES,
    AdvanceForget,
    CountForgettable,
    EraseUnits,
    ForgetEvents,
    ForgetOrder,
    ForgetOrders,
    ForgetScope,
    ForgetSlice,
    ForgetState,
    ForgetUnits,
    GetForget,
    ListForgets,
    ListOpenForgets,
    ListTombstones,
    LookForForgotten,
    OrderForget,
    Tombstone,
    Tombstones,
)
from actors.settings import CoreWriterSettings
from actors.sql import meta
from actors.sql.filters import Where, where
from actors.sql.limits import check_id, check_ids, check_text
from actors.sql.rows import encode_row, page, raw_json, rfc3339, rows_limit

IDS_MAX = 1000
REASON_BYTES_MAX = 4096
UNITS_A_SLICE = 64
ERASED_A_SLICE = 64
REQUESTS_A_SLICE = 512
_WHAT = "memory.forget"
_STATES: tuple[ForgetState, ...] = (*OPEN_STATES, "gone")
_RECEIPT = (
    "forget_seq, forget_id, scope, reason, principal, state, ordered_at, masked_at, erased_at, gone_at,"
    " generation_after"
)
_ORDER = "forget_seq, forget_id, tenant, scope, state, event_until, event_cursor, generation_after"


# ---------------------------------------------------------------- what a scope is


def check_scope(scope: ForgetScope, limits: CoreWriterSettings) -> None:
    """Refuse a scope that does not say plainly what is meant: empty, two at once, or a wildcard. InvalidParams."""
    narrowed = (scope.session_id, scope.source, scope.before, *scope.kinds, *scope.tags)
    given = [bool(scope.ids), any(each is not None for each in narrowed), scope.everything_of_tenant]
    if sum(given) != 1:
        raise InvalidParams(
            "memory.forget refused: the scope is " + ("empty" if not any(given) else "given in more than one way"),
            hint="give either ids, or a filter with at least one member, or everything_of_tenant: true",
        )
    if len(scope.ids) > IDS_MAX:
        raise InvalidParams(f"memory.forget refused: {len(scope.ids)} ids, the limit is {IDS_MAX}")
    names: dict[str, str | None] = {f"ids[{index}]": each for index, each in enumerate(scope.ids)}
    names |= {f"filter.tags[{index}]": each for index, each in enumerate(scope.tags)}
    names |= {"filter.session_id": scope.session_id, "filter.source": scope.source}
    check_ids(_WHAT, names, limits.id_chars_max, "core_writer.id_chars_max")
    for field, value in names.items():
        if value is not None and value.strip("*%?_. ") == "":
            raise InvalidParams(f"memory.forget refused: {field} is {value!r}, and wildcards are not understood")


def filters_of(scope: ForgetScope) -> Filters:
    """Return the scope as the filters of a search, which both rooms compile; the source is not one of them."""
    return Filters(
        session_ids=() if scope.session_id is None else (scope.session_id,),
        kinds=scope.kinds,
        tags=scope.tags,
        until=scope.before,
    )


def _units_of(scope: ForgetScope, tenant: str) -> Where | None:
    """Return which units a scope means, None when it can mean none."""
    if scope.source is not None:
        return None
    condition = where(filters_of(scope), tenant, "units")
    if condition is None or not scope.ids:
        return condition
    listed = msgspec.json.encode(scope.ids).decode()
    sql = f"{condition.sql} AND t.unit_id IN (SELECT value FROM json_each(:f_ids))"
    return Where(sql, {**condition.parameters, "f_ids": listed})


# ---------------------------------------------------------------- orders


def _check(message: Any, limits: CoreWriterSettings) -> None:
    if isinstance(message, OrderForget):
        check_scope(message.scope, limits)
        check_text(_WHAT, "reason", message.reason, REASON_BYTES_MAX, "no key")
        check_id(_WHAT, "request_id", message.request_id, limits.id_chars_max, "core_writer.id_chars_max")


def _order(writing: Writing, message: OrderForget) -> Row:
    forget_id = writing.new_id()
    writing.connection.execute(
        """
        INSERT INTO forgets (forget_id, tenant, scope, reason, principal, state, ordered_at, event_until, core_until)
        VALUES (:forget_id, :tenant, :scope, :reason, :principal, 'ordered', :now, :event_until, :core_until)
        """,
        {
            "forget_id": forget_id,
            "tenant": message.tenant,
            "scope": msgspec.json.encode(message.scope).decode(),
            "reason": message.reason,
            "principal": message.caller.principal,
            "now": writing.now,
            "event_until": message.event_until,
            "core_until": units.last_core_seq(writing.connection),
        },
    )
    return Row(row=encode_row({"forget_id": forget_id}))


def _open_forgets(connection: sqlite3.Connection, message: ListOpenForgets) -> ForgetOrders:
    rows = connection.execute(
        f"""
        SELECT {_ORDER}
        FROM forgets
        WHERE CASE WHEN :forget_id IS NULL THEN state <> 'gone' ELSE forget_id = :forget_id END
        ORDER BY forget_seq
        LIMIT :limit
        """,
        {"forget_id": message.forget_id, "limit": message.limit},
    )
    return ForgetOrders(orders=[_order_of(row) for row in rows])


def _order_of(row: tuple[Any, ...]) -> ForgetOrder:
    forget_seq, forget_id, tenant, scope, state, event_until, event_cursor, generation_after = row
    return ForgetOrder(
        forget_seq=forget_seq,
        forget_id=forget_id,
        tenant=tenant,
        scope=msgspec.json.decode(scope, type=ForgetScope),
        state=state,
        event_until=event_until,
        event_cursor=event_cursor,
        generation_after=generation_after,
    )


def _find_order(connection: sqlite3.Connection, forget_seq: int) -> ForgetOrder:
    row = connection.execute(
        f"SELECT {_ORDER} FROM forgets WHERE forget_seq = :forget_seq", {"forget_seq": forget_seq}
    ).fetchone()
    if row is None:
        raise NotFound(f"there is no order to forget with the number {forget_seq}")
    return _order_of(row)


def _advance(writing: Writing, message: AdvanceForget) -> Row:
    """Note the state. Masked, the generations that may hold any of it are those that were begun until now."""
    connection, forget_seq = writing.connection, message.forget_seq
    order = _find_order(connection, forget_seq)
    if _STATES.index(message.state) > _STATES.index(order.state):
        generation = meta.read_counter(connection, store.GENERATION)
        connection.execute(
            f"""
            UPDATE forgets
            SET state = :state, {message.state}_at = :now, generation_after = coalesce(generation_after, :generation)
            WHERE forget_seq = :forget_seq
            """,
            {"state": message.state, "now": writing.now, "generation": generation, "forget_seq": forget_seq},
        )
    return _receipt_of(connection, order.tenant, order.forget_id)


# ---------------------------------------------------------------- tombstones


def _forget_units(writing: Writing, message: ForgetUnits) -> ForgetSlice:
    """Bury the next units. One that was changed since the order still is the unit that was meant."""
    connection = writing.connection
    order = _find_order(connection, message.forget_seq)
    condition = _units_of(order.scope, order.tenant)
    if condition is None:
        return ForgetSlice(rows=0, more=False)
    rows = connection.execute(
        f"""
        SELECT t.core_seq, t.unit_id, t.version
        FROM units AS t
        JOIN forgets AS f ON f.forget_seq = :forget_seq
        WHERE t.latest = 1 AND t.core_seq > f.unit_cursor AND t.status <> 'forgotten' AND {condition.sql}
            AND (SELECT min(v.core_seq) FROM units AS v WHERE v.unit_id = t.unit_id) <= f.core_until
        ORDER BY t.core_seq
        LIMIT :limit
        """,
        {**condition.parameters, "forget_seq": message.forget_seq, "limit": UNITS_A_SLICE},
    ).fetchall()
    for core_seq, unit_id, _ in rows:
        units.bury_unit(connection, core_seq, now=writing.now)
        unit_refs.drop(connection, unit_id)
        _add_tombstone(connection, order, corpus="units", item_id=unit_id, seq=0)
    if rows:
        connection.execute(
            "UPDATE forgets SET unit_cursor = :cursor WHERE forget_seq = :forget_seq",
            {"cursor": rows[-1][0], "forget_seq": message.forget_seq},
        )
    if len(rows) == UNITS_A_SLICE:
        return ForgetSlice(rows=len(rows), more=True)
    _forget_session(writing, order)
    return ForgetSlice(rows=len(rows), more=False)


def _forget_session(writing: Writing, order: ForgetOrder) -> None:
    """Take away what the sessions say of themselves, when all of them was meant."""
    if not _is_whole(order.scope):
        return
    writing.connection.execute(
        """
        UPDATE sessions SET title = NULL, agent = NULL, meta = NULL
        WHERE tenant = :tenant AND (:session_id IS NULL OR session_id = :session_id)
        """,
        {"tenant": order.tenant, "session_id": order.scope.session_id},
    )


def _forget_events(writing: Writing, message: ForgetEvents) -> Done:
    order = _find_order(writing.connection, message.forget_seq)
    for event in message.events:
        _add_tombstone(writing.connection, order, corpus="events", item_id=event.event_id, seq=event.seq)
    writing.connection.execute(
        "UPDATE forgets SET event_cursor = max(event_cursor, :cursor) WHERE forget_seq = :forget_seq",
        {"cursor": message.cursor, "forget_seq": message.forget_seq},
    )
    return Done()


def _add_tombstone(connection: sqlite3.Connection, order: ForgetOrder, *, corpus: str, item_id: str, seq: int) -> None:
    connection.execute(
        """
        INSERT INTO tombstones (corpus, id, tenant, seq, forget_seq)
        VALUES (:corpus, :id, :tenant, :seq, :forget_seq)
        ON CONFLICT (corpus, id) DO NOTHING
        """,
        {"corpus": corpus, "id": item_id, "tenant": order.tenant, "seq": seq, "forget_seq": order.forget_seq},
    )


def _tombstones(connection: sqlite3.Connection, message: ListTombstones) -> Tombstones:
    limit = rows_limit(message.limit)
    rows = connection.execute(
        """
        SELECT tombstone_seq, corpus, id, seq
        FROM tombstones
        WHERE tombstone_seq > :after AND (:forget_seq IS NULL OR forget_seq = :forget_seq)
            AND (:corpus IS NULL OR corpus = :corpus)
        ORDER BY tombstone_seq
        LIMIT :limit
        """,
        {"after": message.after, "forget_seq": message.forget_seq, "corpus": message.corpus, "limit": limit + 1},
    ).fetchall()
    return Tombstones(tombstones=[_tombstone_of(*row) for row in rows[:limit]], more=len(rows) > limit)


def _tombstone_of(tombstone_seq: int, corpus: Corpus, item_id: str, seq: int) -> Tombstone:
    return Tombstone(tombstone_seq=tombstone_seq, corpus=corpus, id=item_id, seq=seq)


# ---------------------------------------------------------------- erasing


def _erase_units(writing: Writing, message: EraseUnits) -> ForgetSlice:
    """Remove the content of all versions of the next units; when there are none left, that of kept results."""
    connection = writing.connection
    rows = connection.execute(
        """
        SELECT tombstone_seq, id
        FROM tombstones
        WHERE forget_seq = :forget_seq AND erased = 0 AND corpus = 'units'
        ORDER BY tombstone_seq
        LIMIT :limit
        """,
        {"forget_seq": message.forget_seq, "limit": ERASED_A_SLICE},
    ).fetchall()
    for tombstone_seq, unit_id in rows:
        units.erase_unit(connection, unit_id)
        connection.execute(
            "UPDATE tombstones SET erased = 1 WHERE tombstone_seq = :tombstone_seq", {"tombstone_seq": tombstone_seq}
        )
    if rows:
        return ForgetSlice(rows=len(rows), more=True)
    order = _find_order(connection, message.forget_seq)
    results = _erase_results(connection, order)
    return results if results.more else ForgetSlice(rows=results.rows, more=_erase_beside(connection, order))


def _is_whole(scope: ForgetScope) -> bool:
    """Say whether a whole session, or all of a tenant, is meant: then also what is kept beside events and units."""
    return not (scope.source or scope.before is not None or scope.kinds or scope.tags or scope.ids)


def _erase_beside(connection: sqlite3.Connection, order: ForgetOrder) -> bool:
    """Empty the next approvals and jobs of what was meant, and drop its claims; return whether there is more.

    What came after the order stays as it is. Work that was still to be done is cancelled.
    """
    if not _is_whole(order.scope):
        return False
    given = {
        "tenant": order.tenant,
        "session_id": order.scope.session_id,
        "forget_seq": order.forget_seq,
        "limit": REQUESTS_A_SLICE,
    }
    full = [statement for statement in _BESIDE if connection.execute(statement, given).rowcount == REQUESTS_A_SLICE]
    return bool(full)


_MEANT = """tenant = :tenant AND (:session_id IS NULL OR session_id = :session_id)
    AND {at} <= (SELECT ordered_at FROM forgets WHERE forget_seq = :forget_seq)"""
_BESIDE = (
    f"""
    UPDATE approvals SET action = '', detail = NULL, reason = NULL
    WHERE approval_id IN (
        SELECT approval_id FROM approvals
        WHERE {_MEANT.format(at="requested_at")} AND (action <> '' OR detail IS NOT NULL OR reason IS NOT NULL)
        LIMIT :limit
    )
    """,
    f"""
    UPDATE jobs
    SET payload = NULL, result = NULL, causes = '[]', key = NULL, ready_at = NULL, lease_expires_at = NULL,
        finished_at = coalesce(finished_at, updated_at),
        status = CASE WHEN status IN ('queued', 'leased') THEN 'cancelled' ELSE status END
    WHERE job_seq IN (
        SELECT job_seq FROM jobs
        WHERE {_MEANT.format(at="created_at")}
            AND (payload IS NOT NULL OR result IS NOT NULL OR causes <> '[]' OR key IS NOT NULL
                OR status IN ('queued', 'leased'))
        LIMIT :limit
    )
    """,
    f"""
    DELETE FROM claims
    WHERE (tenant, session_id) IN (
        SELECT tenant, session_id FROM claims WHERE {_MEANT.format(at="granted_at")} LIMIT :limit
    )
    """,
)


def _erase_results(connection: sqlite3.Connection, order: ForgetOrder) -> ForgetSlice:
    """Let a repeated request be told what became of its unit or session, and not what that was."""
    forget_seq, whole = order.forget_seq, _is_whole(order.scope)
    scanned = connection.execute(
        """
        SELECT r.id, r.tenant, json_extract(r.result, '$.unit_id'), json_extract(r.result, '$.session_id')
        FROM requests AS r
        WHERE r.id > (SELECT request_cursor FROM forgets WHERE forget_seq = :forget_seq)
        ORDER BY r.id
        LIMIT :limit
        """,
        {"forget_seq": forget_seq, "limit": REQUESTS_A_SLICE},
    ).fetchall()
    for request, tenant, unit_id, session_id in scanned:
        if whole and tenant == order.tenant and order.scope.session_id in (None, session_id):
            connection.execute(
                "UPDATE requests SET result = json_object('status', 'forgotten') WHERE id = :id", {"id": request}
            )
        elif unit_id is not None:
            connection.execute(
                """
                UPDATE requests SET result = json_object('unit_id', :unit_id, 'status', 'forgotten')
                WHERE id = :id AND EXISTS (SELECT 1 FROM tombstones WHERE corpus = 'units' AND tombstones.id = :unit_id)
                """,
                {"id": request, "unit_id": unit_id},
            )
    if scanned:
        connection.execute(
            "UPDATE forgets SET request_cursor = :cursor WHERE forget_seq = :forget_seq",
            {"cursor": scanned[-1][0], "forget_seq": forget_seq},
        )
    return ForgetSlice(rows=len(scanned), more=len(scanned) == REQUESTS_A_SLICE)


def _look(connection: sqlite3.Connection, message: LookForForgotten) -> ForgetSlice:
    """Count the versions of forgotten units that still have content."""
    (count,) = connection.execute(
        """
        SELECT count(*)
        FROM tombstones AS d
        JOIN units AS u ON u.unit_id = d.id
        WHERE d.forget_seq = :forget_seq AND d.corpus = 'units'
            AND (u.text <> '' OR u.facts IS NOT NULL OR u.latest = 1 AND u.status <> 'forgotten')
        """,
        {"forget_seq": message.forget_seq},
    ).fetchone()
    return ForgetSlice(rows=count, more=False)


# ---------------------------------------------------------------- receipts


def _count(connection: sqlite3.Connection, message: CountForgettable) -> Rows:
    check_scope(message.scope, CoreWriterSettings())
    condition = _units_of(message.scope, message.tenant)
    count = 0
    if condition is not None:
        sql = f"SELECT count(*) FROM units AS t WHERE t.latest = 1 AND t.status <> 'forgotten' AND {condition.sql}"
        (count,) = connection.execute(sql, condition.parameters).fetchone()
    return Rows(rows=b"[]", count=count)


def _get(connection: sqlite3.Connection, message: GetForget) -> Row:
    return _receipt_of(connection, message.tenant, message.forget_id)


def _receipt_of(connection: sqlite3.Connection, tenant: str, forget_id: str) -> Row:
    row = connection.execute(
        f"SELECT {_RECEIPT} FROM forgets WHERE tenant = :tenant AND forget_id = :forget_id",
        {"tenant": tenant, "forget_id": forget_id},
    ).fetchone()
    if row is None:
        raise NotFound(f"there is no order to forget with the id {forget_id!r}", hint="memory.forget_list names them")
    return Row(row=_receipt(connection, row))


def _list(connection: sqlite3.Connection, message: ListForgets) -> Rows:
    limit = rows_limit(message.limit)
    rows = connection.execute(
        f"""
        SELECT {_RECEIPT}
        FROM forgets
        WHERE tenant = :tenant AND (:before IS NULL OR forget_seq < :before)
        ORDER BY forget_seq DESC
        LIMIT :limit
        """,
        {"tenant": message.tenant, "before": message.before, "limit": limit + 1},
    ).fetchall()
    return page((_receipt(connection, row) for row in rows), limit)


def _receipt(connection: sqlite3.Connection, row: tuple[Any, ...]) -> bytes:
    seq, forget_id, scope, reason, principal, state, ordered, masked, erased, gone, generation_after = row
    counts = dict(
        connection.execute(
            "SELECT corpus, count(*) FROM tombstones WHERE forget_seq = :forget_seq GROUP BY corpus",
            {"forget_seq": seq},
        ).fetchall()
    )
    return encode_row(
        {
            "forget_id": forget_id,
            "forget_seq": seq,
            "state": state,
            "masked": state != "ordered",
            "forgotten": {corpus: counts.get(corpus, 0) for corpus in ("events", "units")},
            "generation_after": generation_after,
            "scope": raw_json(scope),
            "reason": reason,
            "principal": principal,
            "ordered_at": rfc3339(ordered),
            "masked_at": None if masked is None else rfc3339(masked),
            "erased_at": None if erased is None else rfc3339(erased),
            "gone_at": None if gone is None else rfc3339(gone),
        }
    )


SUBJECT = Subject(
    writes={
        OrderForget: _order,
        ForgetUnits: _forget_units,
        ForgetEvents: _forget_events,
        EraseUnits: _erase_units,
        AdvanceForget: _advance,
    },
    reads={
        CountForgettable: _count,
        ListOpenForgets: _open_forgets,
        ListTombstones: _tombstones,
        LookForForgotten: _look,
        GetForget: _get,
        ListForgets: _list,
    },
    check=_check,
)
