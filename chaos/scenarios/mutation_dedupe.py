"""The look-up of a request_id is switched off, and workers die between COMMIT and the answer: retries are stored twice.

The same deaths without the mutation are the scenario `lost_answers`, which must be green: a retry gets the first
result.
"""

from chaos.deaths import DEATH_CODES, RAPID, see_back, watching
from chaos.faults import control
from chaos.faults.cases import OPERATIONS, SERVED, TRUTH, noticed
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import Load, Stage, staged

NAME, TWIN = "mutation_dedupe", "lost_answers"
TWICE = r"^I[134]: .*(found [2-9] times|stored [2-9] times|acknowledged as (seq|version) \d+, stored as)"


async def lost_answers(given: Run, name: str, *, mutated: bool) -> Verdict:
    """End workers after they did a write and before they said so."""
    if mutated:
        for actor in TRUTH:
            control.at_start(given.data, actor, {"fault": "mutation", "name": "dedupe_off"})
    async with staged(given, name, config=RAPID, launcher=True, load=Load(searchers=0), wait=SERVED) as stage:
        for operations in OPERATIONS.values():
            for operation in operations:
                stage.allow(operation, *DEATH_CODES)
        for _ in range(given.size(1, 5, 50)):
            for actor, message in (("transcript_appender", "AppendBatch"), ("core_writer", "PutUnit")):
                await lose_answer(stage, actor, message)
    return stage.verdict()


async def lose_answer(stage: Stage, actor: str, message: str) -> None:
    """Let one write of the load be done and its answer be lost."""
    async with watching(stage.daemon.socket_path) as watch:
        before = len(control.fired(stage.data, actor, "exit"))
        victim = await watch.up(actor)
        await control.inject(stage.data, actor, pid=victim.pid, fault="exit", message=message, after=True)
        fired = await control.wait_fired(stage.data, actor, "exit", times=before + 1)
        await see_back(watch, actor, victim, fired[-1].at)
        stage.mark("death after COMMIT", actor, message)


async def green(given: Run) -> Verdict:
    """Run it as the house is."""
    return await lost_answers(given, TWIN, mutated=False)


async def red(given: Run) -> Verdict:
    """Run it without the look-up."""
    return noticed(await lost_answers(given, NAME, mutated=True), TWICE)


SCENARIOS = (
    Scenario(
        name=TWIN,
        purpose="workers die after COMMIT and before the answer: retries get the first result",
        run=green,
        tiers=("smoke", "ci", "soak"),
        faults=("death after COMMIT × core_writer", "death after COMMIT × transcript_appender"),
        beside=True,
    ),
    Scenario(
        name=NAME,
        purpose="the same without the look-up of request ids: must be noticed as duplicates",
        run=red,
        must_fail=True,
        tiers=("ci",),
        beside=True,
    ),
)
