"""Workers with faults inside: what was asked for happens, exactly there, is written down, and can be taken back."""

from pathlib import Path
from typing import Any

import pytest
import trio

from actors.messages.base import Statistics
from actors.messages.transcript_appender import AppendEvents, AppendResult, EventDraft, TranscriptStatus
from actors.worker import Worker, WorkerDied
from chaos.daemon import data_directory
from chaos.faults import control
from chaos.faults.bare import bare_worker, call

ROOM = "transcript_appender"


@pytest.fixture
def data() -> Any:
    with data_directory() as path:
        path.mkdir()
        yield path


def append(text: str, request_id: str | None = None) -> AppendEvents:
    draft = EventDraft(session_id="s", kind="message", actor="user", content=text, request_id=request_id)
    return AppendEvents(tenant="default", events=(draft,))


async def write(worker: Worker, text: str, request_id: str | None = None, *, seconds: float = 10.0) -> AppendResult:
    return await call(worker, append(text, request_id), AppendResult, seconds=seconds)


async def events(worker: Worker) -> object:
    return (await call(worker, TranscriptStatus(), Statistics)).values["events"]


def kinds(data: Path) -> list[str]:
    return [each.fault for each in control.fired(data)]


async def test_without_a_fault_the_launcher_changes_nothing(data: Path) -> None:
    async with bare_worker(data, ROOM) as worker:
        await write(worker, "one")
        assert await events(worker) == 1
        assert (await control.status(data, ROOM))["disk"] is None
    assert kinds(data) == []


@pytest.mark.parametrize(
    "fault", [{"fault": "nap"}, {"fault": "hang", "lain": "write"}, {"fault": "hang", "calls": "x"}]
)
async def test_an_unknown_fault_is_refused_before_it_is_sent(data: Path, fault: dict[str, Any]) -> None:
    with pytest.raises(control.FaultRefused):
        await control.inject(data, ROOM, **fault)


async def test_a_fault_that_this_worker_cannot_have_is_refused_by_it(data: Path) -> None:
    async with bare_worker(data, ROOM) as worker:
        with pytest.raises(control.FaultRefused, match="at_start"):
            await control.inject(data, ROOM, fault="disk_fail", operation="sync", error="IOERR_FSYNC")
        with pytest.raises(control.FaultRefused, match="at_start"):
            await control.inject(data, ROOM, fault="mutation", name="dedupe_off")
        await write(worker, "one")


async def test_a_bug_hits_the_call_it_is_meant_for_and_no_other(data: Path) -> None:
    async with bare_worker(data, ROOM) as worker:
        await control.inject(data, ROOM, fault="raise", text="poison", calls=None)
        await write(worker, "harmless")
        with pytest.raises(WorkerDied, match="RuntimeError"):
            await write(worker, "this is poison")
    assert kinds(data) == ["raise"]
    async with bare_worker(data, ROOM) as worker:
        assert await events(worker) == 1


async def test_skip_and_calls_count_the_calls(data: Path) -> None:
    async with bare_worker(data, ROOM) as worker:
        await control.inject(data, ROOM, fault="exit", lane="write", skip=2)
        await events(worker)
        await write(worker, "one")
        await write(worker, "two")
        with pytest.raises(WorkerDied):
            await write(worker, "three")


async def test_the_process_may_end_after_the_commit_and_before_the_answer(data: Path) -> None:
    async with bare_worker(data, ROOM) as worker:
        await control.inject(data, ROOM, fault="exit", abort=True, after=True)
        with pytest.raises(WorkerDied):
            await write(worker, "one", "r1")
    async with bare_worker(data, ROOM) as worker:
        assert await events(worker) == 1
        assert (await write(worker, "one", "r1")).results[0].deduplicated


async def test_a_hanging_lane_leaves_the_other_alone_until_it_is_cleared(data: Path) -> None:
    async with bare_worker(data, ROOM) as worker, trio.open_nursery() as nursery:
        await control.inject(data, ROOM, fault="hang", lane="write")
        nursery.start_soon(write, worker, "one")
        await control.wait_fired(data, ROOM, "hang")
        assert await events(worker) == 0
        await control.clear(data, ROOM)
    assert kinds(data) == ["hang"]


async def test_a_held_gil_silences_the_whole_process(data: Path) -> None:
    async with bare_worker(data, ROOM) as worker:
        await control.inject(data, ROOM, fault="hang", hold_gil=True, seconds=60)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expect_death, worker)
            await control.wait_fired(data, ROOM, "hang")
            with pytest.raises(control.WorkerSilent), trio.fail_after(20):
                await control.status(data, ROOM)
            assert not worker.statistics().rss_bytes or worker.statistics().pending == 1
            worker.kill("enough")


async def _expect_death(worker: Worker) -> None:
    with pytest.raises(WorkerDied):
        await write(worker, "one", seconds=60)


async def test_exhausted_memory_ends_the_process_and_harms_nothing(data: Path) -> None:
    async with bare_worker(data, ROOM) as worker:
        await write(worker, "one")
        await control.inject(data, ROOM, fault="memory", lane="write")
        with pytest.raises(WorkerDied), trio.fail_after(60):
            await write(worker, "two")
    assert kinds(data) == ["memory"]
    async with bare_worker(data, ROOM) as worker:
        assert await events(worker) == 1


async def test_limits_are_lowered_and_put_back(data: Path) -> None:
    async with bare_worker(data, ROOM) as worker:
        await control.inject(data, ROOM, fault="descriptors")
        assert (await control.status(data, ROOM))["worker"] == ROOM
        await control.inject(data, ROOM, fault="file_size", limit=1 << 30)
        await control.inject(data, ROOM, fault="junk")
        await control.clear(data, ROOM)
        await write(worker, "one")
    assert kinds(data) == ["descriptors", "file_size", "junk"]


async def test_a_worker_can_be_kept_from_being_ready_a_number_of_times(data: Path) -> None:
    control.at_start(data, ROOM, {"fault": "hang", "where": "open"}, starts=1)
    with trio.move_on_after(30) as waited:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_start, data)
            await control.wait_fired(data, ROOM, "hang")
            nursery.cancel_scope.cancel()
    assert not waited.cancelled_caught
    async with bare_worker(data, ROOM) as worker:
        await write(worker, "one")


async def _start(data: Path) -> None:
    async with bare_worker(data, ROOM):
        raise AssertionError("the worker became ready")


async def test_the_disk_of_a_real_room_fails_when_told_to(data: Path) -> None:
    control.at_start(data, ROOM, {"fault": "disk_count"})
    async with bare_worker(data, ROOM) as worker:
        await write(worker, "one")
        await control.inject(
            data, ROOM, fault="disk_fail", operation="sync", error="IOERR_FSYNC", file="wal", name="00000001.db"
        )
        with pytest.raises(Exception, match="IOERR_FSYNC") as raised:
            await write(worker, "two")
        assert raised.value.outcome == "unknown"  # type: ignore[attr-defined]
    assert kinds(data) == ["disk_fail"]


@pytest.mark.parametrize(("mutation", "kept"), [(None, 3), ("synchronous_off", 0)])
async def test_the_power_cut_of_a_real_room(data: Path, mutation: str | None, kept: int) -> None:
    async with bare_worker(data, ROOM):
        pass
    faults = [{"fault": "disk_volatile"}, *([{"fault": "mutation", "name": mutation}] if mutation else [])]
    control.at_start(data, ROOM, *faults)
    async with bare_worker(data, ROOM) as worker:
        for text in ("one", "two", "three"):
            await write(worker, text)
        assert await events(worker) == 3
        worker.kill("power cut")
    control.forget_start(data, ROOM)
    async with bare_worker(data, ROOM) as worker:
        assert await events(worker) == kept


async def test_without_its_memory_of_requests_the_room_stores_twice(data: Path) -> None:
    control.at_start(data, ROOM, {"fault": "mutation", "name": "dedupe_off"})
    async with bare_worker(data, ROOM) as worker:
        for _ in range(2):
            await write(worker, "one", "r1")
        assert await events(worker) == 2


async def test_acknowledged_before_the_commit_is_lost_at_a_kill(data: Path) -> None:
    control.at_start(data, ROOM, {"fault": "mutation", "name": "early_acknowledgement"})
    async with bare_worker(data, ROOM) as worker:
        await write(worker, "one")
        await write(worker, "two")
        worker.kill("power cut")
    control.forget_start(data, ROOM)
    async with bare_worker(data, ROOM) as worker:
        assert await events(worker) == 1


async def test_a_mutation_without_a_target_fails_the_start(data: Path) -> None:
    control.at_start(data, "cache_manager", {"fault": "mutation", "name": "dedupe_off"})
    with pytest.RaisesGroup(WorkerDied, flatten_subgroups=True, allow_unwrapped=True):
        async with bare_worker(data, "cache_manager"):
            pass
