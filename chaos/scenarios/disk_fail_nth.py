"""The N-th write, sync or read of a truth fails with EIO, once or until the disk is well again; both truths at a time.

Expected: nothing that met the error is acknowledged; the worker is replaced, since after a failed fsync nobody knows
what the disk has; the next one verifies the tail; retries with the same request_id succeed, and nothing is lost or
there twice. A failing read costs whoever needed it; a failing keyword index is nobody's business but its own.
"""

import time
from contextlib import suppress
from typing import Any, NamedTuple

import trio

from chaos.deaths import DEATH_CODES, RAPID, Row, Watch, see_back, watching
from chaos.faults import control
from chaos.faults.cases import OPERATIONS, STORE_BROKEN, TRUTH, UNAVAILABLE, without_disk
from chaos.faults.kinds import Fired
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import Load, Stage, staged

NAME = "disk_fail_nth"
FIRED_S = 40.0
COMES_S = 8.0
LASTING_TIMES = 3
# A worker that loses its store twice in a row rests until the next probe; here that is soon.
CONFIG = RAPID + "probe_ms = 500\n"


class Case(NamedTuple):
    """One failure: of which calls, and what they answer. `name` None: of the truth. `fatal`: the worker must go."""

    operation: str
    error: str
    file: str = "wal"
    name: str | None = None
    fatal: bool = False


WRITE, SYNC = Case("write", "IOERR_WRITE", fatal=True), Case("sync", "IOERR_FSYNC", fatal=True)
# Whoever reads for the keyword index or for a checkpoint can do without.
READ = Case("read", "IOERR_READ")
# SQLite ignores what fails in a checkpoint that follows a commit: the WAL still has it.
CHECKPOINT = (Case("write", "IOERR_WRITE", "db"), Case("sync", "IOERR_FSYNC", "db"))
KEYWORDS = (Case("write", "IOERR_WRITE", name="keywords.db"), Case("sync", "IOERR_FSYNC", name="keywords.db"))


async def run(given: Run) -> Verdict:
    """Let both truths fail in turn, each in a task of its own."""
    if (skipped := without_disk(given, NAME)) is not None:
        return skipped
    for actor in TRUTH:
        control.at_start(given.data, actor, {"fault": "disk_count"})
    async with staged(given, NAME, config=CONFIG, launcher=True, load=Load(appenders=3, writers=2)) as stage:
        for operations in OPERATIONS.values():
            for operation in operations:
                stage.allow(operation, *DEATH_CODES, STORE_BROKEN, UNAVAILABLE)
        async with watching(stage.daemon.socket_path) as watch, trio.open_nursery() as nursery:
            for actor in TRUTH:
                nursery.start_soon(hurt, given, stage, watch, actor)
    return stage.verdict()


async def hurt(given: Run, stage: Stage, watch: Watch, actor: str) -> None:
    """Go through all failures of one actor."""
    for nth in range(1, given.size(1, 11, 50) + 1):
        for case in (WRITE, SYNC, READ):
            await fail_once(stage, watch, actor, case, nth)
    for case in (WRITE, SYNC)[: given.size(1, 2, 2)]:
        for _ in range(given.size(1, 2, 10)):
            await fail_for_a_while(stage, watch, actor, case)
    for case in (*CHECKPOINT, *KEYWORDS)[: given.size(0, 4, 4)]:
        await fail_unnoticed(stage, watch, actor, case)


async def fail_once(stage: Stage, watch: Watch, actor: str, case: Case, nth: int) -> None:
    """Let one call fail, and see that the worker is replaced when it has to be."""
    victim, fired = await arm(stage, watch, actor, {**fault(actor, case), "nth": nth})
    detail = f"{case.operation} {nth} of the {case.file}"
    if case.fatal:
        death = await see_back(watch, actor, victim, fired.at)
        detail += f", back after {death.ready_s * 1000:.0f} ms"
    stage.mark(case.error, actor, detail)


async def arm(stage: Stage, watch: Watch, actor: str, given: dict[str, Any]) -> tuple[Row, Fired]:
    """Give a fault to the worker of an actor, again if it dies of an earlier one; return when it has happened."""
    before = count(stage, actor)
    while True:
        await watch.look()
        victim = await watch.up(actor)
        with suppress(control.WorkerSilent):
            await control.inject(stage.data, actor, pid=victim.pid, **given)

        def decided(epoch: int = victim.epoch) -> bool:
            return count(stage, actor) > before or watch.rows[actor].epoch > epoch

        await watch.until(decided, f"{given} to happen in {actor}", FIRED_S)
        if len(fired := control.fired(stage.data, actor, "disk_fail")) > before:
            return victim, fired[-1]


async def fail_for_a_while(stage: Stage, watch: Watch, actor: str, case: Case) -> None:
    """Let every call fail, in each incarnation, until several have met it; then the disk is well again."""
    lasting = {**fault(actor, case), "times": None}
    before, victim = count(stage, actor), await watch.up(actor)
    control.at_start(stage.data, actor, {"fault": "disk_count"}, lasting)
    try:
        with suppress(control.WorkerSilent):  # if it has just died, the next one has the fault from its start
            await control.inject(stage.data, actor, pid=victim.pid, **lasting)
        fired = await control.wait_fired(stage.data, actor, "disk_fail", times=before + LASTING_TIMES, seconds=FIRED_S)
    finally:
        control.at_start(stage.data, actor, {"fault": "disk_count"})
    pids = {each.pid for each in fired[before:]}
    if len(pids) < 2:
        stage.violate(f"{actor} met {case.error} {len(fired) - before} times and stayed the process {pids}")
    await recover(stage, watch, actor)
    stage.mark(case.error, actor, f"every {case.operation} of the {case.file}, in {len(pids)} processes")


async def recover(stage: Stage, watch: Watch, actor: str) -> None:
    """Wait until an incarnation without the fault serves: those that still have it die of their next write."""
    operation = OPERATIONS[actor][0]

    def succeeded() -> bool:
        return any(op.name == operation and op.outcome == "ok" and op.at >= healed_at for op in reversed(stage.ops))

    healed_at = time.monotonic()
    await watch.until(succeeded, f"{operation} to succeed after the disk of {actor} is well again")
    await watch.up(actor)


async def fail_unnoticed(stage: Stage, watch: Watch, actor: str, case: Case) -> None:
    """Let a call fail whose failure costs nobody anything; it need not come, as checkpoints come when they like."""
    victim, before = await watch.up(actor), count(stage, actor)
    try:
        await control.inject(stage.data, actor, pid=victim.pid, **fault(actor, case))
        await control.wait_fired(stage.data, actor, "disk_fail", times=before + 1, seconds=COMES_S)
    except (TimeoutError, control.WorkerSilent):
        stage.facts[f"did not come: {case.operation} of {case.name or case.file} of {actor}"] = True
        return
    stage.mark(case.error, actor, f"{case.operation} of {case.name or case.file}")
    await watch.up(actor)


def fault(actor: str, case: Case) -> dict[str, Any]:
    """Return the fault of a case."""
    name = case.name or TRUTH[actor]
    return {
        "fault": "disk_fail",
        "operation": case.operation,
        "error": case.error,
        "file": case.file,
        "name": f"{actor}/{name}" if case.name else name,
    }


def count(stage: Stage, actor: str) -> int:
    """Return how many calls have failed so far in an actor."""
    return len(control.fired(stage.data, actor, "disk_fail"))


SCENARIOS = (
    Scenario(
        name=NAME,
        purpose="the N-th write, sync or read of a truth fails with EIO",
        run=run,
        tiers=("ci", "soak"),
        faults=("EIO on write × core_writer", "EIO on write × transcript_appender"),
        watchdog_s=600.0,
        beside=True,
    ),
)
