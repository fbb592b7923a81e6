"""SIGTERM and SIGKILL to the daemon when it hurts: under load, in a drain, in its start, in its first second.

Expected: a drain ends within 10 s with status 0, a second signal ends it at once with status 75, and whenever the
process is killed, the next one has everything that was acknowledged.
"""

import os
import signal
import time
from collections.abc import Awaitable, Callable

import trio

from chaos.client import open_socket
from chaos.daemon import kill
from chaos.deaths import summary_ms
from chaos.scenario import TIERS, Run, Scenario, Tier, Verdict
from chaos.stage import RESTART_CODES, Stage, staged
from chaos.targets import TARGETS, ask

SERVING = ("append", "write", "read", "search")
DRAIN_S, GENEROUS_S, HARD_S = 10.0, 3.0, 20.0
EXIT_OK, EXIT_HARD = 0, 75
AT_ONCE_S = 2.0
READY_S = 90.0
START_SPREAD_S = 1.0


async def end_by(stage: Stage, *numbers: signal.Signals, pause_s: float = 0.0) -> tuple[float, int]:
    """Send signals to the daemon and wait for its end; return how long that took from the last one, and its status."""
    process = stage.daemon.process
    assert process is not None, "the daemon is not our child"
    began = time.monotonic()
    for position, number in enumerate(numbers):
        if position:
            await trio.sleep(pause_s)
        began = time.monotonic()
        kill(process.pid, number)
        stage.mark(number.name, "supervisor")
    with trio.move_on_after(HARD_S):
        while process.poll() is None:  # noqa: ASYNC110 - no event that every platform shares
            await trio.sleep(0.01)
    seconds = time.monotonic() - began
    if process.poll() is None:
        stage.violate(f"the daemon did not end within {HARD_S} s after {[each.name for each in numbers]}")
        kill(process.pid)
    stage.daemon.process = None
    return seconds, process.wait()


async def start_again(stage: Stage) -> float:
    """Start the daemon again and wait until it serves; return how long that took."""
    began = time.monotonic()
    stage.daemon.start()
    await stage.connected()
    await stage.ready(*SERVING, seconds=READY_S)
    return time.monotonic() - began


async def terminate_under_load(given: Run) -> Verdict:
    """Send SIGTERM under the mixed load."""
    async with staged(given, "supervisor_sigterm_under_load") as stage:
        drained: list[float] = []
        ready: list[float] = []
        for _ in range(given.size(1, 3, 20)):
            await trio.sleep(given.rng.random())
            with stage.excused(*RESTART_CODES):
                seconds, status = await end_by(stage, signal.SIGTERM)
                drained.append(seconds)
                if status != EXIT_OK:
                    stage.violate(f"a drained daemon ended with status {status}")
                ready.append(await start_again(stage))
        stage.facts["drain_ms"] = summary_ms(drained)
        stage.facts["ready_ms"] = summary_ms(ready)
        if max(drained) > DRAIN_S + GENEROUS_S:
            stage.violate(f"a drain took {max(drained):.1f} s, promised are {DRAIN_S} s")
    return stage.verdict()


async def kill_during_drain(given: Run) -> Verdict:
    """SIGKILL the daemon while it drains."""
    async with staged(given, "supervisor_kill_during_drain") as stage:
        for _ in range(given.size(1, 4, 40)):
            await trio.sleep(given.rng.random() * 0.5)
            with stage.excused(*RESTART_CODES):
                await end_by(stage, signal.SIGTERM, signal.SIGKILL, pause_s=given.rng.random() * 0.3)
                await start_again(stage)
    return stage.verdict()


async def signal_twice(given: Run) -> Verdict:
    """Send SIGTERM while a worker cannot finish, and again: the second one waits for nobody."""
    async with staged(given, "supervisor_double_signal") as stage:
        times: list[float] = []
        for number in range(given.size(1, 2, 20)):
            with stage.excused(*RESTART_CODES):
                times.append(await _signal_twice(stage, number))
                await start_again(stage)
        stage.facts["second_signal_ms"] = summary_ms(times)
        if max(times) > AT_ONCE_S:
            stage.violate(f"the daemon ended {max(times):.1f} s after the second signal, must be at once")
    return stage.verdict()


async def _signal_twice(stage: Stage, number: int) -> float:
    pid = await stage.pid("core_writer")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    stage.mark("SIGSTOP", "core_writer")
    async with open_socket(stage.daemon.socket_path) as client, trio.open_nursery() as nursery:

        async def wait_for_the_stopped_one() -> None:
            await ask(stage, client, TARGETS["core_writer"], f"twice{number}{stage.run.seed}", deadline_s=8.0)

        nursery.start_soon(wait_for_the_stopped_one)
        await stage.until(lambda s: s["actors"]["core_writer"]["in_hand_ms"] > 0)
        seconds, status = await end_by(stage, signal.SIGTERM, signal.SIGTERM, pause_s=0.3)
    if status != EXIT_HARD:
        stage.violate(f"after a second signal the daemon ended with status {status}, must be {EXIT_HARD}")
    return seconds


async def kill_while_starting(given: Run) -> Verdict:
    """SIGKILL the daemon at random times of its start and of its first second, several lives in a row."""
    async with staged(given, "supervisor_kill_start") as stage:
        for _ in range(given.size(1, 2, 30)):
            with stage.excused(*RESTART_CODES):
                for _ in range(given.size(2, 5, 10)):
                    await trio.sleep(given.rng.random() * START_SPREAD_S)
                    await end_by(stage, signal.SIGKILL)
                    stage.daemon.start()
                await stage.connected()
                await stage.ready(*SERVING, seconds=READY_S)
    return stage.verdict()


def _scenario(
    name: str,
    purpose: str,
    run: Callable[[Run], Awaitable[Verdict]],
    cell: str,
    tiers: tuple[Tier, ...] = ("ci", "soak"),
) -> Scenario:
    return Scenario(name=name, purpose=purpose, run=run, tiers=tiers, faults=(f"{cell} × supervisor",))


SCENARIOS = (
    _scenario(
        "supervisor_sigterm_under_load",
        "SIGTERM under load: drained within 10 s, status 0",
        terminate_under_load,
        "SIGTERM",
        TIERS,
    ),
    _scenario(
        "supervisor_kill_during_drain", "SIGKILL while the daemon drains", kill_during_drain, "SIGKILL in a drain"
    ),
    _scenario("supervisor_double_signal", "a second SIGTERM ends a drain at once", signal_twice, "second signal"),
    _scenario(
        "supervisor_kill_start",
        "SIGKILL while the daemon starts, several times in a row",
        kill_while_starting,
        "SIGKILL in its start",
        ("soak",),
    ),
)
