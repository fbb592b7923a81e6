"""The routes that repair the truth."""

import time

from actors.errors import InvalidParams
from actors.messages.base import Row
from actors.messages.core_writer import RestoreTruth
from actors.messages.generation_builder import Rebuild
from supervisor import params as wire
from supervisor.routes.index import REBUILD_NS
from supervisor.routes.routing import Method, Routes, Scope, as_json
from supervisor.rpc import suggest

# The actors whose truth can be restored by command: their mailboxes have a place for the order.
RESTORABLE = ("core_writer", "transcript_appender")


async def _truth_restore(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.TruthRestore)
    if given.actor not in RESTORABLE:
        raise InvalidParams(
            f"truth.restore: {given.actor!r} is no actor whose truth can be restored{suggest(given.actor, RESTORABLE)}",
            hint=f"known are {', '.join(RESTORABLE)}",
        )
    if (given.source is not None) == given.salvage:
        raise InvalidParams("truth.restore: give either from or salvage")
    # Between these two nothing may be waited for: the released actor looks for the order when it starts.
    routes.health.release(given.actor)
    answer = await routes.mailboxes[given.actor].ask(
        RestoreTruth(path=given.source), Row, deadline_ns=scope.deadline_ns, client=scope.client
    )
    routes.mailboxes["generation_builder"].tell(
        Rebuild(reason=f"{given.actor} was restored"), deadline_ns=time.monotonic_ns() + REBUILD_NS
    )
    return as_json(answer)


METHODS: dict[str, Method] = {
    "truth.restore": Method(wire.TruthRestore, _truth_restore),
}
