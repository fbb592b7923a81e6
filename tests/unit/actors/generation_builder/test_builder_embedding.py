"""The background embedding under a mock clock: it rests when there is nothing to do, and no news finds it deaf."""

import msgspec
import pytest
import trio
from trio.testing import MockClock

from actors.actor import Board, House
from actors.generation_builder.embedding import EmbedBehind
from actors.mailbox import Mailbox
from actors.messages.index import Covers, GenerationRef
from actors.notices import BuilderNotice, SearchActivity
from actors.settings import EmbeddingSettings, GenerationBuilderSettings
from actors.worker import Worker, WorkerSpec
from tests.unit.actors.generation_builder.builder_kit import IDENTITY

SPEC = WorkerSpec(name="embedder", module="nowhere", settings=msgspec.Raw(b"{}"))
COMPLETE = GenerationRef(
    generation=1,
    path="gen-000001",
    covers=Covers(event_seq=1, core_seq=0),
    rows={},
    vectors_have=1,
    vectors_want=1,
    identity=IDENTITY,
    built_at=0,
)
LACKING = msgspec.structs.replace(COMPLETE, generation=2, path="gen-000002", vectors_want=2)


class WaitingHouse(House):
    """A house that says when it is asked for a worker, and has none."""

    def __init__(self) -> None:
        super().__init__(
            name="generation_builder",
            epoch=1,
            mailbox=Mailbox("generation_builder", count_max=8, bytes_max=1000),
            others={},
            workers=[],
            started=lambda: None,
            degraded=lambda reason, lacks: None,
        )
        self.asked = trio.Event()

    async def start_worker(self, spec: WorkerSpec, nursery: trio.Nursery) -> Worker:
        """Note that there is work, and keep it waiting."""
        self.asked.set()
        return await trio.sleep_forever()


@pytest.mark.parametrize("ticks", range(6))
async def test_a_generation_that_comes_while_it_lies_down_wakes_it_at_once(
    ticks: int, autojump_clock: MockClock
) -> None:
    """Published a tick too early for the task that waits, the list of a generation was left until the next news."""
    house = WaitingHouse()
    board = Board(BuilderNotice(serving=COMPLETE, identity=IDENTITY))
    embed = EmbedBehind(
        house,
        spec=SPEC,
        limits=GenerationBuilderSettings(),
        embedding=EmbeddingSettings(),
        board=board,
        searching=Board(SearchActivity()),
        wish=lambda reason: None,
        wish_delta=lambda: None,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(embed.run)
        for _ in range(ticks):
            await trio.lowlevel.checkpoint()
        board.post(msgspec.structs.replace(board.notice, serving=LACKING))
        began = trio.current_time()
        with trio.fail_after(60):
            await house.asked.wait()
        assert trio.current_time() == began, "only the periodic look found it"
        nursery.cancel_scope.cancel()
