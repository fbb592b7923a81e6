"""A lane with several threads: calls run at the same time, an interrupt finds the one that is meant."""

from collections.abc import Iterator
from typing import cast

import pytest

from actors.errors import Interrupted
from actors.frames import Failure, Reply, Report
from actors.messages.base import Row
from actors.settings import RoomSetup
from tests.unit.actors.pooled_room import Alone, Linger, Meet
from tests.worker_client import WorkerClient


@pytest.fixture
def client() -> Iterator[WorkerClient]:
    with WorkerClient("tests.unit.actors.pooled_room", RoomSetup(directory="")) as client:
        yield client


def replies(client: WorkerClient, calls: list[int]) -> list[int]:
    """Return the numbers of the calls that were answered without an error, sorted, once all have ended."""
    frames = [cast(Reply | Failure, client.receive(Reply, Failure)) for _ in calls]
    return sorted(frame.seq for frame in frames if isinstance(frame, Reply))


def test_every_thread_of_a_pool_is_opened(client: WorkerClient) -> None:
    assert client.ready.info == {"threads_many": 3, "threads_one": 1}


def test_calls_on_a_pool_run_at_the_same_time(client: WorkerClient) -> None:
    """Three calls that wait for each other; on fewer threads they would all run into their deadline."""
    calls = [client.begin(Meet(count=3), seconds=20) for _ in range(3)]
    assert replies(client, calls) == sorted(calls)


def test_calls_on_a_lane_without_a_pool_never_do(client: WorkerClient) -> None:
    calls = [client.begin(Alone()) for _ in range(5)]
    assert client.finish(calls[-1], Row).row == b"1"


def test_an_interrupt_reaches_only_the_call_that_is_meant(client: WorkerClient) -> None:
    first, second = client.begin(Linger()), client.begin(Linger())
    here = {cast(Report, client.receive(Report)).seq for _ in range(2)}
    assert here == {first, second}
    client.interrupt(second)
    with pytest.raises(Interrupted, match=f"call {second} was interrupted"):
        client.finish(second, Row)
    client.interrupt(first)
    with pytest.raises(Interrupted, match=f"call {first} was interrupted"):
        client.finish(first, Row)


def test_a_pool_leaves_at_eof() -> None:
    client = WorkerClient("tests.unit.actors.pooled_room", RoomSetup(directory=""))
    assert client.close() == 0
