"""Jobs in core's worker as a process, killed again and again: no work is lost, and none is done under two leases."""

import random
from pathlib import Path
from typing import Any

import msgspec

from actors.messages.base import Message, Row, Rows
from actors.messages.jobs import AddJob, CompleteJob, LeaseJobs, ListJobs
from actors.settings import RoomSetup
from tests.unit.actors.room_kit import killed
from tests.worker_client import WorkerClient

Json = dict[str, Any]
WORKER = "actors.core_writer.worker"
JOBS = 30
ROUNDS = 6


def row(client: WorkerClient, message: Message) -> Json:
    return msgspec.json.decode(client.call(message, Row).row, type=Json)


def test_work_that_was_put_down_is_done_once_whatever_is_killed(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    setup = RoomSetup(directory=str(tmp_path / "room"))
    asked: list[Message] = [AddJob(kind="embed", payload={"n": n}, request_id=f"a{n}") for n in range(JOBS)]
    added: set[str] = set()
    reported: dict[str, int] = {}
    for turn in range(ROUNDS):
        client = WorkerClient(WORKER, setup)
        for _ in range(generator.randint(1, 2 * JOBS // ROUNDS)):
            if asked:
                added.add(row(client, asked[0])["job_id"])
                asked.pop(0)
            for job in row(client, LeaseJobs(kinds=("embed",), lease_ms=60_000, limit=2))["jobs"]:
                assert job["job_id"] not in reported
                if generator.random() < 0.5:
                    row(client, CompleteJob(job_id=job["job_id"], token=job["token"]))
                    reported[job["job_id"]] = job["token"]
        client.begin(asked[0] if asked else LeaseJobs(kinds=("embed",), lease_id=f"l{turn}"))
        killed(client)
    with WorkerClient(WORKER, setup) as client:
        for message in asked:
            added.add(row(client, message)["job_id"])
        found = msgspec.json.decode(client.call(ListJobs(limit=500), Rows).rows, type=list[Json])
        assert {job["job_id"] for job in found} == added
        assert sorted(job["payload"]["n"] for job in found) == list(range(JOBS))
        assert {job["job_id"] for job in found if job["status"] == "done"} == set(reported)
        assert {job["status"] for job in found} <= {"done", "leased", "queued"}
