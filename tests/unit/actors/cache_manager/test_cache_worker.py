"""The cache's worker as a process: killed, and robbed of its folder."""

import shutil
from pathlib import Path

from actors.messages.base import Done, Statistics
from actors.messages.cache_manager import CacheStats, GetVectors, PutVectors, Vectors
from actors.settings import RoomSetup
from tests.unit.actors.room_kit import killed
from tests.worker_client import WorkerClient

WORKER = "actors.cache_manager.worker"
KEYS = [bytes([n]) * 32 for n in range(10)]


def fill(client: WorkerClient) -> None:
    client.call(PutVectors(identity="m", keys=KEYS, dimensions=8, blob=bytes(range(32)) * 10), Done)


def found(client: WorkerClient) -> int:
    answer = client.call(GetVectors(identity="m", keys=KEYS), Vectors)
    assert answer.blob == bytes(range(32)) * len(answer.found)
    return len(answer.found)


def test_the_cache_survives_sigkill_and_the_loss_of_its_folder(tmp_path: Path) -> None:
    setup = RoomSetup(directory=str(tmp_path / "room"))
    client = WorkerClient(WORKER, setup)
    fill(client)
    assert found(client) == 10
    killed(client)
    with WorkerClient(WORKER, setup) as client:
        assert found(client) == 10
        shutil.rmtree(tmp_path / "room")
        assert found(client) == 0
        fill(client)
        assert found(client) == 10
        assert client.call(CacheStats(), Statistics).values["recreated"] == 1
