"""SIGKILL the active search worker again and again under a load of queries (A7).

No query may fail; those that were under way at a kill are answered by the spare. An answer is marked degraded only
when it was: a query of which both workers were gone is answered by keyword and says so.
"""

import time
from typing import Any

import trio

from chaos.deaths import summary_ms
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import Load, Stage, staged
from chaos.timeline import latencies

NAME = "kill_searcher"
AFFECTED_S = 0.5
LOADED_S = 120.0
DEGRADED = {"search_worker_unavailable"}
# With the model where there is time for it.
MODEL = """
[embedding]
provider = "auto"
"""


async def run(given: Run) -> Verdict:
    """Kill the active worker whenever both have the serving generation open."""
    load = Load(appenders=1, searchers=2, writers=0, readers=0)
    async with staged(given, NAME, load=load, config="" if given.smoke else MODEL) as stage:
        await stage.until(both_loaded, LOADED_S)
        if not given.smoke:
            await stage.until(has_vectors, LOADED_S)  # until then every answer is degraded for want of them
        recovered: list[float] = []
        with stage.window("kills"):
            for _ in range(given.size(3, 20, 200)):
                await trio.sleep(0.2 + given.rng.random())
                at = time.monotonic()
                await strike(stage)
                await stage.until(both_loaded, LOADED_S)
                recovered.append(time.monotonic() - at)
        stage.facts["both_loaded_again_ms"] = summary_ms(recovered)
        judge(stage)
    return stage.verdict()


async def strike(stage: Stage) -> None:
    """Kill once, and see that queries are answered right away."""
    before = len(stage.ops)
    await stage.kill("searcher", wait=False)
    await trio.sleep(AFFECTED_S)
    if not any(op.name == "search" for op in stage.ops[before:]):
        stage.violate("no query was answered after a kill")


def judge(stage: Stage) -> None:
    """Judge the answers that came while workers were being killed."""
    answers = stage.inside("kills", "search")
    codes = {code for op in answers for code in op.degraded}
    if codes - DEGRADED:
        stage.violate(f"degraded for a reason that does not belong to this fault: {sorted(codes - DEGRADED)}")
    if any(op.outcome == "ok" and op.generation is None and not op.degraded for op in answers):
        stage.violate("an answer without a generation was not marked degraded")
    affected = [op for op in answers if any(op.at <= mark.at <= op.end for mark in stage.marks)]
    stage.facts["affected"] = latencies(affected)


def both_loaded(status: dict[str, Any]) -> bool:
    """Say whether both workers have the serving generation open."""
    return bool(status["index"]["generation"] is not None and status["searcher"]["loaded"] == 2)


def has_vectors(status: dict[str, Any]) -> bool:
    """Say whether a view with vectors is published, where there is a model at all."""
    vectors = status["index"]["vectors"]
    return bool(vectors["want"] and vectors["have"]) or status["index"]["embedding"]["state"] == "off"


SCENARIOS = (
    Scenario(
        NAME,
        "SIGKILL the active search worker under queries",
        run,
        tiers=("smoke", "soak"),
        faults=("SIGKILL × searcher",),
        watchdog_s=900.0,
    ),
)
