"""Power cuts with `synchronous` forced to OFF: COMMIT returns before anything is durable, and the checker must see it.

The same cuts as in disk_power_loss. The only reason that counts is an acknowledged write that is gone.
"""

import time

from chaos.deaths import DEATH_CODES, RAPID, Watch, strike, watching
from chaos.faults import control
from chaos.faults.cases import OPERATIONS, SERVED, TRUTH, noticed, without_disk
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import Load, Stage, staged

NAME = "mutation_fsync"
LOST = r"^I1: .* acknowledged as (seq|version) \d+, found 0 times"
WRITTEN = 20


async def run(given: Run) -> Verdict:
    """Let a life without fsync acknowledge some writes, and cut its power."""
    if (skipped := without_disk(given, NAME)) is not None:
        return skipped
    async with staged(given, NAME, config=RAPID, launcher=True, load=Load(searchers=0), wait=SERVED) as stage:
        for operations in OPERATIONS.values():
            for operation in operations:
                stage.allow(operation, *DEATH_CODES)
        async with watching(stage.daemon.socket_path) as watch:
            for actor in TRUTH:
                mutation = {"fault": "mutation", "name": "synchronous_off"}
                control.at_start(given.data, actor, {"fault": "disk_volatile"}, mutation)
                await strike(watch, actor, given.rng)
                control.forget_start(given.data, actor)
                await some_writes(stage, watch, actor)
                await strike(watch, actor, given.rng)
                for fired in control.fired(given.data, actor, "mutation"):
                    stage.mark("power cut without fsync", actor, f"pid {fired.pid}")
    return noticed(stage.verdict(), LOST)


async def some_writes(stage: Stage, watch: Watch, actor: str) -> None:
    """Wait until this life has acknowledged something."""
    operation, since = OPERATIONS[actor][0], time.monotonic()

    def written() -> bool:
        return sum(op.name == operation and op.outcome == "ok" and op.at >= since for op in stage.ops) >= WRITTEN

    await watch.until(written, f"{WRITTEN} times {operation}")


SCENARIOS = (
    Scenario(
        name=NAME,
        purpose="the same power cuts without fsync: must be noticed as lost writes",
        run=run,
        must_fail=True,
        tiers=("ci",),
        beside=True,
    ),
)
