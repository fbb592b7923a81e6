"""A rebuild nobody can feel: followed, shared, cancelled, killed, verified and rolled back, beside everything else."""

import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from chaos.client import Client, RpcError, environment, open_socket
from chaos.daemon import Daemon, kill, wait_until
from tests.integration.conftest import Serve, embedding_by, running
from tests.integration.test_fault_cases_embedding import documents, embedded, fill
from tests.unit.actors.embedding.fake_endpoint import FakeEndpoint

QUIET = "compact_after_ms = 600000\n"  # no generation but those that are asked for


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with FakeEndpoint() as running:
        yield running


async def append(client: Client, count: int, *, first: int = 0) -> None:
    events = [
        {"session_id": "s", "actor": "user", "content": f"note {number} 乌龙茶 n{number * 7919}"}
        for number in range(first, first + count)
    ]
    await client.call("event.append_many", {"events": events}, deadline_s=30)


async def status_when(client: Client, check: Any) -> dict[str, Any]:
    status: dict[str, Any] = await wait_until(client, check, method="index.status")
    return status


async def served(client: Client) -> dict[str, Any]:
    """Wait until a generation serves everything and no build is under way."""
    return await status_when(
        client,
        lambda s: s["generation"] and s["building"] is None and s["behind"] == {"events": 0, "units": 0},
    )


async def at_stage(client: Client, stage: str) -> dict[str, Any]:
    return await status_when(client, lambda s: s["building"] is not None and s["building"]["stage"] == stage)


@asynccontextmanager
async def held(client: Client, stage: str) -> AsyncIterator[None]:
    """Have builds pause at a stage, and let them go afterwards, whatever happens."""
    await client.call("debug.hold_build", {"stage": stage})
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await client.call("debug.hold_build", {"stage": None})


class Waiting:
    """A request for a rebuild that waits in the background, on a connection of its own."""

    def __init__(self, daemon: Daemon, method: str, params: dict[str, Any]) -> None:
        self._daemon = daemon
        self._method = method
        self._params = params
        self.result: Any = None
        self.notes: list[dict[str, Any]] = []
        self.late_notes = 0

    async def run(self) -> None:
        async with open_socket(self._daemon.socket_path) as client:
            self.notes = client.notifications
            self.result = await client.call(self._method, self._params, deadline_s=60)
            told = len(client.notifications)
            await client.call("system.health")  # whatever was sent meanwhile is here by now
            self.late_notes = len(client.notifications) - told


def workers(status: dict[str, Any]) -> dict[str, int]:
    return {each["name"]: each["pid"] for each in status["actors"]["generation_builder"]["workers"]}


# ---------------------------------------------------------------- progress


async def test_who_waits_is_told_how_far_it_is_and_then_how_it_ended(serve: Serve) -> None:
    async with serve(QUIET) as (daemon, client):
        await append(client, 60)
        await served(client)
        waiting = Waiting(daemon, "index.rebuild", {"wait": True, "progress_token": "p", "reason": "to see"})
        async with trio.open_nursery() as nursery, held(client, "write events"):
            nursery.start_soon(waiting.run)
            building = (await at_stage(client, "write events"))["building"]
            first = building["percent"]
            assert building["reason"] == "to see" and building["eta_s"] >= 0 and building["build"]
            await status_when(client, lambda s: s["building"]["percent"] > first and len(waiting.notes) > 1)
        assert waiting.result["state"] == "published" and waiting.result["error"] is None
        status = await served(client)
        assert status["generation"] == waiting.result["generation"]
        assert status["builds"]["published"] == waiting.result["build"]
        assert status["builds"]["ended"][-1]["state"] == "published"
        notes = [note["params"] for note in waiting.notes]
        assert {note["method"] for note in waiting.notes} == {"notifications/progress"}
        assert {note["progressToken"] for note in notes} == {"p"} and {note["total"] for note in notes} == {100}
        assert all(before["progress"] < after["progress"] for before, after in pairwise(notes))
        assert any("write events" in note["message"] for note in notes)
        assert not waiting.late_notes


async def test_an_mcp_host_that_gives_a_token_is_told_as_well(serve: Serve) -> None:
    async with serve(QUIET) as (daemon, client):
        await append(client, 10)
        await served(client)
        call = {"name": "memory_reindex", "arguments": {}, "_meta": {"progressToken": 42}}
        waiting = Waiting(daemon, "tools/call", call)
        silent = Waiting(daemon, "tools/call", {"name": "memory_reindex", "arguments": {}})
        async with trio.open_nursery() as nursery, held(client, "seal"):
            nursery.start_soon(waiting.run)
            nursery.start_soon(silent.run)
            await at_stage(client, "seal")
            await status_when(client, lambda s: len(waiting.notes) > 1)
        assert waiting.result["isError"] is False
        assert waiting.result["structuredContent"]["state"] == "published"
        assert {note["params"]["progressToken"] for note in waiting.notes} == {42}
        assert silent.result["structuredContent"]["state"] == "published" and not silent.notes


async def test_a_client_that_reads_nothing_holds_up_nobody(serve: Serve) -> None:
    async with serve(QUIET) as (daemon, client):
        await append(client, 10)
        await served(client)
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.connect(daemon.socket_path)
            params = {"wait": True, "progress_token": "x"}
            line = {"jsonrpc": "2.0", "id": 1, "method": "index.rebuild", "params": params}
            deaf.sendall(json.dumps(line).encode() + b"\n")
            async with held(client, "test"):
                await at_stage(client, "test")
                await append(client, 1, first=10)
            ended = await status_when(client, lambda s: s["builds"]["ended"] and s["building"] is None)
            assert ended["builds"]["ended"][-1]["state"] == "published"


async def test_a_wait_ends_at_its_deadline_and_the_build_goes_on(serve: Serve) -> None:
    async with serve(QUIET) as (_, client):
        await append(client, 10)
        await served(client)
        async with held(client, "index events"):
            answer = await client.call("index.rebuild", {"wait": True, "deadline_ms": 1500})
            assert answer["state"] == "running"
            with pytest.raises(RpcError, match="wait_ms_max"):
                await client.call("index.rebuild", {"wait": True, "deadline_ms": 10**9})
            with pytest.raises(RpcError, match="progress_token without wait"):
                await client.call("index.rebuild", {"progress_token": 1})
        await status_when(client, lambda s: s["builds"]["published"] >= answer["build"])


# ---------------------------------------------------------------- shared, and cancelled


async def test_requests_coalesce_and_one_that_comes_later_is_the_next_build(serve: Serve) -> None:
    async with serve(QUIET) as (_, client):
        await append(client, 10)
        await served(client)
        async with held(client, "events"):
            first = await client.call("index.rebuild")
            await at_stage(client, "events")
            again = [await client.call("index.rebuild") for _ in range(3)]
            assert {each["build"] for each in again} == {first["build"] + 1}
            assert all(each["already_running"] for each in again)
        status = await status_when(client, lambda s: s["builds"]["published"] > first["build"])
        await trio.sleep(0.5)  # were there a third build, it would have begun
        status = await served(client)
        assert status["builds"]["started"] == status["builds"]["published"] == first["build"] + 1


async def test_a_client_that_leaves_or_gives_up_does_not_end_the_build(serve: Serve) -> None:
    async with serve(QUIET) as (daemon, client):
        await append(client, 10)
        await served(client)
        async with held(client, "index events"):
            async with open_socket(daemon.socket_path) as leaving:
                request = {"jsonrpc": "2.0", "id": "mine", "method": "index.rebuild", "params": {"wait": True}}
                await leaving.send_line(json.dumps(request).encode() + b"\n")
                build = (await at_stage(client, "index events"))["building"]["build"]
                cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "mine"}}
                await leaving.send_line(json.dumps(cancelled).encode() + b"\n")
                await leaving.call("system.health")
                assert not leaving.strays
            assert (await client.call("index.status"))["building"]["build"] == build
        await status_when(client, lambda s: s["builds"]["published"] >= build)


async def test_a_cancelled_build_leaves_no_folder_and_no_process(serve: Serve, data: Path) -> None:
    async with serve(QUIET) as (daemon, client):
        await append(client, 20)
        before = await served(client)
        waiting = Waiting(daemon, "index.rebuild", {"wait": True})
        async with trio.open_nursery() as nursery, held(client, "index events"):
            nursery.start_soon(waiting.run)
            build = (await at_stage(client, "index events"))["building"]["build"]
            pid = workers(await client.call("system.status"))["rebuilder"]
            assert [*(data / "generation_builder").glob("gen-*.tmp")]
            with pytest.raises(RpcError, match="neither under way nor asked for"):
                await client.call("index.cancel", {"build": build + 5})
            assert await client.call("index.cancel") == {"cancelled": [build], "publishing": None}
            assert not psutil.pid_exists(pid)
            assert not [*(data / "generation_builder").glob("*.tmp")]
            status = await client.call("index.status")
            assert status["building"] is None and status["paused_by"] == "cancel"
            assert status["last_error"] == "cancelled by command"
            assert status["generation"] == before["generation"]
            assert status["builds"]["ended"][-1]["state"] == "cancelled"
        assert waiting.result["state"] == "cancelled" and waiting.result["build"] == build
        assert (await client.call("memory.search", {"query": "n7919"}))["hits"]
        assert await client.call("index.cancel") == {"cancelled": [], "publishing": None}
        again = await client.call("index.rebuild", {"wait": True}, deadline_s=60)
        assert again["state"] == "published"
        assert (await served(client))["paused_by"] is None


async def test_a_build_that_has_not_begun_is_withdrawn_alone(serve: Serve) -> None:
    async with serve(QUIET) as (daemon, client):
        await append(client, 10)
        await served(client)
        async with trio.open_nursery() as nursery, held(client, "write events"):
            first = await client.call("index.rebuild")
            await at_stage(client, "write events")
            queued = Waiting(daemon, "index.rebuild", {"wait": True, "progress_token": 1})
            nursery.start_soon(queued.run)
            await status_when(client, lambda s: queued.notes)
            second = first["build"] + 1
            assert await client.call("index.cancel", {"build": second}) == {"cancelled": [second], "publishing": None}
            assert (await client.call("index.status"))["building"]["build"] == first["build"]
        assert queued.result["state"] == "cancelled"
        assert [note["params"]["progress"] for note in queued.notes] == [0]
        status = await status_when(client, lambda s: s["builds"]["published"] == first["build"])
        assert status["builds"]["started"] == second  # its number is spent


async def test_a_stage_that_no_build_has_is_refused_with_those_that_they_have(serve: Serve) -> None:
    async with serve() as (_, client):
        with pytest.raises(RpcError, match="no build has a stage 'writing'") as refused:
            await client.call("debug.hold_build", {"stage": "writing"})
        assert refused.value.code == -32602 and "write events" in refused.value.data["hint"]


# ---------------------------------------------------------------- catching up, kills


async def test_a_new_generation_catches_up_before_it_is_published(serve: Serve, data: Path) -> None:
    async with serve(QUIET) as (_, client):
        await append(client, 10)
        await served(client)
        async with held(client, "prepare"):
            async with held_first(client, "seal", then="prepare"):
                queued = await client.call("index.rebuild")
                number = (await at_stage(client, "seal"))["building"]["generation"]
                for first in range(1000, 1900, 300):
                    await append(client, 300, first=first)
            await at_stage(client, "prepare")
            rounds = [*(data / "generation_builder").glob(f"gen-{number:06d}-d????")]
            assert rounds, "what came during the build was not caught up with before the lock"
        status = await status_when(
            client, lambda s: s["builds"]["published"] >= queued["build"] and s["behind"]["events"] == 0
        )
        assert status["generation"] == number and status["delta"]
        found = await client.call("memory.search", {"query": f"n{1899 * 7919}", "mode": "keyword"})
        assert found["hits"] and found["behind"] == {"events": 0, "units": 0}


@asynccontextmanager
async def held_first(client: Client, stage: str, *, then: str) -> AsyncIterator[None]:
    """Have a build pause at a stage, and at a later one afterwards."""
    await client.call("debug.hold_build", {"stage": stage})
    yield
    await client.call("debug.hold_build", {"stage": then})


async def test_a_rebuild_that_is_killed_is_made_again_and_embeds_nothing_twice(
    data: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    count = 40
    async with running(data, config, embedding_by(endpoint) + QUIET) as (_, client):
        await fill(client, count)
        await embedded(client, count)
        async with held(client, "write events"):
            build = (await client.call("index.rebuild"))["build"]
            await at_stage(client, "write events")
            kill(workers(await client.call("system.status"))["rebuilder"])
            failed = await status_when(client, lambda s: any(end["build"] == build for end in s["builds"]["ended"]))
            assert failed["builds"]["ended"][-1]["state"] == "failed"
        status = await status_when(client, lambda s: s["builds"]["published"] > build and s["building"] is None)
        assert status["vectors"] == {"have": count, "want": count}
        assert not [*(data / "generation_builder").glob("gen-*.tmp")]
    assert set(documents(endpoint).values()) == {1} and len(documents(endpoint)) == count


# ---------------------------------------------------------------- verify, scrub, roll back


async def test_verify_says_with_numbers_what_searches_find(data: Path, config: Path, endpoint: FakeEndpoint) -> None:
    async with running(data, config, embedding_by(endpoint) + QUIET) as (_, client):
        await fill(client, 60)
        await embedded(client, 60)
        await client.call("index.rebuild", {"wait": True}, deadline_s=60)
        await client.call("unit.put", {"type": "profile", "scope": "user", "text": "Anna prefers espresso-machines"})
        await fill(client, 10, first=60)
        await embedded(client, 71)
        await client.call("memory.search", {"query": "oolong tea 乌龙茶"})
        verified = await client.call("index.verify", {"deadline_ms": 60_000}, deadline_s=60)
        assert verified["verified"] and verified["delta"] and verified["bytes"] > 0
        assert verified["not_searched"] is None
        recall, queries = verified["recall"], verified["queries"]
        assert recall["value"] == 1.0 and recall["expected"] == recall["found"] >= 100
        assert queries["asked"] == queries["found"] >= 8 and not queries["missed"]
        assert queries["recent"] == queries["recent_answered"] == 1
        print(f"verified in {verified['took_ms']} ms: {json.dumps({'recall': recall, 'queries': queries})}")


def flip_a_byte(folder: Path) -> Path:
    """Flip one bit in the largest file of a generation, its size and times as they were."""
    path = max(
        (path for path in folder.rglob("*") if path.is_file() and path.suffix == ".lance"),
        key=lambda p: p.stat().st_size,
    )
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    return path


def scrubbed(scrub: dict[str, Any]) -> bool:
    return bool(scrub["finished_at"]) and scrub["checked_bytes"] == scrub["total_bytes"] > 0


async def test_the_scrub_finds_a_flipped_bit_without_a_question(serve: Serve, data: Path) -> None:
    async with serve(QUIET + "scrub_every_s = 1\n") as (_, client):
        await append(client, 20)
        await served(client)
        first = (await client.call("index.rebuild", {"wait": True}, deadline_s=60))["generation"]
        second = (await client.call("index.rebuild", {"wait": True}, deadline_s=60))["generation"]
        sound = await status_when(client, lambda s: s["scrub"]["generation"] == second and scrubbed(s["scrub"]))
        assert sound["scrub"]["error"] is None
        async with held(client, "begin"):  # so that the generation before is seen to serve
            path = flip_a_byte(data / "generation_builder" / f"gen-{second:06d}")
            status = await status_when(client, lambda s: s["generation"] != second)
            assert status["generation"] == first and path.name in status["scrub"]["error"]
            assert any(f"gen-{second:06d}" in each["path"] for each in status["suspects"])
            found = await client.call("memory.search", {"query": "n7919"})
            assert found["hits"] and found["generation"] in (first, None)
            assert found["generation"] == first or found["degraded"], "answered by words alone, without saying so"
            await wait_until(client, lambda s: s["searcher"]["serving"] == first and s["searcher"]["loaded"])
            found = await client.call("memory.search", {"query": "n7919"})
            assert found["hits"] and found["generation"] == first
        await status_when(client, lambda s: s["generation"] > second and s["scrub"]["error"] is None)


async def test_roll_back_in_one_command_over_deltas(serve: Serve, data: Path, config: Path) -> None:
    async with serve(QUIET) as (daemon, client):
        await append(client, 20)
        await served(client)
        first = (await client.call("index.rebuild", {"wait": True}, deadline_s=60))["generation"]
        await append(client, 5, first=20)
        await status_when(client, lambda s: s["generation"] == first and s["delta"])
        second = (await client.call("index.rebuild", {"wait": True}, deadline_s=60))["generation"]
        await append(client, 5, first=25)
        await status_when(client, lambda s: s["generation"] == second and s["delta"])
        done = await trio.to_thread.run_sync(cli, data, config, "index", "rollback")
        assert f"generation {first} serves again, instead of {second}" in done
        status = await status_when(client, lambda s: s["generation"] == first and s["behind"]["events"] == 0)
        assert status["paused_by"] == "rollback" and status["delta"]
        for number in (3, 22, 29):
            found = await client.call("memory.search", {"query": f"n{number * 7919}", "mode": "keyword"})
            assert len(found["hits"]) >= 1 and found["generation"] == first
        assert "generation" in await trio.to_thread.run_sync(cli, data, config, "index", "verify")
        assert "no build is under way" in await trio.to_thread.run_sync(cli, data, config, "index", "cancel")
        assert daemon.pid() is not None


async def two_generations(client: Client) -> tuple[int, int]:
    """Have two generations of the same twenty events made; return their numbers."""
    await append(client, 20)
    await served(client)
    first = (await client.call("index.rebuild", {"wait": True}, deadline_s=60))["generation"]
    second = (await client.call("index.rebuild", {"wait": True}, deadline_s=60))["generation"]
    return first, second


async def test_a_rollback_does_not_wait_for_a_delta(serve: Serve) -> None:
    async with serve(QUIET) as (_, client):
        first, second = await two_generations(client)
        async with held(client, "delta test"):
            await append(client, 5, first=20)
            await status_when(
                client, lambda s: s["deltas"]["building"] and s["deltas"]["building"]["stage"] == "delta test"
            )
            back = await client.call("index.rollback", deadline_s=30)
            assert back == {"generation": first, "rolled_back_from": second, "cancelled": []}
        await status_when(client, lambda s: s["generation"] == first and s["behind"]["events"] == 0)


async def test_a_rollback_ends_the_builds_under_way_but_only_when_it_can_be_done(serve: Serve) -> None:
    async with serve(QUIET) as (_, client):
        first, second = await two_generations(client)
        async with held(client, "index events"):
            under_way = (await client.call("index.rebuild"))["build"]
            await at_stage(client, "index events")
            asked = (await client.call("index.rebuild"))["build"]
            with pytest.raises(RpcError) as refusal:
                await client.call("index.rollback", {"generation": second}, deadline_s=30)
            assert "not kept" in refusal.value.message
            status = await client.call("index.status")
            assert status["building"]["build"] == under_way and status["generation"] == second
            back = await client.call("index.rollback", {"generation": first}, deadline_s=30)
            assert back["cancelled"] == [under_way, asked]
        status = await client.call("index.status")
        assert status["generation"] == first and status["building"] is None and status["paused_by"] == "rollback"


def cli(data: Path, config: Path, *arguments: str) -> str:
    """Run a verb and return what it printed."""
    command = [sys.executable, "-P", "-m", "supervisor", "--data", str(data), "--config", str(config), *arguments]
    done = subprocess.run(command, env=environment(data), capture_output=True, text=True, timeout=120, check=True)
    return done.stdout
