"""The large tier: thousands of kills against real daemons, in shards, resumable: `python -m chaos soak --out DIR`.

A shard is one daemon life: the mixed load runs, so many faults of one kind are made, everything is read back and
compared (I1 to I13), and one JSON line is appended to `DIR/soak.jsonl`. What is in the file is not repeated, so a run
can be ended at any time and goes on where it was. The kinds take turns, so that a part of a run says something about
all of them.

0 losses in n kills bound the loss rate at 95 % by 3/n per kill; the summary prints that bound.
"""

import argparse
import contextlib
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path

import msgspec
import trio

from chaos import runner
from chaos.daemon import Daemon
from chaos.deaths import (
    AFFECTED,
    CALM,
    DEATH_CODES,
    RAPID,
    Death,
    Stopped,
    Watch,
    building,
    phases,
    stop_worker,
    strike_many,
    summary_ms,
    watching,
)
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import RESTART_CODES, Load, Stage, staged

FILE = "soak.jsonl"
STORAGE = ("core_writer", "transcript_appender", "cache_manager")
SHOWN = 5
POLL_S = 0.05
FRUITLESS_MAX = 3  # shards in a row that made no fault at all: something is wrong with the machine or with us
WAKES_S = (0.1, 0.6, 1.2, 1.8, 2.5)
BRIDGES = 16
BRIDGE_PAUSE_S = 0.1  # eighteen bridges without a pause would leave a daemon no CPU to start with
DAEMON_LIFE_S = 0.5
EARLY_EVERY = 4  # one daemon in four is killed at any time from its very start, the others once they serve
DAEMON_BACK_S = 30.0


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One shard of a soak. `kills` counts the faults that really fired."""

    date: str
    seed: int
    kind: str
    kills: int
    acknowledged: int
    lost: int
    duplicated: int
    hung: int
    wrong: int
    seconds: float
    violations: list[str] = []
    facts: dict[str, object] = {}


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of fault: how many in total, how many in a shard, and the shard itself."""

    name: str
    total: int
    shard: int
    run: Callable[[Run, int], Awaitable[Verdict]]
    watchdog_s: float = 1800.0


# ------------------------------------------------------------ shards


async def kill_workers(given: Run, kills: int) -> Verdict:
    """Kill the workers of core, transcript and cache, independently of one another."""
    async with staged(given, "soak_worker_kill", config=CALM) as stage:
        _allow(stage, STORAGE)
        deaths: list[Death] = []

        def hit(death: Death) -> None:
            deaths.append(death)
            stage.mark("kill", death.actor, death.phase)

        began = time.monotonic()
        async with watching(stage.daemon.socket_path) as watch, trio.open_nursery() as nursery:
            for index, (actor, share) in enumerate(_shares(kills)):
                rng = random.Random(given.seed * 31 + index)
                nursery.start_soon(partial(strike_many, watch, actor, rng, share, hit=hit, spread_s=0.1))
        stage.facts["per_s"] = round(len(deaths) / (time.monotonic() - began), 2)
        stage.facts["deaths"] = phases(deaths)
        stage.facts["ready_ms"] = summary_ms([death.ready_s for death in deaths])
    return stage.verdict()


def _shares(kills: int) -> list[tuple[str, int]]:
    """Divide kills among the storage actors: the truth gets two thirds more than the cache."""
    cache = kills // 5
    core = (kills - cache) // 2
    return [("core_writer", core), ("transcript_appender", kills - cache - core), ("cache_manager", cache)]


async def stop_workers(given: Run, stops: int) -> Verdict:
    """SIGSTOP workers, and SIGCONT them at a time when most are dead already."""
    async with staged(given, "soak_stop", config=CALM) as stage:
        _allow(stage, STORAGE)
        stopped: list[Stopped] = []

        async def stop_some(watch: Watch, actor: str, rng: random.Random, count: int) -> None:
            for _ in range(count):
                stopped.append(await stop_worker(watch, actor, wake_after_s=rng.choice((None, *WAKES_S))))
                stage.mark("stop", actor, "went on" if stopped[-1].ready_s is None else "replaced")

        began = time.monotonic()
        async with watching(stage.daemon.socket_path) as watch, trio.open_nursery() as nursery:
            for index, (actor, share) in enumerate(_shares(stops)):
                nursery.start_soon(stop_some, watch, actor, random.Random(given.seed * 31 + index), share)
        stage.facts["per_s"] = round(len(stopped) / (time.monotonic() - began), 2)
        stage.facts["replaced_ms"] = summary_ms([each.replaced_s for each in stopped if each.replaced_s is not None])
    return stage.verdict()


async def kill_daemons(given: Run, kills: int) -> Verdict:
    """Kill the daemon under sixteen clients, each behind a bridge of its own; the bridges start the next one."""
    load = Load(appenders=BRIDGES, searchers=0, writers=1, readers=1, bridges=True, pause_s=BRIDGE_PAUSE_S)
    async with staged(given, "soak_daemon_kill", config=CALM, load=load) as stage:
        for operation in ("append", "unit", "history"):
            # Over a bridge no connection is ever lost.
            stage.allow(operation, *(code for code in RESTART_CODES if code != "lost"))
        began, pid = time.monotonic(), None
        for number in range(kills):
            pid = await _daemon_pid(stage.daemon, pid)
            if number % EARLY_EVERY:
                await _progress(stage)
            await trio.sleep(given.rng.random() * DAEMON_LIFE_S)
            stage.daemon.kill()
            stage.mark("kill", "daemon", f"pid {pid}")
        stage.facts["per_s"] = round(kills / (time.monotonic() - began), 2)
        await _daemon_pid(stage.daemon, pid)
    return stage.verdict()


async def _daemon_pid(daemon: Daemon, before: int | None) -> int:
    """Wait until there is a daemon other than the one before; return its pid."""
    with trio.fail_after(DAEMON_BACK_S):
        while (pid := daemon.pid()) is None or pid == before:  # noqa: ASYNC110 - a file of another process
            await trio.sleep(0.01)
    return pid


async def _progress(stage: Stage) -> None:
    """Wait until clients are being served: a daemon that never lives long enough to serve proves little."""
    known = len(stage.history.acknowledged())
    with trio.fail_after(DAEMON_BACK_S):
        while len(stage.history.acknowledged()) < known + BRIDGES:  # noqa: ASYNC110 - the clients say so by no event
            await trio.sleep(0.02)


async def kill_builders(given: Run, kills: int) -> Verdict:
    """Kill the builder while it builds."""
    async with staged(given, "soak_builder_kill", config=RAPID) as stage:
        deaths: list[Death] = []

        def hit(death: Death) -> None:
            deaths.append(death)
            stage.mark("kill", death.actor, death.phase)

        began = time.monotonic()
        async with watching(stage.daemon.socket_path) as watch:
            await strike_many(
                watch,
                "generation_builder",
                given.rng,
                kills,
                hit=hit,
                spread_s=1.0,
                doing=lambda: building(stage.client),
            )
        stage.facts["per_s"] = round(len(deaths) / (time.monotonic() - began), 2)
        stage.facts["deaths"] = phases(deaths)
        stage.facts["ready_ms"] = summary_ms([death.ready_s for death in deaths])
    return stage.verdict()


def _allow(stage: Stage, actors: Iterable[str]) -> None:
    for actor in actors:
        for operation in AFFECTED[actor]:
            stage.allow(operation, *DEATH_CODES)


KINDS = (
    Kind(name="worker_kill", total=10_000, shard=500, run=kill_workers),
    Kind(name="daemon_kill", total=2_000, shard=100, run=kill_daemons),
    Kind(name="stop", total=1_000, shard=100, run=stop_workers),
    Kind(name="builder_kill", total=500, shard=25, run=kill_builders),
)


# ------------------------------------------------------------ the file


def read(file: Path) -> list[Line]:
    """Return the shards in the file; a torn last line, from a run that was killed, is left out."""
    lines: list[Line] = []
    with contextlib.suppress(FileNotFoundError):
        for text in file.read_bytes().splitlines():
            with contextlib.suppress(msgspec.DecodeError):
                lines.append(msgspec.json.decode(text, type=Line))
    return lines


def append(file: Path, line: Line) -> None:
    """Add a shard; a torn line that a killed run left is ended first."""
    known = file.read_bytes() if file.exists() else b""
    torn = bool(known) and not known.endswith(b"\n")
    with file.open("ab") as out:
        out.write(b"\n" * torn + msgspec.json.encode(line) + b"\n")


def left(kind: Kind, lines: list[Line], running: Iterable["Shard"] = ()) -> int:
    """Return how many faults of a kind are still to be made, beyond those that are under way."""
    done = sum(line.kills for line in lines if line.kind == kind.name)
    return max(0, kind.total - done - sum(shard.count for shard in running if shard.kind is kind))


def next_shard(kinds: Iterable[Kind], lines: list[Line], running: list["Shard"]) -> tuple[Kind | None, int]:
    """Return the kind of which the smallest share has been done, and how many to do; None when all are done."""
    still = {kind.name: left(kind, lines, running) for kind in kinds}
    open_kinds = [kind for kind in kinds if still[kind.name]]
    kind = max(open_kinds, key=lambda kind: still[kind.name] / kind.total, default=None)
    return kind, 0 if kind is None else min(kind.shard, still[kind.name])


def summary(kinds: Iterable[Kind], lines: list[Line]) -> str:
    """Return the table of totals, with the bound on the rate of loss."""
    rows = [
        f"{'kind':14}{'kills':>8}{'of':>8}{'acked':>10}{'lost':>6}{'dup':>5}{'hung':>6}{'wrong':>7}{'hours':>7}  bound"
    ]
    for kind in kinds:
        mine = [line for line in lines if line.kind == kind.name]
        kills = sum(line.kills for line in mine)
        rows.append(
            f"{kind.name:14}{kills:8}{kind.total:8}{sum(line.acknowledged for line in mine):10}"
            f"{sum(line.lost for line in mine):6}{sum(line.duplicated for line in mine):5}"
            f"{sum(line.hung for line in mine):6}{sum(line.wrong for line in mine):7}"
            f"{sum(line.seconds for line in mine) / 3600:7.2f}  "
            + ("-" if not kills else f"loss < {300 / kills:.3f} % per kill (95 %), if none was lost")
        )
    return "\n".join(rows)


# ------------------------------------------------------------ one shard


class Shard:
    """A shard under way, in a folder and a process of its own."""

    def __init__(self, kind: Kind, seed: int, count: int) -> None:
        self.kind = kind
        self.count = count
        self._date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

        async def run(given: Run) -> Verdict:
            return await kind.run(given, count)

        name, purpose = f"soak_{kind.name}", f"{count} of {kind.name}"
        scenario = Scenario(name=name, purpose=purpose, run=run, tiers=("soak",), watchdog_s=kind.watchdog_s)
        self._running = runner.Running(scenario, seed, "soak")

    def ended(self) -> bool:
        """Say whether it is through."""
        return self._running.ended()

    def line(self) -> Line:
        """Return what came of it, once it has ended."""
        return line_of(self.kind, self._running.result().verdict, date=self._date)

    def abandon(self) -> None:
        """End it without a result."""
        self._running.abandon()


def line_of(kind: Kind, verdict: Verdict, *, date: str) -> Line:
    """Make a line of a verdict."""
    text = verdict.violations
    lost = [each for each in text if each.startswith("I1:") and "found 0 times" in each]
    duplicated = [each for each in text if _is_duplicate(each)]
    hung = [each for each in text if each.startswith("I6:")]
    counted = {*lost, *duplicated, *hung}
    return Line(
        date=date,
        seed=verdict.seed,
        kind=kind.name,
        kills=verdict.faults,
        acknowledged=int(str(verdict.facts.get("acknowledged", 0))),
        lost=len(lost),
        duplicated=len(duplicated),
        hung=len(hung),
        wrong=sum(each not in counted for each in text),
        seconds=round(verdict.seconds, 1),
        violations=text[:SHOWN],
        facts=verdict.facts,
    )


def _is_duplicate(text: str) -> bool:
    twice = "times" in text or "twice" in text
    return text.startswith(("I1:", "I3:", "I4:")) and twice and "found 0 times" not in text


def main(argv: list[str]) -> int:
    """Go on with a soak, or print what it has come to."""
    parser = argparse.ArgumentParser(prog="python -m chaos soak")
    parser.add_argument("--out", type=Path, required=True, help="the folder of soak.jsonl")
    parser.add_argument("--hours", type=float, default=24.0, help="begin no shard after so many hours")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--kind", choices=[kind.name for kind in KINDS], help="only this kind")
    parser.add_argument("--jobs", type=int, default=1, help="how many shards at a time")
    parser.add_argument("--summary", action="store_true", help="print the table and do nothing")
    given = parser.parse_args(argv)
    kinds = [kind for kind in KINDS if given.kind in (None, kind.name)]
    file = given.out / FILE
    if not given.summary:
        print(f"seed {given.seed}", flush=True)
        given.out.mkdir(parents=True, exist_ok=True)
        go_on(kinds, file, seed=given.seed, until=time.monotonic() + given.hours * 3600, jobs=given.jobs)
    lines = read(file)
    print(summary(kinds, lines))
    return 1 if any(line.lost or line.duplicated or line.hung or line.wrong for line in lines) else 0


def go_on(kinds: list[Kind], file: Path, *, seed: int, until: float, jobs: int = 1) -> None:
    """Run shard after shard, so many at a time, and append a line for each, until all is done or the time is up."""
    running: list[Shard] = []
    begun, fruitless = len(read(file)), 0
    try:
        while True:
            while len(running) < jobs and time.monotonic() < until and fruitless < FRUITLESS_MAX:
                kind, count = next_shard(kinds, read(file), running)
                if kind is None:
                    break
                running.append(Shard(kind, seed + begun, count))
                begun += 1
            if not running:
                return
            time.sleep(POLL_S)
            for shard in [shard for shard in running if shard.ended()]:
                running.remove(shard)
                line = shard.line()
                append(file, line)
                print(_one_line(line), flush=True)
                fruitless = 0 if line.kills else fruitless + 1
    finally:
        for shard in running:
            shard.abandon()


def _one_line(line: Line) -> str:
    good = not line.violations
    text = (
        f"{'ok' if good else 'FAILED':8}{line.kind:14}{line.kills:5} kills in {line.seconds:6.1f} s "
        f"({line.kills / max(line.seconds, 0.001):.1f}/s), {line.acknowledged} acknowledged, {json.dumps(line.facts)}"
    )
    return "\n".join((text[:400], *(f"        - {each}" for each in line.violations)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
