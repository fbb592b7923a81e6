"""One actor away for a whole window, stopped or hung in C, again and again; the others under load (B4).

Windows without and with the fault follow one another, so that both see the same machine. Operations that do not need
the actor must not fail once, and their p99 must stay within 1.5 times idle (median over the pairs of windows). That is
judged in the long run (`soak`: a minute for each fault); the short one only counts errors, its ratios are facts.

Some operations need an actor for a part of their answer: a search asks the truth for what is newer than the index. They
must not fail either, and say what they lack; how long they take is a fact.
"""

import itertools
import signal
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import trio

from chaos.client import open_socket
from chaos.daemon import kill
from chaos.deaths import AFFECTED, CALM, DEATH_CODES, Watch, watching
from chaos.faults import control
from chaos.faults.control import WorkerSilent
from chaos.scenario import Run, Scenario, Tier, Verdict
from chaos.stage import Load, Stage, staged
from chaos.targets import CACHE_WRITE, ask
from chaos.timeline import OK, Op, Span, latencies, within

EVERYTHING = ("append", "history", "unit", "search")
# Operations that need the actor for a part of their answer: no error, but what they lack takes its time.
DEPENDENT = {"core_writer": ("search",), "transcript_appender": ("search",), "searcher": ("search",)}
RATIO_MAX = 1.5
FEW = 10
SETTLE_S = 0.5
LOOK_S = 0.02
CLEAR_S = 3.0
CLEAR_TRIES = 5
CACHE_S = 0.5
BACK_S = 90.0
STEP_MS = 5000
CONFIG = CALM + f"step_deadline_ms = {STEP_MS}\n"


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """An idle window and the one with the fault that followed it."""

    idle: Span
    fault: Span


async def isolate(given: Run, name: str, actor: str) -> Verdict:
    """Measure the others while an actor is stopped, and while it hangs."""
    seconds = {"smoke": 1.0, "ci": 1.5, "soak": 5.0}[given.tier]
    pairs = given.size(1, 1, 12)
    async with staged(given, name, config=CONFIG, load=Load(), launcher=True) as stage:
        for operation in AFFECTED[actor]:
            stage.allow(operation, *DEATH_CODES)
        async with watching(stage.daemon.socket_path) as watch:
            for fault, away in (("stopped", stopped), ("hung", hung)):
                measured = []
                for _ in range(pairs):
                    await _calm(watch, actor)
                    idle = await _window(stage, f"{fault}: idle", seconds)
                    async with away(stage, watch, actor):
                        measured.append(Pair(idle=idle, fault=await _window(stage, f"{fault}: fault", seconds)))
                judge(stage, actor, fault, measured)
    return stage.verdict()


async def _window(stage: Stage, name: str, seconds: float) -> Span:
    began = time.monotonic()
    with stage.window(name):
        await trio.sleep(seconds)
    return Span(name=name, begin=began, end=time.monotonic())


async def _calm(watch: Watch, actor: str) -> None:
    """Wait until the actor is back, and what waited for it is through."""
    if actor == "searcher":
        await watch.until(lambda: watch.searcher["loaded"] >= 2, "two loaded search workers", BACK_S)
    else:
        await watch.up(actor)
    await trio.sleep(SETTLE_S)


# ------------------------------------------------------------ the two ways of being away


@asynccontextmanager
async def stopped(stage: Stage, watch: Watch, actor: str) -> AsyncIterator[None]:
    """Stop every worker of an actor, and each that takes its place."""
    known: set[int] = set()

    async def keep_stopping() -> None:
        while True:
            for pid in watch.rows[actor].pids if actor in watch.rows else ():
                if pid not in known and kill(pid, signal.SIGSTOP):
                    known.add(pid)
                    stage.mark("SIGSTOP", actor, f"pid {pid}")
            await trio.sleep(LOOK_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_stopping)
        try:
            yield
        finally:
            nursery.cancel_scope.cancel()
            for pid in known:
                kill(pid, signal.SIGCONT)
    if not known:
        stage.violate(f"{actor} had no worker to stop")


@asynccontextmanager
async def hung(stage: Stage, watch: Watch, actor: str) -> AsyncIterator[None]:
    """Hang every call of an actor's workers, also of those that come after them."""
    aimed: dict[str, object] = {"fault": "hang", "calls": None}
    await watch.look()
    before = len(control.fired(stage.data, actor, "hang"))
    control.at_start(stage.data, actor, aimed)
    for pid in watch.rows[actor].pids:
        with trio.move_on_after(CLEAR_S):
            await control.inject(stage.data, actor, pid=pid, **aimed)
    async with trio.open_nursery() as nursery:
        if actor == "cache_manager":
            nursery.start_soon(_use_cache, stage)  # in a run without a model nobody else does
        try:
            await control.wait_fired(stage.data, actor, "hang", times=before + 1)
            yield
        finally:
            nursery.cancel_scope.cancel()
            control.forget_start(stage.data, actor)
            await _clear(stage, watch, actor)
    for each in control.fired(stage.data, actor, "hang")[before:]:
        stage.mark("hang", actor, f"pid {each.pid}, {each.detail}")


async def _use_cache(stage: Stage) -> None:
    """Ask the cache again and again, for ever."""
    async with open_socket(stage.daemon.socket_path) as client:
        # Each request is another message: one that hangs in two workers is not given to a third.
        for number in itertools.count():
            await ask(stage, client, CACHE_WRITE, f"isolation{time.monotonic()}{number}", deadline_s=CACHE_S)
            await trio.sleep(LOOK_S)


async def _clear(stage: Stage, watch: Watch, actor: str) -> None:
    """Wake up the workers that hang.

    One that was just killed has no door any more, one that was just started has none yet and may have taken the fault
    along: so they are looked for again, until all that live have answered.
    """
    with trio.CancelScope(shield=True):
        for _ in range(CLEAR_TRIES):
            await watch.look()
            answers = [await _cleared(stage, actor, pid) for pid in watch.rows[actor].pids]
            if all(answers):
                return


async def _cleared(stage: Stage, actor: str, pid: int) -> bool:
    with trio.move_on_after(CLEAR_S):
        try:
            await control.clear(stage.data, actor, pid=pid)
        except WorkerSilent:
            return False
        return True
    return False


# ------------------------------------------------------------ judgement


def judge(stage: Stage, actor: str, fault: str, pairs: list[Pair]) -> None:
    """Compare the windows; errors of untouched operations are found by the stage itself (I8)."""
    facts: dict[str, object] = {}
    for operation in EVERYTHING:
        ops = [op for op in stage.ops if op.name == operation]
        ratios = [ratio for pair in pairs if (ratio := _ratio(ops, pair)) is not None]
        ratio = round(statistics.median(ratios), 2) if ratios else None
        facts[operation] = {"ratio": ratio, "errors": _errors(ops, pairs), "touched": _touch(actor, operation)}
        if stage.run.tier == "soak" and _touch(actor, operation) == "no" and ratio is not None and ratio > RATIO_MAX:
            stage.violate(f"I8: {operation} with {actor} {fault}: p99 is {ratio} times idle, promised {RATIO_MAX}")
    stage.facts[fault] = facts


def _touch(actor: str, operation: str) -> str:
    if operation in AFFECTED[actor]:
        return "yes"
    return "in part" if operation in DEPENDENT.get(actor, ()) else "no"


def _ratio(ops: list[Op], pair: Pair) -> float | None:
    """Return the p99 of the window with the fault over that of the idle one; None when there are too few to say."""
    idle, fault = (latencies(within(ops, [span])) for span in (pair.idle, pair.fault))
    if min(idle["count"], fault["count"]) < FEW:
        return None
    return fault["p99_ms"] / idle["p99_ms"] if idle["p99_ms"] else None


def _errors(ops: list[Op], pairs: list[Pair]) -> int:
    return sum(op.outcome != OK for op in within(ops, [pair.fault for pair in pairs]))


def _scenario(actor: str, tiers: tuple[Tier, ...]) -> Scenario:
    name = f"isolation_{actor}"

    async def run(given: Run) -> Verdict:
        return await isolate(given, name, actor)

    return Scenario(
        name=name,
        purpose=f"{actor} stopped or hung for whole windows; the others do not fail, and are not slower",
        run=run,
        tiers=tiers,
        faults=(f"away for good × {actor}",),
        watchdog_s=900.0,
    )


SCENARIOS = (
    _scenario("core_writer", ("soak",)),
    _scenario("transcript_appender", ("ci", "soak")),
    _scenario("cache_manager", ("soak",)),
    _scenario("searcher", ("ci", "soak")),
    _scenario("generation_builder", ("soak",)),
)
