"""Every actor is dead for good: the daemon says so, at once, to anybody who asks.

Expected: `system.health` answers from memory; `live` is true, because the loop turns; nothing is `ready`; whoever uses
an actor is refused at once.
"""

import time

from chaos.client import RpcError, open_socket
from chaos.deaths import DEATH_CODES, summary_ms, watching
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import RESTART_CODES, Stage, staged

ACTORS = ("core_writer", "transcript_appender", "cache_manager", "searcher", "generation_builder")
UNAVAILABLE = 1010
CONFIG = """
[supervision]
restarts_max = 1
restart_window_ms = 600000
probe_ms = 600000
hopeless_ms = 600000
"""
BROKEN_S = 60.0
HEALTH_MS, HEALTH_MS_MAX = 5.0, 50.0


async def run(given: Run) -> Verdict:
    """Break every actor, and ask for the health."""
    async with staged(given, "supervisor_all_dead", config=CONFIG) as stage:
        for operation in ("append", "unit", "history", "search"):
            stage.allow(operation, *DEATH_CODES, UNAVAILABLE)
        for actor in ACTORS:
            await _break(stage, actor)
        await _judge(stage, given.size(100, 500, 5000))
        with stage.excused(*RESTART_CODES):
            await stage.restart("append", "write", "read", "search", "build", "cache")
    return stage.verdict()


async def _break(stage: Stage, actor: str) -> None:
    """End incarnations until the actor rests."""
    async with watching(stage.daemon.socket_path) as watch:
        await watch.up(actor)
        while watch.rows[actor].state != "broken":
            before = watch.rows[actor].epoch
            if (await stage.call("debug.fail_actor", {"actor": actor, "how": "raise"}))["hurt"]:
                stage.mark("raise", actor, f"epoch {before}")

            def decided(epoch: int = before) -> bool:
                row = watch.rows[actor]
                return row.state == "broken" or (row.epoch > epoch and row.state in ("ready", "degraded"))

            await watch.until(decided, f"{actor} to be back or broken", BROKEN_S)


async def _judge(stage: Stage, calls: int) -> None:
    times: list[float] = []
    async with open_socket(stage.daemon.socket_path) as client:
        for _ in range(calls):
            began = time.monotonic()
            health = await client.call("system.health")
            times.append(time.monotonic() - began)
            if not health["live"] or any(health["ready"].values()):
                stage.violate(f"with every actor dead the health is {health}")
                return
        await client.call("system.status")
        await client.call("system.metrics")
        for method, params in (
            ("session.history", {"session_id": "s0"}),
            ("unit.get", {"unit_id": "u"}),
            ("memory.search", {"query": "anything"}),
            ("cache.stats", {}),
        ):
            try:
                await client.call(method, params)
                stage.violate(f"{method} was answered with every actor dead")
            except RpcError as error:
                if error.code != UNAVAILABLE:
                    stage.violate(f"{method} was refused with {error.code}, must be {UNAVAILABLE}: {error.message}")
    stage.facts["health_ms"] = health_ms = summary_ms(times)
    if health_ms["p99"] > HEALTH_MS_MAX:
        stage.violate(f"system.health took {health_ms['p99']} ms (p99), promised are {HEALTH_MS} ms")


SCENARIOS = (
    Scenario(
        name="supervisor_all_dead",
        purpose="with every actor dead system.health answers at once, and says so",
        run=run,
        tiers=("ci", "soak"),
        faults=tuple(f"dead for good × {actor}" for actor in ACTORS),
    ),
)
