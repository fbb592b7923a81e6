"""Deltas that were opened by the spare and then not published: its descriptors and its open views stay bounded."""

from pathlib import Path
from typing import Any

import psutil

from chaos.client import Client
from chaos.daemon import wait_until
from tests.integration.conftest import Serve, indexed

# The keys of [generation_builder] come first. Pauses double with each failure; nothing is tidied up meanwhile.
HASTY = "delta_every_ms = 10\nretire_grace_ms = 600000\n"
ROUNDS = 6


async def append(client: Client) -> None:
    await client.call("event.append", {"session_id": "s", "actor": "user", "content": "oolong tea"})


def descriptors(status: dict[str, Any]) -> int:
    """Return how many descriptors both search workers have."""
    pids = [status["searcher"]["active_pid"], status["searcher"]["spare_pid"]]
    return sum(psutil.Process(pid).num_fds() for pid in pids)


async def settled(client: Client) -> dict[str, Any]:
    """Wait until both search workers have nothing open but what serves."""
    status: dict[str, Any] = await wait_until(
        client, lambda s: s["searcher"]["loaded"] == 2 and s["searcher"]["views"] == 1
    )
    return status


async def test_deltas_that_cannot_be_published_leave_nothing_open(serve: Serve, data: Path) -> None:
    async with serve(HASTY) as (_, client):
        await append(client)
        await indexed(client)
        before = descriptors(await settled(client))
        obstacle = data / "generation_builder" / "CURRENT.tmp"
        obstacle.mkdir()  # where the next pointer is written before it takes the place of the last
        published = (await client.call("index.status"))["deltas"]["published"]
        await append(client)
        highest = 0
        for _ in range(ROUNDS):
            before_this = highest
            await wait_until(client, lambda _, than=before_this: newest(data) > than, method="index.status")
            highest = newest(data)
        status = await client.call("index.status")
        assert status["deltas"]["published"] == published and "CURRENT" in status["deltas"]["error"]
        assert descriptors(await settled(client)) <= before + 8
        obstacle.rmdir()
        await indexed(client, lambda s: s["deltas"]["published"] > published)
        assert (await client.call("memory.search", {"query": "oolong"}))["degraded"] == []


def newest(data: Path) -> int:
    """Return the number of the last delta that was sealed."""
    return max(
        (int(path.name.rpartition("-d")[2]) for path in (data / "generation_builder").glob("gen-*-d????")), default=0
    )
