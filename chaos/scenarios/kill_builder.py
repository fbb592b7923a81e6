"""SIGKILL the builder's worker at each stage of a build (A8).

The old generation goes on serving, no temporary folder survives, nothing acknowledged is lost, and a build succeeds
in the end.
"""

import trio

from chaos.scenario import TIERS, Run, Scenario, Verdict
from chaos.stage import Load, Stage, staged

NAME = "kill_builder"
STAGES = (
    "begin",
    "events",
    "units",
    "documents",
    "write events",
    "write units",
    "write documents",
    "index events",
    "index units",
    "index documents",
    "test",
    "seal",
    "prepare",
    "flip",
)
BUILD_S = 60.0


async def run(given: Run) -> Verdict:
    """Hold a build at each stage in turn, and kill its worker there."""
    chosen = given.rng.sample(STAGES, given.size(3, len(STAGES), len(STAGES)))
    load = Load(appenders=1, searchers=1, writers=1, readers=0)
    async with staged(given, NAME, load=load, files=3) as stage:
        await stage.until(lambda s: s["generation"] and s["rows"]["documents"], BUILD_S, "index.status")
        with stage.window("kills"):
            for _ in range(given.size(1, 1, 30)):
                for each in chosen:
                    await kill_at(stage, each)
        if any(op.generation is None for op in stage.inside("kills", "search")):
            stage.violate("a search was answered without a generation, although one was published")
        stage.facts["stages"] = chosen
    return stage.verdict()


async def kill_at(stage: Stage, step: str) -> None:
    """Hold a build at a stage, kill the worker there, let the next build through."""
    before = (await stage.call("index.status"))["generation"]
    await stage.call("debug.hold_build", {"stage": step})
    await stage.call("index.rebuild", {})
    await stage.until(lambda s: (s["index"]["building"] or {}).get("stage") == step, BUILD_S)
    await trio.sleep(stage.rng.random() * 0.05)
    await stage.kill("generation_builder")
    await stage.call("debug.hold_build", {"stage": None})
    await stage.call("index.rebuild", {})
    await stage.until(
        lambda s: (s["generation"] or 0) > before and s["building"] is None, BUILD_S, method="index.status"
    )


SCENARIOS = (
    Scenario(
        NAME,
        "SIGKILL the builder at each stage of a build",
        run,
        tiers=TIERS,
        faults=("SIGKILL × builder",),
        watchdog_s=600.0,
    ),
)
