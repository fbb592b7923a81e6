"""Who is asked for a search, when it is repeated, and who waits. Under a mock clock, with workers that are scripted."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.errors import GenerationSuspect
from actors.mailbox import deadline_after
from actors.messages.base import Filters, Row
from actors.messages.searcher import Query, QueryResult, ReadLines
from actors.quarantine import Quarantine
from actors.searcher.asking import OWED_S_MAX, SPARE_EVERY, Asker, Inquiry, NobodyServes, NoTurn
from actors.searcher.blame import Case
from actors.searcher.hedging import HEDGE_S_MAX, HEDGES_SAVED_MAX, SAMPLES_MIN
from actors.searcher.pair import Pair
from actors.worker import WorkerDied
from tests.unit.actors.searcher.scripted_workers import RESULT, ScriptedWorker

VIEW = 7
SEATS = 2
FAR_S = 1e6
READ = ReadLines(path="n.md", from_line=1, lines=1, sources=[])


class House:
    """A pair with two scripted workers that have the generation open, and an asker that runs."""

    def __init__(self) -> None:
        self.pair = Pair(lambda: None)
        self.asker = Asker(self.pair, seats=SEATS)
        self.active, self.spare = ScriptedWorker("active"), ScriptedWorker("spare")
        self.quarantine = Quarantine(monotonic_s=lambda: 0.0, wall_us=lambda: 0)
        for slot, worker in zip(self.pair, (self.active, self.spare), strict=True):
            slot.employ(worker)
            slot.loaded.add(VIEW)

    def inquiry(self, text: str = "q", *, seconds: float = FAR_S, client: int = 0) -> Inquiry:
        """Return a search."""
        query = Query(
            view=VIEW,
            query=text,
            limit=10,
            corpora=("events",),
            filters=Filters(),
            mode="hybrid",
            tenant="default",
        )
        case = Case(self.quarantine, text.encode())
        return Inquiry(query, deadline_ns=deadline_after(seconds), client=client, view=VIEW, case=case)

    async def search(self, text: str = "q", *, seconds: float = FAR_S, client: int = 0) -> QueryResult:
        """Make a search."""
        return await self.asker.ask(self.inquiry(text, seconds=seconds, client=client), QueryResult)

    async def make_pace(self) -> None:
        """Let the asker learn that searches are quick."""
        self.active.answers_after_s = self.spare.answers_after_s = 0.01
        for _ in range(SAMPLES_MIN):
            await self.search()
        self.active.answers_after_s = self.spare.answers_after_s = None
        self.active.calls.clear()
        self.spare.calls.clear()


@asynccontextmanager
async def living() -> AsyncIterator[House]:
    """Give a house that lives."""
    house = House()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.asker.run)
        await wait_all_tasks_blocked()
        yield house
        nursery.cancel_scope.cancel("the test is over")


class Asked:
    """Searches that are under way: what came of each, in the order in which they ended."""

    def __init__(self) -> None:
        self.outcomes: list[QueryResult | Row | Exception] = []

    async def note(self, ask: Callable[[], Awaitable[QueryResult | Row]]) -> None:
        """Ask and note what came of it."""
        try:
            self.outcomes.append(await ask())
        except (WorkerDied, NobodyServes, NoTurn, GenerationSuspect) as error:
            self.outcomes.append(error)


@asynccontextmanager
async def asking(*asks: Callable[[], Awaitable[QueryResult | Row]]) -> AsyncIterator[Asked]:
    """Have several searches under way; those that are not answered at the end are cancelled."""
    asked = Asked()
    async with trio.open_nursery() as nursery:
        for ask in asks:
            nursery.start_soon(asked.note, ask)
            await trio.testing.wait_all_tasks_blocked()
        yield asked
        nursery.cancel_scope.cancel("the rest is not of interest")


async def settled() -> None:
    """Let everything happen that needs no time."""
    await wait_all_tasks_blocked()


async def test_the_active_worker_answers_and_the_spare_is_left_alone(autojump_clock: MockClock) -> None:
    async with living() as house:
        async with asking(house.search) as asked:
            house.active.calls[0].finish()
            await settled()
            assert asked.outcomes == [RESULT]
        assert house.spare.calls == []


async def test_now_and_then_the_spare_is_asked_so_that_it_stays_warm(autojump_clock: MockClock) -> None:
    async with living() as house:
        house.active.answers_after_s = house.spare.answers_after_s = 0.01
        for _ in range(2 * SPARE_EVERY):
            await house.search()
        assert len(house.spare.calls) == 2
        assert house.pair.failovers == 0


async def test_a_search_that_takes_long_is_given_to_the_spare_and_the_first_answer_counts(
    autojump_clock: MockClock,
) -> None:
    async with living() as house:
        await house.make_pace()
        async with asking(house.search) as asked:
            await trio.sleep(0.03)
            assert house.spare.calls == [], "this is how long searches take"
            await trio.sleep(0.05)
            assert len(house.spare.calls) == 1
            house.spare.calls[0].finish()
            await settled()
            assert asked.outcomes == [RESULT]
            house.active.calls[0].finish()
            await settled()
        assert (asked.outcomes, house.asker.hedges) == ([RESULT], 1)


async def test_a_slow_worker_that_answers_first_after_all_keeps_its_place(autojump_clock: MockClock) -> None:
    async with living() as house:
        await house.make_pace()
        async with asking(house.search) as asked:
            await trio.sleep(0.1)
            house.active.calls[0].finish()
            await settled()
            assert asked.outcomes == [RESULT]
        async with asking(house.search):
            assert len(house.active.calls) == 2
        assert house.pair.failovers == 0


async def test_when_a_hedge_wins_against_a_mute_worker_everything_goes_to_the_other_one(
    autojump_clock: MockClock,
) -> None:
    """As with a stopped process: what it has in hand is repeated at once, and no later search waits for it."""
    async with living() as house:
        await house.make_pace()
        async with asking(house.search, lambda: house.search("second")) as asked:
            await trio.sleep(0.1)
            for call in house.spare.calls:
                call.finish()
            await settled()
            assert asked.outcomes == [RESULT, RESULT]
            async with asking(house.search):
                assert len(house.spare.calls) == 3
                assert len(house.active.calls) == 2
        assert house.pair.failovers == 1


async def test_a_worker_that_owes_is_trusted_again_when_it_answers(autojump_clock: MockClock) -> None:
    async with living() as house:
        await house.make_pace()
        async with asking(house.search):
            await trio.sleep(0.1)
            house.spare.calls[0].finish()
            await settled()
            slot = next(slot for slot in house.pair if slot.worker is house.active)
            assert not slot.trusted
            house.active.calls[0].finish()
            await settled()
            assert slot.trusted


async def test_a_worker_that_owes_for_long_is_killed(autojump_clock: MockClock) -> None:
    async with living() as house:
        await house.make_pace()
        async with asking(house.search):
            await trio.sleep(0.1)
            house.spare.calls[0].finish()
            await trio.sleep(OWED_S_MAX - 1)
            assert not house.active.is_dead()
            await trio.sleep(2)
            assert house.active.is_dead()
        assert house.quarantine.empty, "the search was answered; it is not to blame"


async def test_hedges_end_with_their_budget(autojump_clock: MockClock) -> None:
    """Each of these is answered late but by its first worker, as on a machine that is overloaded."""
    async with living() as house:
        await house.make_pace()
        for _ in range(40):
            async with asking(house.search):
                await trio.sleep(HEDGE_S_MAX)
                for call in (*house.active.calls, *house.spare.calls):
                    call.finish()
                await settled()
        assert HEDGES_SAVED_MAX <= house.asker.hedges <= HEDGES_SAVED_MAX + 5


async def test_a_silent_worker_is_not_asked_and_what_it_has_is_repeated_without_budget(
    autojump_clock: MockClock,
) -> None:
    async with living() as house:
        searches = [lambda number=number: house.search(str(number)) for number in range(SEATS)]
        async with asking(*searches) as asked:
            house.active.fall_silent()
            await trio.sleep(0.1)
            assert len(house.spare.calls) == SEATS
            for call in house.spare.calls:
                call.finish()
            await settled()
            assert asked.outcomes == [RESULT] * SEATS
        assert (house.asker.hedges, house.asker.repeats) == (0, SEATS)
        async with asking(house.search):
            assert len(house.active.calls) == SEATS
            assert len(house.spare.calls) == SEATS + 1


async def test_two_silent_workers_are_better_than_none(autojump_clock: MockClock) -> None:
    async with living() as house:
        house.active.fall_silent()
        house.spare.fall_silent()
        async with asking(house.search) as asked:
            house.active.calls[0].finish()
            await settled()
            assert asked.outcomes == [RESULT]


async def test_what_a_dead_worker_had_in_hand_is_repeated_at_once(autojump_clock: MockClock) -> None:
    async with living() as house:
        async with asking(house.search, house.search) as asked:
            house.active.kill("SIGKILL")
            await settled()
            assert len(house.spare.calls) == 2
            for call in house.spare.calls:
                call.finish()
            await settled()
            assert asked.outcomes == [RESULT, RESULT]
        assert house.pair.failovers == 1
        assert house.quarantine.empty


async def test_a_search_that_both_workers_died_with_is_not_tried_again(autojump_clock: MockClock) -> None:
    async with living() as house, asking(house.search) as asked:
        house.active.kill("SIGSEGV")
        await settled()
        house.spare.kill("SIGSEGV")
        await settled()
        assert [str(each) for each in asked.outcomes] == ["worker searcher (pid 0): SIGSEGV"]


async def test_a_condemned_search_is_not_given_to_the_other_worker(autojump_clock: MockClock) -> None:
    async with living() as house:
        Case(house.quarantine, b"q").died(WorkerDied("searcher", 1, "before"), query=b"", alone=True)
        async with asking(house.search) as asked:
            house.active.kill("SIGSEGV")
            await settled()
            assert len(asked.outcomes) == 1
        assert house.spare.calls == []
        assert house.inquiry().case is not None
        assert Case(house.quarantine, b"q").condemned


async def test_a_hedged_search_is_blamed_for_one_death_once(autojump_clock: MockClock) -> None:
    """It is in the hands of both workers when the first one dies, and the second one answers it."""
    async with living() as house:
        await house.make_pace()
        async with asking(house.search) as asked:
            await trio.sleep(0.1)
            house.active.kill("SIGKILL")
            await settled()
            house.spare.calls[0].finish()
            await settled()
            assert asked.outcomes == [RESULT]
        assert not Case(house.quarantine, b"q").condemned
        assert not Case(house.quarantine, b"q").died(WorkerDied("searcher", 1, "later"), query=b"", alone=True)


async def test_without_a_worker_nobody_waits(autojump_clock: MockClock) -> None:
    async with living() as house:
        for slot in house.pair:
            slot.bury()
        async with asking(house.search) as asked:
            assert len(asked.outcomes) == 1
            assert isinstance(asked.outcomes[0], NobodyServes)


async def test_a_worker_is_given_no_more_than_it_has_seats_and_the_line_keeps_its_order(
    autojump_clock: MockClock,
) -> None:
    async with living() as house:
        searches = [lambda number=number: house.search(str(number)) for number in range(5)]
        async with asking(*searches) as asked:
            assert texts(house.active) == ["0", "1"]
            house.active.calls[1].finish()
            await settled()
            assert texts(house.active) == ["0", "1", "2"]
            house.active.calls[0].finish()
            house.active.calls[2].finish()
            await settled()
            assert texts(house.active) == ["0", "1", "2", "3", "4"]
            assert len(asked.outcomes) == 3


async def test_a_client_that_floods_does_not_keep_another_one_waiting(autojump_clock: MockClock) -> None:
    async with living() as house:
        flood = [lambda number=number: house.search(f"flood {number}", client=1) for number in range(SEATS + 10)]
        async with asking(*flood, lambda: house.search("other", client=2)):
            for _ in range(3):
                house.active.calls[-1].finish()
                await settled()
            assert "other" in texts(house.active)


async def test_what_is_repeated_comes_before_what_waits(autojump_clock: MockClock) -> None:
    async with living() as house:
        searches = [lambda number=number: house.search(str(number)) for number in range(4)]
        async with asking(*searches):
            house.active.kill("SIGKILL")
            await settled()
            assert sorted(texts(house.spare)) == ["0", "1"]
            for call in tuple(house.spare.calls):
                call.finish()
            await settled()
            assert texts(house.spare)[2:] == ["2", "3"]


async def test_who_leaves_the_line_is_not_given_a_turn(autojump_clock: MockClock) -> None:
    async with living() as house, asking(house.search, house.search):
        with trio.move_on_after(0.1) as patience:
            await house.search("late")
        assert patience.cancelled_caught
        async with asking(lambda: house.search("next")):
            house.active.calls[0].finish()
            await settled()
            assert texts(house.active)[2:] == ["next"]


async def test_nobody_waits_for_a_turn_that_will_not_come_in_time(autojump_clock: MockClock) -> None:
    """Five pairs are before it, and a search takes 10 ms; the deadline is real time, which stands still here."""
    async with living() as house:
        await house.make_pace()
        searches = [lambda number=number: house.search(str(number)) for number in range(SEATS + 10)]
        async with asking(*searches, lambda: house.search("hasty", seconds=0.02)) as asked:
            assert [type(each) for each in asked.outcomes] == [NoTurn]


async def test_an_operating_error_is_an_answer_and_is_not_repeated(autojump_clock: MockClock) -> None:
    async with living() as house:
        async with asking(house.search) as asked:
            house.active.calls[0].finish(GenerationSuspect("damaged"))
            await settled()
            assert [str(each) for each in asked.outcomes] == ["damaged"]
        assert house.spare.calls == []


async def test_a_read_goes_to_the_spare_and_is_repeated_when_it_is_silent_but_not_when_it_dies(
    autojump_clock: MockClock,
) -> None:
    async with living() as house:

        def read() -> Awaitable[Row]:
            return house.asker.ask(Inquiry(READ, deadline_ns=deadline_after(FAR_S)), Row)

        async with asking(read) as asked:
            house.spare.fall_silent()
            await trio.sleep(0.1)
            assert len(house.active.calls) == 1
            house.spare.speak()
            house.active.calls[0].finish(Row(row=b"x"))
            await settled()
            assert asked.outcomes == [Row(row=b"x")]
        async with asking(read) as asked:
            assert len(house.spare.calls) == 2
            house.spare.kill("SIGSEGV")
            await settled()
            assert [type(each) for each in asked.outcomes] == [WorkerDied]
        assert len(house.active.calls) == 1


def texts(worker: ScriptedWorker) -> list[str]:
    return [call.message.query for call in worker.calls if isinstance(call.message, Query)]
