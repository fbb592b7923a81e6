"""The routes of forgetting."""

from actors.errors import InvalidParams
from actors.messages.base import Row, Rows
from actors.messages.forgetting import ForgetMemory, ForgetScope, ListForgets, ProveForgotten
from supervisor import params as wire
from supervisor.routes.routing import Method, Routes, Scope, as_json, as_page, request_id_of_ours
from supervisor.routes.search import CITATION
from supervisor.times import parse_ts


async def _forget(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.MemoryForget)
    message = ForgetMemory(
        scope=_scope(given),
        reason=given.reason,
        dry_run=given.dry_run,
        tenant=scope.tenant,
        request_id=given.request_id or request_id_of_ours(),
    )
    answer = await routes.ask("core_writer", message, Row, scope)
    routes.hint()
    return as_json(answer)


def _scope(given: wire.MemoryForget) -> ForgetScope:
    """Return the scope; that it says plainly what is meant is checked where it is kept."""
    if sum((bool(given.ids), given.filter is not None, given.everything_of_tenant)) > 1:
        raise InvalidParams("memory.forget refused: give ids, or filter, or everything_of_tenant, not several of them")
    for item_id in given.ids or ():
        if CITATION.match(item_id):
            raise InvalidParams(
                f"memory.forget refused: {item_id!r} is a note, and the files of notes are yours",
                hint="delete the file or the lines in it; they leave the index by themselves",
            )
    chosen = given.filter or wire.ForgetFilter()
    return ForgetScope(
        ids=tuple(given.ids or ()),
        session_id=chosen.session_id,
        source=chosen.source,
        before=None if chosen.before is None else parse_ts(chosen.before, "filter.before"),
        kinds=tuple(chosen.kinds),
        tags=tuple(chosen.tags),
        everything_of_tenant=given.everything_of_tenant,
    )


async def _status(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.MemoryForgetStatus)
    message = ProveForgotten(forget_id=given.forget_id, tenant=scope.tenant)
    return as_json(await routes.ask("core_writer", message, Row, scope))


async def _list(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.MemoryForgetList)
    limit = routes.page_rows(given.limit, "memory.forget_list")
    message = ListForgets(limit=limit, before=given.before, tenant=scope.tenant)
    return as_page("forgets", await routes.ask("core_writer", message, Rows, scope))


METHODS: dict[str, Method] = {
    "memory.forget": Method(wire.MemoryForget, _forget, ordered=True),
    "memory.forget_status": Method(wire.MemoryForgetStatus, _status),
    "memory.forget_list": Method(wire.MemoryForgetList, _list),
}
