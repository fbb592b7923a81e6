"""Forgetting through the daemon: gone from the next answer on, and in the end from every byte below the directory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from chaos.client import Client, RpcError
from tests.integration.conftest import Serve

SECRET = "xylophonemarker"
CALLED = "unitgeheimnis"


async def wait_state(client: Client, forget_id: str, state: str, seconds: float = 100) -> dict[str, Any]:
    with trio.fail_after(seconds):
        while True:
            status = await call(client, "memory.forget_status", forget_id=forget_id)
            if status["state"] == state:
                return status  # type: ignore[no-any-return]
            await trio.sleep(0.2)


async def published(client: Client) -> None:
    with trio.fail_after(60):
        await call(client, "index.rebuild", wait=True, deadline_ms=60_000)


async def call(client: Client, method: str, deadline_s: float = 60, **params: Any) -> Any:
    return await client.call(method, params, deadline_s=deadline_s)


def holding(folder: Path, *words: str) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and any(word.encode() in path.read_bytes() for word in words):
            yield path


async def test_a_forgotten_memory_is_gone_from_the_next_answer_and_from_every_byte(serve: Serve, data: Path) -> None:
    async with serve() as (_, client):
        for number in range(30):
            await call(client, "event.append", session_id="kept", actor="user", content=f"harmless remark {number}")
        event = await call(
            client,
            "event.append",
            session_id="s",
            actor="user",
            content=f"the {SECRET} is under the stone",
            tags=[SECRET],
        )
        unit = await call(
            client,
            "unit.put",
            type="plan",
            scope="user",
            text=f"{CALLED} is the plan",
            facts={"word": CALLED},
            request_id="put",
        )
        await call(
            client, "unit.put", unit_id=unit["unit_id"], type="plan", scope="user", text=f"{CALLED}, version two"
        )
        await published(client)
        for word in (SECRET, CALLED):
            assert (await call(client, "memory.search", query=word))["hits"]
        ids = [event["event_id"], unit["unit_id"]]
        dry = await call(client, "memory.forget", ids=ids, reason="asked for", dry_run=True)
        assert dry["would_forget"] == {"events": 1, "units": 1}
        receipt = await call(client, "memory.forget", ids=ids, reason="asked for", request_id="forget")
        assert receipt["masked"] and receipt["forgotten"] == {"events": 1, "units": 1}
        for word in (SECRET, CALLED):
            assert not (await call(client, "memory.search", query=word))["hits"]
        for method, params in (
            ("event.get", {"event_id": ids[0]}),
            ("unit.get", {"unit_id": ids[1]}),
            ("unit.get", {"unit_id": ids[1], "version": 1}),
            ("memory.get", {"id": ids[0]}),
            ("memory.get", {"id": ids[1]}),
        ):
            with pytest.raises(RpcError):
                await call(client, method, **params)
        assert (await call(client, "unit.history", unit_id=ids[1]))["versions"] == []
        assert (await call(client, "session.history", session_id="s"))["events"] == []
        assert CALLED not in str(
            await call(client, "unit.put", type="plan", scope="user", text="another", request_id="put")
        )
        gone = await wait_state(client, receipt["forget_id"], "gone")
        assert gone["left"] == {"events": 0, "units": 0, "generations": 0}
        assert not (await call(client, "memory.search", query=SECRET))["hits"]
        assert (await call(client, "memory.search", query="harmless"))["hits"]
        assert list(holding(data, SECRET, CALLED)) == []
        assert [each["state"] for each in (await call(client, "memory.forget_list"))["forgets"]] == ["gone"]
        again = await call(client, "memory.forget", ids=ids, reason="asked for", request_id="forget")
        assert again["forget_id"] == receipt["forget_id"]


@pytest.mark.parametrize(
    "scope",
    [
        {},
        {"ids": []},
        {"ids": None},
        {"filter": {}},
        {"filter": None},
        {"filter": {"session_id": "*"}},
        {"filter": {"tags": ["%"]}},
        {"ids": ["*"]},
        {"everything_of_tenant": False},
        {"ids": ["a"], "everything_of_tenant": True},
        {"ids": ["notes/a.md#L1-L3"]},
    ],
)
async def test_a_scope_that_is_not_plain_is_refused(serve: Serve, scope: dict[str, Any]) -> None:
    async with serve() as (_, client):
        await call(client, "event.append", session_id="s", actor="user", content="stays")
        for dry_run in (True, False):
            with pytest.raises(RpcError):
                await call(client, "memory.forget", reason="no", dry_run=dry_run, **scope)
        assert len((await call(client, "session.history", session_id="s"))["events"]) == 1


async def test_a_session_is_forgotten_whole_and_goes_on(serve: Serve) -> None:
    async with serve() as (_, client):
        await call(client, "session.open", session_id="s", title=f"about {SECRET}")
        for number in range(20):
            await call(client, "event.append", session_id="s", actor="user", content=f"{SECRET} {number}")
        await call(client, "event.append", session_id="t", actor="user", content="another session")
        receipt = await call(client, "memory.forget", filter={"session_id": "s"}, reason="asked for")
        assert receipt["forgotten"]["events"] == 20
        assert (await call(client, "session.history", session_id="s"))["events"] == []
        assert SECRET not in str(await call(client, "session.get", session_id="s"))
        await call(client, "event.append", session_id="s", actor="user", content="later words")
        page = await call(client, "session.history", session_id="s", limit=1)
        assert [each["content"] for each in page["events"]] == ["later words"]
        assert len((await call(client, "session.history", session_id="t"))["events"]) == 1
