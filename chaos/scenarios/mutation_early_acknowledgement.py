"""Appends are acknowledged before their COMMIT, and the worker is killed: the checker must see what is lost.

A plain SIGKILL is enough for this one. Where the acknowledged event is looked for before its COMMIT came, it is missing
as well (I5); the reason that counts is that it is gone for good.
"""

from chaos.deaths import DEATH_CODES, RAPID, strike, watching
from chaos.faults import control
from chaos.faults.cases import OPERATIONS, SERVED, noticed
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import Load, staged

NAME = "mutation_early_acknowledgement"
ACTOR = "transcript_appender"
LOST = r"^I1: .* acknowledged as seq \d+, (found 0 times|stored as seq)"


async def run(given: Run) -> Verdict:
    """Kill the worker that promises too early."""
    control.at_start(given.data, ACTOR, {"fault": "mutation", "name": "early_acknowledgement"})
    load = Load(searchers=0, writers=0)
    async with staged(given, NAME, config=RAPID, launcher=True, load=load, wait=SERVED) as stage:
        for operation in OPERATIONS[ACTOR]:
            stage.allow(operation, *DEATH_CODES)
        async with watching(stage.daemon.socket_path) as watch:
            for _ in range(given.size(3, 5, 20)):
                await strike(watch, ACTOR, given.rng, spread_s=1.0)
                stage.mark("SIGKILL", ACTOR)
            control.forget_start(given.data, ACTOR)
            await strike(watch, ACTOR, given.rng)
    return noticed(stage.verdict(), LOST)


SCENARIOS = (
    Scenario(
        name=NAME,
        purpose="appends are acknowledged before COMMIT: must be noticed as lost writes",
        run=run,
        must_fail=True,
        tiers=("ci",),
        beside=True,
    ),
)
