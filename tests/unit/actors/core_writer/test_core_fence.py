"""Core's worker as a process: fenced out by its successor, on a disk that fails, and with a WAL that was damaged."""

import os
import resource
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.child import EXIT_CRASH
from actors.errors import NotFound, Quarantined, StoreBroken
from actors.frames import Crash, Failure
from actors.messages.base import Candidates, Row, Statistics
from actors.messages.core_writer import CoreStatus, GetUnit, PutUnit, SearchUnits
from actors.settings import RoomSetup
from tests.unit.actors.room_kit import killed, rows_of
from tests.worker_client import WorkerClient

WORKER = "actors.core_writer.worker"
HEADER, FRAME = 32, 24 + 4096


@pytest.fixture
def setup(tmp_path: Path) -> RoomSetup:
    return RoomSetup(directory=str(tmp_path / "core_writer"))


def put(number: int, text: str = "text") -> PutUnit:
    return PutUnit(unit_id=f"u{number}", type="plan", scope="user", text=f"{text} {number}", request_id=f"r{number}")


def get(client: WorkerClient, number: int) -> dict[str, Any]:
    return msgspec.json.decode(client.call(GetUnit(unit_id=f"u{number}"), Row).row, type=dict[str, Any])


def leave(client: WorkerClient) -> tuple[Failure | None, Crash]:
    """Return what the worker answers and what it says when it leaves, and wait until it has."""
    failure: Failure | None = None
    while not isinstance(frame := client.receive(Failure, Crash), Crash):
        assert isinstance(frame, Failure)
        failure = frame
    assert client.process.wait(10) == EXIT_CRASH
    return failure, frame


def test_a_writer_that_wakes_up_after_its_successor_opened_the_file_commits_nothing(setup: RoomSetup) -> None:
    old = WorkerClient(WORKER, setup, epoch=1)
    old.call(put(1), Row)
    os.kill(old.process.pid, signal.SIGSTOP)
    old.begin(put(2, "by the old one"))  # it is in the pipe of the stopped process
    with WorkerClient(WORKER, setup, epoch=2) as new:
        new.call(put(3, "by the new one"), Row)
        os.kill(old.process.pid, signal.SIGCONT)
        refused, last_words = leave(old)
        killed(old)
        # When it was stopped for long, its upkeep may come before the call; then it leaves without answering it.
        if refused is not None:
            assert (refused.error.code, refused.error.outcome) == (StoreBroken.code, "not_executed")
        assert last_words.code == StoreBroken.code
        assert "another writer has taken over" in last_words.error
        assert get(new, 3)["core_seq"] == 2
        with pytest.raises(NotFound):
            get(new, 2)
        new.call(put(2, "again"), Row)  # the successor is not disturbed
        assert new.call(CoreStatus(), Statistics).values["core_seq"] == 3


def test_each_opening_takes_the_next_writer_epoch(setup: RoomSetup) -> None:
    for _ in range(3):
        with WorkerClient(WORKER, setup) as client:
            client.call(CoreStatus(), Statistics)
    path = Path(setup.directory) / "core.db"
    assert rows_of(path, "SELECT value FROM meta WHERE name = 'writer_epoch'") == [(3,)]


# ---------------------------------------------------------------- a disk that fails


@pytest.mark.parametrize("room_bytes", [0, 2 * FRAME, 5 * FRAME + 100, 9 * FRAME])
def test_a_write_that_fails_in_the_middle_is_never_acknowledged(setup: RoomSetup, room_bytes: int) -> None:
    """The limit of the file size lets the write of the WAL fail with EFBIG, an I/O error, at different places."""
    client = WorkerClient(WORKER, setup)
    client.call(put(1), Row)
    wal = Path(setup.directory) / "core.db-wal"
    limit = wal.stat().st_size + room_bytes
    resource.prlimit(client.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    sent, failed = 1, None
    while failed is None:
        sent += 1
        assert sent < 50, "the limit was not hit"
        try:
            client.call(put(sent, "x" * 3000), Row)
        except StoreBroken as error:
            failed = error
    assert failed.outcome in ("unknown", "not_executed")
    assert leave(client)[1].code == StoreBroken.code, "the supervisor must know a lost store from a bug"
    killed(client)
    with WorkerClient(WORKER, setup) as again:
        for number in range(1, sent):
            assert get(again, number)["core_seq"] == number, "acknowledged"
        answer = msgspec.json.decode(again.call(put(sent, "x" * 3000), Row).row, type=dict[str, Any])
        assert answer["core_seq"] == sent, "present once, whatever became of the first try"
        if failed.outcome == "not_executed":
            assert "deduplicated" not in answer


# ---------------------------------------------------------------- the WAL


def worker_with_wal(setup: RoomSetup, count: int) -> Path:
    """Let a worker write and die; return the WAL it leaves."""
    client = WorkerClient(WORKER, setup)
    for number in range(count):
        client.call(put(number), Row)
    killed(client)
    return Path(setup.directory) / "core.db-wal"


def finding(setup: RoomSetup) -> str:
    with WorkerClient(WORKER, setup) as client:
        found = str(client.ready.info.get("quarantined", ""))
        if found:
            with pytest.raises(Quarantined):
                client.call(put(1000), Row)
        return found


def test_a_zeroed_wal_is_damage_and_stays_as_it_is(setup: RoomSetup) -> None:
    wal = worker_with_wal(setup, 20)
    wal.write_bytes(bytes(wal.stat().st_size))
    (Path(setup.directory) / "keywords.db").unlink()  # which would have noticed as well
    assert "header that is none" in finding(setup)
    assert wal.read_bytes() == bytes(wal.stat().st_size)


def test_a_wal_damaged_in_the_middle_is_noticed_by_the_commits_behind(setup: RoomSetup) -> None:
    wal = worker_with_wal(setup, 20)
    (Path(setup.directory) / "keywords.db").unlink()
    content = bytearray(wal.read_bytes())
    frames = (len(content) - HEADER) // FRAME
    content[HEADER + (frames // 2) * FRAME + 500] ^= 0xFF
    wal.write_bytes(content)
    assert "commits follow that can't be read" in finding(setup)
    assert wal.read_bytes() == content


def test_a_wal_that_ends_within_its_last_commit_is_what_a_power_cut_leaves(setup: RoomSetup) -> None:
    wal = worker_with_wal(setup, 20)
    for name in ("keywords.db", "keywords.db-wal"):
        (Path(setup.directory) / name).unlink(missing_ok=True)
    content = bytearray(wal.read_bytes())
    content[-FRAME - 2000] ^= 0xFF  # a frame before the last, whose commit mark is left
    wal.write_bytes(content)
    assert finding(setup) == ""


def test_a_wal_that_was_cut_is_noticed_by_the_index_of_keywords(setup: RoomSetup) -> None:
    client = WorkerClient(WORKER, setup)
    for number in range(20):
        client.call(put(number), Row)
    assert client.call(SearchUnits(query="text"), Candidates).behind == 0
    killed(client)
    os.truncate(Path(setup.directory) / "core.db-wal", HEADER + 30 * FRAME)
    assert "its keyword index covers 20: rows are missing" in finding(setup)
