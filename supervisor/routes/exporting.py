"""The routes that take a memory out, and put one in."""

import msgspec

from actors.errors import InvalidParams
from actors.messages.base import Message
from actors.messages.exporting import (
    Exported,
    ExportEvents,
    ExportUnits,
    Imported,
    ImportSessions,
    ImportUnits,
    SessionAsItWas,
    UnitVersion,
)
from supervisor import params as wire
from supervisor.config import Config
from supervisor.routes.routing import Method, Routes, Scope
from supervisor.rpc import free_form
from supervisor.times import parse_ts


async def _memory_export(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.MemoryExport)
    limit = routes.page_rows(given.limit, "memory.export")
    if given.what == "events":
        events = ExportEvents(after=given.after, limit=limit, tenant=scope.tenant)
        return _page("events", await routes.ask("transcript_appender", events, Exported, scope))
    units = ExportUnits(after=given.after, limit=limit, tenant=scope.tenant)
    return _page("units", await routes.ask("core_writer", units, Exported, scope))


def _page(name: str, exported: Exported) -> dict[str, object]:
    return {name: msgspec.Raw(exported.rows), "last": exported.last, "more": exported.more}


async def _memory_import(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.MemoryImport)
    if given.sessions and given.units:
        raise InvalidParams("memory.import: give sessions or units, not both: each is written whole or not at all")
    message: Message
    if given.sessions:
        sessions = tuple(_session(each, routes.config) for each in given.sessions)
        message = ImportSessions(sessions=sessions, tenant=scope.tenant)
    else:
        units = tuple(_unit(each, routes.config) for each in given.units)
        message = ImportUnits(units=units, tenant=scope.tenant)
    answer = await routes.ask("core_writer", message, Imported, scope)
    routes.hint()
    return {"outcomes": answer.outcomes}


def _session(given: wire.ImportedSession, config: Config) -> SessionAsItWas:
    most = config.core_writer.meta_bytes_max
    return SessionAsItWas(
        session_id=given.session_id,
        created_at=parse_ts(given.created_at, "created_at"),
        updated_at=parse_ts(given.updated_at, "updated_at"),
        last_active_at=parse_ts(given.last_active_at, "last_active_at"),
        title=given.title,
        agent=given.agent,
        meta=free_form(given.meta, "meta", bytes_max=most, key="core_writer.meta_bytes_max"),
        closed_at=None if given.closed_at is None else parse_ts(given.closed_at, "closed_at"),
        archived_at=None if given.archived_at is None else parse_ts(given.archived_at, "archived_at"),
    )


def _unit(given: wire.ImportedUnit, config: Config) -> UnitVersion:
    most = config.core_writer.facts_bytes_max
    return UnitVersion(
        unit_id=given.unit_id,
        version=given.version,
        type=given.type,
        scope=given.scope,
        text=given.text,
        created_at=parse_ts(given.created_at, "created_at"),
        updated_at=parse_ts(given.updated_at, "updated_at"),
        status=given.status,
        facts=free_form(given.facts, "facts", bytes_max=most, key="core_writer.facts_bytes_max"),
        event_refs=tuple(given.event_refs),
        confidence=given.confidence,
        parent_unit_id=given.parent_unit_id,
        tags=tuple(given.tags),
        session_id=given.session_id,
    )


METHODS: dict[str, Method] = {
    "memory.export": Method(wire.MemoryExport, _memory_export),
    "memory.import": Method(wire.MemoryImport, _memory_import, ordered=True, grows="core_writer"),
}
