"""The seat of the builder's worker: a replacement is no death, and whoever calls meanwhile does not notice."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.actor import House
from actors.generation_builder.seat import Seat, hard_limit, keep_below
from actors.mailbox import Mailbox, deadline_after
from actors.messages.base import Row
from actors.settings import RoomSetup
from actors.worker import Worker, WorkerDied, WorkerSpec
from tests.unit.actors.pooled_room import Linger, Meet

SPEC = WorkerSpec(
    name="pooled",
    module="tests.unit.actors.pooled_room",
    settings=msgspec.Raw(msgspec.msgpack.encode(RoomSetup(directory=""))),
    start_ms=60_000,
    beat_ms=20,
)


class Place:
    """A seat and the house that knows its workers."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.workers: list[Worker] = []
        house = House(
            name="generation_builder",
            epoch=1,
            mailbox=Mailbox("generation_builder", count_max=1, bytes_max=1),
            others={},
            workers=self.workers,
            started=lambda: None,
            degraded=lambda reason, without: None,
        )
        self.seat = Seat(house, SPEC, nursery)

    async def meet(self, count: int) -> bytes:
        return (await self.seat.call(Meet(count=count), Row, deadline_ns=deadline_after(60))).row


@asynccontextmanager
async def seated() -> AsyncIterator[Place]:
    async with trio.open_nursery() as nursery:
        place = Place(nursery)
        await place.seat.fill()
        yield place
        nursery.cancel_scope.cancel("the test is over")


async def test_a_replacement_is_another_process_and_no_death() -> None:
    async with seated() as place:
        await place.meet(1)
        first = place.workers[0].pid
        await place.seat.replace("it is old", pending_s=10)
        assert [worker.pid for worker in place.workers] != [first] and len(place.workers) == 1
        await place.meet(1)
        assert place.seat.replaced == 1


async def test_calls_that_come_meanwhile_wait_for_the_successor() -> None:
    async with seated() as place, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: place.seat.replace("it is old", pending_s=10))
        await wait_all_tasks_blocked()
        assert place.seat.rss_bytes == 0, "the seat is empty"
        await place.meet(1)
        assert place.seat.replaced == 1


async def test_a_call_that_a_hasty_replacement_cut_off_is_made_once_more() -> None:
    """It needs two: the first one is cut off with its worker, and meets the second at the successor's."""
    rows: list[bytes] = []

    async def meet(place: Place) -> None:
        rows.append(await place.meet(2))

    async with seated() as place, trio.open_nursery() as nursery:
        nursery.start_soon(meet, place)
        await wait_all_tasks_blocked()
        await place.seat.replace("now", pending_s=0.0)
        assert not rows
        await meet(place)
    assert len(rows) == 2


async def test_a_worker_that_dies_unasked_ends_the_actor() -> None:
    with pytest.RaisesGroup(WorkerDied, flatten_subgroups=True):
        async with seated() as place:
            place.seat.kill("too large")
            with pytest.raises(WorkerDied, match="too large"):
                await place.seat.call(Linger(), Row, deadline_ns=deadline_after(60))
            await trio.sleep_forever()


async def test_a_worker_beyond_the_hard_limit_is_killed_with_the_reason() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(WorkerDied, match="bytes resident, hard limit is 1048576")):
        async with seated() as place:
            await keep_below(place.seat, 1 << 20)


async def test_a_worker_below_the_hard_limit_is_left_alone() -> None:
    async with seated() as place:
        with trio.move_on_after(0.6):
            await keep_below(place.seat, 1 << 40)
        assert place.seat.rss_bytes > 0
        await place.meet(1)


def test_the_hard_limit_leaves_room_for_one_step() -> None:
    assert hard_limit(2000) == 3000
