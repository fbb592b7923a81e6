"""The wall clock jumps by an hour or a day, forwards and backwards, under load and while the daemon is away.

Expected: nobody notices. Every deadline, beat, backoff and window is measured by the monotonic clock, so no request
fails and no worker is replaced; stored times never go back within a transcript; a repeated request_id is still known.
"""

import itertools
import os
import time
from datetime import datetime
from typing import Any

import trio

from chaos.clock import NoShim, WallClock
from chaos.history import read_session
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import Stage, staged

HOUR_S, DAY_S = 3600.0, 86_400.0
JUMPS_S = (HOUR_S, -HOUR_S, DAY_S, -DAY_S)
NAME = "clock_jump"
SLACK_S = 60.0


async def run(given: Run) -> Verdict:
    """Run the scenario."""
    folder = given.data.parent
    try:
        clock = WallClock(folder)
    except NoShim as error:
        return Verdict(scenario=NAME, seed=given.seed, violations=[], faults=0, skipped=str(error))
    # A scenario has a process of its own; it is the daemon that inherits this, at its start.
    os.environ.update(clock.environment())
    async with staged(given, NAME, files=20) as stage:
        before = await epochs(stage)
        for jump_s in JUMPS_S * given.size(1, 1, 10):
            clock.set(jump_s)
            stage.mark("clock jump", "all processes", f"{jump_s:+.0f} s")
            await check_jumped(stage, jump_s)
            await trio.sleep(given.size(1, 2, 4))
        if await epochs(stage) != before:
            stage.violate(f"actors were restarted: {before} became {await epochs(stage)}")
        clock.set(-DAY_S)
        await stage.restart()
        clock.set(0)
        stage.mark("clock jump", "over a restart", f"{-DAY_S:+.0f} s")
        await check_order(stage)
    return stage.verdict()


async def epochs(stage: Stage) -> dict[str, int]:
    """Return the epoch of each actor."""
    return {name: actor["epoch"] for name, actor in (await stage.status())["actors"].items()}


async def check_jumped(stage: Stage, jump_s: float) -> None:
    """See that the jump really happened where times are stored: forwards at once, backwards never."""
    unit = await stage.call("unit.put", {"type": "plan", "scope": "global", "text": f"jump {jump_s}"})
    stored = await stage.call("unit.get", {"unit_id": unit["unit_id"]})
    ahead_s = seconds_of(stored["updated_at"]) - time.time()
    if jump_s > 0 and ahead_s < jump_s - SLACK_S:
        stage.violate(f"the clock did not jump: {ahead_s:.0f} s ahead after a jump of {jump_s:.0f} s")


async def check_order(stage: Stage) -> None:
    """See that the times of the transcript ascend with its seqs, over every jump."""
    sessions = sorted({append.session_id for append in stage.history.acknowledged()})
    events: list[dict[str, Any]] = []
    for session_id in sessions:
        events += await read_session(stage.client, session_id)
    events.sort(key=lambda event: event["seq"])
    back = sum(later["ts"] < earlier["ts"] for earlier, later in itertools.pairwise(events))
    if back:
        stage.violate(f"I4: the times of {len(events)} events go back {back} times although their seqs ascend")
    stage.facts["events_in_order"] = len(events)


def seconds_of(text: str) -> float:
    """Return an RFC 3339 time in seconds since the epoch."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


SCENARIOS = (
    Scenario(
        name=NAME,
        purpose="the wall clock jumps by an hour and a day, both ways; no deadline notices, no stored time goes back",
        run=run,
        tiers=("ci", "soak"),
        faults=tuple(
            f"clock jump × {actor}"
            for actor in ("core_writer", "transcript_appender", "cache_manager", "searcher", "generation_builder")
        ),
        beside=True,
    ),
)
