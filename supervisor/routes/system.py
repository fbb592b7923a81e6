"""The routes of the daemon itself."""

import logging

from actors.errors import PermissionDenied
from supervisor import params as wire
from supervisor.narrowing import narrow_status
from supervisor.routes.routing import Method, Routes, Scope

log = logging.getLogger("bulkhead.routes")


async def _hello(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.Hello)
    try:
        principal = scope.visitor.introduce(client=given.client, name=given.principal, token=given.token)
    except PermissionDenied:
        routes.denied += 1
        log.warning("hello refused", extra={"client": scope.client})
        raise
    return {
        "server": "bulkhead",
        "version": routes.health.version,
        "data_dir_id": routes.health.data_dir_id,
        "epoch": routes.epoch,
        "principal": principal.name if principal is not None else None,
        "tenant": principal.tenant if principal is not None else None,
        "may": sorted(principal.may) if principal is not None else [],
    }


async def _status(routes: Routes, given: wire.Params, scope: Scope) -> object:
    status = routes.health.status()
    return status if routes.sees_all(scope) else narrow_status(status)


async def _health(routes: Routes, given: wire.Params, scope: Scope) -> object:
    return routes.health.health()


async def _metrics(routes: Routes, given: wire.Params, scope: Scope) -> object:
    return {**routes.health.metrics(), "denied": routes.denied}


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
