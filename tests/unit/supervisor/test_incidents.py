"""Incidents are bounded files, and reporting one never waits and never raises."""

from pathlib import Path

import trio
import trio.testing

from actors.worker import WorkerDied
from supervisor.config import LogLimits
from supervisor.incidents import WAITING_MAX, Incidents


async def written(incidents: Incidents, folder: Path, count: int) -> list[Path]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(incidents.run)
        with trio.fail_after(10):
            while len(found := sorted(folder.glob("*.txt"))) < count:  # noqa: ASYNC110 - a folder has no event
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    return found


async def test_a_death_with_something_to_tell_is_a_file(tmp_path: Path) -> None:
    incidents = Incidents(tmp_path, LogLimits())
    incidents.report_death(
        "core_writer", 3, WorkerDied("core_writer", 1, "killed: silent", detail="Thread 0x1\n  hang")
    )
    (path,) = await written(incidents, tmp_path, 1)
    assert path.name.endswith("-core_writer-died.txt")
    assert "epoch 3" in path.read_text() and "Thread 0x1" in path.read_text()


async def test_a_process_killed_from_outside_has_nothing_to_tell(tmp_path: Path) -> None:
    incidents = Incidents(tmp_path, LogLimits())
    incidents.report_death("core_writer", 3, WorkerDied("core_writer", 1, "ended by signal SIGKILL"))
    assert incidents.reported == 0


async def test_a_bug_is_told_with_its_traceback(tmp_path: Path) -> None:
    incidents = Incidents(tmp_path, LogLimits())
    try:
        raise RuntimeError("a bug")
    except RuntimeError as error:
        incidents.report_death("searcher", 1, error)
    (path,) = await written(incidents, tmp_path, 1)
    assert "Traceback" in path.read_text() and "a bug" in path.read_text()


async def test_too_many_at_once_are_counted_and_dropped(tmp_path: Path) -> None:
    incidents = Incidents(tmp_path, LogLimits(incidents_kept=5))
    for number in range(WAITING_MAX + 3):
        incidents.report("flood", str(number))
    assert incidents.dropped == 3
    assert len(await written(incidents, tmp_path, 5)) <= 5


async def test_a_folder_that_cannot_be_made_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    incidents = Incidents(tmp_path / "file", LogLimits())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(incidents.run)
        incidents.report("x", "y")
        await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
