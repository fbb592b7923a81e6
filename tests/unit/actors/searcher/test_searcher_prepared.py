"""Views that were opened and will never serve: prepared and not published, or given up while they were being opened."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import trio
import trio.lowlevel
from trio.testing import MockClock

from actors.actor import Board
from actors.mailbox import deadline_after
from actors.messages.base import Done
from actors.messages.index import GenerationRef, Progress
from actors.messages.searcher import DropGeneration, LoadGeneration, PrepareGeneration
from actors.notices import BuilderNotice, SearcherNotice
from actors.worker import Worker, WorkerSpec
from tests.unit.actors.searcher.scripted_workers import ScriptedWorker
from tests.unit.actors.searcher.test_searcher_actor import SERVING, WorkerlessHouse, living

BUILDING = Progress(stage="delta prepare")
DELTAS = 20


def delta(number: int) -> GenerationRef:
    return msgspec.structs.replace(SERVING, delta=number, delta_path=f"gen-000001-d{number:04d}")


class StaffedHouse(WorkerlessHouse):
    """A house whose search workers do what they are told, each call in its time."""

    def __init__(self, call_s: float) -> None:
        super().__init__()
        self.call_s = call_s
        self.started: list[ScriptedWorker] = []

    async def start_worker(self, spec: WorkerSpec, nursery: trio.Nursery) -> Worker:
        """Start one."""
        worker = ScriptedWorker(f"w{len(self.started)}", answers_after_s=self.call_s)
        self.started.append(worker)
        nursery.start_soon(worker.live)
        return worker

    def open_views(self) -> list[set[int]]:
        """Return what each worker has open, by what it was told."""
        return [_open_in(worker) for worker in self.started]

    async def prepare(self, generation: GenerationRef) -> None:
        """Have a view opened before it is published, as the builder does."""
        await self.mailbox.ask(PrepareGeneration(generation=generation), Done, deadline_ns=deadline_after(1e6))


def _open_in(worker: ScriptedWorker) -> set[int]:
    views: set[int] = set()
    for call in worker.calls:
        match call.message:
            case LoadGeneration():
                views.add(call.message.generation.view)
            case DropGeneration():
                views.discard(call.message.view)
            case _:
                pass
    return views


@asynccontextmanager
async def staffed(
    index: Board[BuilderNotice], board: Board[SearcherNotice], *, call_s: float = 0.01
) -> AsyncIterator[StaffedHouse]:
    """Give a house whose two search workers have opened what serves."""
    house = StaffedHouse(call_s)
    async with living(index=index, board=board, house=house):
        while board.notice.loaded < 2:  # noqa: ASYNC110 - a clock of the test's
            await trio.sleep(0.1)
        yield house


async def test_views_that_were_prepared_and_not_published_are_closed(autojump_clock: MockClock) -> None:
    index = Board(BuilderNotice(serving=delta(0), delta_building=BUILDING))
    board = Board(SearcherNotice())
    async with staffed(index, board) as house:
        for number in range(1, DELTAS):
            await house.prepare(delta(number))
            await trio.sleep(2)
            assert {delta(0).view, delta(number).view} in house.open_views(), "the one that is about to be published"
            assert board.notice.views == 2
        index.post(BuilderNotice(serving=delta(0)))
        await trio.sleep(2)
        assert house.open_views() == [{delta(0).view}, {delta(0).view}], "nothing is about to be published"
        assert board.notice.views == 1


async def test_a_view_that_is_given_up_while_it_is_being_opened_is_closed(autojump_clock: MockClock) -> None:
    index = Board(BuilderNotice(serving=delta(0)))
    board = Board(SearcherNotice())
    async with staffed(index, board, call_s=5.0) as house:
        index.post(BuilderNotice(serving=delta(1)))
        await trio.sleep(2)
        index.post(BuilderNotice(serving=delta(2)))
        await trio.sleep(60)
        assert house.open_views() == [{delta(2).view}, {delta(2).view}]
        assert board.notice.views == 1 and board.notice.loaded == 2


async def test_a_view_that_is_prepared_is_there_when_it_is_served(autojump_clock: MockClock) -> None:
    index = Board(BuilderNotice(serving=delta(0), delta_building=BUILDING))
    board = Board(SearcherNotice())
    async with staffed(index, board, call_s=1.0) as house:
        await house.prepare(delta(1))
        await trio.sleep(10)  # a comparison, or a flip on a slow disk
        index.post(BuilderNotice(serving=delta(1)))
        await trio.lowlevel.checkpoint()
        while board.notice.view != delta(1).view:
            await trio.lowlevel.checkpoint()
        assert board.notice.loaded == 1, "served without being opened anew"
        await trio.sleep(5)
        assert board.notice.loaded == 2
        opened = [call.message for worker in house.started for call in worker.calls]
        assert sum(message == LoadGeneration(generation=delta(1)) for message in opened) == 2, "once by each"
