"""SIGSTOP a worker, idle or busy, and SIGCONT it at a time when it is mostly dead already.

A stopped process keeps its pipe open and says nothing: only silence (idle) or a deadline (busy) gives it away.
Expected: an idle worker is replaced after `silence_ms` and a little, a busy one at the deadline of its call plus the
grace of the interrupt. One that was woken in time goes on as if nothing had been. What a woken one says after it was
replaced reaches nobody.
"""

import random
import signal
import time
from collections.abc import Mapping

import trio

from chaos.daemon import kill
from chaos.deaths import AFFECTED, CALM, DEATH_CODES, RAPID, Stopped, Watch, stop_worker, summary_ms, watching
from chaos.load import DEADLINE_S as LOAD_DEADLINE_S
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import Load, Stage, staged

STORAGE = ("core_writer", "transcript_appender", "cache_manager")
# Promised is 1.5 s idle, deadline + 0.5 s busy; the machine of the tests is shared.
IDLE_S, BUSY_S, GENEROUS_S = 1.5, LOAD_DEADLINE_S + 0.5, 1.5
WAKES_S = (None, 0.2, 0.8, 1.2, 1.8, 2.5)
SEARCH_SPREAD_S = 0.5
SEARCH_BACK_S = 90.0


async def stop_storage(given: Run, name: str, stops: Mapping[str, int]) -> Verdict:
    """Stop the workers of these actors so many times each, independently of one another."""
    async with staged(given, name, config=RAPID) as stage:
        stopped: list[Stopped] = []

        async def stop_some(watch: Watch, actor: str, rng: random.Random, count: int) -> None:
            for _ in range(count):
                await trio.sleep(rng.random() * 0.2)
                one = await stop_worker(watch, actor, wake_after_s=rng.choice(WAKES_S))
                stopped.append(one)
                stage.mark("stop", actor, describe(one))

        for actor in stops:
            for operation in AFFECTED[actor]:
                stage.allow(operation, *DEATH_CODES)
        async with watching(stage.daemon.socket_path) as watch, trio.open_nursery() as nursery:
            for index, (actor, count) in enumerate(stops.items()):
                nursery.start_soon(stop_some, watch, actor, random.Random(given.seed * 31 + index), count)
        judge(stage, stopped)
    return stage.verdict()


def describe(one: Stopped) -> str:
    """Say what became of a stopped worker."""
    how = "busy" if one.busy else "idle"
    if one.replaced_s is None:
        return f"{how}, woken after {one.woken_s} s, went on"
    return f"{how}, replaced after {one.replaced_s * 1000:.0f} ms"


def judge(stage: Stage, stopped: list[Stopped]) -> None:
    """Put what was measured into the facts, and violate what is beyond its promise."""
    for how, busy, limit_s in (("idle", False, IDLE_S), ("busy", True, BUSY_S)):
        mine = [each for each in stopped if each.busy is busy]
        times = [each.replaced_s for each in mine if each.replaced_s is not None]
        stage.facts[f"{how}_replaced_ms"] = summary_ms(times)
        stage.facts[f"{how}_went_on"] = sum(each.ready_s is None for each in mine)
        # A worker that looked idle may have been given a call before the signal: then the later limit holds.
        late = [seconds for seconds in times if seconds > max(limit_s, BUSY_S) + GENEROUS_S]
        if late:
            stage.violate(f"{how} workers were replaced only after {late} s, promised {limit_s} s")
    early = [each for each in stopped if each.replaced_s is None and each.woken_s is None]
    if early:
        stage.violate(f"stopped workers that were never woken went on: {early}")


async def stop_searcher(given: Run) -> Verdict:
    """Stop the active search worker; queries go to the spare."""
    stops = given.size(1, 3, 30)
    async with staged(given, "process_stop_searcher", config=CALM, load=Load(searchers=3)) as stage:
        recovered: list[float] = []
        async with watching(stage.daemon.socket_path) as watch:
            for _ in range(stops):
                await _both(watch)
                await trio.sleep(given.rng.random() * SEARCH_SPREAD_S)
                at = time.monotonic()
                await _stop_active(stage, watch, given.rng)
                await _both(watch)
                recovered.append(time.monotonic() - at)
        stage.facts["both_loaded_again_ms"] = summary_ms(recovered)
        failed = [op.outcome for op in stage.ops if op.name == "search" and op.outcome != "ok"]
        stage.facts["failed_searches"] = len(failed)
    return stage.verdict()


async def _both(watch: Watch) -> None:
    await watch.look()
    await watch.until(lambda: watch.searcher["loaded"] >= 2, "two loaded search workers", SEARCH_BACK_S)


async def _stop_active(stage: Stage, watch: Watch, rng: random.Random) -> None:
    """Stop the active one for one or four seconds; queries must go on meanwhile."""
    await watch.look()
    pid = watch.searcher["active_pid"]
    before = len(stage.ops)
    kill(pid, _STOP)
    stage.mark("stop", "searcher active", f"pid {pid}")
    await trio.sleep(rng.choice((1.0, 4.0)))
    kill(pid, _CONT)
    if not any(op.name == "search" and op.outcome == "ok" for op in stage.ops[before:]):
        stage.violate("no query was answered while the active search worker was stopped")


async def stop_builder(given: Run) -> Verdict:
    """Stop the builder; nobody else notices, and builds go on afterwards."""
    stops = given.size(1, 1, 20)
    async with staged(given, "process_stop_generation_builder", config=RAPID) as stage:
        for _ in range(stops):
            await trio.sleep(given.rng.random() * 2)
            pid = await stage.pid("generation_builder")
            if pid is None:
                stage.violate("the builder had no process to stop")
                continue
            kill(pid, _STOP)
            stage.mark("stop", "generation_builder", f"pid {pid}")
            await trio.sleep(given.rng.choice((0.5, 2.0, 4.0)))
            kill(pid, _CONT)
        published = (await stage.status())["index"]["builds"]["published"]
        await stage.until(lambda s: s["index"]["builds"]["published"] > published, seconds=SEARCH_BACK_S)
    return stage.verdict()


_STOP, _CONT = signal.SIGSTOP, signal.SIGCONT


def _storage(actor: str) -> Scenario:
    name = f"process_stop_{actor}"

    async def run(given: Run) -> Verdict:
        return await stop_storage(given, name, {actor: given.size(2, 10, 50)})

    return Scenario(
        name=name,
        purpose=f"SIGSTOP the worker of {actor}, idle or busy, and SIGCONT it later; nobody else notices",
        run=run,
        tiers=("soak",),
        faults=(f"SIGSTOP worker × {actor}",),
    )


async def _together(given: Run) -> Verdict:
    return await stop_storage(given, "process_stop_together", dict.fromkeys(STORAGE, given.size(1, 15, 50)))


SCENARIOS = (
    *(_storage(actor) for actor in STORAGE),
    Scenario(
        name="process_stop_together",
        purpose="SIGSTOP and SIGCONT the workers of core, transcript and cache independently of one another",
        run=_together,
        tiers=("ci", "soak"),
        faults=tuple(f"SIGSTOP worker × {actor}" for actor in STORAGE),
    ),
    Scenario(
        name="process_stop_searcher",
        purpose="SIGSTOP the active search worker under queries; the spare answers",
        run=stop_searcher,
        tiers=("ci", "soak"),
        faults=("SIGSTOP worker × searcher",),
    ),
    Scenario(
        name="process_stop_generation_builder",
        purpose="SIGSTOP the builder while it builds; the generation before goes on serving",
        run=stop_builder,
        tiers=("ci", "soak"),
        faults=("SIGSTOP worker × generation_builder",),
    ),
)
