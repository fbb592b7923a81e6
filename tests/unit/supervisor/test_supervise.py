"""The supervise loop with fake actors under a mock clock: who lives, who dies, who is told what."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.actor import House
from actors.errors import ActorUnavailable, BulkheadError, Quarantined, ShuttingDown, StoreBroken
from actors.mailbox import Mailbox, deadline_after
from actors.messages.base import Row
from actors.messages.transcript_appender import GetEvent
from actors.worker import WorkerDied, WorkerSpec
from supervisor.lifecycle import State
from supervisor.supervise import STUCK_MS, ActorSpec, Supervisor, assert_acyclic, first_leaf

Life = Callable[[House], Awaitable[None]]


class Fake:
    """An actor whose lives are given as functions; after the last one it serves for ever."""

    def __init__(self, house: House, lives: list[Life]) -> None:
        self.house = house
        self.lives = lives

    async def run(self) -> None:
        """Live the next life."""
        if self.lives:
            await self.lives.pop(0)(self.house)
        else:
            await serve(self.house)


async def serve(house: House) -> None:
    """Answer everything."""
    house.ready()
    while True:
        envelope = await house.mailbox.take()
        house.mailbox.finish(envelope, Row(row=str(house.epoch).encode()))


async def crash_at_start(house: House) -> None:
    raise RuntimeError("crash at start")


async def crash_when_asked(house: House) -> None:
    house.ready()
    await house.mailbox.take()
    raise RuntimeError("crash in hand")


async def never_ready(house: House) -> None:
    await trio.sleep_forever()


async def damaged(house: House) -> None:
    raise WorkerDied(house.name, 1, "core.db is not ours", code=Quarantined.code)


def fake(name: str, *lives: Life, restarts_max: int = 5, asks: tuple[str, ...] = ()) -> ActorSpec:
    remaining = list(lives)
    return ActorSpec(
        name=name,
        make=lambda house: Fake(house, remaining),
        mailbox=lambda: Mailbox(name, count_max=16, bytes_max=10_000),
        asks=asks,
        start_s=2.0,
        restarts_max=restarts_max,
        backoff_s_min=0.05,
        backoff_s_max=5.0,
        probe_s=10.0,
    )


async def ask(supervisor: Supervisor, name: str, seconds: float = 60) -> bytes:
    mailbox = supervisor.children[name].mailbox
    answer = await mailbox.ask(GetEvent(event_id="e"), Row, deadline_ns=deadline_after(seconds))
    return answer.row


async def running(supervisor: Supervisor, check: Callable[[], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        await check()
        nursery.cancel_scope.cancel("test done")


async def test_a_dead_actor_is_restarted_with_the_next_epoch(autojump_clock: trio.testing.MockClock) -> None:
    supervisor = Supervisor([fake("a", crash_at_start, crash_at_start)], seed=1)

    async def check() -> None:
        assert await ask(supervisor, "a") == b"3"
        assert supervisor.children["a"].restarts == 2
        assert supervisor.children["a"].last_death == "RuntimeError: crash at start"

    await running(supervisor, check)


async def test_siblings_do_not_notice(autojump_clock: trio.testing.MockClock) -> None:
    supervisor = Supervisor([fake("a", *[crash_at_start] * 20, restarts_max=3), fake("b")], seed=1)

    async def check() -> None:
        await supervisor.wait_state("a", State.BROKEN)
        assert await ask(supervisor, "b") == b"1"
        assert supervisor.children["b"].epoch == 1

    await running(supervisor, check)


async def test_mail_in_hand_at_a_death_is_redelivered(autojump_clock: trio.testing.MockClock) -> None:
    supervisor = Supervisor([fake("a", crash_when_asked)], seed=1)

    async def check() -> None:
        assert await ask(supervisor, "a") == b"2"

    await running(supervisor, check)


async def test_a_broken_actor_refuses_mail_and_is_probed(autojump_clock: trio.testing.MockClock) -> None:
    supervisor = Supervisor([fake("a", *[crash_at_start] * 4, restarts_max=3)], seed=1)

    async def check() -> None:
        await supervisor.wait_state("a", State.BROKEN)
        with pytest.raises(ActorUnavailable) as refused:
            await ask(supervisor, "a")
        assert refused.value.retry_after_ms is not None and 0 < refused.value.retry_after_ms <= 10_000
        began = trio.current_time()
        await supervisor.wait_state("a", State.READY)
        assert trio.current_time() - began == pytest.approx(10.0)
        assert await ask(supervisor, "a") == b"5"

    await running(supervisor, check)


async def test_an_actor_that_is_never_ready_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    supervisor = Supervisor([fake("a", never_ready)], seed=1)

    async def check() -> None:
        await supervisor.wait_state("a", State.READY)
        assert supervisor.children["a"].last_death == "TimeoutError: not ready within 2.0 s"

    await running(supervisor, check)


async def test_damaged_truth_is_quarantined_and_stays_so(autojump_clock: trio.testing.MockClock) -> None:
    supervisor = Supervisor([fake("a", damaged), fake("b")], seed=1)

    async def check() -> None:
        await supervisor.wait_state("a", State.QUARANTINED)
        await trio.sleep(3600)
        assert supervisor.children["a"].state is State.QUARANTINED
        with pytest.raises(Quarantined, match=r"core\.db is not ours"):
            await ask(supervisor, "a")
        assert await ask(supervisor, "b") == b"1"

    await running(supervisor, check)


async def test_a_limitation_shows_and_goes(autojump_clock: trio.testing.MockClock) -> None:
    async def limited(house: House) -> None:
        house.ready()
        house.degraded("no model")
        await trio.sleep(5)
        house.degraded(None)
        await trio.sleep_forever()

    supervisor = Supervisor([fake("a", limited)], seed=1)

    async def check() -> None:
        await supervisor.wait_state("a", State.DEGRADED)
        assert supervisor.children["a"].status().reason == "no model"
        await supervisor.wait_state("a", State.READY)
        assert supervisor.children["a"].status().reason is None

    await running(supervisor, check)


async def test_drain_works_off_the_queue_and_stops_everybody(autojump_clock: trio.testing.MockClock) -> None:
    async def slow(house: House) -> None:
        house.ready()
        while True:
            envelope = await house.mailbox.take()
            await trio.sleep(1)
            house.mailbox.finish(envelope, Row(row=b"done"))

    supervisor = Supervisor([fake("a", slow), fake("b", never_ready)], seed=1)
    answers: list[bytes] = []

    async def one() -> None:
        answers.append(await ask(supervisor, "a"))

    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        await supervisor.wait_state("a", State.READY)
        for _ in range(3):
            nursery.start_soon(one)
        await trio.testing.wait_all_tasks_blocked()
        await supervisor.drain(soft_s=10)
        with pytest.raises((ShuttingDown, ActorUnavailable)):
            await ask(supervisor, "a")
    assert answers == [b"done"] * 3
    assert {child.state for child in supervisor.children.values()} == {State.STOPPED}


async def test_drain_does_not_wait_for_what_hangs(autojump_clock: trio.testing.MockClock) -> None:
    async def hang(house: House) -> None:
        house.ready()
        await house.mailbox.take()
        await trio.sleep_forever()

    supervisor = Supervisor([fake("a", hang)], seed=1)
    errors: list[BulkheadError] = []

    async def one() -> None:
        try:
            await ask(supervisor, "a")
        except BulkheadError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        await supervisor.wait_state("a", State.READY)
        nursery.start_soon(one)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        await supervisor.drain(soft_s=10)
        assert trio.current_time() - began <= 10
    assert [error.outcome for error in errors] == ["unknown"]


async def test_an_actor_that_stays_alive_while_nobody_asks_is_left_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    supervisor = Supervisor([fake("a")], seed=1)

    async def check() -> None:
        await trio.sleep(80_000)
        assert supervisor.children["a"].epoch == 1

    await running(supervisor, check)


LIVES: dict[str, Life] = {
    "crash at start": crash_at_start,
    "crash when asked": crash_when_asked,
    "never ready": never_ready,
    "serve": serve,
}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(LIVES)), max_size=12), st.integers(0, 2**16))
def test_whatever_an_actor_does_every_request_ends_and_epochs_only_grow(names: list[str], seed: int) -> None:
    """One schedule of lives: requests are answered or refused by their deadline, the log is consistent."""

    async def scenario() -> None:
        supervisor = Supervisor([fake("a", *(LIVES[name] for name in names)), fake("b")], seed=seed)
        ended = 0

        async def one() -> None:
            nonlocal ended
            with contextlib.suppress(BulkheadError):
                await ask(supervisor, "a", seconds=3600)
            ended += 1

        async with trio.open_nursery() as nursery:
            await nursery.start(supervisor.run)
            async with trio.open_nursery() as askers:
                for pause in range(8):
                    askers.start_soon(one)
                    await trio.sleep(pause / 10)
                    assert await ask(supervisor, "b") == b"1"
            assert ended == 8
            nursery.cancel_scope.cancel("test done")
        epochs = [entry.epoch for entry in supervisor.transitions if entry.actor == "a"]
        assert epochs == sorted(epochs)
        for before, after in zip(supervisor.transitions, list(supervisor.transitions)[1:], strict=False):
            if before.actor == after.actor:
                assert before.after is after.before

    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_circle_of_asking_is_refused() -> None:
    assert_acyclic({"a": ("b",), "b": ("c",), "c": ()})
    with pytest.raises(AssertionError, match="a -> b -> a"):
        assert_acyclic({"a": ("b",), "b": ("a",)})


def test_a_workers_death_counts_before_its_consequences() -> None:
    death = WorkerDied("a", 1, "killed")
    group = ExceptionGroup("outer", [RuntimeError("later"), ExceptionGroup("inner", [death])])
    assert first_leaf(group) is death


async def test_telling_a_hint_never_waits(autojump_clock: trio.testing.MockClock) -> None:
    told: list[bool] = []

    async def tells(house: House) -> None:
        house.ready()
        told.extend(house.tell("b", GetEvent(event_id=str(number))) for number in range(20))
        await trio.sleep_forever()

    spec = fake("a", tells, asks=("b",))
    supervisor = Supervisor([spec, fake("b", never_ready)], seed=1)

    async def check() -> None:
        await supervisor.wait_state("a", State.READY)
        assert told == [True] * 16 + [False] * 4

    await running(supervisor, check)


def store_lost(name: str) -> WorkerDied:
    return WorkerDied(name, 1, "I/O error", code=StoreBroken.code)


async def lose_store_at_start(house: House) -> None:
    raise store_lost(house.name)


async def serve_one_then_lose_store(house: House) -> None:
    house.ready()
    envelope = await house.mailbox.take()
    house.mailbox.finish(envelope, Row(row=b"served"))
    raise store_lost(house.name)


async def test_a_store_lost_twice_in_a_row_rests_at_once(autojump_clock: trio.testing.MockClock) -> None:
    supervisor = Supervisor([fake("a", lose_store_at_start, lose_store_at_start)], seed=1)

    async def check() -> None:
        await supervisor.wait_state("a", State.BROKEN)
        assert supervisor.children["a"].restarts == 2
        await supervisor.wait_state("a", State.READY)

    await running(supervisor, check)


async def test_a_store_that_served_between_two_losses_is_restarted(autojump_clock: trio.testing.MockClock) -> None:
    supervisor = Supervisor([fake("a", *[serve_one_then_lose_store] * 3)], seed=1)

    async def check() -> None:
        assert [await ask(supervisor, "a") for _ in range(3)] == [b"served"] * 3
        assert await ask(supervisor, "a") == b"4"
        assert State.BROKEN not in {entry.after for entry in supervisor.transitions}

    await running(supervisor, check)


async def test_a_vital_actor_that_rests_for_too_long_is_hopeless(autojump_clock: trio.testing.MockClock) -> None:
    spec = msgspec.structs.replace(fake("a", *[crash_at_start] * 1000, restarts_max=1), hopeless_s=300.0)
    supervisor = Supervisor([spec, fake("b")], seed=1)

    async def check() -> None:
        began = trio.current_time()
        await supervisor.hopeless.wait()
        assert 300 <= trio.current_time() - began <= 330
        assert await ask(supervisor, "b") == b"1"

    await running(supervisor, check)


async def test_the_first_restart_after_a_healthy_run_is_immediate(autojump_clock: trio.testing.MockClock) -> None:
    async def healthy(house: House) -> None:
        house.ready()
        envelope = await house.mailbox.take()
        house.mailbox.finish(envelope, Row(row=b"served"))
        await trio.sleep(61)
        raise RuntimeError("after all")

    supervisor = Supervisor([fake("a", crash_at_start, crash_at_start, healthy)], seed=1)

    async def check() -> None:
        assert await ask(supervisor, "a") == b"served"
        await trio.sleep(120)
        (planned,) = (each for each in supervisor.transitions if each.epoch == 3 and each.after is State.BACKOFF)
        assert planned.cause == "restart in 0.000 s"
        assert supervisor.children["a"].epoch == 4

    await running(supervisor, check)


async def test_deaths_are_reported(autojump_clock: trio.testing.MockClock) -> None:
    deaths: list[tuple[str, int, str]] = []
    supervisor = Supervisor(
        [fake("a", crash_at_start)],
        seed=1,
        on_death=lambda actor, epoch, cause: deaths.append((actor, epoch, str(cause))),
    )

    async def check() -> None:
        await ask(supervisor, "a")
        assert deaths == [("a", 1, "crash at start")]

    await running(supervisor, check)


@pytest.mark.parametrize("how", ["raise", "cancel"])
async def test_an_injected_end_is_a_death_like_any_other(
    autojump_clock: trio.testing.MockClock, how: Literal["raise", "cancel"]
) -> None:
    supervisor = Supervisor([fake("a")], seed=1)

    async def check() -> None:
        assert await ask(supervisor, "a") == b"1"
        assert supervisor.hurt("a", how)
        await supervisor.wait_state("a", State.BACKOFF)
        assert await ask(supervisor, "a") == b"2"

    await running(supervisor, check)


async def test_who_has_a_message_in_hand_for_too_long_is_stuck(autojump_clock: trio.testing.MockClock) -> None:
    async def hang(house: House) -> None:
        house.ready()
        envelope = await house.mailbox.take()
        envelope.taken_ns -= int((STUCK_MS + 1) * 1e6)
        await trio.sleep_forever()

    supervisor = Supervisor([fake("a", hang)], seed=1)

    async def check() -> None:
        assert supervisor.stuck() is None
        supervisor.children["a"].mailbox.tell(GetEvent(event_id="e"), deadline_ns=deadline_after(60))
        await trio.testing.wait_all_tasks_blocked()
        assert supervisor.stuck() == "a"

    await running(supervisor, check)


class Overdue:
    """A worker that is found overdue at the next look."""

    def __init__(self, name: str) -> None:
        self.spec = WorkerSpec(name=name, module="", settings=msgspec.Raw(b""))
        self.is_overdue = True

    def watch(self, now_ns: int, elapsed_ms: float) -> str | None:
        return "silent for 2000 ms" if self.is_overdue else None


@pytest.mark.parametrize(("outlives", "state"), [(False, State.WEDGED), (True, State.READY)])
async def test_an_actor_that_outlives_its_workers_is_not_wedged_with_the_last_of_them(
    autojump_clock: trio.testing.MockClock, outlives: bool, state: State
) -> None:
    """It would stay so for ever: nothing but the end of its incarnation leads out of there."""
    spec = msgspec.structs.replace(fake("searcher"), outlives_workers=outlives)
    supervisor = Supervisor([spec])
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        await supervisor.wait_state("searcher", State.READY)
        supervisor.children["searcher"].workers.append(Overdue("searcher"))  # type: ignore[arg-type]
        supervisor.watch(0, 50.0)
        assert supervisor.children["searcher"].state is state
        nursery.cancel_scope.cancel("the test is over")


@pytest.mark.parametrize(("overdue", "state"), [("builder", State.WEDGED), ("watcher", State.READY)])
async def test_an_actor_is_wedged_with_the_worker_of_its_name_not_with_those_beside_it(
    autojump_clock: trio.testing.MockClock, overdue: str, state: State
) -> None:
    supervisor = Supervisor([fake("builder")])
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        await supervisor.wait_state("builder", State.READY)
        workers = [Overdue("builder"), Overdue("watcher")]
        supervisor.children["builder"].workers.extend(workers)  # type: ignore[arg-type]
        for worker in workers:
            worker.is_overdue = worker.spec.name == overdue
        supervisor.watch(0, 50.0)
        assert supervisor.children["builder"].state is state
        nursery.cancel_scope.cancel("the test is over")
