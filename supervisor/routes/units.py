"""The routes of units."""

import msgspec

from actors.errors import InvalidParams
from actors.messages.base import Row, Rows
from actors.messages.core_writer import GetUnit, ListUnits, PutUnit, UnitHistory
from actors.messages.unit_refs import DiffUnit, PlaceEvents, UnitsOfEvent
from supervisor import params as wire
from supervisor.routes.routing import Method, Routes, Scope, as_json, as_page, request_id_of_ours
from supervisor.rpc import free_form
from supervisor.times import parse_ts


async def _unit_put(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.UnitPut)
    if given.status not in ("active", "deprecated"):
        raise InvalidParams(f"unit.put: status is {given.status!r}, must be 'active' or 'deprecated'")
    message = PutUnit(
        unit_id=given.unit_id,
        type=given.type,
        scope=given.scope,
        text=given.text,
        facts=free_form(
            given.facts, "facts", bytes_max=routes.config.core_writer.facts_bytes_max, key="core_writer.facts_bytes_max"
        ),
        event_refs=tuple(given.event_refs),
        confidence=given.confidence,
        parent_unit_id=given.parent_unit_id,
        status=given.status,  # type: ignore[arg-type]  # checked above
        tags=tuple(given.tags),
        session_id=given.session_id,
        expected_version=given.expected_version,
        tenant=scope.tenant,
        request_id=given.request_id or request_id_of_ours(),
    )
    answer = await routes.ask("core_writer", message, Row, scope)
    routes.hint()
    return as_json(answer)


async def _unit_get(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.UnitGet)
    message = GetUnit(unit_id=given.unit_id, version=given.version, tenant=scope.tenant)
    return as_json(await routes.ask("core_writer", message, Row, scope))


async def _unit_history(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.UnitHistory)
    message = UnitHistory(
        unit_id=given.unit_id,
        limit=routes.page_rows(given.limit, "unit.history"),
        before_version=given.before_version,
        tenant=scope.tenant,
    )
    return as_page("versions", await routes.ask("core_writer", message, Rows, scope))


async def _unit_list(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.UnitList)
    message = ListUnits(
        limit=routes.page_rows(given.limit, "unit.list"),
        before_core_seq=given.before_core_seq,
        type=given.type,
        scope=given.scope,
        status=given.status,
        session_id=given.session_id,
        since=None if given.since is None else parse_ts(given.since, "since"),
        until=None if given.until is None else parse_ts(given.until, "until"),
        tenant=scope.tenant,
    )
    return as_page("units", await routes.ask("core_writer", message, Rows, scope))


async def _unit_diff(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.UnitDiff)
    message = DiffUnit(
        unit_id=given.unit_id,
        from_version=given.from_version,
        to_version=given.to_version,
        tenant=scope.tenant,
    )
    return as_json(await routes.ask("core_writer", message, Row, scope))


class _Supported(msgspec.Struct):
    """The members of a unit that tell what it rests on."""

    unit_id: str
    version: int
    event_refs: tuple[str, ...]


async def _unit_refs(routes: Routes, given: wire.Params, scope: Scope) -> object:
    """Follow the references of a unit to its events: core has the ids, the transcript knows where they are."""
    assert isinstance(given, wire.UnitRefs)
    message = GetUnit(unit_id=given.unit_id, version=given.version, tenant=scope.tenant)
    unit = msgspec.json.decode((await routes.ask("core_writer", message, Row, scope)).row, type=_Supported)
    places = PlaceEvents(event_ids=unit.event_refs, tenant=scope.tenant)
    found = await routes.ask("transcript_appender", places, Rows, scope)
    return {"unit_id": unit.unit_id, "version": unit.version, "events": msgspec.Raw(found.rows)}


async def _event_units(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.EventUnits)
    message = UnitsOfEvent(
        event_id=given.event_id,
        limit=routes.page_rows(given.limit, "event.units"),
        after=given.after,
        status=given.status,
        tenant=scope.tenant,
    )
    return as_page("units", await routes.ask("core_writer", message, Rows, scope))


METHODS: dict[str, Method] = {
    "unit.put": Method(wire.UnitPut, _unit_put, ordered=True, grows="core_writer"),
    "unit.get": Method(wire.UnitGet, _unit_get),
    "unit.history": Method(wire.UnitHistory, _unit_history),
    "unit.list": Method(wire.UnitList, _unit_list),
    "unit.diff": Method(wire.UnitDiff, _unit_diff),
    "unit.refs": Method(wire.UnitRefs, _unit_refs),
    "event.units": Method(wire.EventUnits, _event_units),
}
