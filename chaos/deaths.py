"""Hurting the workers of a running daemon, and measuring how they come back.

A `Watch` polls `system.metrics` over a connection of its own. It knows the state, epoch and processes of every actor
and the time of each change of state (the daemon's own clock, which is ours too: CLOCK_MONOTONIC), so what is measured
does not depend on how often it polls. `strike` sends one signal to one worker and waits until the actor is back.

A strike counts only when it hit a live worker: the signal was delivered, the actor's epoch rose and its process is
another one afterwards.
"""

import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from chaos.client import Client, Disconnected, open_socket
from chaos.daemon import kill
from chaos.load import percentile

POLL_S = 0.025
AWAY_S = 0.02
BACK_S = 60.0
HEARD_MS = 100.0
STARTS = 5
QUIET_START_S = 0.03
SERVING = ("ready", "degraded")
STARTING_SHARE = 0.1
IN_HAND_STEPS_MS = (1.0, 5.0, 20.0, 100.0)

# Restarts without end and almost without a pause: what is measured is the worker, not the patience of the supervisor.
RAPID = """
[supervision]
restarts_max = 1000000
backoff_ms_min = 5
backoff_ms_max = 20
builder_backoff_ms_min = 5
builder_backoff_ms_max = 20
"""


# The same, and what is derived is built in the background now and then: builds cost CPU that the deaths need, and the
# search workers open each new generation.
CALM = (
    RAPID
    + """
[generation_builder]
settle_ms = 1000
build_every_ms = 5000
"""
)

# Who uses an actor may be told of its death; everybody else must not notice. Names are those of `stage.Op`.
AFFECTED: dict[str, tuple[str, ...]] = {
    "core_writer": ("unit",),
    "transcript_appender": ("append", "history"),
    "cache_manager": (),
    "generation_builder": (),
    "searcher": (),
}
# ActorDied, ActorRestarting, DeadlineExceeded (its actor was away for longer than a request had time), PoisonMessage:
# what was in hand at two deaths in a row is not tried a third time, and an innocent message may be that unlucky when
# its worker is killed several times a second. Interrupted: it reached its deadline in the worker, nothing was changed.
DEATH_CODES = (1002, 1003, 1004, 1006, 1018)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One actor as it was at one moment; `at` is when that was asked for (monotonic seconds)."""

    actor: str
    at: float
    state: str
    epoch: int
    pid: int | None
    worker_ready: bool
    silent_ms: float
    pids: tuple[int, ...]  # of all its workers, also those that are starting
    in_hand: int
    in_hand_ms: float

    @property
    def up(self) -> bool:
        """Say whether it serves with a worker that is ready."""
        return self.state in SERVING and self.worker_ready


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """One worker that was hurt: what it was doing, and how long the house took. Times in seconds from the signal."""

    actor: str
    pid: int
    epoch: int
    at: float
    phase: str  # "starting", "idle", or how long the oldest message had been in hand
    noticed_s: float | None
    ready_s: float


class Watch:
    """The last snapshot of the house, and the time of every change of state since the watch began."""

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self._polled = trio.Event()
        self.asked_at = 0.0
        self.rows: dict[str, Row] = {}
        self.searcher: dict[str, Any] = {}
        self.changes: dict[tuple[str, int, str], float] = {}  # (actor, epoch, state) -> when it got there

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Poll for ever; a daemon that is away is waited for, and its successor counts its epochs anew."""
        while True:
            try:
                async with open_socket(self._socket_path) as client:
                    await self._poll(client, task_status)
            except (OSError, Disconnected):
                self.changes.clear()
                self.rows.clear()
                await trio.sleep(AWAY_S)

    async def _poll(self, client: Client, task_status: trio.TaskStatus[None]) -> None:
        started = bool(self.rows)
        while True:
            asked_at = time.monotonic()
            metrics = await client.call("system.metrics")
            self._take(metrics, asked_at, time.monotonic())
            if not started:
                started = True
                task_status.started()
            self._polled.set()
            self._polled = trio.Event()
            await trio.sleep(POLL_S)

    def _take(self, metrics: dict[str, Any], asked_at: float, received_at: float) -> None:
        self.asked_at = asked_at
        self.searcher = metrics["searcher"]
        self.rows = {name: _row(name, status, asked_at) for name, status in metrics["actors"].items()}
        for entry in metrics["transitions"]:
            key = (entry["actor"], entry["epoch"], entry["after"])
            # The answer is a little older than its arrival, so a change is dated late rather than early.
            self.changes.setdefault(key, received_at - entry["ago_ms"] / 1000)

    async def look(self) -> None:
        """Wait for a snapshot that was asked for after this call."""
        now = time.monotonic()
        while self.asked_at < now:
            await self._polled.wait()

    async def until(self, check: Callable[[], bool], what: str, seconds: float = BACK_S) -> None:
        """Wait until a check of this watch holds; raise TimeoutError naming what was waited for."""
        with trio.move_on_after(seconds):
            while not check():
                await self._polled.wait()
            return
        raise TimeoutError(f"waited {seconds} s for {what}; last seen: {self.rows}")

    async def up(self, actor: str, *, after_epoch: int = 0) -> Row:
        """Wait until an actor serves in an epoch later than the given one; return what it looks like then."""

        def is_up() -> bool:
            row = self.rows.get(actor)
            return row is not None and row.up and row.epoch > after_epoch

        await self.until(is_up, f"{actor} to serve after epoch {after_epoch}")
        return self.rows[actor]

    def change(self, actor: str, epoch: int, *states: str) -> float | None:
        """Return when an actor got into one of the states in an epoch, if that was seen."""
        times = [at for state in states if (at := self.changes.get((actor, epoch, state))) is not None]
        return min(times, default=None)


def _row(name: str, status: dict[str, Any], at: float) -> Row:
    # The builder has an embedding worker beside its own, which comes and goes without it.
    own = [worker for worker in status["workers"] if worker["name"] == name]
    mailbox = status["mailbox"]
    return Row(
        actor=name,
        at=at,
        state=status["state"],
        epoch=status["epoch"],
        pid=own[0]["pid"] if own else None,
        worker_ready=bool(own and own[0]["ready"]),
        silent_ms=own[0]["silent_ms"] if own else 0.0,
        pids=tuple(worker["pid"] for worker in status["workers"]),
        in_hand=mailbox["in_hand"],
        in_hand_ms=mailbox["in_hand_ms"],
    )


@asynccontextmanager
async def watching(socket_path: str) -> AsyncIterator[Watch]:
    """Give a watch that polls in the background. What the body raises comes out as it is."""
    watch = Watch(socket_path)
    raised: Exception | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(watch.run)
        try:
            yield watch
        except Exception as error:
            raised = error
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised


async def strike(
    watch: Watch,
    actor: str,
    rng: random.Random,
    *,
    spread_s: float = 0.15,
    doing: Callable[[], Awaitable[str]] | None = None,
) -> Death:
    """SIGKILL an actor's own worker at a random time of its life; return once the actor is back.

    One in ten is hit while it starts, the others at a time spread evenly over `spread_s` after they were ready.
    `doing` says what it is doing, for an actor whose work is not its mail.
    """
    while True:
        victim = await _choose(watch, actor, rng, spread_s)
        what = phase(victim) if doing is None or not victim.worker_ready else await doing()
        at = time.monotonic()
        if victim.pid is not None and kill(victim.pid):
            return msgspec.structs.replace(await see_back(watch, actor, victim, at), phase=what)


async def _choose(watch: Watch, actor: str, rng: random.Random, spread_s: float) -> Row:
    if rng.random() < STARTING_SHARE:
        return await _provoke_start(watch, actor)
    await watch.up(actor)
    await trio.sleep(rng.random() * spread_s)
    await watch.look()
    return await watch.up(actor)


async def _provoke_start(watch: Watch, actor: str) -> Row:
    """Kill a worker so that another one starts, and return that one before it is ready (if we see it in time)."""
    row = await watch.up(actor)
    assert row.pid is not None
    kill(row.pid)

    def is_next() -> bool:
        now = watch.rows.get(actor)
        return now is not None and now.epoch > row.epoch and now.pid is not None

    await watch.until(is_next, f"the next worker of {actor}")
    return watch.rows[actor]


async def see_back(watch: Watch, actor: str, victim: Row, at: float) -> Death:
    """Wait until an actor whose worker was hurt serves again with another one; return how that went."""
    assert victim.pid is not None
    back = await watch.up(actor, after_epoch=victim.epoch)
    assert back.pid != victim.pid, f"{actor} serves again with the process {victim.pid} that was hurt"
    noticed_at = watch.change(actor, victim.epoch, "failed")
    ready_at = watch.change(actor, back.epoch, *SERVING) or time.monotonic()
    return Death(
        actor=actor,
        pid=victim.pid,
        epoch=victim.epoch,
        at=at,
        phase=phase(victim),
        noticed_s=None if noticed_at is None else max(0.0, noticed_at - at),
        ready_s=ready_at - at,
    )


def phase(row: Row) -> str:
    """Name what a worker was doing when it was hit, as far as the daemon knew."""
    if not row.worker_ready:
        return "starting"
    if not row.in_hand:
        return "idle"
    step = next((step for step in IN_HAND_STEPS_MS if row.in_hand_ms < step), None)
    return f"in hand ≥ {IN_HAND_STEPS_MS[-1]:g} ms" if step is None else f"in hand < {step:g} ms"


async def strike_many(
    watch: Watch,
    actor: str,
    rng: random.Random,
    kills: int,
    *,
    hit: Callable[[Death], None],
    spread_s: float = 0.15,
    doing: Callable[[], Awaitable[str]] | None = None,
) -> None:
    """Strike an actor so many times, one after the other, and report each."""
    for _ in range(kills):
        hit(await strike(watch, actor, rng, spread_s=spread_s, doing=doing))


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """One worker that was stopped. Times in seconds from SIGSTOP; None when it woke up in time and went on."""

    actor: str
    pid: int
    at: float
    busy: bool
    woken_s: float | None
    replaced_s: float | None
    ready_s: float | None


async def stop_worker(watch: Watch, actor: str, *, wake_after_s: float | None = None) -> Stopped:
    """SIGSTOP a worker, and wait until its actor serves with another one, or with this one that was woken in time.

    With `wake_after_s` the worker gets a SIGCONT so much later; else only after it was replaced.
    """
    await watch.look()
    victim = await watch.up(actor)
    assert victim.pid is not None
    at = time.monotonic()
    kill(victim.pid, signal.SIGSTOP)
    try:
        if wake_after_s is not None:
            await trio.sleep(wake_after_s)
            kill(victim.pid, signal.SIGCONT)
            if await _goes_on(watch, actor, victim):
                return _stopped(victim, at, wake_after_s, None)
        return _stopped(victim, at, wake_after_s, await see_back(watch, actor, victim, at))
    finally:
        kill(victim.pid, signal.SIGCONT)


async def _goes_on(watch: Watch, actor: str, victim: Row) -> bool:
    """Say whether a worker that was woken is heard again before it is replaced."""

    def decided() -> bool:
        row = watch.rows.get(actor)
        return row is not None and (row.epoch > victim.epoch or (row.up and row.silent_ms < HEARD_MS))

    await watch.look()
    await watch.until(decided, f"{actor} to go on or to be replaced")
    return watch.rows[actor].epoch == victim.epoch


def _stopped(victim: Row, at: float, woken_s: float | None, death: Death | None) -> Stopped:
    assert victim.pid is not None
    return Stopped(
        actor=victim.actor,
        pid=victim.pid,
        at=at,
        busy=victim.in_hand > 0,
        woken_s=woken_s,
        replaced_s=None if death is None else death.noticed_s,
        ready_s=None if death is None else death.ready_s,
    )


async def slowness() -> float:
    """Return how many times longer than on a quiet machine a process takes to start now, at least 1.

    A machine that many share is no reason for a red run, and being slower than the machine is.
    """
    times = []
    for _ in range(STARTS):
        began = time.monotonic()
        await trio.run_process([sys.executable, "-S", "-E", "-c", "pass"])
        times.append(time.monotonic() - began)
    return max(1.0, statistics.median(times) / QUIET_START_S)


async def building(client: Client) -> str:
    """Return which stage a build is in, for `strike`."""
    now = (await client.call("index.status"))["building"]
    return "between builds" if now is None else f"building: {now['stage']}"


def summary_ms(seconds: list[float]) -> dict[str, float]:
    """Return count, median, p99 and maximum of some durations, in ms."""
    values = [value * 1000 for value in seconds]
    return {
        "count": len(values),
        "p50": round(percentile(values, 0.5), 1),
        "p99": round(percentile(values, 0.99), 1),
        "max": round(max(values, default=0.0), 1),
    }


def phases(deaths: list[Death]) -> dict[str, int]:
    """Return how many deaths hit which phase: the histogram that shows that the kills were spread."""
    return dict(sorted(Counter(death.phase for death in deaths).items()))
