"""The searcher's mail: what waits behind searches, and what a search becomes when a worker must not have it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.actor import Board, House
from actors.mailbox import Mailbox, deadline_after
from actors.messages.base import Candidates, Done, Filters, Message
from actors.messages.core_writer import SearchUnits
from actors.messages.forgetting import ListTombstones, Tombstones
from actors.messages.index import Covers, GenerationRef
from actors.messages.searcher import GetIndexView, IndexView, Search, SearchAnswer, ServeGeneration
from actors.messages.transcript_appender import SearchEvents
from actors.notices import BuilderNotice, ForgetNotice, SearchActivity, SearcherNotice
from actors.searcher.actor import AT_ONCE, Searcher, tray_of
from actors.searcher.blame import Case
from actors.settings import EmbeddingSettings, SearcherSettings
from actors.worker import Worker, WorkerDied, WorkerSpec
from tests.unit.actors.searcher.scripted_workers import SPEC

Answer = TypeVar("Answer", bound=msgspec.Struct)

FAR_S = 1e6
WAITING = 8
SERVING = GenerationRef(
    generation=1,
    path="gen-000001",
    delta=0,
    covers=Covers(event_seq=5, core_seq=2),
    rows={},
    vectors_have=0,
    vectors_want=0,
    identity=None,
    built_at=0,
)


class WorkerlessHouse(House):
    """A house whose search workers never come up, and whose truth is a mailbox that the test serves."""

    def __init__(self) -> None:
        self.truth = {
            name: Mailbox(name, count_max=1000, bytes_max=10_000_000, refuses_early=False)
            for name in ("transcript_appender", "core_writer")
        }
        super().__init__(
            name="searcher",
            epoch=1,
            mailbox=Mailbox("searcher", count_max=WAITING, bytes_max=10_000_000, tray_of=tray_of, refuses_early=False),
            others=self.truth,
            workers=[],
            started=lambda: None,
            degraded=lambda reason, lacks: None,
        )

    async def ask(self, actor: str, message: Message, answer: type[Answer], *, deadline_ns: int) -> Answer:
        """Say at once that nothing was forgotten."""
        if isinstance(message, ListTombstones):
            return cast(Answer, Tombstones(tombstones=[], more=False))
        return await super().ask(actor, message, answer, deadline_ns=deadline_ns)

    async def wait_for_truth(self, *actors: str, seconds: float) -> None:
        """Begin at once."""

    async def start_worker(self, spec: WorkerSpec, nursery: trio.Nursery) -> Worker:
        """Never come."""
        await trio.sleep_forever()
        raise AssertionError


@asynccontextmanager
async def living(
    serving: GenerationRef | None = None,
    *,
    board: Board[SearcherNotice] | None = None,
    index: Board[BuilderNotice] | None = None,
    house: WorkerlessHouse | None = None,
) -> AsyncIterator[WorkerlessHouse]:
    """Give a house with a searcher in it."""
    house = house or WorkerlessHouse()
    searcher = Searcher(
        house,
        spec=SPEC,
        limits=SearcherSettings(),
        embedding=EmbeddingSettings(provider="none"),
        index=index or Board(BuilderNotice(serving=serving)),
        board=board or Board(SearcherNotice()),
        searching=Board(SearchActivity()),
        index_directory=Path("nowhere"),
        forgetting=Board(ForgetNotice()),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(searcher.run)
        yield house
        nursery.cancel_scope.cancel("the test is over")


def search(text: str = "q") -> Search:
    return Search(query=text, limit=10, corpora=("events", "units"), filters=Filters(), mode="hybrid")


async def ask(house: House, message: Search) -> dict[str, Any]:
    answer = await house.mailbox.ask(message, SearchAnswer, deadline_ns=deadline_after(FAR_S))
    body: dict[str, Any] = json.loads(bytes(answer.body))
    return body


async def test_the_index_is_told_things_however_many_searches_wait(autojump_clock: MockClock) -> None:
    """The truth does not answer, so every search stays in hand, and as many again as fit wait in the mailbox."""
    async with living() as house, trio.open_nursery() as nursery:
        for number in range(AT_ONCE + WAITING):
            nursery.start_soon(ask, house, search(str(number)))
            if number % WAITING == WAITING - 1:
                await wait_all_tasks_blocked()
        assert house.mailbox.statistics().count == WAITING
        view = await house.mailbox.ask(GetIndexView(), IndexView, deadline_ns=deadline_after(1))
        assert view == IndexView(serving=None, leased=[])
        nursery.cancel_scope.cancel("that is all")


async def test_a_condemned_search_is_answered_by_the_words_of_the_whole_truth(autojump_clock: MockClock) -> None:
    message = search("kills LanceDB")
    async with living(SERVING) as house, trio.open_nursery() as nursery:
        for _ in range(2):
            case = Case(house.quarantine, msgspec.msgpack.encode(message))
            case.died(WorkerDied("searcher", 1, "ended by signal SIGSEGV"), query=b"", alone=True)
        asked: list[int] = []
        nursery.start_soon(serve_truth, house, asked)
        found = await ask(house, message)
        assert [each["code"] for each in found["degraded"]] == ["poison_query"]
        other = await ask(house, search("does not"))
        assert [each["code"] for each in other["degraded"]] == ["search_worker_unavailable"]
        assert asked.count(0) >= 4, "both were asked for everything, twice"
        nursery.cancel_scope.cancel("that is all")


async def test_a_view_is_served_leased_and_named_as_one(autojump_clock: MockClock) -> None:
    delta = msgspec.structs.replace(
        SERVING, delta=7, delta_path="gen-000001-d0007", covers=Covers(event_seq=9, core_seq=4)
    )
    board = Board(SearcherNotice())
    async with living(SERVING, board=board) as house:
        deadline_ns = deadline_after(FAR_S)
        await house.mailbox.ask(ServeGeneration(generation=delta), Done, deadline_ns=deadline_ns)
        view = await house.mailbox.ask(GetIndexView(), IndexView, deadline_ns=deadline_ns)
        assert view == IndexView(serving=delta.view, leased=[delta.view])
        assert (board.notice.serving, board.notice.delta, board.notice.view) == (1, 7, delta.view)


async def serve_truth(house: WorkerlessHouse, asked: list[int]) -> None:
    """Answer that there is nothing, and note from where on they were asked."""

    async def serve(mailbox: Mailbox) -> None:
        while True:
            envelope = await mailbox.take()
            assert isinstance(envelope.message, SearchEvents | SearchUnits)
            asked.append(envelope.message.newer_than)
            mailbox.finish(envelope, Candidates(found=[], latest=0, behind=0))

    async with trio.open_nursery() as nursery:
        for mailbox in house.truth.values():
            nursery.start_soon(serve, mailbox)
