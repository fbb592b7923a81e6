"""SIGKILL the whole daemon at random while many clients append; bridges restart it (A4, I1 to I6).

Sixteen clients over sixteen bridges append while the daemon is killed again and again. A bridge survives: its client
is told `ActorDied` for what was under way and goes on over the same pipes. After each restart every acknowledged event
must be there exactly once, in order.
"""

import trio

from chaos.scenario import TIERS, Run, Scenario, Verdict
from chaos.stage import RESTART_CODES, Load, Stage, staged

NAME = "kill_daemon"
CLIENTS = 16
TRUTH = ("append", "write", "read")


async def run(given: Run) -> Verdict:
    """Kill and read back, until the kills are done and enough was appended."""
    kills, events = given.size(4, 12, 200), given.size(200, 2000, 20_000)
    load = Load(appenders=CLIENTS, searchers=0, writers=1, readers=0, bridges=True, pause_s=0.02)
    async with staged(given, NAME, load=load, wait=TRUTH) as stage:
        for op in ("append", "unit", "history"):
            # Over a bridge no connection is ever lost, and nothing of a kill is told but this.
            stage.allow(op, *(code for code in RESTART_CODES if code != "lost"))
        for _ in range(kills):
            await trio.sleep(0.05 + given.rng.random() * 0.7)
            old = stage.daemon.pid()
            stage.daemon.kill()
            stage.mark("SIGKILL", "daemon", f"pid {old}")
            await back(stage, old)
            await stage.read_back()
        while len(stage.history.acknowledged()) < events:  # noqa: ASYNC110 - the clients say so by no event
            await trio.sleep(0.05)
    return stage.verdict()


async def back(stage: Stage, old: int | None) -> None:
    """Wait until another daemon serves the truth."""
    await stage.until(lambda s: s["pid"] != old and all(s["ready"][each] for each in TRUTH))


SCENARIOS = (
    Scenario(
        NAME, "SIGKILL the daemon while sixteen bridges append", run, tiers=TIERS, faults=("SIGKILL × supervisor",)
    ),
)
