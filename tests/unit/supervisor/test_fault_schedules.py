"""Thousands of fault schedules against the supervise loop, in simulated time and with simulated scheduling.

Hypothesis draws what every incarnation does with every message (and when somebody hurts it from outside), trio's
Hypothesis plugin makes the order of the tasks a function of the example, and a mock clock makes an hour a
millisecond. A failure is printed as the smallest schedule that still fails, and replays exactly. BULKHEAD_SCHEDULES
says how many are tried; `make soak` asks for twenty thousand.

What must hold, whatever happens:
* every request ends by its deadline plus `SETTLE_S`;
* acknowledged means done exactly once, `not_executed` means not done, `unknown` means at most once;
* a sibling notices nothing;
* no message is in hand at more than two deaths;
* the log of transitions is a walk through the table, epochs rise by one, each death is followed by a way out;
* at the end every mailbox is empty and nothing is in hand.
"""

import itertools
import os
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

import actors.mailbox
import supervisor.supervise
from actors.actor import House, serve_tray
from actors.envelope import Envelope
from actors.errors import BulkheadError, StoreBroken, StoreBusy
from actors.mailbox import SETTLE_S, Mailbox
from actors.messages.transcript_appender import Appended, AppendEvents, AppendResult, EventDraft
from actors.worker import WorkerDied
from supervisor.lifecycle import State
from supervisor.supervise import ActorSpec, Supervisor, Transition

START_FATES = ("up", "crash", "hang", "store lost")
FATES = ("done", "busy", "crash before", "crash after", "hang", "late", "store lost")
EPSILON_S = 0.001
DEATHS_MAX = 2


class Fate(msgspec.Struct, frozen=True):
    """What happens with one message: after how long, and what."""

    what: str
    after_s: float


class Asking(msgspec.Struct, frozen=True):
    """One client's request: when it is sent, for how long it is good, how often it is repeated."""

    at_s: float
    deadline_s: float
    retries: int
    client: int


class Hurt(msgspec.Struct, frozen=True):
    """Somebody ends an incarnation from outside."""

    at_s: float
    how: str


class Schedule(msgspec.Struct, frozen=True):
    """Everything that will happen."""

    starts: list[str]
    fates: list[Fate]
    askings: list[Asking]
    hurts: list[Hurt]
    at_once: int
    room: int
    seed: int


SECONDS = st.sampled_from((0.0, 0.001, 0.02, 0.3, 2.0))
SCHEDULES = st.builds(
    Schedule,
    starts=st.lists(st.sampled_from(START_FATES), max_size=8),
    fates=st.lists(st.builds(Fate, st.sampled_from(FATES), SECONDS), max_size=24),
    askings=st.lists(
        st.builds(
            Asking,
            at_s=st.floats(0, 20, width=16),
            deadline_s=st.sampled_from((0.05, 0.5, 3.0, 60.0)),
            retries=st.integers(0, 3),
            client=st.integers(1, 3),
        ),
        min_size=1,
        max_size=12,
    ),
    hurts=st.lists(st.builds(Hurt, st.floats(0, 20, width=16), st.sampled_from(("raise", "cancel"))), max_size=6),
    at_once=st.integers(1, 4),
    room=st.integers(1, 8),
    seed=st.integers(0, 2**16),
)


class SimulatedTime:
    """The clocks of the module `time`, as trio's mock clock has them."""

    @staticmethod
    def monotonic() -> float:
        """Return simulated seconds."""
        return trio.current_time()

    @staticmethod
    def monotonic_ns() -> int:
        """Return simulated ns."""
        return int(trio.current_time() * 1e9)

    @staticmethod
    def time_ns() -> int:
        """Return simulated ns since the epoch."""
        return int(trio.current_time() * 1e9)


@pytest.fixture(scope="module", autouse=True)
def simulated_time() -> Iterator[None]:
    """Let deadlines follow the mock clock."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actors.mailbox, "time", SimulatedTime)
        patch.setattr(supervisor.supervise, "time", SimulatedTime)
        yield


class Store:
    """What a disk would have kept: which requests took effect, in order."""

    def __init__(self, *, recognises_repetitions: bool) -> None:
        self.effects: list[str] = []
        self._recognises = recognises_repetitions

    def append(self, request_id: str) -> AppendResult:
        """Take effect once per request."""
        if request_id not in self.effects or not self._recognises:
            self.effects.append(request_id)
        seq = self.effects.index(request_id) + 1
        return AppendResult(results=[Appended(event_id=request_id, seq=seq, deduplicated=False)])


class Incarnation:
    """A fake actor that does with each message what the schedule says."""

    def __init__(self, house: House, store: Store, starts: Iterator[str], fates: Iterator[Fate], at_once: int) -> None:
        self._house = house
        self._store = store
        self._starts = starts
        self._fates = fates
        self._at_once = at_once

    async def run(self) -> None:
        """Start as scheduled, then serve."""
        match next(self._starts):
            case "crash":
                raise RuntimeError("crash at start")
            case "store lost":
                raise WorkerDied(self._house.name, 1, "I/O error at start", code=StoreBroken.code)
            case "hang":
                await trio.sleep_forever()
        self._house.ready()
        await serve_tray(self._house.mailbox, "", self._serve, at_once=self._at_once)

    async def _serve(self, envelope: Envelope) -> None:
        fate, name = next(self._fates), self._house.name
        message = envelope.message
        assert isinstance(message, AppendEvents)
        request_id = message.events[0].request_id
        assert request_id is not None
        await trio.sleep(fate.after_s)
        match fate.what:
            case "busy":
                raise StoreBusy("locked")
            case "crash before":
                raise WorkerDied(name, 1, "crashed", culprit=envelope.body)
            case "store lost":
                raise WorkerDied(name, 1, "I/O error", code=StoreBroken.code)
            case "hang":  # the watchdog interrupts at the deadline and kills half a second later
                await trio.sleep(max(0.0, envelope.deadline_ns / 1e9 - trio.current_time()) + 0.5)
                raise WorkerDied(name, 1, "killed: call still running", culprit=envelope.body)
            case "late":
                await trio.sleep(max(0.0, envelope.deadline_ns / 1e9 - trio.current_time()) + 0.1)
        result = self._store.append(request_id)
        if fate.what == "crash after":
            raise WorkerDied(name, 1, "ended by signal SIGKILL")
        self._house.mailbox.finish(envelope, result)


class World:
    """One run of a schedule, and what the clients were told."""

    def __init__(self, schedule: Schedule, *, recognises_repetitions: bool = True) -> None:
        self.schedule = schedule
        self.store = Store(recognises_repetitions=recognises_repetitions)
        self.sibling_store = Store(recognises_repetitions=True)
        self.told: dict[str, list[str]] = {}
        self.overdue: list[str] = []
        self.sibling_errors: list[BulkheadError] = []
        self.supervisor: Supervisor
        starts = itertools.chain(schedule.starts, itertools.repeat("up"))
        fates = itertools.chain(schedule.fates, itertools.repeat(Fate("done", 0.001)))
        done = itertools.repeat(Fate("done", 0.001))
        self._specs = [
            self._spec("hurt", self.store, starts, fates, at_once=schedule.at_once, room=schedule.room),
            self._spec("sibling", self.sibling_store, itertools.repeat("up"), done, at_once=1, room=64),
        ]

    def _spec(
        self, name: str, store: Store, starts: Iterator[str], fates: Iterator[Fate], *, at_once: int, room: int
    ) -> ActorSpec:
        return ActorSpec(
            name=name,
            make=lambda house: Incarnation(house, store, starts, fates, at_once),
            mailbox=lambda: Mailbox(name, count_max=room, bytes_max=1_000_000),
            start_s=2.0,
            restarts_max=4,
        )

    async def run(self) -> list[str]:
        """Let everything happen, drain, and return what did not hold."""
        self.supervisor = Supervisor(self._specs, seed=self.schedule.seed)
        async with trio.open_nursery() as nursery:
            await nursery.start(self.supervisor.run)
            async with trio.open_nursery() as clients:
                for number, asking in enumerate(self.schedule.askings):
                    clients.start_soon(self._ask_hurt, f"r{number}", asking)
                    clients.start_soon(self._ask_sibling, f"s{number}", asking.at_s)
                for hurt in self.schedule.hurts:
                    clients.start_soon(self._hurt, hurt)
            await self.supervisor.drain(soft_s=10)
            with trio.fail_after(60):
                await self.supervisor.wait_stopped()
        return self._violations()

    async def _hurt(self, hurt: Hurt) -> None:
        await trio.sleep(hurt.at_s)
        self.supervisor.hurt("hurt", hurt.how)  # type: ignore[arg-type]

    async def _ask_hurt(self, request_id: str, asking: Asking) -> None:
        await trio.sleep(asking.at_s)
        told = self.told[request_id] = []
        for _ in range(1 + asking.retries):
            began = trio.current_time()
            try:
                await self._ask("hurt", request_id, asking.deadline_s, asking.client)
            except BulkheadError as error:
                told.append(error.outcome)
                again = error.retryable
                pause_s = (error.retry_after_ms or 10) / 1000
            else:
                told.append("ok")
                again = False
                pause_s = 0.0
            if trio.current_time() - began > asking.deadline_s + SETTLE_S + EPSILON_S:
                self.overdue.append(f"{request_id}: {trio.current_time() - began:.3f} s of {asking.deadline_s} s")
            if not again:
                return
            await trio.sleep(pause_s)

    async def _ask_sibling(self, request_id: str, at_s: float) -> None:
        await trio.sleep(at_s)
        try:
            await self._ask("sibling", request_id, 1.0, 1)
        except BulkheadError as error:
            self.sibling_errors.append(error)

    async def _ask(self, actor: str, request_id: str, deadline_s: float, client: int) -> None:
        draft = EventDraft(session_id="s", actor="user", content="text", request_id=request_id)
        await self.supervisor.children[actor].mailbox.ask(
            AppendEvents(events=(draft,)),
            AppendResult,
            deadline_ns=int((trio.current_time() + deadline_s) * 1e9),
            client=client,
        )

    # ------------------------------------------------------------ what must hold

    def _violations(self) -> list[str]:
        return [
            *self.overdue,
            *(f"a sibling noticed: {error}" for error in self.sibling_errors),
            *self._wrong_effects(),
            *self._wrong_log(),
            *self._left_over(),
        ]

    def _wrong_effects(self) -> Iterator[str]:
        effects = Counter(self.store.effects)
        for request_id, told in self.told.items():
            count = effects[request_id]
            if count > 1:
                yield f"{request_id} took effect {count} times; told {told}"
            if "ok" in told and count == 0:
                yield f"{request_id} was acknowledged and is lost; told {told}"
            if set(told) == {"not_executed"} and count:
                yield f"{request_id} took effect, told {told}"

    def _wrong_log(self) -> Iterator[str]:
        for name in self.supervisor.children:
            log = [entry for entry in self.supervisor.transitions if entry.actor == name]
            for before, after in itertools.pairwise(log):
                if before.after is not after.before or after.epoch not in (before.epoch, before.epoch + 1):
                    yield f"the log of {name} is torn between {before} and {after}"
                if before.after is State.FAILED and after.after not in AFTER_DEATH:
                    yield f"a death of {name} led to {after.after}"
            if not log or log[-1].after is not State.STOPPED:
                yield f"{name} did not end: {log[-1:]}"
            yield from _wrong_epochs(name, log)

    def _left_over(self) -> Iterator[str]:
        for name, child in self.supervisor.children.items():
            mail = child.mailbox.statistics()
            if mail.count or mail.bytes or mail.in_hand:
                yield f"mail is left in front of {name}: {mail}"
        for condemned in self.supervisor.children["hurt"].mailbox.quarantine.condemned():
            if len(condemned.causes) != DEATHS_MAX:
                yield f"condemned after {len(condemned.causes)} deaths: {condemned}"


AFTER_DEATH = {State.BACKOFF, State.BROKEN, State.QUARANTINED, State.STOPPED}


def _wrong_epochs(name: str, log: list[Transition]) -> Iterator[str]:
    started = [entry.epoch for entry in log if entry.after is State.STARTING]
    if started != list(range(1, len(started) + 1)):
        yield f"epochs of {name} are {started}"


@settings(deadline=None, max_examples=int(os.environ.get("BULKHEAD_SCHEDULES", "500")))
@given(SCHEDULES)
def test_whatever_happens_the_promises_hold(schedule: Schedule) -> None:
    assert trio.run(World(schedule).run, clock=trio.testing.MockClock(autojump_threshold=0)) == []


def test_a_store_that_does_not_recognise_repetitions_is_noticed() -> None:
    """The mutation check of this file: what must be caught is caught."""
    schedule = Schedule(
        starts=[],
        fates=[Fate("crash after", 0.0)],
        askings=[Asking(at_s=0.0, deadline_s=60.0, retries=0, client=1)],
        hurts=[],
        at_once=1,
        room=4,
        seed=0,
    )
    world = World(schedule, recognises_repetitions=False)
    violations = trio.run(world.run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert violations == ["r0 took effect 2 times; told ['ok']"]
