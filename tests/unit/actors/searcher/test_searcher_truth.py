"""For how long a search waits for the owners of the truth."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from actors.errors import BulkheadError, InvalidParams
from actors.mailbox import Mailbox, deadline_after
from actors.messages.base import Candidates, Filters
from actors.messages.core_writer import SearchUnits
from actors.searcher.truth import BRIEF_S, Owners
from tests.unit.actors.searcher.test_searcher_actor import WorkerlessHouse

LIMIT_S = 2.0
QUESTION = SearchUnits(query="q", newer_than=0, limit=10, filters=Filters(), tenant="default")
NOTHING = Candidates(found=[], latest=0, behind=0)


@asynccontextmanager
async def owners() -> AsyncIterator[tuple[Owners, Mailbox]]:
    """Give the owners, and the mailbox of the one that is asked."""
    house = WorkerlessHouse()
    asked = Owners(house)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asked.run)
        await trio.testing.wait_all_tasks_blocked()
        yield asked, house.truth["core_writer"]
        nursery.cancel_scope.cancel("the test is over")


async def waited_s(asked: Owners, *, patient: bool = False) -> float:
    """Ask a question that is not answered, and return how long that took."""
    began = trio.current_time()
    try:
        found = await asked.ask("core_writer", QUESTION, limit_ns=deadline_after(LIMIT_S), patient=patient)
    except BulkheadError:
        found = None
    assert found is None
    return trio.current_time() - began


async def test_an_owner_that_hangs_is_waited_for_once(autojump_clock: MockClock) -> None:
    async with owners() as (asked, _):
        assert await waited_s(asked) > BRIEF_S * 10
        for _ in range(3):
            assert await waited_s(asked) == pytest.approx(BRIEF_S)


async def test_who_has_nothing_but_the_truth_waits_all_the_same(autojump_clock: MockClock) -> None:
    async with owners() as (asked, _):
        await waited_s(asked)
        assert await waited_s(asked, patient=True) > BRIEF_S * 10


async def test_an_answer_that_comes_late_restores_the_trust(autojump_clock: MockClock) -> None:
    async with owners() as (asked, mailbox):
        await waited_s(asked)
        await waited_s(asked)
        mailbox.finish(await mailbox.take(), NOTHING)
        await trio.testing.wait_all_tasks_blocked()
        assert await waited_s(asked) > BRIEF_S * 10


async def test_an_error_of_the_owner_is_an_answer(autojump_clock: MockClock) -> None:
    async with owners() as (asked, mailbox):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_refuse, mailbox)
            with pytest.raises(InvalidParams):
                await asked.ask("core_writer", QUESTION, limit_ns=deadline_after(LIMIT_S), patient=False)
        assert await waited_s(asked) > BRIEF_S * 10


async def _refuse(mailbox: Mailbox) -> None:
    mailbox.refuse(await mailbox.take(), InvalidParams("no such filter"))
