"""Starts that go wrong: two daemons at once, kills in the middle, remains of the dead, no descriptors left."""

import os
import resource
import socket
import subprocess
import sys
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import psutil
import trio

from actors.generation import TEMPORARY
from chaos.abuse import Raw, connection
from chaos.book import Book
from chaos.client import ROOT, environment
from chaos.daemon import kill
from chaos.scenario import Run, Scenario, Verdict
from chaos.scenarios.damage_truth import start, stop
from chaos.stage import Load, Stage, staged

REFUSED = 75  # the exit code of a daemon whose directory is held by another
PATIENCE_S = 30.0
TRUTH = ("append", "write", "read")
# The promise is 2 s; a start on a machine that is shared with other tests may take several times as long.
LEASE_S = 10.0
CPU_SHARE_MAX = 0.5
# What may stand in the lock of a daemon that is gone.
REMAINS = (b"", b'{"pid": 1, "socket": "/nowhere"}', b"nonsense", bytes(64))


# ------------------------------------------------------------ two daemons


async def two_daemons(given: Run) -> Verdict:
    """Start more daemons on the directory of one that works: each is refused, and the load has no error."""
    async with staged(given, "start_two_daemons", load=Load(searchers=0), wait=TRUTH) as stage:
        first = (await stage.status())["pid"]
        for _ in range(given.size(1, 3, 30)):
            codes = await run_daemons(stage, 3)
            stage.mark("second daemon", "data directory", f"exit codes {codes}")
            if set(codes) != {REFUSED}:
                stage.violate(f"daemons on a directory that is held ended with {codes}, all must with {REFUSED}")
        if (await stage.status())["pid"] != first:
            stage.violate("the first daemon was replaced")
        await stage.stop_load()
        for _ in range(given.size(1, 2, 20)):
            await race(stage)
    return stage.verdict()


async def run_daemons(stage: Stage, count: int) -> list[int]:
    """Start so many daemons at once and return the codes with which they end."""
    processes = [spawn(stage) for _ in range(count)]
    return [await ended(process) for process in processes]


def spawn(stage: Stage) -> subprocess.Popen[bytes]:
    """Start a daemon."""
    command = [sys.executable, "-P", "-m", "supervisor", "serve", "--data", str(stage.data)]
    return subprocess.Popen(
        [*command, "--config", str(stage.config_path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(stage.data),
        cwd=ROOT,
    )


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process."""
    with trio.fail_after(PATIENCE_S):
        while process.poll() is None:  # noqa: ASYNC110 - a child of a plain Popen, whose end has no event
            await trio.sleep(0.02)
    return process.returncode


async def race(stage: Stage) -> None:
    """Kill the daemon and start five at once: exactly one of them serves, the others are refused."""
    await stop(stage)
    processes = [spawn(stage) for _ in range(5)]
    await stage.daemon.connected()
    await stage.connected()
    winner = (await stage.status())["pid"]
    losers = [process for process in processes if process.pid != winner]
    codes = [await ended(process) for process in losers]
    stage.mark("race", "data directory", f"pid {winner} won, the others ended with {codes}")
    if len(losers) != 4 or set(codes) != {REFUSED}:
        stage.violate(f"of five daemons at once {5 - len(losers)} serve, the others ended with {codes}")
    # The stage starts and ends its daemon itself: give it one of its own.
    await stop(stage)
    for process in processes:
        process.wait()
    await start(stage)
    await stage.ready(*TRUTH)


# ------------------------------------------------------------ kills during the start


async def killed(given: Run) -> Verdict:
    """Kill the daemon at a random moment of its start, with a WAL to recover; afterwards everything is there."""
    async with staged(given, "start_killed", load=None, wait=TRUTH) as stage:
        book = Book()
        await book.fill(stage.client, stage.rng, 20)
        await stop(stage)
        for _ in range(given.size(3, 10, 200)):
            stage.daemon.start()
            process = stage.daemon.process
            assert process is not None
            after_s = stage.rng.random() * 1.5
            await trio.sleep(after_s)
            if kill(process.pid):
                stage.mark("SIGKILL", "starting daemon", f"after {after_s:.3f} s")
            process.wait()
            await family_gone(stage)
        await start(stage)
        await stage.ready(*TRUTH)
        await everything(stage, book)
    return stage.verdict()


async def family_gone(stage: Stage) -> None:
    """Wait until the workers of a killed daemon have left by themselves."""
    with trio.fail_after(PATIENCE_S):
        while stage.daemon.family():  # noqa: ASYNC110 - processes that are nobody's child have no event
            await trio.sleep(0.02)


async def everything(stage: Stage, book: Book) -> None:
    """See that every row is there as it was."""
    for wrong, missing in (await book.compare_events(stage.client), await book.compare_units(stage.client)):
        for text in [*wrong, *(f"I1: {each} is missing" for each in missing)]:
            stage.violate(text)


async def index_lock(given: Run) -> Verdict:
    """Kill the daemon at random moments of a rebuild: the next one takes the index's lock and clears the remains."""
    async with staged(given, "start_index_lock", load=None, wait=(*TRUTH, "build"), files=20) as stage:
        book = Book()
        await book.fill(stage.client, stage.rng, 40)
        taken_s: list[float] = []
        for _ in range(given.size(2, 4, 20)):
            await stage.call("index.rebuild")
            with suppress(TimeoutError):
                await stage.until(lambda s: s["building"] is not None, 5.0, method="index.status")
            await trio.sleep(stage.rng.random() * 0.5)
            await stop(stage)
            stage.mark("SIGKILL", "daemon", f"{len(remains(stage.data))} temporary files left")
            await start(stage)
            began = time.monotonic()
            await stage.ready("build", seconds=PATIENCE_S)
            taken_s.append(round(time.monotonic() - began, 3))
        if max(taken_s) > LEASE_S:
            stage.violate(f"the lock of the index was taken only after {max(taken_s)} s, promised 2 s")
        stage.facts["build_ready_s"] = taken_s
        await stage.until(lambda s: s["generation"] and s["building"] is None, PATIENCE_S, method="index.status")
        await everything(stage, book)
    return stage.verdict()


def remains(data: Path) -> list[Path]:
    """Return what an unfinished build has left."""
    return list((data / "generation_builder").glob(f"*{TEMPORARY}"))


# ------------------------------------------------------------ remains of the dead


async def stale(given: Run) -> Verdict:
    """Start over a lock without content, with nonsense, or with a stranger's pid, and over what is no socket."""
    async with staged(given, "start_stale_lock_and_socket", load=None, wait=TRUTH) as stage:
        book = Book()
        await book.fill(stage.client, stage.rng, 5)
        path = Path(stage.daemon.socket_path)  # computed from the directory: LOCK may say anything
        for content in REMAINS[: given.size(1, 2, len(REMAINS))]:
            await stop(stage)
            leave_remains(stage.data, path, content)
            stage.mark("stale lock and socket", "data directory", f"LOCK holds {content!r}")
            await start(stage)
            await stage.ready(*TRUTH)
            await everything(stage, book)
    return stage.verdict()


def leave_remains(data: Path, path: Path, content: bytes) -> None:
    """Leave this content in the lock, and a plain file or a dead socket where the socket belongs."""
    (data / "LOCK").write_bytes(content)
    path.unlink(missing_ok=True)
    if content:
        path.write_bytes(b"not a socket")
        return
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()


# ------------------------------------------------------------ descriptors


async def descriptors(given: Run) -> Verdict:
    """Take the daemon's descriptors away: clients are refused or wait, nothing spins, everything comes back."""
    name = "start_fd_exhaustion"
    if not hasattr(resource, "prlimit"):
        reason = "limits of another process can only be set on Linux"
        return Verdict(scenario=name, seed=given.seed, violations=[], faults=0, skipped=reason)
    async with staged(given, name, load=Load(searchers=0), wait=TRUTH) as stage:
        pid = (await stage.status())["pid"]
        process = psutil.Process(pid)
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        for spare in (16, 0):
            highest = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1 + spare, before[1]))
            cpu_s, began = cpu(process), time.monotonic()
            told = await crowd(stage.daemon.socket_path, 40)
            await trio.sleep(1.0)
            share = (cpu(process) - cpu_s) / (time.monotonic() - began)
            stage.mark("descriptors", "daemon", f"{spare} left; {told}; {share:.0%} of a processor")
            if share > CPU_SHARE_MAX and spare == 0:
                stage.violate(f"without descriptors the daemon takes {share:.0%} of a processor: it spins")
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            async with connection(stage.daemon.socket_path) as raw:
                await raw.expect_alive()
    return stage.verdict()


def cpu(process: psutil.Process) -> float:
    """Return the seconds of processor time that a process has taken."""
    times = process.cpu_times()
    return float(times.user + times.system)


async def crowd(path: str, count: int) -> dict[str, int]:
    """Open so many connections and ask on each; return what became of them. None waits for long."""
    told = {"served": 0, "refused": 0, "waited": 0}
    async with AsyncExitStack() as stack:
        for _ in range(count):
            raw = await stack.enter_async_context(connection(path))
            told[await become(raw)] += 1
    return told


async def become(raw: Raw) -> str:
    """Ask for the health and say what came of it; a connection that is not accepted yet just waits."""
    with trio.move_on_after(0.05):
        try:
            await raw.ask("system.health", 1)
            return "served" if "result" in await raw.hear() else "refused"
        except (trio.BrokenResourceError, EOFError):
            return "refused"
    return "waited"


SCENARIOS = (
    Scenario(
        name="start_two_daemons",
        purpose="further daemons on a directory that is held, and five at once on one that is not",
        run=two_daemons,
        tiers=("ci", "soak"),
        faults=("two daemons on one data directory × daemon",),
        beside=True,
    ),
    Scenario(
        name="start_killed",
        purpose="SIGKILL at random moments of the start, WAL recovery included",
        run=killed,
        tiers=("ci", "soak"),
        faults=("kill during start-up × daemon",),
        watchdog_s=1200.0,
        beside=True,
    ),
    Scenario(
        name="start_index_lock",
        purpose="SIGKILL the daemon during a rebuild; the next one has the index's lock at once and no remains",
        run=index_lock,
        tiers=("ci", "soak"),
        faults=("kill during a build × daemon",),
        watchdog_s=600.0,
        beside=True,
    ),
    Scenario(
        name="start_stale_lock_and_socket",
        purpose="a lock and a socket that the dead have left, or that are none",
        run=stale,
        tiers=("ci", "soak"),
        faults=("stale lock and socket × daemon",),
        beside=True,
    ),
    Scenario(
        name="start_fd_exhaustion",
        purpose="the daemon runs out of file descriptors: accept pauses, nothing spins, everything comes back",
        run=descriptors,
        tiers=("ci", "soak"),
        faults=("fd exhaustion × listener",),
        beside=True,
    ),
)
