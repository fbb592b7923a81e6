"""SIGKILL the builder's processes at the n-th call of each kind that they make on files, and at random times (C4).

Two processes work on the index: one makes deltas, publishes and retires, the other makes full generations. Of each it
is counted how many calls of a kind (open, write, sync, rename, unlink, mkdir, close) it makes, and then it dies at one
of them, right before it or right after; so a kill falls into every stage, into LanceDB's code as into ours.

Expected: what served before or after that call serves, whole. CURRENT always names a view whose files are there, no
search is answered without a generation or without an event that it must find, and nothing is left behind after the next
start.
"""

import os
import time
from typing import Any

import trio

from actors import generation as generations
from chaos.clock import NoShim
from chaos.daemon import kill
from chaos.observer import unsound
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import Load, Stage, at_rest, staged
from chaos.syscalls import KINDS, SyscallKiller

NAME = "kill_builder_syscalls"
RANDOM_NAME = "kill_builder_random"
FRONT, REBUILDER = "generation_builder", "rebuilder"
# Parts of paths, and in which process they are met: deltas, publication, retirement; a full generation.
PLACES = ((FRONT, "-d0"), (FRONT, "CURRENT"), (FRONT, ".gone.tmp"), (FRONT, "/gen-"), (REBUILDER, "/gen-"))
BUILD_S = 240.0  # a generous bound: a kill, a restart and a delta take seconds on a machine of their own
NONE_S = 30.0  # a call that is not made for so long will not be: fewer were needed this time
LOAD = Load(appenders=1, searchers=1, writers=1, readers=0, pause_s=0.05)
# Deltas come one after the other, a full generation when it is asked for, and what is not kept goes at once.
CONFIG = """
[generation_builder]
delta_every_ms = 200
retire_grace_ms = 200
compact_after_ms = 3600000
"""


async def at_calls(given: Run) -> Verdict:
    """Run the scenario."""
    try:
        killer = SyscallKiller(given.data.parent)
    except NoShim as error:
        return Verdict(scenario=NAME, seed=given.seed, violations=[], faults=0, skipped=str(error))
    # A scenario has a process of its own; it is the daemon that inherits this, at its start.
    os.environ.update(killer.environment())
    async with staged(given, NAME, load=LOAD, files=3, config=CONFIG) as stage:
        await stage.until(lambda s: s["generation"] and s["rows"]["documents"], BUILD_S, "index.status")
        cases = await counted(stage, killer)
        chosen = [pick(stage, cases) for _ in range(given.size(3, 4, 500))]
        met = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_current, stage)
            with stage.window("kills"):
                for place, kind, count in chosen:
                    met += await kill_at_call(stage, killer, place, kind, 1 + stage.rng.randrange(count))
                    await moved_on(stage)
            nursery.cancel_scope.cancel()
        stage.facts["calls"] = {f"{process} {part} {kind}": count for (process, part), kind, count in cases}
        stage.facts["kills"] = {"planned": len(chosen), "met": met}
        await judge(stage)
    return stage.verdict()


async def at_random(given: Run) -> Verdict:
    """Kill either process after a random time, while deltas and full generations are made all the time."""
    async with staged(given, RANDOM_NAME, load=LOAD, files=3, config=CONFIG) as stage:
        await stage.until(lambda s: s["generation"] and s["rows"]["documents"], BUILD_S, "index.status")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_current, stage)
            with stage.window("kills"):
                for number in range(given.size(2, 5, 250)):
                    process = REBUILDER if number % 3 == 2 else FRONT
                    pid = await working(stage, process)
                    await trio.sleep(stage.rng.random() * 2.0)
                    if kill(pid):
                        stage.mark("SIGKILL", FRONT, f"{process}, pid {pid}, at a random time")
                    await moved_on(stage)
            nursery.cancel_scope.cancel()
        await judge(stage)
    return stage.verdict()


# ------------------------------------------------------------ which calls there are


async def counted(stage: Stage, killer: SyscallKiller) -> list[tuple[tuple[str, str], str, int]]:
    """Return how many calls of each kind are made in each place while a few deltas, or a full generation, are made."""
    found = []
    for process, part in PLACES:
        killer.count(await working(stage, process), part)
        await moved_on(stage, deltas=3 if process == FRONT else 0)
        found += [((process, part), kind, count) for kind, count in killer.counts().items() if count]
        killer.disarm()
    return found


def pick(stage: Stage, cases: list[tuple[tuple[str, str], str, int]]) -> tuple[tuple[str, str], str, int]:
    """Choose a kind of call, each as often as the others, then a place where it is made."""
    kind = stage.rng.choice(sorted({kind for _, kind, _ in cases}, key=KINDS.index))
    return stage.rng.choice([case for case in cases if case[1] == kind])


async def working(stage: Stage, process: str) -> int:
    """Return the pid of a process of the builder, which a full generation is asked for when it is the other one."""
    if process == REBUILDER:
        await stage.call("index.rebuild", {})
    give_up = time.monotonic() + BUILD_S
    while True:
        rows = (await stage.status())["actors"]["generation_builder"]["workers"]
        pids = [row["pid"] for row in rows if row["name"] == process]
        if pids:
            return int(pids[0])
        if time.monotonic() > give_up:
            raise TimeoutError(f"there was no process {process!r} for {BUILD_S} s")
        await trio.sleep(0.01)


async def kill_at_call(stage: Stage, killer: SyscallKiller, place: tuple[str, str], kind: str, nth: int) -> bool:
    """Let a process die at a call; False when it did not make so many."""
    process, part = place
    after = stage.rng.random() < 0.5
    killer.arm(await working(stage, process), kind, nth, part, after=after)
    give_up = time.monotonic() + NONE_S
    while (path := killer.fired()) is None:
        if time.monotonic() > give_up:
            killer.disarm()
            return False
        await trio.sleep(0.01)
    killer.disarm()
    stage.mark(
        "SIGKILL", FRONT, f"{process}, {'after' if after else 'at'} {kind} number {nth} on {part!r}: {path[-80:]}"
    )
    return True


async def moved_on(stage: Stage, *, deltas: int = 1) -> None:
    """Wait until the builder has published so many deltas more, and no full generation is on its way."""
    status = await stage.call("index.status")
    before, builds = (status["deltas"]["published"], status["builds"]["started"])
    await stage.until(
        lambda s: (
            s["deltas"]["published"] >= before + deltas and s["builds"]["started"] >= builds and s["building"] is None
        ),
        BUILD_S,
        method="index.status",
    )


# ------------------------------------------------------------ what has to hold


async def watch_current(stage: Stage) -> None:
    """Look at CURRENT all the time: it is there, can be read, and names a view that is whole."""
    looks = 0
    while True:
        wrong = await trio.to_thread.run_sync(look_at_current, stage)
        looks += 1
        stage.facts["looks_at_current"] = looks
        if wrong is not None:
            stage.violate(wrong)
        await trio.sleep(0.02)


def look_at_current(stage: Stage) -> str | None:
    """Return what is wrong with what CURRENT names; a view that was replaced and deleted meanwhile is not."""
    index = stage.data / "generation_builder"
    pointer = generations.read_current(index)
    if pointer is None:
        return "I9: CURRENT is missing, or not readable as a pointer"
    wrong = unsound(index, pointer)
    return f"I9: {wrong}" if wrong is not None and generations.read_current(index) == pointer else None


async def judge(stage: Stage) -> None:
    """Check the answers, and that the next start leaves no orphan."""
    if any(op.generation is None for op in stage.inside("kills", "search")):
        stage.violate("a search was answered without a generation, although one was published")
    await stage.stop_load()
    await stage.restart("append", "write", "read", "search", "build")
    await stage.until(at_rest, BUILD_S)
    give_up = time.monotonic() + BUILD_S
    while orphans := await find_orphans(stage):
        if time.monotonic() > give_up:
            stage.violate(f"I10: in the index folder is what belongs to nothing: {orphans}")
            return
        await trio.sleep(0.2)


async def find_orphans(stage: Stage) -> list[str]:
    """Return the names in the index folder that neither serve nor are kept."""
    status: dict[str, Any] = await stage.call("index.status")
    known = {generations.generation_name(number) for number in (status["generation"], *status["previous"]) if number}
    if status["delta"] is not None:
        known.add(generations.delta_name(status["generation"], status["delta"]))
    names = await trio.to_thread.run_sync(os.listdir, stage.data / "generation_builder")
    return sorted(name for name in names if (name.startswith("gen-") and name not in known) or name.endswith(".tmp"))


SCENARIOS = (
    Scenario(
        NAME,
        "SIGKILL the builder's processes at the n-th call of each kind on files",
        at_calls,
        tiers=("ci", "soak"),
        faults=("SIGKILL at a system call × builder",),
        watchdog_s=7200.0,
        beside=True,
    ),
    Scenario(
        RANDOM_NAME,
        "SIGKILL the builder's processes at random times",
        at_random,
        tiers=("ci", "soak"),
        faults=("SIGKILL at a random time × builder",),
        watchdog_s=7200.0,
        beside=True,
    ),
)
