"""Search while its workers are stopped, killed, outgrown or overwhelmed: every query is answered by its deadline."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import trio

from actors.errors import DeadlineExceeded, Overloaded
from chaos.client import Client, RpcError, open_socket
from chaos.daemon import wait_until
from tests.integration.conftest import Serve

DEADLINE_MS = 10_000
LATE_S = 1.0
EVENTS = 20
KILLED = "config: searcher.rss_bytes_max"


async def fill(client: Client) -> None:
    """Append events, and wait until both search workers have the generation open that holds them."""
    for number in range(EVENTS):
        content = f"note {number} about oolong tea"
        await client.call("event.append", {"session_id": "s", "actor": "user", "content": content})
    await wait_until(client, lambda status: status["index"]["behind"]["events"] == 0 and both_serve(status))


def both_serve(status: dict[str, Any]) -> bool:
    searcher = status["searcher"]
    return bool(searcher["loaded"] == 2 and searcher["serving"] == status["index"]["generation"])


async def search(client: Client, query: str = "oolong tea", *, deadline_ms: int = DEADLINE_MS) -> dict[str, Any]:
    """Search, and see that the answer is there in time."""
    began = time.monotonic()
    found: dict[str, Any] = await client.call("memory.search", {"query": query, "deadline_ms": deadline_ms})
    assert time.monotonic() - began < deadline_ms / 1000 + LATE_S
    return found


def pids(status: dict[str, Any]) -> tuple[int, int]:
    """Return the process ids of the active worker and of the spare."""
    searcher = status["actors"]["searcher"]
    return searcher["pid"], searcher["spare_pid"]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Have a process stopped; by the end it may have been killed."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def test_a_stopped_worker_delays_no_search_to_its_deadline_and_is_replaced(serve: Serve) -> None:
    """Searches have ten seconds; without failover the first ones would be answered after seven, by keyword."""
    async with serve() as (_, client):
        await fill(client)
        active, _ = pids(await client.call("system.status"))
        for _ in range(10):
            await search(client)
        with stopped(active):
            began = time.monotonic()
            for _ in range(5):
                found = await search(client)
                assert (found["degraded"], found["mode"]) == ([], "keyword")
                assert found["generation"] is not None
            assert time.monotonic() - began < DEADLINE_MS / 1000 / 2
            await wait_until(client, lambda status: active not in pids(status))
        status = await wait_until(client, both_serve)
    assert status["searcher"]["failovers"] >= 1
    assert status["searcher"]["repeats"] + status["searcher"]["hedges"] >= 1
    assert "silent" in status["searcher"]["last_error"]


async def test_a_stopped_spare_is_found_although_nobody_asks_it(serve: Serve) -> None:
    async with serve() as (_, client):
        await fill(client)
        _, spare = pids(await client.call("system.status"))
        with stopped(spare):
            await wait_until(client, lambda status: spare not in pids(status))
            found = await search(client)
    assert found["degraded"] == []
    assert found["generation"] is not None


async def test_without_both_workers_the_words_are_found_at_once(serve: Serve) -> None:
    async with serve() as (_, client):
        await fill(client)
        for pid in pids(await client.call("system.status")):
            os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        found = await search(client)
        assert time.monotonic() - began < LATE_S
        assert found["hits"]
        assert {each["code"] for each in found["degraded"]} == {"search_worker_unavailable"}
        await wait_until(client, both_serve)
        found = await search(client)
    assert found["degraded"] == [], "nobody was condemned for it"


async def test_a_flood_of_short_searches_ends_in_time_and_each_says_what_is_missing(serve: Serve) -> None:
    """A machine that is busy with other things may not come to take one at all; then that is said, in time as well."""
    deadline_ms, flood = 300, 64
    answers: list[dict[str, Any]] = []
    refused: list[tuple[int, str]] = []

    async def one(client: Client, number: int) -> None:
        began = time.monotonic()
        try:
            answers.append(await search(client, f"oolong tea {number}", deadline_ms=deadline_ms))
        except RpcError as error:
            refused.append((error.code, error.outcome))
        assert time.monotonic() - began < deadline_ms / 1000 + LATE_S

    async with serve() as (daemon, client):
        await fill(client)
        # One client may have 32 requests under way.
        async with open_socket(daemon.socket_path) as second, trio.open_nursery() as nursery:
            for number in range(flood):
                nursery.start_soon(one, (client, second)[number % 2], number)
        found = await search(client)
    assert len(answers) + len(refused) == flood
    assert set(refused) <= {(DeadlineExceeded.code, "not_executed"), (Overloaded.code, "not_executed")}
    for answer in answers:
        assert answer["generation"] is not None or answer["degraded"]
        assert answer["hits"] or answer["degraded"]
    assert found["degraded"] == [], "the flood is over"


async def test_old_workers_are_replaced_one_after_the_other_while_searches_go_on(serve: Serve) -> None:
    async with serve("[searcher]\nrecycle_after_s = 2\n") as (_, client):
        await fill(client)
        before = set(pids(await client.call("system.status")))
        while before & set(pids(status := await client.call("system.status"))):
            found = await search(client)
            assert found["degraded"] == []
            assert found["generation"] is not None
            await trio.sleep(0.02)
    assert status["searcher"]["recycled"] >= 2
    assert status["searcher"]["last_error"] is None, "a replacement is no death"


async def test_a_worker_beyond_its_memory_is_killed_and_the_words_are_found_meanwhile(serve: Serve) -> None:
    """LanceDB alone takes more than this, so the workers never come to serve; nothing else suffers."""
    async with serve("[searcher]\nrss_bytes_max = 50000000\n") as (_, client):
        await client.call("event.append", {"session_id": "s", "actor": "user", "content": "oolong tea"})
        await wait_until(client, lambda status: KILLED in (status["searcher"]["last_error"] or ""))
        found = await search(client)
        health = await client.call("system.health")
    assert [hit["snippet"] for hit in found["hits"]] == ["oolong tea"]
    assert health["ready"]["search"]
