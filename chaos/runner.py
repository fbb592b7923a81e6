"""Runs scenarios, each in a process of its own, and sees that nothing stays behind.

A scenario may hang, crash its interpreter or leave a daemon: the runner waits no longer than its watchdog, takes the
stacks of all its threads and tasks into the verdict, kills everything that it started, and goes on with the next.
Forked, because a fork of a small process without threads takes milliseconds where a new interpreter takes a second.
"""

import contextlib
import faulthandler
import io
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CoroutineType

import msgspec
import psutil
import trio

from chaos.daemon import kill
from chaos.scenario import Run, Scenario, Tier, Verdict
from chaos.timeline import Timeline

HARD_S = 20.0  # beyond its watchdog, for a scenario that does not even react to being cancelled
STACKS_S = 1.0
POLL_S = 0.02
PAIR = 2
MARK = "BULKHEAD_CHAOS_RUN"
VERDICT, STACKS, OUTPUT = "verdict.json", "stacks.txt", "output.txt"
KEPT_CHARS = 20_000
NAMED = ("trio", "lancedb", "pyarrow", "msgspec", "psutil")


class Result(msgspec.Struct, kw_only=True):
    """A verdict and the pictures that belong to it."""

    scenario: str
    purpose: str
    must_fail: bool
    faults: tuple[str, ...]
    expect: tuple[str, ...]
    verdict: Verdict
    timelines: list[Timeline]

    @property
    def word(self) -> str:
        """Return the outcome in one word."""
        if self.verdict.skipped is not None:
            return "skipped"
        if self.must_fail:
            return "noticed" if self._noticed() else "MISSED"
        return "ok" if self.verdict.passed else "FAILED"

    def _noticed(self) -> bool:
        """Say whether it is red for the reason for which it has to be: the fault fired, and was found."""
        verdict = self.verdict
        found = [each for each in self.expect if any(text.startswith(each) for text in verdict.violations)]
        return verdict.faults > 0 and bool(verdict.violations) and len(found) == len(self.expect)

    @property
    def good(self) -> bool:
        """Say whether it is as it should be, or does not count."""
        return self.word in ("ok", "noticed", "skipped")


def perform(scenario: Scenario, seed: int, tier: Tier) -> Result:
    """Run one scenario."""
    return next(perform_all([scenario], seed, tier))


def perform_all(scenarios: Iterable[Scenario], seed: int, tier: Tier, *, jobs: int | None = None) -> Iterator[Result]:
    """Run scenarios, and yield each result when it is there: in pairs those that may run beside another, then the rest.

    `jobs` runs so many of all at a time, for finding faults fast: they take each other's CPU, so latencies mean nothing
    then.
    """
    if jobs is not None:
        yield from _perform(scenarios, seed, tier, jobs=jobs)
        return
    known = list(scenarios)
    yield from _perform((each for each in known if each.beside), seed, tier, jobs=PAIR)
    yield from _perform((each for each in known if not each.beside), seed, tier, jobs=1)


def _perform(scenarios: Iterable[Scenario], seed: int, tier: Tier, *, jobs: int) -> Iterator[Result]:
    waiting = list(scenarios)[::-1]
    running: list[Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(Running(waiting.pop(), seed, tier))
            time.sleep(POLL_S)
            for each in [each for each in running if each.ended()]:
                running.remove(each)
                yield each.result()
    finally:
        for each in running:
            each.abandon()


class Running:
    """A scenario under way in a folder and a process of its own."""

    def __init__(self, scenario: Scenario, seed: int, tier: Tier) -> None:
        self._scenario = scenario
        self._seed = seed
        self._tier: Tier = tier
        self._folder = Path(tempfile.mkdtemp(prefix="bh-"))
        self._began = time.monotonic()
        self._status: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Of a process with threads, says Python 3.12. This one has none, but a test that runs us may have a timer.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            _child(scenario, self._folder, seed, tier)

    def ended(self) -> bool:
        """Say whether its process has ended; take the stacks of one that is far beyond its watchdog, and kill it."""
        found, status = os.waitpid(self._pid, os.WNOHANG)
        if found:
            self._status = status
            return True
        if time.monotonic() < self._began + self._scenario.watchdog_s + HARD_S:
            return False
        kill(self._pid, signal.SIGUSR1)
        time.sleep(STACKS_S)
        kill(self._pid)
        os.waitpid(self._pid, 0)
        return True

    def result(self) -> Result:
        """Return what came of it, once it has ended; nothing of it is left then."""
        try:
            verdict = _read_verdict(self._scenario, self._folder, self._seed, self._status)
            left = kill_marked(self._folder)
            if left:
                verdict.violations.append(f"I10: left processes behind: {left}")
            verdict.seconds = round(time.monotonic() - self._began, 1)
            verdict.tier = self._tier
            verdict.versions = versions()
            return Result(
                scenario=self._scenario.name,
                purpose=self._scenario.purpose,
                must_fail=self._scenario.must_fail,
                faults=self._scenario.faults,
                expect=self._scenario.expect,
                verdict=verdict,
                timelines=[_timeline(path) for path in sorted(self._folder.glob("timeline-*.json"))],
            )
        finally:
            self._clean()

    def abandon(self) -> None:
        """End it without a result."""
        kill(self._pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self._clean()

    def _clean(self) -> None:
        kill_marked(self._folder)
        shutil.rmtree(self._folder, ignore_errors=True)


def kill_marked(folder: Path) -> list[str]:
    """Kill every process that a scenario in this folder started, directly or not; return them as lines."""
    lines = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(MARK) == str(folder) and process.status() != psutil.STATUS_ZOMBIE
            if ours:
                lines.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
                kill(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return lines


def _read_verdict(scenario: Scenario, folder: Path, seed: int, ended: int | None) -> Verdict:
    try:
        return msgspec.json.decode((folder / VERDICT).read_bytes(), type=Verdict)
    except (OSError, msgspec.DecodeError):
        pass
    how = "hung and was killed" if ended is None else f"ended without a verdict, {_status(ended)}"
    violations = [f"the scenario {how}"]
    for name in (STACKS, OUTPUT):
        with contextlib.suppress(OSError):
            text = (folder / name).read_text(encoding="utf-8", errors="replace")[-KEPT_CHARS:]
            violations += [text] if text else []
    return Verdict(scenario=scenario.name, seed=seed, violations=violations, faults=0)


def _status(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def _timeline(path: Path) -> Timeline:
    return msgspec.json.decode(path.read_bytes(), type=Timeline)


def versions() -> dict[str, str]:
    """Return the versions that a verdict holds for."""
    found = {"python": sys.version.split()[0], "sqlite": sqlite3.sqlite_version}
    for name in NAMED:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


# ---------------------------------------------------------------- the scenario's process


def _child(scenario: Scenario, folder: Path, seed: int, tier: Tier) -> None:
    """Run the scenario, leave its verdict as a file, and end this process whatever happens."""
    code = 1
    # Whatever it starts inherits the mark, and whatever it makes lies in its folder: so it can all be found again.
    os.environ[MARK] = tempfile.tempdir = str(folder)
    try:
        with (folder / STACKS).open("w") as stacks, (folder / OUTPUT).open("w") as output:
            faulthandler.enable(stacks)
            faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                verdict = run_watched(scenario, folder / "data", seed, tier)
            unfinished = folder / f"{VERDICT}.part"
            unfinished.write_bytes(msgspec.json.encode(verdict))
            unfinished.rename(folder / VERDICT)
        code = 0
    except BaseException:
        (folder / STACKS).write_text(traceback.format_exc(), encoding="utf-8")
    finally:
        os._exit(code)


def run_watched(scenario: Scenario, data: Path, seed: int, tier: Tier) -> Verdict:
    """Run a scenario under its watchdog; what it raises, and that it hangs, is a red verdict."""
    # Seeded by name too, so that two scenarios do not draw the same numbers.
    run = Run(data=data, rng=random.Random(f"{seed}/{scenario.name}"), seed=seed, tier=tier)
    try:
        return trio.run(_watched, scenario, run)
    except Exception:
        return Verdict(scenario=scenario.name, seed=seed, violations=[f"raised {traceback.format_exc()}"], faults=0)


async def _watched(scenario: Scenario, run: Run) -> Verdict:
    verdicts: list[Verdict] = []
    stacks: list[str] = []

    async def watchdog() -> None:
        await trio.sleep(scenario.watchdog_s)
        stacks.append(all_stacks())
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watchdog)
        verdicts.append(await scenario.run(run))
        nursery.cancel_scope.cancel()
    if verdicts:
        return verdicts[0]
    text = f"the scenario did not end within {scenario.watchdog_s} s\n{stacks[0][:KEPT_CHARS]}"
    return Verdict(scenario=scenario.name, seed=run.seed, violations=[text], faults=0)


def all_stacks() -> str:
    """Return where every task of this trio run and every thread of this process stands."""
    out = io.StringIO()
    task = trio.lowlevel.current_root_task()
    waiting = [task] if task is not None else []
    while waiting:
        task = waiting.pop()
        out.write(f"task {task.name}\n")
        coroutine: object = task.coro
        while isinstance(coroutine, CoroutineType) and coroutine.cr_frame is not None:
            frame = coroutine.cr_frame
            out.write(f"  {Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}\n")
            coroutine = coroutine.cr_await
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        out.write(file.read())
    return out.getvalue()
