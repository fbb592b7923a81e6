"""Power cuts: the disks of both truths are volatile, workers are killed at random, and sometimes the whole daemon.

Whatever SQLite had not synced is gone with the process. In half of the lives some unsynced blocks survive, in any
order, as real disks have it. Expected: no acknowledged write is lost, none is there twice (I1 to I5).
"""

from chaos.deaths import DEATH_CODES, RAPID, strike, watching
from chaos.faults import control
from chaos.faults.cases import OPERATIONS, SERVED, TRUTH, without_disk
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import Load, Stage, staged

NAME = "disk_power_loss"
LEAKS = (0.0, 0.3)
RESTART_EVERY = 10


async def run(given: Run) -> Verdict:
    """Cut the power of one worker after the other."""
    if (skipped := without_disk(given, NAME)) is not None:
        return skipped
    for actor in TRUTH:
        next_life(given, actor, 0)
    async with staged(given, NAME, config=RAPID, launcher=True, load=Load(appenders=3)) as stage:
        for operations in OPERATIONS.values():
            for operation in operations:
                stage.allow(operation, *DEATH_CODES)
        for number in range(given.size(4, 40, 1000)):
            actor = given.rng.choice(sorted(TRUTH))
            next_life(given, actor, number + 1)
            if number % RESTART_EVERY == RESTART_EVERY - 1:
                await stage.restart(*SERVED)
            else:
                await cut(stage, actor)
        await judge(stage)
    return stage.verdict()


async def cut(stage: Stage, actor: str) -> None:
    """Kill the worker of an actor at a random time of its life."""
    async with watching(stage.daemon.socket_path) as watch:
        death = await strike(watch, actor, stage.rng)
    stage.mark("power cut", actor, death.phase)


def next_life(given: Run, actor: str, number: int) -> None:
    """Give a volatile disk to the incarnations of an actor that begin from now on."""
    leak = LEAKS[number % len(LEAKS)]
    control.at_start(given.data, actor, {"fault": "disk_volatile", "leak": leak, "seed": given.seed + number})


async def judge(stage: Stage) -> None:
    """See that every life had the volatile disk."""
    for actor in TRUTH:
        lives = len(control.fired(stage.data, actor, "disk_volatile"))
        deaths = sum(mark.target in (actor, "daemon") for mark in stage.marks)
        stage.facts[f"volatile_lives_{actor}"] = lives
        if lives <= deaths:
            stage.violate(f"{actor} died {deaths} times, but only {lives} of its lives had the volatile disk")
        disk = (await control.status(stage.data, actor))["disk"]
        stage.facts[f"disk_{actor}"] = disk


SCENARIOS = (
    Scenario(
        name=NAME,
        purpose="power cuts: what was not synced is gone with the worker",
        run=run,
        tiers=("smoke", "ci", "soak"),
        faults=("power loss × core_writer", "power loss × transcript_appender"),
        beside=True,
    ),
)
