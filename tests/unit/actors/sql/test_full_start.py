"""A worker of a truth that starts on a disk without a free byte: it reads, and becomes the writer once there is room.

The disk is a real file system, full to the last byte. What a writer that was replaced may still do is the question
here: until its successor has taken over it may commit, from then on never again.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors.errors import DiskFull, StoreBroken
from actors.frames import Crash, Failure
from actors.messages.base import Message, Row, Rows, Statistics
from actors.messages.core_writer import CoreStatus, GetUnit, PutUnit
from actors.messages.transcript_appender import AppendEvents, AppendResult, EventDraft, SessionHistory, TranscriptStatus
from actors.settings import RoomSetup
from tests.small_disk import Filler, small_disk_at
from tests.unit.actors.room_kit import killed, rows_of
from tests.worker_client import WorkerClient

SIZE_MIB = 8
EPOCH = "SELECT value FROM meta WHERE name = 'writer_epoch'"
GIVE_UP_S = 20.0


class Truth:
    """One of the two truths on a small disk, and how one writes to it and asks it for its state."""

    def __init__(self, disk: Path, name: str) -> None:
        self.name = name
        self.setup = RoomSetup(directory=str(disk / name))
        self.path = disk / name / ("core.db" if name == "core_writer" else "00000001.db")
        self.filler = Filler(disk)

    def start(self, epoch: int = 1) -> WorkerClient:
        """Start a worker."""
        return WorkerClient(f"actors.{self.name}.worker", self.setup, epoch=epoch)

    def writing(self, number: int) -> Message:
        """Return a message that writes something."""
        text = f"note {number} " + "x" * 3000
        if self.name == "core_writer":
            return PutUnit(unit_id=f"u{number}", type="plan", scope="user", text=text, request_id=f"r{number}")
        draft = EventDraft(session_id="s", actor="user", content=text, event_id=f"e{number}", request_id=f"r{number}")
        return AppendEvents(events=(draft,))

    def write(self, client: WorkerClient, number: int) -> None:
        """Write something."""
        client.call(self.writing(number), Row if self.name == "core_writer" else AppendResult)

    def read(self, client: WorkerClient) -> None:
        """Read something that the first writer wrote."""
        if self.name == "core_writer":
            assert client.call(GetUnit(unit_id="u1"), Row).row
        else:
            assert b"note 1 " in bytes(client.call(SessionHistory(session_id="s", after_seq=0, limit=10), Rows).rows)

    def count(self, client: WorkerClient) -> int:
        """Return how many writes there are."""
        values = self.status(client).values
        return int(values["core_seq" if self.name == "core_writer" else "seq"] or 0)

    def status(self, client: WorkerClient) -> Statistics:
        """Return the status."""
        return client.call(CoreStatus() if self.name == "core_writer" else TranscriptStatus(), Statistics)

    def leave_full(self, count: int = 10) -> None:
        """Write so much, end as SIGKILL does, and fill the disk."""
        client = self.start()
        for number in range(1, count + 1):
            self.write(client, number)
        killed(client)
        self.filler.take_all()


@pytest.fixture(params=["core_writer", "transcript_appender"])
def truth(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Truth]:
    with small_disk_at(tmp_path / "disk", SIZE_MIB) as disk:
        yield Truth(disk, request.param)


def wait(holds: Callable[[], bool]) -> None:
    give_up = time.monotonic() + GIVE_UP_S
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def test_it_serves_reads_refuses_writes_and_writes_as_soon_as_there_is_room(truth: Truth) -> None:
    truth.leave_full()
    with truth.start(epoch=2) as client:
        assert "SQLITE_FULL" in str(client.ready.info["read_only"])
        truth.read(client)
        with pytest.raises(DiskFull, match="has no writer yet") as refused:
            truth.write(client, 11)
        assert refused.value.outcome == "not_executed" and refused.value.retryable and refused.value.hint
        assert truth.count(client) == 10
        truth.filler.give_back()
        truth.write(client, 11)
        assert truth.status(client).values["read_only"] is None
        assert truth.count(client) == 11
        truth.read(client)
    assert rows_of(truth.path, EPOCH) == [(2,)]


def test_it_becomes_the_writer_by_itself(truth: Truth) -> None:
    truth.leave_full()
    with truth.start(epoch=2) as client:
        assert truth.status(client).values["read_only"] is not None
        truth.filler.give_back()
        wait(lambda: truth.status(client).values["read_only"] is None)
    assert rows_of(truth.path, EPOCH) == [(2,)]


def test_its_attempts_leave_no_trace(truth: Truth) -> None:
    """Each attempt that failed is one that never was: the epoch counts those that wrote, one by one."""
    truth.leave_full()
    for epoch in (2, 3):
        client = truth.start(epoch=epoch)
        for number in range(11, 15):
            with pytest.raises(DiskFull):
                truth.write(client, number)
        truth.read(client)
        killed(client)
    truth.filler.give_back()
    with truth.start(epoch=4) as client:
        assert truth.count(client) == 10
        truth.write(client, 11)
    assert rows_of(truth.path, EPOCH) == [(2,)]


def test_the_writer_before_it_commits_nothing_once_it_has_taken_over(truth: Truth) -> None:
    old = truth.start(epoch=1)
    for number in range(1, 11):
        truth.write(old, number)
    os.kill(old.process.pid, signal.SIGSTOP)
    truth.filler.take_all()
    with truth.start(epoch=2) as new:
        assert new.ready.info["read_only"]
        truth.read(new)
        old.begin(truth.writing(50))  # in the pipe of the stopped process
        truth.filler.give_back()
        truth.write(new, 11)
        os.kill(old.process.pid, signal.SIGCONT)
        frame = old.receive(Failure, Crash)
        assert isinstance(frame, Failure | Crash)
        code = frame.error.code if isinstance(frame, Failure) else frame.code
        assert code == StoreBroken.code
        old.process.wait(GIVE_UP_S)
        killed(old)
        assert truth.count(new) == 11
        truth.write(new, 12)


def test_what_the_writer_before_it_still_committed_is_known_when_it_takes_over(truth: Truth) -> None:
    """It has told nobody anything that this could contradict: it read, and reads see what is there."""
    old = truth.start(epoch=1)
    for number in range(1, 11):
        truth.write(old, number)
    truth.filler.take_all()
    with truth.start(epoch=2) as new:
        assert new.ready.info["read_only"] and truth.count(new) == 10
        os.kill(new.process.pid, signal.SIGSTOP)
        truth.filler.give_back()
        truth.write(old, 11)
        os.kill(new.process.pid, signal.SIGCONT)
        truth.write(new, 12)
        assert truth.count(new) == 12, "numbers go on where the other one ended"
        truth.write(new, 11)  # the same request
        assert truth.count(new) == 12
        killed(old)
