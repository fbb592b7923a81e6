"""The transcript's worker as a process: killed, interrupted, out of disk, with its files taken away."""

import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.child import EXIT_CRASH
from actors.errors import BulkheadError, DeadlineExceeded, DiskFull, Interrupted, StoreBroken
from actors.frames import Crash
from actors.messages.base import Candidates, Row, Statistics
from actors.messages.transcript_appender import (
    AppendEvents,
    AppendResult,
    EventDraft,
    GetEvent,
    SearchEvents,
    TranscriptStatus,
)
from actors.settings import RoomSetup
from tests.unit.actors.room_kit import killed, rows_of
from tests.worker_client import WorkerClient

WORKER = "actors.transcript_appender.worker"
SLOW = "tests.unit.actors.transcript_appender.slow_transcript"


def worker(folder: Path, module: str = WORKER) -> WorkerClient:
    return WorkerClient(module, RoomSetup(directory=str(folder / "room")))


def message(*contents: str, request_id: str | None = None) -> AppendEvents:
    return AppendEvents(
        events=tuple(
            EventDraft(session_id="s", actor="user", content=content, request_id=request_id) for content in contents
        )
    )


def append(client: WorkerClient, *contents: str) -> AppendResult:
    return client.call(message(*contents), AppendResult)


def found(client: WorkerClient, query: str) -> list[int]:
    answer = client.call(SearchEvents(query=query), Candidates)
    assert answer.behind == 0
    return [candidate.seq for candidate in answer.found]


def test_the_worker_makes_its_room_and_says_what_it_runs_on(tmp_path: Path) -> None:
    with worker(tmp_path) as client:
        assert client.ready.info["sqlite_version"]
        assert (tmp_path / "room").stat().st_mode & 0o777 == 0o700
        assert append(client, "hello").results[0].seq == 1
        assert found(client, "hello") == [1]


def test_leaving_issues_no_truncating_checkpoint(tmp_path: Path) -> None:
    """A checkpoint at the end of a process may be cut short; the WAL is simply read by the next one."""
    client = worker(tmp_path)
    append(client, "hello")
    size = (tmp_path / "room" / "00000001.db-wal").stat().st_size
    assert client.close() == 0
    assert (tmp_path / "room" / "00000001.db-wal").stat().st_size == size > 0
    with worker(tmp_path) as again:
        assert found(again, "hello") == [1]


def test_nothing_acknowledged_is_lost_by_sigkill(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    acknowledged: dict[str, int] = {}
    sent = 0
    for _ in range(8):
        client = worker(tmp_path)
        for _ in range(generator.randint(0, 20)):
            sent += 1
            acknowledged[f"r{sent}"] = (
                client.call(message(f"n{sent}", request_id=f"r{sent}"), AppendResult).results[0].seq
            )
        for _ in range(generator.randint(1, 5)):  # some are in hand or waiting when it dies
            sent += 1
            client.begin(message(f"n{sent}", request_id=f"r{sent}"))
        killed(client)
    with worker(tmp_path) as client:
        for request_id, seq in acknowledged.items():
            again = client.call(message("sent again", request_id=request_id), AppendResult).results[0]
            assert (again.seq, again.deduplicated) == (seq, True)
    rows = rows_of(tmp_path / "room" / "00000001.db", "SELECT seq, request_id FROM events ORDER BY seq")
    assert [seq for seq, _ in rows] == list(range(1, len(rows) + 1))
    assert len({request_id for _, request_id in rows}) == len(rows)
    assert len(acknowledged) <= len(rows) <= sent


def test_an_interrupted_read_ends_while_appends_go_on(tmp_path: Path) -> None:
    with worker(tmp_path, SLOW) as client:
        endless = client.begin(TranscriptStatus())
        assert append(client, "hello").results[0].seq == 1
        client.interrupt(endless)
        with pytest.raises(Interrupted):
            client.finish(endless, Statistics)
        assert found(client, "hello") == [1]


def test_an_interrupted_write_is_rolled_back_while_reads_go_on(tmp_path: Path) -> None:
    with worker(tmp_path, SLOW) as client:
        append(client, "hello")
        endless = client.begin(message("endless"))
        assert found(client, "hello") == [1]
        client.interrupt(endless)
        with pytest.raises(Interrupted) as caught:
            client.finish(endless, AppendResult)
        assert caught.value.outcome == "not_executed"
        assert append(client, "world").results[0].seq == 2


def test_a_call_stops_at_its_deadline_without_being_told(tmp_path: Path) -> None:
    with worker(tmp_path, SLOW) as client:
        with pytest.raises(Interrupted):
            client.call(TranscriptStatus(), Statistics, seconds=0.2)
        with pytest.raises(Interrupted):
            client.call(message("endless"), AppendResult, seconds=0.2)
        with pytest.raises(DeadlineExceeded):
            client.call(message("late"), AppendResult, seconds=-1)
        assert append(client, "hello").results[0].seq == 1


def leaves_after(client: WorkerClient, seq: int) -> BulkheadError:
    """Return the error of a call after which the worker ends its process."""
    with pytest.raises(BulkheadError) as caught:
        client.finish(seq, AppendResult)
    client.receive(Crash)
    assert client.process.wait(10) == EXIT_CRASH
    return caught.value


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit on another process is of Linux")
def test_an_io_error_ends_the_process_and_loses_nothing(tmp_path: Path) -> None:
    client = worker(tmp_path)
    append(client, "before")
    assert found(client, "before") == [1]
    resource.prlimit(client.process.pid, resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
    error = leaves_after(client, client.begin(message("x" * 400_000, request_id="r")))
    assert isinstance(error, StoreBroken)
    assert "SQLITE_IOERR" in error.message
    killed(client)
    with worker(tmp_path) as again:
        assert found(again, "before") == [1]
        assert again.call(message("x" * 400_000, request_id="r"), AppendResult).results[0].seq == 2


def test_a_segment_that_is_taken_away_is_reported_and_not_begun_anew(tmp_path: Path) -> None:
    client = worker(tmp_path)
    append(client, "hello")
    assert found(client, "hello") == [1]
    for file in (tmp_path / "room").glob("00000001.db*"):
        file.unlink()
    error = leaves_after(client, client.begin(message("lost")))
    assert isinstance(error, StoreBroken)
    assert error.outcome == "not_executed"
    killed(client)
    with worker(tmp_path) as again:
        assert again.ready.info["degraded"]
        assert append(again, "goes on").results[0].seq > 1
    assert not (tmp_path / "room" / "00000001.db").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a file system needs root on Linux")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_refuses_appends_while_reads_go_on_and_recovers(small_disk: Path) -> None:
    with worker(small_disk) as client:
        append(client, "before", "to be found")
        assert found(client, "before") == [1]
        (small_disk / "ballast").write_bytes(bytes(1 << 20))
        with pytest.raises(DiskFull) as caught:
            for _ in range(100):
                append(client, "filling " * 10_000)
        assert caught.value.outcome == "not_executed"
        event = client.call(SearchEvents(query="before"), Candidates).found[0]
        assert client.call(GetEvent(event_id=event.id), Row).row
        seq = int(client.call(TranscriptStatus(), Statistics).values["seq"] or 0)
        with pytest.raises(DiskFull):
            append(client, "filling " * 10_000)
        (small_disk / "ballast").unlink()
        assert append(client, "afterwards").results[0].seq == seq + 1
        client.call(SearchEvents(query="afterwards"), Candidates)
