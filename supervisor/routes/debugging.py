"""The routes that chaos scripts have, and nobody else."""

import ctypes
import os
import sys
import time

from actors.errors import InvalidParams
from actors.messages.base import Done
from actors.messages.generation_builder import HoldBuild
from supervisor import params as wire
from supervisor.routes.routing import Method, Routes, Scope
from supervisor.rpc import suggest

STALL_S_MAX = 60.0


async def _debug_hold_build(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.DebugHold)
    await routes.ask("generation_builder", HoldBuild(stage=given.stage), Done, scope)
    return {"stage": given.stage}


async def _debug_fail_actor(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.DebugFailActor)
    if given.actor not in routes.mailboxes:
        raise InvalidParams(
            f"debug.fail_actor: no actor is named {given.actor!r}{suggest(given.actor, routes.mailboxes)}"
        )
    return {"hurt": routes.health.hurt(given.actor, given.how)}


async def _debug_stall_loop(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.DebugStallLoop)
    if not 0 < given.seconds <= STALL_S_MAX:
        raise InvalidParams(f"debug.stall_loop: seconds is {given.seconds}, must be above 0 and at most {STALL_S_MAX}")
    stall(given.seconds, hold_gil=given.hold_gil)
    return {"stalled_s": given.seconds}


def stall(seconds: float, *, hold_gil: bool) -> None:
    """Block the calling thread; with `hold_gil` every other thread of the process as well, as careless C code does."""
    if hold_gil:
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    else:
        time.sleep(seconds)


async def _debug_modules(routes: Routes, given: wire.Params, scope: Scope) -> object:
    return {"modules": sorted(sys.modules)}


async def _debug_write_stdout(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.DebugWriteStdout)
    os.write(1, given.text.encode("utf-8", "backslashreplace"))
    return {"written": len(given.text)}


METHODS: dict[str, Method] = {
    "debug.hold_build": Method(wire.DebugHold, _debug_hold_build, chaos_only=True),
    "debug.fail_actor": Method(wire.DebugFailActor, _debug_fail_actor, chaos_only=True),
    "debug.stall_loop": Method(wire.DebugStallLoop, _debug_stall_loop, chaos_only=True),
    "debug.modules": Method(wire.NoParams, _debug_modules, chaos_only=True),
    "debug.write_stdout": Method(wire.DebugWriteStdout, _debug_write_stdout, chaos_only=True),
}
