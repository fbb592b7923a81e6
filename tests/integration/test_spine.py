"""The whole way, through the real daemon: what is written is durable, found at once, indexed, and found again."""

import re
from pathlib import Path
from typing import Any

import pytest

from chaos.client import Client, RpcError
from chaos.daemon import wait_until
from tests.integration.conftest import Serve


async def append(client: Client, content: str, **more: object) -> dict[str, object]:
    """Append an event of the user to session s."""
    params = {"session_id": "s", "actor": "user", "content": content, **more}
    result: dict[str, object] = await client.call("event.append", params)
    return result


async def indexed(client: Client) -> dict[str, Any]:
    """Wait until a new generation holds everything that was written."""
    queued = await client.call("index.rebuild")
    status: dict[str, Any] = await wait_until(
        client,
        lambda s: s["builds"]["published"] >= queued["build"] and s["behind"] == {"events": 0, "units": 0},
        method="index.status",
    )
    return status


async def ids(client: Client, query: str, **params: object) -> list[str]:
    """Search and return the ids of the hits."""
    found = await client.call("memory.search", {"query": query, **params})
    return [hit["id"] for hit in found["hits"]]


async def test_an_acknowledged_event_is_found_by_the_next_request(serve: Serve) -> None:
    async with serve() as (_, client):
        for number, word in enumerate(["乌龙茶", "auth_middleware.py", "POL-358", "Straße", "zebra"]):
            result = await append(client, f"note {number}: {word}")
            assert result["seq"] == number + 1
            assert result["durability"] == "fsync"
            assert result["event_id"] in await ids(client, word)


async def test_an_acknowledged_unit_is_found_and_its_old_version_is_not(serve: Serve) -> None:
    async with serve() as (_, client):
        first = await client.call("unit.put", {"type": "profile", "scope": "user", "text": "Anna drinks espresso"})
        await indexed(client)
        assert await ids(client, "espresso") == [first["unit_id"]]
        second = await client.call(
            "unit.put",
            {
                "unit_id": first["unit_id"],
                "type": "profile",
                "scope": "user",
                "text": "Anna drinks matcha",
                "expected_version": 1,
            },
        )
        assert second["version"] == 2
        found = await client.call("memory.search", {"query": "matcha"})
        assert [(hit["id"], hit["version"]) for hit in found["hits"]] == [(first["unit_id"], 2)]
        assert await ids(client, "espresso") == []
        assert found["behind"]["units"] == 1
        with pytest.raises(RpcError) as conflict:
            await client.call(
                "unit.put",
                {
                    "unit_id": first["unit_id"],
                    "type": "profile",
                    "scope": "user",
                    "text": "Anna drinks tea",
                    "expected_version": 1,
                },
            )
        assert conflict.value.code == 1014
        versions = (await client.call("unit.history", {"unit_id": first["unit_id"]}))["versions"]
        assert [version["version"] for version in versions] == [2, 1]


async def test_words_mean_the_same_before_and_after_indexing(serve: Serve) -> None:
    texts = [
        "部署失败，回滚到上一个版本",
        "the deploys failed with error E1042 in build_7",
        "see ~/notes/deploy.md for --dry-run",
        "Anna and Björn met in Zürich",
        "用户身份验证在网关完成",
    ]
    queries = ["部署", "部署失败", "deploy", "E1042", "build_7", "--dry-run", "zurich", "bjorn", "用户身份", "网关"]
    async with serve() as (_, client):
        for text in texts:
            await append(client, text)
        before = {query: sorted(await ids(client, query, mode="keyword")) for query in queries}
        await indexed(client)
        after = {query: sorted(await ids(client, query, mode="keyword")) for query in queries}
        assert before == after
        assert all(after.values())


async def test_sessions_events_and_history(serve: Serve) -> None:
    async with serve() as (_, client):
        opened = await client.call("session.open", {"session_id": "s", "title": "First", "meta": {"a": 1}})
        assert opened["status"] == "open" and opened["title"] == "First"
        many = [{"session_id": "s", "actor": "user", "content": f"event {number}"} for number in range(25)]
        results = (await client.call("event.append_many", {"events": many}))["results"]
        assert [result["seq"] for result in results] == list(range(1, 26))
        page = await client.call("session.history", {"session_id": "s", "limit": 10})
        assert [event["seq"] for event in page["events"]] == list(range(16, 26)) and page["more"]
        page = await client.call("session.history", {"session_id": "s", "limit": 10, "before_seq": 16})
        assert [event["seq"] for event in page["events"]] == list(range(6, 16)) and page["more"]
        page = await client.call("session.history", {"session_id": "s", "limit": 10, "after_seq": 20})
        assert [event["seq"] for event in page["events"]] == list(range(21, 26)) and not page["more"]
        event = await client.call("event.get", {"event_id": results[3]["event_id"]})
        assert event["content"] == "event 3"
        closed = await client.call("session.close", {"session_id": "s"})
        assert closed["status"] == "closed"


async def test_a_session_that_was_never_opened_is_listed(serve: Serve) -> None:
    async with serve() as (_, client):
        await client.call("event.append", {"session_id": "wild", "actor": "user", "content": "hello"})

        def listed(page: dict[str, list[dict[str, object]]]) -> bool:
            return [row["session_id"] for row in page["sessions"]] == ["wild"]

        page = await wait_until(client, listed, method="session.list")
        assert page["sessions"][0]["events"] == 1


async def test_a_repeated_request_returns_the_first_result(serve: Serve) -> None:
    async with serve() as (_, client):
        first = await append(client, "once", request_id="r1")
        again = await append(client, "once", request_id="r1")
        assert again == {**first, "deduplicated": True}
        by_id = await append(client, "other", event_id=first["event_id"])
        assert by_id["seq"] == first["seq"] and by_id["deduplicated"]
        unit = {"type": "plan", "scope": "global", "text": "x", "request_id": "u1"}
        put = await client.call("unit.put", unit)
        assert await client.call("unit.put", unit) == {**put, "deduplicated": True}


async def test_writes_of_one_connection_keep_their_order(serve: Serve) -> None:
    async with serve() as (_, client):
        import trio

        seqs: dict[int, int] = {}

        async def one(number: int) -> None:
            result = await append(client, f"event {number}")
            seqs[number] = int(str(result["seq"]))

        lines = b""
        for number in range(200):
            lines += (
                b'{"jsonrpc":"2.0","id":"n%d","method":"event.append","params":'
                b'{"session_id":"o","actor":"user","content":"%d"}}\n' % (number, number)
            )
        await client.send_line(lines)
        while True:
            page = await client.call("session.history", {"session_id": "o", "limit": 500})
            if len(page["events"]) == 200:
                break
            await trio.sleep(0.02)
        assert [event["content"] for event in page["events"]] == [str(number) for number in range(200)]


async def test_documents_are_indexed_cited_and_read(serve: Serve, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    (notes / "node_modules").mkdir(parents=True)
    (notes / ".gitignore").write_text("secret/\n")
    (notes / "secret").mkdir()
    for place in ("node_modules", "secret"):
        (notes / place / "x.md").write_text("# hidden\n\nplutonium\n")
    (notes / "tea.md").write_text("# Tea\n\nIntro.\n\n## Oolong\n\n铁观音 is brewed at 95 °C.\n", encoding="utf-8")
    (notes / "big.md").write_bytes(b"x" * 2_000_000)
    (notes / "binary.md").write_bytes(b"\x00\x01\x02" * 100)
    async with serve("file_bytes_max = 1000000\n") as (_, client):
        source = await client.call("source.add", {"path": str(notes), "name": "kitchen"})

        def reasons(status: dict[str, Any]) -> dict[str, str]:
            return {Path(skip["path"]).name: skip["reason"] for skip in status["skipped"]}

        # What only reading shows is reported by the scan after the build.
        status = await wait_until(
            client, lambda s: s["rows"]["documents"] and "binary.md" in reasons(s), method="index.status"
        )
        assert reasons(status)["big.md"] == "too_large"
        found = await client.call("memory.search", {"query": "铁观音"})
        (hit,) = found["hits"]
        assert hit["path"] == "kitchen/tea.md" and hit["heading"].endswith("Oolong")
        assert re.fullmatch(r"kitchen/tea\.md#L\d+-L\d+", hit["citation"])
        assert await ids(client, "plutonium") == []
        read = await client.call("memory.get", {"id": hit["id"]})
        assert "95 °C" in read["item"]["text"]
        read = await client.call("memory.get", {"path": "kitchen/tea.md", "from_line": 1, "lines": 1})
        assert read["item"]["text"].strip() == "# Tea"
        for path in ("kitchen/../../etc/passwd", "/etc/passwd", "kitchen/none.md"):
            with pytest.raises(RpcError):
                await client.call("memory.get", {"path": path})
        await client.call("source.remove", {"source_id": source["source_id"]})
        await wait_until(client, lambda s: not s["rows"]["documents"], method="index.status")


async def test_filters_narrow(serve: Serve) -> None:
    async with serve() as (_, client):
        for session, actor, tag in (("a_b", "user", "x"), ("aXb", "assistant", "y"), ("a%", "user", "x y")):
            params = {"session_id": session, "actor": actor, "content": "tea", "tags": [tag], "ts": "2026-01-02"}
            await client.call("event.append", params)
        for _ in range(2):
            for session in ("a_b", "aXb", "a%"):
                found = await client.call("memory.search", {"query": "tea", "filters": {"session_ids": [session]}})
                assert [hit["session_id"] for hit in found["hits"]] == [session]
            assert len(await ids(client, "tea", filters={"actors": ["user"]})) == 2
            assert len(await ids(client, "tea", filters={"tags": ["x"]})) == 1
            assert await ids(client, "tea", filters={"since": "2026-01-03"}) == []
            assert len(await ids(client, "tea", filters={"until": "2026-01-03"})) == 3
            assert await ids(client, "tea", filters={"path": "a"}) == []
            await indexed(client)


async def test_rollback_and_verify(serve: Serve) -> None:
    async with serve() as (_, client):
        await append(client, "first")
        first = await indexed(client)
        await append(client, "second")
        second = await indexed(client)
        verified = await client.call("index.verify")
        assert verified["generation"] == second["generation"] and verified["verified"]
        back = await client.call("index.rollback")
        assert back["generation"] in second["previous"] and back["generation"] >= first["generation"]
        status = await client.call("index.status")
        assert status["generation"] == back["generation"] and status["paused"]
        assert len(await ids(client, "second")) == 1


async def test_waiting_until_an_event_is_searchable(serve: Serve) -> None:
    async with serve() as (_, client):
        params = {
            "session_id": "s",
            "actor": "user",
            "content": "patience",
            "wait_for": "searchable",
            "deadline_ms": 60_000,
        }
        result = await client.call("event.append", params, deadline_s=60)
        assert result["searchable"] is True
        found = await client.call("memory.search", {"query": "patience"})
        assert found["covers"]["event_seq"] >= 1 and not found["degraded"]
