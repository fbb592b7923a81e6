"""The memory of the builder's workers: replaced between two deltas without a death, killed in the middle of a build."""

import json
from pathlib import Path
from typing import Any

import psutil

from actors.embedding.space import CANARY
from chaos.client import Client
from chaos.daemon import wait_until
from tests.integration.conftest import Serve, embedding_by, running
from tests.unit.actors.embedding.fake_endpoint import Answer, FakeEndpoint, vectors

MIB = 2**20
# The keys of [generation_builder] come first, its table is the last one of the configuration of all tests.
OLD = "builds_per_worker_max = 1\n"


async def built(client: Client, number: int) -> dict[str, Any]:
    """Append an event, wait until a generation holds it, and return the status of the builder."""
    await client.call("event.append", {"session_id": "s", "actor": "user", "content": f"event {number}"})
    await wait_until(
        client,
        lambda index: index["covers"] is not None and index["covers"]["event_seq"] == number,
        method="index.status",
    )
    status: dict[str, Any] = (await client.call("system.status"))["actors"]["generation_builder"]
    return status


async def test_a_worker_is_replaced_after_its_deltas_and_nobody_counts_a_death(serve: Serve) -> None:
    async with serve(OLD) as (_, client):
        await built(client, 1)
        pids: list[int] = []
        for number in range(2, 5):
            pids.append(await another_pid(client, pids))
            await built(client, number)
        await another_pid(client, pids)
        builder = (await client.call("system.status"))["actors"]["generation_builder"]
        assert len(set(pids)) == 3 and not any(psutil.pid_exists(pid) for pid in pids)
        assert (builder["restarts"], builder["epoch"], builder["state"]) == (0, 1, "ready")
        index = await wait_until(client, lambda index: index["workers_replaced"] >= 3, method="index.status")
        assert index["last_error"] is None


async def another_pid(client: Client, known: list[int]) -> int:
    status = await wait_until(
        client, lambda status: status["actors"]["generation_builder"]["pid"] not in (None, *known)
    )
    return int(status["actors"]["generation_builder"]["pid"])


async def test_a_worker_that_is_large_after_a_delta_is_replaced(serve: Serve, data: Path) -> None:
    """How large it is, the first daemon tells: that depends on the machine and on the version of LanceDB."""
    async with serve() as (_, client):
        await built(client, 1)
        await built(client, 2)
        size = await rss_after_build(client)
    async with serve(f"rss_bytes_max = {size * 8 // 10}\n") as (_, client):
        await built(client, 3)
        index = await wait_until(client, lambda index: index["workers_replaced"] >= 1, method="index.status")
        status = await client.call("system.status")
        assert status["actors"]["generation_builder"]["restarts"] == 0 and index["last_error"] is None


async def rss_after_build(client: Client) -> int:
    """Return the size of the worker as a beat told it that came after the build (LanceDB alone is 150 MiB)."""
    status = await wait_until(
        client, lambda status: status["actors"]["generation_builder"]["workers"][0]["rss_bytes"] > 150 * MIB
    )
    return int(status["actors"]["generation_builder"]["workers"][0]["rss_bytes"])


async def test_a_worker_that_outgrows_the_hard_limit_during_a_build_is_killed_and_the_build_has_failed(
    serve: Serve,
) -> None:
    async with serve(f"rss_bytes_max = {60 * MIB}\n") as (_, client):
        await client.call("event.append", {"session_id": "s", "actor": "user", "content": "words"})
        index = await wait_until(client, lambda index: index["last_error"] is not None, method="index.status")
        assert f"bytes resident, hard limit is {90 * MIB}" in index["last_error"]
        status = await client.call("system.status")
        builder = status["actors"]["generation_builder"]
        assert (builder["state"], builder["restarts"]) == ("ready", 0), "only the process that built it is gone"
        assert status["index"]["generation"] is None
        found = await client.call("memory.search", {"query": "words"})
        assert found["hits"] and found["generation"] is None


async def test_an_embedding_worker_that_is_too_large_is_replaced_and_every_text_is_embedded_once(
    data: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    """A provider that hangs holds the first worker still, so that its size can be read."""
    texts = [f"words of number {number}" for number in range(10)]
    endpoint.script = lambda texts: Answer(200, {}, hang=True)
    async with running(data, config, embedding_by(endpoint)) as (_, client):
        events = [{"session_id": "s", "actor": "user", "content": text} for text in texts]
        await client.call("event.append_many", {"events": events})
        size = await embedder_rss(client, endpoint)
    endpoint.script = vectors
    endpoint.requests.clear()
    limits = f"embed_texts_per_call = 4\nembed_rss_bytes_max = {size * 8 // 10}\n"
    async with running(data, config, embedding_by(endpoint) + limits) as (_, client):
        await wait_until(client, lambda index: index["vectors"] == {"have": 10, "want": 10}, method="index.status")
        status = await client.call("system.status")
        assert status["actors"]["generation_builder"]["restarts"] == 0
    asked = [text for request in endpoint.texts for text in request if text != CANARY]
    assert sorted(asked) == sorted(texts)
    lines = [json.loads(line) for line in (data / "logs" / "daemon.log").read_text().splitlines()]
    causes = [line["cause"] for line in lines if line["event"] == "worker replaced"]
    assert causes and all("embed_rss_bytes_max" in cause for cause in causes)


async def embedder_rss(client: Client, endpoint: FakeEndpoint) -> int:
    def sizes(status: dict[str, Any]) -> list[int]:
        workers = status["actors"]["generation_builder"]["workers"]
        return [worker["rss_bytes"] for worker in workers if worker["name"] == "embedder" and endpoint.requests]

    before: list[int] = []
    while True:  # until two beats in a row tell the same
        status = await wait_until(client, lambda status: sizes(status) and sizes(status)[0] > 0)
        if sizes(status) == before:
            return before[0]
        before = sizes(status)
        await wait_until(client, lambda status, uptime=status["uptime_s"]: status["uptime_s"] > uptime + 0.5)
