"""The disk of both truths is full for a while: writes are refused as DiskFull, reads and searches go on.

A full disk takes half of a write before it refuses, and it is no reason to replace anybody: the same workers go on
once there is room.
"""

import time
from typing import Any

import trio

from chaos.deaths import RAPID, Watch, watching
from chaos.faults import control
from chaos.faults.cases import DISK_FULL, TRUTH, without_disk
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import Load, Stage, staged

NAME = "disk_full"
WRITES = {"core_writer": "unit", "transcript_appender": "append"}
READS = ("history", "search")
FULL: dict[str, Any] = {"fault": "disk_fail", "operation": "write", "error": "FULL", "times": None, "partial": True}
REFUSALS = 5
WAIT_S = 30.0


async def run(given: Run) -> Verdict:
    """Fill the disk, and make room, again and again."""
    if (skipped := without_disk(given, NAME)) is not None:
        return skipped
    for actor in TRUTH:
        control.at_start(given.data, actor, {"fault": "disk_count"})
    async with staged(given, NAME, config=RAPID, launcher=True, load=Load(readers=2)) as stage:
        for operation in WRITES.values():
            stage.allow(operation, DISK_FULL)
        async with watching(stage.daemon.socket_path) as watch:
            before = await pids(watch)
            with stage.window("room"):
                await watch.until(lambda: served_all(stage, 0.0), "the load to be under way", WAIT_S)
            for _ in range(given.size(1, 3, 20)):
                await fill(stage, watch)
            if await pids(watch) != before:
                stage.violate(f"a full disk replaced workers: {before} became {await pids(watch)}")
        judge(stage)
    return stage.verdict()


async def fill(stage: Stage, watch: Watch) -> None:
    """Let every write fail until each kind of writer was refused and each kind of reader served, then make room."""
    since = time.monotonic()
    with stage.window("full"):
        for actor in TRUTH:
            await control.inject(stage.data, actor, **FULL)
            stage.mark("ENOSPC", actor)
        try:
            await watch.until(lambda: refused_all(stage, since), "refusals by a full disk", WAIT_S)
            await watch.until(lambda: served_all(stage, since), "reads on a full disk", WAIT_S)
        finally:
            with trio.CancelScope(shield=True):
                for actor in TRUTH:
                    await make_room(stage, actor)
    with stage.window("room"):
        await watch.until(lambda: written_all(stage), "writes after there was room", WAIT_S)


async def make_room(stage: Stage, actor: str) -> None:
    """Take the fault back, but keep the shim for the next round."""
    await control.clear(stage.data, actor)
    control.at_start(stage.data, actor, {"fault": "disk_count"})


def refused_all(stage: Stage, since: float) -> bool:
    """Say whether each kind of write was refused often enough."""
    return all(_count(stage, name, str(DISK_FULL), since) >= REFUSALS for name in WRITES.values())


def served_all(stage: Stage, since: float) -> bool:
    """Say whether each kind of read succeeded often enough."""
    return all(_count(stage, name, "ok", since) >= REFUSALS for name in READS)


def written_all(stage: Stage) -> bool:
    """Say whether each kind of write succeeded after the disk had been full."""
    full_until = max(span.end for span in stage.windows if span.name == "full")
    return all(_count(stage, name, "ok", full_until) > 0 for name in WRITES.values())


def _count(stage: Stage, name: str, outcome: str, since: float) -> int:
    return sum(op.name == name and op.outcome == outcome and op.at >= since for op in stage.ops)


async def pids(watch: Watch) -> dict[str, int | None]:
    """Return the workers of the truths."""
    return {actor: (await watch.up(actor)).pid for actor in TRUTH}


def judge(stage: Stage) -> None:
    """See that no read failed while the disk was full."""
    for operation in READS:
        stage.facts[f"{operation}_on_full_disk"] = len(stage.inside("full", operation))
        if failed := stage.errors("full", operation):
            stage.violate(f"{failed} of {operation} failed while the disk was full")


SCENARIOS = (
    Scenario(
        name=NAME,
        purpose="the disk is full for a while: DiskFull for writes, everything else goes on",
        run=run,
        tiers=("ci", "soak"),
        faults=("ENOSPC × core_writer", "ENOSPC × transcript_appender"),
        beside=True,
    ),
)
