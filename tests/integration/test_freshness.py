"""What was acknowledged is found by keyword in the next request, under load, and in a delta soon after (P8, C2).

The times are those of `python -m bench freshness`; here it counts that none is missed.
"""

import random
from pathlib import Path
from typing import Any

import trio

from chaos.client import Client, RpcError, open_socket
from chaos.daemon import wait_until
from chaos.load import new_token
from tests.integration.conftest import Serve, embedding_by, running
from tests.unit.actors.embedding.fake_endpoint import FakeEndpoint

EVENTS, CLIENTS = 500, 5


async def append_and_find(path: str, first: int, missed: list[str]) -> None:
    rng = random.Random(first)
    async with open_socket(path) as client:
        for number in range(first, EVENTS, CLIENTS):
            token = new_token(rng)
            content = f"note {number} about the index 索引 {token}"
            params = {"session_id": f"s{first}", "actor": "user", "content": content}
            appended = await client.call("event.append", params)
            found = await client.call("memory.search", {"query": token, "mode": "keyword", "limit": 2})
            if [hit["id"] for hit in found["hits"]] != [appended["event_id"]]:
                missed.append(f"{token}: {found}")


async def test_every_acknowledged_event_is_found_by_the_next_request(data: Path, config: Path) -> None:
    missed: list[str] = []
    with FakeEndpoint() as endpoint:
        async with running(data, config, embedding_by(endpoint, batch_max=16)) as (daemon, client):
            await client.call("event.append", {"session_id": "s", "actor": "user", "content": "the first one"})
            await wait_until(client, lambda s: s["index"]["generation"] is not None)
            async with trio.open_nursery() as nursery:
                for first in range(CLIENTS):
                    nursery.start_soon(append_and_find, daemon.socket_path, first, missed)
            status = await wait_until(
                client,
                lambda s: s["vectors"]["have"] == EVENTS + 1 and s["behind"]["events"] == 0,
                method="index.status",
            )
            print(f"{status['deltas']['published']} deltas, the last took {status['deltas']['took_ms']} ms")
            assert status["deltas"]["published"] >= 1, "deltas were made meanwhile, so some were found in those"
    assert missed == []


async def test_new_text_is_embedded_before_the_delta_that_holds_it(data: Path, config: Path) -> None:
    """Else it would be found by its words only, until the delta after the next one."""
    with FakeEndpoint() as endpoint:
        async with running(data, config, embedding_by(endpoint, batch_max=16)) as (_, client):
            await append(client, "the first one")
            await wait_until(
                client,
                lambda s: s["vectors"] == {"have": 1, "want": 1} and s["embedding"]["state"] == "idle",
                method="index.status",
            )
            await client.call("debug.hold_build", {"stage": "delta begin"})
            await append(client, "a second one")
            await client.call(
                "unit.put", {"unit_id": "u", "type": "plan", "scope": "global", "text": "and a unit of its own"}
            )
            await wait_until(client, lambda s: (s["index"]["deltas"]["building"] or {}).get("stage") == "delta begin")
            await wait_until(client, lambda s: s["embedding"]["embedded"] >= 3, method="index.status")
            await client.call("debug.hold_build", {"stage": None})
            status = await wait_until(
                client, lambda s: s["behind"] == {"events": 0, "units": 0} and s["delta"], method="index.status"
            )
            assert status["vectors"] == {"have": 3, "want": 3}
            sent = [text for texts in endpoint.texts for text in texts]
            assert sent.count("a second one") == sent.count("and a unit of its own") == 1


# ---------------------------------------------------------------- wait_for


async def append(client: Client, content: str, **more: object) -> dict[str, Any]:
    params = {"session_id": "s", "actor": "user", "content": content, **more}
    result: dict[str, Any] = await client.call("event.append", params, deadline_s=60)
    return result


async def test_waiting_ends_with_the_delta_that_holds_the_event(serve: Serve) -> None:
    async with serve() as (_, client):
        await append(client, "the first one", wait_for="searchable", deadline_ms=60_000)
        before = await client.call("index.status")
        result = await append(client, "patience", wait_for="searchable", deadline_ms=60_000)
        assert result["searchable"] is True
        after = await client.call("index.status")
        assert after["generation"] == before["generation"] and after["delta"] is not None
        assert after["covers"]["event_seq"] >= result["seq"]
        found = await client.call("memory.search", {"query": "patience"})
        assert found["behind"]["events"] == 0 and [hit["id"] for hit in found["hits"]] == [result["event_id"]]


async def test_who_waits_in_vain_is_told_so_at_his_deadline_and_nothing_is_lost(serve: Serve) -> None:
    async with serve() as (_, client):
        await append(client, "the first one", wait_for="searchable", deadline_ms=60_000)
        await client.call("debug.hold_build", {"stage": "delta begin"})
        began = trio.current_time()
        result = await append(client, "impatience", wait_for="searchable", deadline_ms=1000)
        assert 0.9 < trio.current_time() - began < 2.0
        assert result["searchable"] is False and result["durability"] == "fsync"
        found = await client.call("memory.search", {"query": "impatience"})
        assert [hit["id"] for hit in found["hits"]] == [result["event_id"]]
        await client.call("debug.hold_build", {"stage": None})


async def test_a_builder_that_is_broken_is_an_error_that_says_what_is_durable(serve: Serve) -> None:
    limits = (
        "[supervision]\nrestarts_max = 1\nrestart_window_ms = 600000\nbuilder_backoff_ms_min = 20\nprobe_ms = 600000\n"
    )
    async with serve(limits) as (_, client):
        await wait_until(client, lambda s: s["actors"]["generation_builder"]["state"] == "ready")
        while (await client.call("system.status"))["actors"]["generation_builder"]["state"] != "broken":
            await client.call("debug.fail_actor", {"actor": "generation_builder"})
            await trio.sleep(0.05)
        began = trio.current_time()
        try:
            await append(client, "never mind", wait_for="searchable", deadline_ms=30_000, event_id="kept")
            raise AssertionError("nobody can make it searchable")
        except RpcError as error:
            assert error.code == 1010 and error.outcome == "committed"
            assert "'kept'" in error.message and "durable" in error.message
        assert trio.current_time() - began < 5
        assert (await client.call("event.get", {"event_id": "kept"}))["content"] == "never mind"
        found = await client.call("memory.search", {"query": "never mind"})
        assert found["hits"][0]["id"] == "kept"
