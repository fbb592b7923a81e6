"""The routes of units."""

from actors.errors import InvalidParams
from actors.messages.base import Row, Rows
from actors.messages.core_writer import GetUnit, ListUnits, PutUnit, UnitHistory
from supervisor import params as wire
from supervisor.routes.routing import Method, Routes, Scope, as_json, as_page, request_id_of_ours
from supervisor.rpc import free_form


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
        tenant=scope.tenant,
    )
    return as_page("units", await routes.ask("core_writer", message, Rows, scope))


METHODS: dict[str, Method] = {
    "unit.put": Method(wire.UnitPut, _unit_put, ordered=True, grows="core_writer"),
    "unit.get": Method(wire.UnitGet, _unit_get),
    "unit.history": Method(wire.UnitHistory, _unit_history),
    "unit.list": Method(wire.UnitList, _unit_list),
}
