"""The routes of messages that were set aside."""

from actors.errors import NotFound
from actors.sql.rows import rfc3339
from supervisor import params as wire
from supervisor.routes.routing import Method, Routes, Scope


async def _poison_list(routes: Routes, given: wire.Params, scope: Scope) -> object:
    return {
        "messages": [
            {
                "key": each.key,
                "actor": each.actor,
                "kind": each.kind,
                "bytes": each.bytes,
                "causes": each.causes,
                "at": rfc3339(each.at),
            }
            for each in routes.quarantine.condemned()
        ]
    }


async def _poison_clear(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.PoisonClear)
    cleared = routes.quarantine.clear(given.key)
    if given.key is not None and not cleared:
        raise NotFound(f"poison.clear: no message with key {given.key!r} is condemned", hint="poison.list shows them")
    return {"cleared": cleared}


METHODS: dict[str, Method] = {
    "poison.list": Method(wire.NoParams, _poison_list),
    "poison.clear": Method(wire.PoisonClear, _poison_clear),
}
