"""The routes of sessions and their history."""

import uuid

from actors.errors import InvalidParams
from actors.messages.base import Row, Rows
from actors.messages.core_writer import ArchiveSession, CloseSession, GetSession, ListSessions, OpenSession
from actors.messages.transcript_appender import SessionHistory
from supervisor import params as wire
from supervisor.routes.routing import Method, Routes, Scope, as_json, as_page
from supervisor.rpc import free_form
from supervisor.times import parse_ts


async def _session_open(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.SessionOpen)
    message = OpenSession(
        session_id=given.session_id or f"s-{uuid.uuid4().hex}",
        title=given.title,
        agent=given.agent,
        meta=free_form(
            given.meta, "meta", bytes_max=routes.config.core_writer.meta_bytes_max, key="core_writer.meta_bytes_max"
        ),
        tenant=scope.tenant,
        request_id=given.request_id,
    )
    return as_json(await routes.ask("core_writer", message, Row, scope))


async def _session_get(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.SessionRef)
    message = GetSession(session_id=given.session_id, tenant=scope.tenant)
    return as_json(await routes.ask("core_writer", message, Row, scope))


async def _session_list(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.SessionList)
    if given.status not in (None, "open", "closed", "archived"):
        raise InvalidParams(f"session.list: status is {given.status!r}, must be 'open', 'closed' or 'archived'")
    message = ListSessions(
        limit=routes.page_rows(given.limit, "session.list"),
        before=given.before,
        status=given.status,  # type: ignore[arg-type]  # checked above
        agent=given.agent,
        since=None if given.since is None else parse_ts(given.since, "since"),
        until=None if given.until is None else parse_ts(given.until, "until"),
        tenant=scope.tenant,
    )
    return as_page("sessions", await routes.ask("core_writer", message, Rows, scope))


async def _session_close(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.SessionRef)
    message = CloseSession(session_id=given.session_id, tenant=scope.tenant, request_id=given.request_id)
    return as_json(await routes.ask("core_writer", message, Row, scope))


async def _session_archive(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.SessionRef)
    message = ArchiveSession(session_id=given.session_id, tenant=scope.tenant, request_id=given.request_id)
    return as_json(await routes.ask("core_writer", message, Row, scope))


async def _session_history(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.SessionHistory)
    if given.after_seq is not None and given.before_seq is not None:
        raise InvalidParams("session.history: give after_seq or before_seq, not both")
    message = SessionHistory(
        session_id=given.session_id,
        limit=routes.page_rows(given.limit, "session.history"),
        after_seq=given.after_seq,
        before_seq=given.before_seq,
        tenant=scope.tenant,
    )
    return as_page("events", await routes.ask("transcript_appender", message, Rows, scope))


METHODS: dict[str, Method] = {
    "session.open": Method(wire.SessionOpen, _session_open, ordered=True, grows="core_writer"),
    "session.get": Method(wire.SessionRef, _session_get),
    "session.list": Method(wire.SessionList, _session_list),
    "session.close": Method(wire.SessionRef, _session_close, ordered=True, grows="core_writer"),
    "session.archive": Method(wire.SessionRef, _session_archive, ordered=True, grows="core_writer"),
    "session.history": Method(wire.SessionHistory, _session_history),
}
