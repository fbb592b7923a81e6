"""The disk of one truth takes seconds for an fsync, first within the deadlines of its callers, then far beyond.

Expected: requests end by their deadlines, with a typed outcome; a worker that is stuck beyond a deadline is replaced
(nothing interrupts an fsync); what was in hand is there once or not at all. Nobody who uses the other truth notices.
"""

from typing import Any

import trio

from chaos.deaths import DEATH_CODES, RAPID, watching
from chaos.faults import control
from chaos.faults.cases import DEADLINE_EXCEEDED, INTERRUPTED, OPERATIONS, OVERLOADED, TRUTH, without_disk
from chaos.load import DEADLINE_S
from chaos.scenario import Run, Scenario, Tier, Verdict
from chaos.stage import Stage, staged

NAME = "disk_slow_fsync"
SLOW_S = 1.2  # a call may sync three times (checkpoint, then commit) and must still end within its deadline
STUCK_S = DEADLINE_S * 4
FIRED_S = 30.0


async def slow_fsync(given: Run, name: str, actor: str) -> Verdict:
    """Slow the disk of one truth down."""
    if (skipped := without_disk(given, name)) is not None:
        return skipped
    control.at_start(given.data, actor, {"fault": "disk_count"})
    async with staged(given, name, config=RAPID, launcher=True) as stage:
        for operation in OPERATIONS[actor]:
            stage.allow(operation, *DEATH_CODES, DEADLINE_EXCEEDED, INTERRUPTED, OVERLOADED)
        with stage.window("idle"):
            await trio.sleep(given.size(1, 4, 10))
        for _ in range(given.size(1, 1, 10)):
            await slow(stage, actor, given.size(2, 3, 5))
            await stuck(stage, actor)
        judge(stage, actor)
    return stage.verdict()


async def slow(stage: Stage, actor: str, syncs: int) -> None:
    """Let so many syncs take long; the worker stays."""
    before = _delays(stage, actor)
    with stage.window("slow"):
        await control.inject(stage.data, actor, **_delay(actor, SLOW_S), times=syncs)
        await control.wait_fired(stage.data, actor, "disk_delay", times=before + syncs, seconds=FIRED_S * syncs)
    stage.mark("slow fsync", actor, f"{syncs} syncs of {SLOW_S} s")
    await stage.until(lambda status: status["actors"][actor]["pid"] is not None)


async def stuck(stage: Stage, actor: str) -> None:
    """Let one sync take longer than any deadline: the worker is replaced."""
    async with watching(stage.daemon.socket_path) as watch:
        before, victim = _delays(stage, actor), await watch.up(actor)
        with stage.window("stuck"):
            await control.inject(stage.data, actor, pid=victim.pid, **_delay(actor, STUCK_S), times=1)
            (*_, fired) = await control.wait_fired(stage.data, actor, "disk_delay", times=before + 1, seconds=FIRED_S)
            await watch.up(actor, after_epoch=victim.epoch)
        stage.mark("stuck fsync", actor, f"{fired.detail.split('/')[-1]}, {STUCK_S} s")


def _delay(actor: str, seconds: float) -> dict[str, Any]:
    return {"fault": "disk_delay", "operation": "sync", "name": TRUTH[actor], "seconds": seconds}


def _delays(stage: Stage, actor: str) -> int:
    return len(control.fired(stage.data, actor, "disk_delay"))


def judge(stage: Stage, actor: str) -> None:
    """See that those who do not use this truth lost nothing but what the machine costs."""
    others = {"search", *(name for other in TRUTH if other != actor for name in OPERATIONS[other])}
    for operation in sorted(others):
        for window in ("slow", "stuck"):
            if failed := stage.errors(window, operation):
                stage.violate(f"{failed} of {operation} failed while the disk of {actor} was {window}")
        stage.facts[f"{operation}_p99_ms"] = {
            window: round(stage.p99(window, operation), 1) for window in ("idle", "slow", "stuck")
        }


def _scenario(actor: str, tiers: tuple[Tier, ...]) -> Scenario:
    name = f"{NAME}_{actor}"

    async def run(given: Run) -> Verdict:
        return await slow_fsync(given, name, actor)

    return Scenario(
        name=name,
        purpose=f"fsync of {actor} takes more than a second, then longer than any deadline",
        run=run,
        tiers=tiers,
        faults=(f"slow fsync × {actor}", f"hang in fsync × {actor}"),
    )


SCENARIOS = (_scenario("core_writer", ("soak",)), _scenario("transcript_appender", ("ci", "soak")))
