"""The lives of the two search workers: who is started when, how patient we are, and how they are replaced."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import trio
from trio.testing import MockClock

from actors.actor import House
from actors.mailbox import Mailbox
from actors.messages.base import Message
from actors.messages.index import Covers, GenerationRef
from actors.messages.searcher import DropGeneration, LoadGeneration, WarmUp
from actors.searcher.pair import Pair
from actors.searcher.pool import RECYCLE_LOOK_S, SPARE_WAITS_S, Pool
from actors.searcher.recycling import LARGE_AGE_S_MIN
from actors.settings import SearcherSettings
from actors.worker import Worker, WorkerSpec
from tests.unit.actors.searcher.scripted_workers import SPEC, ScriptedWorker

LIMITS = SearcherSettings(rss_bytes_max=1000, recycle_after_s=3600, silence_ms=1234)
WANTED = GenerationRef(
    generation=3,
    path="gen-000003",
    delta=0,
    covers=Covers(event_seq=1, core_seq=0),
    rows={},
    vectors_have=0,
    vectors_want=0,
    identity=None,
    built_at=0,
)


class ScriptedHouse(House):
    """A house that starts scripted workers; each import takes three seconds."""

    def __init__(self) -> None:
        super().__init__(
            name="searcher",
            epoch=1,
            mailbox=Mailbox("searcher", count_max=8, bytes_max=1000),
            others={},
            workers=[],
            started=lambda: None,
            degraded=lambda reason, lacks: None,
        )
        self.started: list[ScriptedWorker] = []
        self.warm_s = 3.0

    async def wait_for_truth(self, *actors: str, seconds: float) -> None:
        """Begin at once."""

    async def start_worker(self, spec: WorkerSpec, nursery: trio.Nursery) -> Worker:
        """Start a worker that does what it is told, each call in its time."""
        worker = ImportingWorker(f"w{len(self.started)}", self.warm_s)
        self.started.append(worker)
        nursery.start_soon(worker.live)
        return worker


class ImportingWorker(ScriptedWorker):
    """A worker that answers each call as soon as it is warm."""

    def __init__(self, name: str, warm_s: float) -> None:
        super().__init__(name, answers_after_s=warm_s)

    def told(self) -> list[type[Message]]:
        """Return what it was asked to do, in order."""
        return [type(call.message) for call in self.calls]

    def gently(self) -> bool:
        """Say whether it was to give way while it imports."""
        return any(call.message == WarmUp(gently=True) for call in self.calls)

    def grow(self, rss_bytes: int) -> None:
        """Report a size with the next beat."""
        self.rss_bytes = rss_bytes


class Life:
    """A pool that runs, and what happened to it."""

    def __init__(self) -> None:
        self.house = ScriptedHouse()
        self.pair = Pair(lambda: None)
        self.pool = Pool(self.house, SPEC, self.pair, limits=LIMITS, suspect=lambda generation, detail: None)

    @property
    def started(self) -> list[ImportingWorker]:
        """Return every worker that was ever started."""
        return [worker for worker in self.house.started if isinstance(worker, ImportingWorker)]

    def active(self) -> Worker | None:
        """Return the active worker."""
        return self.pair.active.worker

    def serving(self) -> int:
        """Return how many workers have the wanted generation open."""
        return len(self.pair.serving(WANTED.view))


@asynccontextmanager
async def living(*, both: bool = True) -> AsyncIterator[Life]:
    """Give a pool that wants a generation, by default once both workers serve it."""
    life = Life()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(life.pool.run)
        life.pool.want(WANTED)
        while both and life.serving() < 2:  # noqa: ASYNC110 - nothing announces it
            await trio.sleep(0.1)
        yield life
        nursery.cancel_scope.cancel("the test is over")


async def test_the_second_worker_imports_when_the_first_one_is_warm_and_gives_way(autojump_clock: MockClock) -> None:
    async with living(both=False) as life:
        await trio.sleep(1)
        assert len(life.started) == 1
        assert set(life.started[0].told()) == {WarmUp, LoadGeneration}, "side by side"
        await trio.sleep(5)
        assert len(life.started) == 2
        assert [worker.gently() for worker in life.started] == [False, True]


async def test_a_first_worker_that_hangs_does_not_keep_the_second_one_from_coming(autojump_clock: MockClock) -> None:
    life = Life()
    life.house.warm_s = 1000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(life.pool.run)
        await trio.sleep(SPARE_WAITS_S + 1)
        assert len(life.started) == 2
        nursery.cancel_scope.cancel("the test is over")


async def test_patience_ends_when_a_worker_is_warm(autojump_clock: MockClock) -> None:
    async with living(both=False) as life:
        await trio.sleep(1)
        worker = life.started[0]
        assert (worker.silence_ms, worker.busy_silence_ms) == (SPEC.silence_ms, SPEC.busy_silence_ms)
        await trio.sleep(3)
        assert (worker.silence_ms, worker.busy_silence_ms) == (LIMITS.silence_ms, LIMITS.silence_ms)


async def test_a_dead_worker_is_replaced_behind_the_one_that_serves(autojump_clock: MockClock) -> None:
    async with living() as life:
        life.started[0].kill("SIGKILL")
        await trio.sleep(0.1)
        assert len(life.started) == 2, "the queries that are repeated have the CPU first"
        await trio.sleep(1)
        assert len(life.started) == 3
        assert life.started[2].gently()
        await trio.sleep(10)
        assert life.serving() == 2


async def test_after_a_double_death_one_comes_up_after_the_other(autojump_clock: MockClock) -> None:
    async with living() as life:
        life.started[0].kill("SIGKILL")
        life.started[1].kill("SIGKILL")
        await trio.sleep(1)
        assert len(life.started) == 3
        assert not life.started[2].gently()
        await trio.sleep(10)
        assert len(life.started) == 4
        assert life.serving() == 2


async def test_an_old_worker_is_replaced_while_the_other_one_serves_and_never_both(autojump_clock: MockClock) -> None:
    async with living() as life:
        first, second = life.started
        await trio.sleep(LIMITS.recycle_after_s)
        least = 2
        for _ in range(300):
            await trio.sleep(0.1)
            least = min(least, life.serving())
        assert first.retired and second.retired
        assert least == 1
        assert len(life.started) == 4
        assert life.serving() == 2
        assert life.pool.recycled == 2
        assert life.pool.last_error is None, "that was no death"


async def test_the_spare_takes_over_before_the_active_one_leaves(autojump_clock: MockClock) -> None:
    async with living() as life:
        active = life.active()
        await trio.sleep(LARGE_AGE_S_MIN)
        assert isinstance(active, ImportingWorker)
        active.grow(LIMITS.rss_bytes_max + 1)
        await trio.sleep(2 * RECYCLE_LOOK_S)
        assert active.retired
        assert life.active() is not active
        assert life.serving() == 1


async def test_a_large_worker_stays_while_the_other_one_cannot_serve(autojump_clock: MockClock) -> None:
    async with living() as life:
        await trio.sleep(LARGE_AGE_S_MIN)
        first, second = life.started
        second.fall_silent()
        first.grow(LIMITS.rss_bytes_max + 1)
        await trio.sleep(5 * RECYCLE_LOOK_S)
        assert not first.retired
        second.speak()
        await trio.sleep(2 * RECYCLE_LOOK_S)
        assert first.retired


async def test_a_worker_far_beyond_its_size_is_killed_and_rests_longer_each_time(autojump_clock: MockClock) -> None:
    async with living() as life:
        life.started[1].kill("so that nobody could take over")
        await trio.sleep(0.1)
        for number in range(5):
            life.started[-1].grow(2 * LIMITS.rss_bytes_max)
            life.started[0].grow(2 * LIMITS.rss_bytes_max)
            await trio.sleep(2 * RECYCLE_LOOK_S)
            assert life.started[0].is_dead(), number
        await trio.sleep(60)
        text = life.pool.last_error
        assert text is not None and "config: searcher.rss_bytes_max" in text
        assert life.pool.recycled >= 2


async def test_a_generation_is_closed_everywhere_before_its_files_may_go(autojump_clock: MockClock) -> None:
    async with living() as life:
        assert await life.pool.drop(WANTED.view)
        assert [worker.told()[-1] for worker in life.started] == [DropGeneration, DropGeneration]


async def test_a_delta_is_opened_before_the_view_that_shares_its_generation_is_closed(
    autojump_clock: MockClock,
) -> None:
    async with living() as life:
        before = WANTED
        for number in (1, 2):
            ref = msgspec.structs.replace(WANTED, delta=number, delta_path="d")
            assert await life.pool.prepare(ref)
            assert len(life.pair.serving(ref.view)) == 1, "the spare has it open before anybody asks for it"
            slow = next(worker for worker in life.started if worker is not life.pair.serving(ref.view)[0].worker)
            slow.answers_after_s = 10
            life.pool.want(ref)
            assert life.pair.active.serves(ref.view)
            assert not await life.pool.drop(before.view)
            assert [slot.worker for slot in life.pair.serving(before.view)] == [slow]
            await trio.sleep(20)
            assert len(life.pair.serving(ref.view)) == 2
            assert await life.pool.drop(before.view)
            assert life.pair.serving(before.view) == []
            assert [call.message for call in slow.calls[-2:]] == [
                LoadGeneration(generation=ref),
                DropGeneration(view=before.view),
            ]
            slow.answers_after_s = life.house.warm_s
            before = ref
        life.pool.distrust(before.view)
        assert life.pair.serving(before.view) == []
