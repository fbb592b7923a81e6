"""Core's worker as a process: killed between two acknowledgements, and refused files."""

import random
import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from actors.core_writer.store import VERSIONS
from actors.errors import Quarantined
from actors.messages.base import Row, Statistics
from actors.messages.core_writer import CoreStatus, GetUnit, PutUnit
from actors.settings import RoomSetup
from tests.unit.actors.room_kit import killed, refused_start
from tests.worker_client import WorkerClient

WORKER = "actors.core_writer.worker"


def put(number: int) -> PutUnit:
    return PutUnit(unit_id="u", type="plan", scope="user", text=f"text {number}", request_id=f"r{number}")


def test_nothing_acknowledged_is_lost_or_done_twice_by_sigkill(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    setup = RoomSetup(directory=str(tmp_path / "room"))
    versions: dict[int, int] = {}
    sent = 0
    for _ in range(5):
        client = WorkerClient(WORKER, setup)
        for _ in range(generator.randint(0, 15)):
            sent += 1
            answer = msgspec.json.decode(client.call(put(sent), Row).row, type=dict[str, Any])
            versions[sent] = answer["version"]
        sent += 1
        client.begin(put(sent))
        killed(client)
    with WorkerClient(WORKER, setup) as client:
        for number, version in versions.items():
            again = msgspec.json.decode(client.call(put(number), Row).row, type=dict[str, Any])
            assert (again["version"], again["deduplicated"]) == (version, True)
        latest = msgspec.json.decode(client.call(GetUnit(unit_id="u"), Row).row, type=dict[str, Any])
        assert len(versions) <= latest["version"] <= sent
        assert client.call(CoreStatus(), Statistics).values["core_seq"] == latest["version"] == latest["core_seq"]


def test_a_newer_or_foreign_file_keeps_the_worker_from_starting(tmp_path: Path) -> None:
    setup = RoomSetup(directory=str(tmp_path / "room"), identity="mine")
    with WorkerClient(WORKER, setup) as client:
        client.call(put(1), Row)
    other = msgspec.structs.replace(setup, identity="other")
    assert refused_start(WORKER, other).code == Quarantined.code
    connection = sqlite3.connect(tmp_path / "room" / "core.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    refusal = refused_start(WORKER, setup)
    assert refusal.code == Quarantined.code
    assert f"schema version 99, this program knows up to {len(VERSIONS)}" in refusal.error
