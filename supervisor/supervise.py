"""The heart: start the actors in order, notice each death, settle what it left, start the next incarnation.

Strategy is one-for-one, always: no actor's death touches a sibling. An actor that spends its restarts is BROKEN:
its mail is refused, it is probed from time to time, and the others stay up. An actor whose truth failed
verification is QUARANTINED and stays so. Nothing here knows what an actor does; the roster is data.

The road of a death:  incarnation raises -> in hand settled (redelivered, refused, or condemned) -> budget -> backoff
with jitter -> next epoch on the same mailbox. Everything that happens is an entry in `transitions`.

Two losses of a store in a row with nothing served between them are not a matter for restarts: the disk is in trouble,
so the actor rests at once. An actor that the daemon is worthless without and that rests for too long is `hopeless`:
the daemon ends with its own exit code, so that an outer manager may try a whole new one.
"""

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec
import trio

from actors.actor import Actor, House
from actors.errors import ActorUnavailable, Quarantined, StoreBroken
from actors.mailbox import Mailbox, MailboxStatistics
from actors.understudy import Understudies
from actors.worker import Worker, WorkerDied, WorkerStatistics
from supervisor.lifecycle import SERVING, Event, RestartBudget, State, advance

TRANSITIONS_KEPT = 4096
# How long a restart takes besides the backoff, for telling callers whether it is worth waiting.
START_ESTIMATE_S = 0.3
STORE_LOSSES_MAX = 2
# Longest deadline of a client (120 s) and of an actor's own calls, with a margin: nothing is in hand for longer.
STUCK_MS = 660_000.0
NEVER_NS = 2**63 - 1

log = logging.getLogger("bulkhead.supervisor")

MakeActor = Callable[[House], Actor]


class ActorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One actor as data: how it is made, whom it may ask, how patient to be with it. Times in seconds."""

    name: str
    make: MakeActor
    mailbox: Callable[[], Mailbox]
    asks: tuple[str, ...] = ()
    tells: tuple[str, ...] = ()  # hints only: nobody waits, so a circle is harmless
    start_s: float = 10.0
    stop_s: float = 5.0
    restarts_max: int = 5
    window_s: float = 60.0
    backoff_s_min: float = 0.05
    backoff_s_max: float = 5.0
    probe_s: float = 10.0
    outlives_workers: bool = False  # the death of a worker is its own affair and ends no incarnation
    hopeless_s: float | None = None  # how long it may be BROKEN before the daemon is worthless; None: for ever


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """One change of state: when (CLOCK_MONOTONIC ns), whose, from where to where, and why."""

    at_ns: int
    actor: str
    epoch: int
    before: State
    after: State
    cause: str


class ActorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor knows of one actor."""

    state: State
    epoch: int
    restarts: int
    reason: str | None
    last_death: str | None
    mailbox: MailboxStatistics
    workers: list[WorkerStatistics]


class Child:
    """One actor over all of its incarnations."""

    def __init__(self, spec: ActorSpec) -> None:
        self.spec = spec
        self.mailbox = spec.mailbox()
        self.state = State.NEW
        self.epoch = 0
        self.restarts = 0
        self.reason: str | None = None  # why DEGRADED
        self.without: tuple[str, ...] = ()  # the capabilities that this takes
        self.released = trio.Event()  # a command ends its quarantine or rest
        self.last_death: str | None = None
        self.workers: list[Worker] = []
        self.understudies = Understudies()
        self.scope: trio.CancelScope | None = None
        self.injection: trio.Event | None = None  # of the incarnation that lives: set, it ends
        self.injected: Literal["raise", "cancel"] = "raise"
        self.ready_at: float | None = None
        self.served_before = 0  # what its mailbox had answered when the incarnation began
        self.store_losses = 0  # in a row, without anything served between them
        self.broken_since: float | None = None
        self.budget = RestartBudget(
            restarts_max=spec.restarts_max,
            window_s=spec.window_s,
            backoff_s_min=spec.backoff_s_min,
            backoff_s_max=spec.backoff_s_max,
        )

    def status(self) -> ActorStatus:
        """Return what is known now."""
        return ActorStatus(
            state=self.state,
            epoch=self.epoch,
            restarts=self.restarts,
            reason=self.reason,
            last_death=self.last_death,
            mailbox=self.mailbox.statistics(),
            workers=[worker.statistics() for worker in self.workers],
        )


class Supervisor:
    """The actors of the house, and their lives."""

    def __init__(
        self,
        specs: list[ActorSpec],
        *,
        seed: int | None = None,
        on_death: Callable[[str, int, Exception], None] = lambda actor, epoch, cause: None,
    ) -> None:
        """Make the children. `on_death` is told of each death (actor, epoch, cause) and must not block."""
        assert_acyclic({spec.name: spec.asks for spec in specs})
        self.children = {spec.name: Child(spec) for spec in specs}
        self.hopeless = trio.Event()
        self._on_death = on_death
        self.transitions: deque[Transition] = deque(maxlen=TRANSITIONS_KEPT)
        self._random = random.Random(seed)  # noqa: S311 - jitter
        self._changed = trio.Event()
        self._draining = False

    # ------------------------------------------------------------ start and stop

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep every actor alive until `drain` has stopped them all.

        Actors are started in the order of the roster, without waiting for one another: nobody's slow start
        holds up the others, and mail waits in the mailboxes meanwhile.
        """
        async with trio.open_nursery() as nursery:
            for child in self.children.values():
                nursery.start_soon(self._keep, child, name=f"keep-{child.spec.name}")
            task_status.started()

    async def drain(self, *, soft_s: float) -> None:
        """Stop taking mail, let what is queued finish for a while, then stop the actors in reverse order."""
        self._draining = True
        for child in self.children.values():
            child.mailbox.close()
        deadline = trio.current_time() + soft_s
        for child in reversed(self.children.values()):
            if child.state in SERVING:
                with trio.move_on_at(min(deadline, trio.current_time() + child.spec.stop_s)):
                    while not child.mailbox.idle:  # noqa: ASYNC110 - bounded by the deadline above
                        await trio.sleep(0.01)
            self._stop(child)

    async def wait_stopped(self) -> None:
        """Wait until every actor has stopped."""
        for name in self.children:
            await self.wait_state(name, State.STOPPED)

    def _stop(self, child: Child) -> None:
        if (child.state, Event.DRAIN) in _DRAINABLE:
            self._move(child, Event.DRAIN, "drain")
        if child.scope is not None:
            child.scope.cancel("drain")

    # ------------------------------------------------------------ one actor's life

    async def _keep(self, child: Child) -> None:
        """Run incarnation after incarnation until the daemon drains."""
        try:
            with trio.CancelScope() as child.scope:
                await self._keep_alive(child)
        finally:
            child.understudies.dismiss()
        child.mailbox.settle("stopped", restart_eta_ns=NEVER_NS)
        child.mailbox.refuse_all(lambda: _unavailable(child, "has been stopped", None))
        self._move(child, Event.STOP, "drained")

    async def _keep_alive(self, child: Child) -> None:
        while not self._draining:
            cause = await self._live(child)
            log.error(
                "actor died",
                extra={"actor": child.spec.name, "epoch": child.epoch, "cause": str(cause), "error": repr(cause)},
            )
            self._on_death(child.spec.name, child.epoch, cause)
            await self._bridge(child, cause)

    async def _live(self, child: Child) -> Exception:
        """Run one incarnation to its end and return what ended it."""
        self._begin(child)
        house = House(
            name=child.spec.name,
            epoch=child.epoch,
            mailbox=child.mailbox,
            others={name: self.children[name].mailbox for name in (*child.spec.asks, *child.spec.tells)},
            workers=child.workers,
            started=lambda: self._started(child),
            understudies=child.understudies,
            degraded=lambda reason, without: self._limit(child, reason, without),
        )
        cause: Exception | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._start_limit, child)
                nursery.start_soon(_end_when_injected, child, nursery.cancel_scope)
                await child.spec.make(house).run()
        except* Exception as group:
            # The body of except* may not return; a death has one cause, the innermost first one.
            cause = first_leaf(group)
        finally:
            child.injection = None
        if cause is None:
            cause = RuntimeError("its run ended without an error")
        return cause

    def _begin(self, child: Child) -> None:
        child.epoch += 1
        child.ready_at = None
        child.reason, child.without = None, ()
        child.served_before = child.mailbox.served
        child.injection = trio.Event()
        self._move(child, Event.START, "start")
        child.mailbox.open_for(child.epoch)

    async def _start_limit(self, child: Child) -> None:
        await trio.sleep(child.spec.start_s)
        if child.state is State.STARTING:
            raise TimeoutError(f"not ready within {child.spec.start_s} s")

    def _started(self, child: Child) -> None:
        child.ready_at = trio.current_time()
        self._move(child, Event.STARTED, "ready")

    def _limit(self, child: Child, reason: str | None, without: tuple[str, ...]) -> None:
        child.reason, child.without = reason, without
        if child.state in SERVING:
            self._move(child, Event.RECOVER if reason is None else Event.LIMIT, reason or "recovered")

    async def _bridge(self, child: Child, cause: Exception) -> None:
        """Settle what the dead incarnation left, and wait until the next one may start."""
        now = trio.current_time()
        ready_for_s = 0.0 if child.ready_at is None else now - child.ready_at
        text = describe(cause)
        child.last_death = text
        child.restarts += 1
        if (child.state, Event.FAIL) not in _FAILABLE:  # drained meanwhile
            return  # `_keep` settles what was in hand
        self._move(child, Event.FAIL, text)
        served = child.mailbox.served > child.served_before
        allowed = child.budget.record_failure(now, ready_for_s=ready_for_s, succeeded=served)
        if served or not _is_store_loss(cause):
            child.store_losses = 0
        if _is_store_loss(cause):
            child.store_losses += 1
        if served or ready_for_s >= child.budget.healthy_s:
            child.broken_since = None
        if isinstance(cause, WorkerDied) and cause.code == Quarantined.code:
            await self._quarantine(child, cause, text)
        elif child.store_losses >= STORE_LOSSES_MAX:
            await self._break(child, cause, text, "the store was lost twice in a row")
        elif allowed:
            healthy = ready_for_s >= child.budget.healthy_s and served
            wait_s = child.budget.backoff_s(self._random.random(), after_healthy_run=healthy)
            await self._back_off(child, cause, text, wait_s)
        else:
            spent = f"{child.spec.restarts_max} restarts in {child.spec.window_s:.0f} s spent"
            await self._break(child, cause, text, spent)

    async def _back_off(self, child: Child, cause: Exception, text: str, wait_s: float) -> None:
        self._move(child, Event.WAIT, f"restart in {wait_s:.3f} s")
        _settle(child, cause, text, wait_s + START_ESTIMATE_S)
        await trio.sleep(wait_s)

    async def _break(self, child: Child, cause: Exception, text: str, why: str) -> None:
        """Refuse its mail for a while, then let one more incarnation try (a half-open probe)."""
        self._move(child, Event.EXHAUST, why)
        now = trio.current_time()
        if child.broken_since is None:
            child.broken_since = now
        if child.spec.hopeless_s is not None and now - child.broken_since >= child.spec.hopeless_s:
            log.error("hopeless", extra={"actor": child.spec.name, "cause": text})
            self.hopeless.set()
        next_probe = now + child.spec.probe_s
        _settle(child, cause, text, child.spec.probe_s)
        child.mailbox.refuse_all(
            lambda: _unavailable(child, f"has died too often ({text}) and rests", next_probe - trio.current_time())
        )
        with trio.move_on_after(child.spec.probe_s):
            await self._released(child)

    async def _quarantine(self, child: Child, cause: Exception, text: str) -> None:
        self._move(child, Event.CORRUPT, text)
        _settle(child, cause, text, 0.0)
        child.mailbox.refuse_all(
            lambda: Quarantined(
                f"{child.spec.name} is quarantined: {text}",
                actor=child.spec.name,
                epoch=child.epoch,
                hint=f"its files are kept as they are; bulkhead restore {child.spec.name} makes it whole again",
            )
        )
        await self._released(child)

    async def _released(self, child: Child) -> None:
        child.released = trio.Event()
        await child.released.wait()

    def release(self, name: str) -> None:
        """End the quarantine or the rest of an actor, for a command that its next incarnation finds in its mailbox.

        The mailbox takes mail from here on: the command must be posted before the caller waits for anything.
        """
        child = self.children[name]
        if child.state in (State.QUARANTINED, State.BROKEN) and not self._draining:
            child.mailbox.open_for(child.epoch)
            child.released.set()

    # ------------------------------------------------------------ watching

    def watch(self, now_ns: int, elapsed_ms: float) -> None:
        """Let every worker be looked at; the watchdog calls this on every tick."""
        for child in self.children.values():
            for worker in child.workers:
                cause = worker.watch(now_ns, elapsed_ms)
                if cause is not None and self._ends_incarnation(child, worker):
                    self._move(child, Event.OVERDUE, cause)

    @staticmethod
    def _ends_incarnation(child: Child, worker: Worker) -> bool:
        """Say whether the end of the worker that is overdue will be that of the actor: else it would stay WEDGED.

        Those that the builder has beside the worker of its own name come and go without it.
        """
        own = [each for each in child.workers if each.spec.name == child.spec.name] or child.workers
        return own == [worker] and not child.spec.outlives_workers and child.state in SERVING

    def hurt(self, name: str, how: Literal["raise", "cancel"]) -> bool:
        """End an incarnation the way a bug in its code would (chaos only); False when there is none to hurt."""
        child = self.children[name]
        if child.injection is None:
            return False
        child.injected = how
        child.injection.set()
        return True

    def stuck(self) -> str | None:
        """Return the name of an actor that has had one message in hand for longer than any deadline allows."""
        for name, child in self.children.items():
            if child.mailbox.statistics().in_hand_ms > STUCK_MS:
                return name
        return None

    def statuses(self) -> Mapping[str, ActorStatus]:
        """Return the status of every actor, in the order of the roster."""
        return {name: child.status() for name, child in self.children.items()}

    async def wait_state(self, name: str, *states: State) -> None:
        """Wait until an actor is in one of the states."""
        while self.children[name].state not in states:
            await self._changed.wait()

    def _move(self, child: Child, event: Event, cause: str) -> None:
        before = child.state
        child.state = advance(before, event)
        if before is child.state:
            return
        entry = Transition(
            at_ns=time.monotonic_ns(),
            actor=child.spec.name,
            epoch=child.epoch,
            before=before,
            after=child.state,
            cause=cause,
        )
        self.transitions.append(entry)
        log.info(
            "state",
            extra={"actor": entry.actor, "epoch": entry.epoch, "before": before, "after": child.state, "cause": cause},
        )
        self._changed.set()
        self._changed = trio.Event()


_DRAINABLE = {(state, Event.DRAIN) for state in (State.STARTING, State.READY, State.DEGRADED, State.WEDGED)}
_FAILABLE = {(state, Event.FAIL) for state in (State.STARTING, State.READY, State.DEGRADED, State.WEDGED)}


def _settle(child: Child, cause: Exception, text: str, back_in_s: float) -> None:
    """Settle what a dead incarnation had in hand; its successor is there in `back_in_s` seconds at the earliest."""
    restart_eta_ns = time.monotonic_ns() + int(back_in_s * 1e9)
    if isinstance(cause, WorkerDied):
        # A worker that left with an operating error (its store is lost) was not brought down by a message.
        blameless = cause.code != 0
        child.mailbox.settle(text, restart_eta_ns=restart_eta_ns, culprit=cause.culprit, blameless=blameless)
    else:
        child.mailbox.settle(text, restart_eta_ns=restart_eta_ns)


def _is_store_loss(cause: Exception) -> bool:
    return isinstance(cause, WorkerDied) and cause.code == StoreBroken.code


async def _end_when_injected(child: Child, scope: trio.CancelScope) -> None:
    assert child.injection is not None
    await child.injection.wait()
    if child.injected == "raise":
        raise RuntimeError("injected")
    scope.cancel("injected")


def _unavailable(child: Child, what: str, seconds: float | None) -> ActorUnavailable:
    return ActorUnavailable(
        f"{child.spec.name} {what}",
        actor=child.spec.name,
        epoch=child.epoch,
        retry_after_ms=None if seconds is None else max(10, int(seconds * 1000)),
    )


def first_leaf(group: BaseExceptionGroup[Exception]) -> Exception:
    """Return the first exception that is not a group; a worker's death counts before its consequences."""
    leaves: list[Exception] = []
    for error in group.exceptions:
        leaves.append(first_leaf(error) if isinstance(error, BaseExceptionGroup) else error)
    return next((leaf for leaf in leaves if isinstance(leaf, WorkerDied)), leaves[0])


def describe(cause: Exception) -> str:
    """Return a death's cause as one line."""
    text = cause.cause if isinstance(cause, WorkerDied) else f"{type(cause).__name__}: {cause}"
    return text.splitlines()[0][:500] if text else type(cause).__name__


def assert_acyclic(graph: Mapping[str, tuple[str, ...]]) -> None:
    """Assert that nobody can end up waiting for himself: two bounded mailboxes that ask each other are a deadlock."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"actors ask in a circle: {' -> '.join((*path, name))}"
        if name not in done:
            for other in graph[name]:
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())
