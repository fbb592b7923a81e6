"""SIGKILL the builder's worker at each stage of a build, of a generation and of a delta (A8, C4).

The old view goes on serving, no temporary folder survives, nothing acknowledged is lost, and a build succeeds
in the end.
"""

from typing import Any

import trio

from chaos.daemon import kill
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import Load, Stage, staged

NAME = "kill_builder"
STEPS = (
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
STAGES = (*STEPS, *(f"delta {step}" for step in STEPS))
PUBLISHING = ("prepare", "flip")  # the process that built the generation has left by then
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
    """Hold a build at a stage, kill the worker there, let the next build through.

    The load appends all the time, so a delta is due by itself.
    """
    before = (await stage.call("index.status"))["generation"]
    await stage.call("debug.hold_build", {"stage": step})
    if step in STEPS:
        await stage.call("index.rebuild", {})
    await stage.until(lambda s: at(s) == step, BUILD_S)
    await trio.sleep(stage.rng.random() * 0.05)
    if step in STEPS and step not in PUBLISHING:
        await kill_rebuilder(stage)
    else:
        await stage.kill("generation_builder")
    await stage.call("debug.hold_build", {"stage": None})
    await stage.call("index.rebuild", {})
    await stage.until(
        lambda s: (s["generation"] or 0) > before and s["building"] is None, BUILD_S, method="index.status"
    )


def at(status: dict[str, Any]) -> str | None:
    """Return the stage at which a build is, of a generation or of a delta."""
    index = status["index"]
    building = index["building"] or index["deltas"]["building"]
    return None if building is None else str(building["stage"])


async def kill_rebuilder(stage: Stage) -> None:
    """Kill the process that makes a full generation: the builder lives on and tries again."""
    rows = (await stage.status())["actors"]["generation_builder"]["workers"]
    pids = [row["pid"] for row in rows if row["name"] == "rebuilder"]
    if not pids or not kill(pids[0]):
        stage.violate(f"there was no process that builds a generation: {rows}")
        return
    stage.mark("SIGKILL", "generation_builder", f"rebuilder, pid {pids[0]}")
    await stage.until(
        lambda s: all(row["pid"] != pids[0] for row in s["actors"]["generation_builder"]["workers"]), BUILD_S
    )


SCENARIOS = (
    Scenario(
        NAME,
        "SIGKILL the builder at each stage of a build",
        run,
        tiers=("smoke", "soak"),  # in between, kill_builder_syscalls does the same more finely
        faults=("SIGKILL × builder",),
        watchdog_s=600.0,
        beside=True,
    ),
)
