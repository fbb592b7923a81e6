"""The routes of the daemon itself."""

from actors.errors import InvalidParams
from supervisor import params as wire
from supervisor.routes.routing import Method, Routes, Scope


async def _hello(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.Hello)
    if given.principal not in (None, "owner"):
        raise InvalidParams(
            f"hello: unknown principal {given.principal!r}",
            hint="the socket is private to its owner; leave principal out",
        )
    return {
        "server": "bulkhead",
        "version": routes.health.version,
        "data_dir_id": routes.health.data_dir_id,
        "epoch": routes.epoch,
    }


async def _status(routes: Routes, given: wire.Params, scope: Scope) -> object:
    return routes.health.status()


async def _health(routes: Routes, given: wire.Params, scope: Scope) -> object:
    return routes.health.health()


async def _metrics(routes: Routes, given: wire.Params, scope: Scope) -> object:
    return routes.health.metrics()


async def _drain(routes: Routes, given: wire.Params, scope: Scope) -> object:
    routes.drain()
    return {"draining": True}


METHODS: dict[str, Method] = {
    "hello": Method(wire.Hello, _hello),
    "system.status": Method(wire.NoParams, _status),
    "system.health": Method(wire.NoParams, _health),
    "system.metrics": Method(wire.NoParams, _metrics),
    "system.drain": Method(wire.NoParams, _drain),
}
