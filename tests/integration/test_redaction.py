"""A secret that goes in by any door is in no file below the data directory, and comes out by no door (K1)."""

import json
from pathlib import Path
from typing import Any

import pytest

from chaos.client import Client, RpcError
from tests.fake_secrets import ALL
from tests.integration.conftest import Serve, indexed


def holders(data: Path, parts: list[str]) -> list[tuple[str, str]]:
    """Return which files hold which of the parts, as UTF-8 or as UTF-16."""
    found = []
    for path in data.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            found += [(path.name, part) for part in parts if part.encode() in content]
            found += [(path.name, part) for part in parts if part.encode("utf-16-le") in content]
    return found


async def tool(client: Client, name: str, **arguments: Any) -> Any:
    """Call a tool and return what stands in its text."""
    answer = await client.call("tools/call", {"name": name, "arguments": arguments})
    return json.loads(answer["content"][0]["text"])


async def test_a_secret_of_each_shape_is_in_no_file_and_in_no_answer(data: Path, tmp_path: Path, serve: Serve) -> None:
    parts = sorted({part for _, _, part in ALL})
    everything = "\n\n".join(text for _, text, _ in ALL)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "keys.md").write_text(f"# marigold keys\n\n{everything}\n", encoding="utf-8")
    said: list[Any] = []
    async with serve() as (_, client):
        said.append(await client.call("source.add", {"path": str(tmp_path / "notes")}))
        opened = {"session_id": "s", "title": everything, "agent": ALL[0][1], "meta": {"k": [everything]}}
        said.append(await client.call("session.open", opened))
        for index, (kind, text, _) in enumerate(ALL):
            event = {"session_id": "s", "actor": "user", "content": f"marigold {text}", "meta": {"raw": text}}
            appended = await client.call("event.append", {**event, "tags": ["t"], "event_id": f"e{index}"})
            assert appended["redacted"] == {kind: 2}
            said.append(appended)
            unit = {"type": "summary", "scope": "global", "text": f"marigold {text}", "facts": {"f": text}}
            put = await client.call("unit.put", {**unit, "unit_id": f"u{index}", "request_id": f"r{index}"})
            assert put["redacted"] == {kind: 2}
            again = await client.call("unit.put", {**unit, "unit_id": f"u{index}", "request_id": f"r{index}"})
            assert again["deduplicated"] and again["redacted"] == {kind: 2}
            said += [put, await tool(client, "memory_store", text=f"marigold {text}")]
        await indexed(client)
        for search in ({"query": "marigold", "limit": 100}, {"query": parts[0], "limit": 100}, {"query": "redacted"}):
            said.append(await client.call("memory.search", {**search, "explain": True}))
        said.append(await client.call("session.history", {"session_id": "s", "limit": 100}))
        said.append(await client.call("session.list"))
        said.append(await client.call("unit.list", {"limit": 100}))
        said.append(await client.call("memory.get", {"id": "e0"}))
        said.append(await client.call("memory.get", {"path": "notes/keys.md"}))
        said.append(await tool(client, "memory_search", query="marigold"))
        token = next(text for kind, text, _ in ALL if kind == "npm-token")
        with pytest.raises(RpcError, match="event_id looks like a secret") as refused:
            await client.call("event.append", {"session_id": "s", "actor": "user", "content": "x", "event_id": token})
        said.append(str(refused.value))
        told = json.dumps(said, ensure_ascii=False)
        assert [part for part in parts if part in told] == []
        assert holders(data, parts) == []
    assert holders(data, parts) == []


async def test_private_blocks_and_our_own_recall_are_never_captured(data: Path, serve: Serve) -> None:
    async with serve() as (_, client):
        say = {"session_id": "s", "actor": "user"}
        first = await client.call(
            "event.append", {**say, "content": "the heron nests <private>at Elm Street</private>"}
        )
        assert first["redacted"] == {"private": 1}
        await client.call("event.append", {**say, "content": "a heron \u202edlo", "event_id": "bidi"})
        answer = await client.call("tools/call", {"name": "memory_search", "arguments": {"query": "heron"}})
        recalled = answer["content"][0]["text"]
        assert "heron nests" in recalled and "⟨U+202E⟩" in recalled
        sent_back = {**say, "actor": "tool", "kind": "tool_result", "content": recalled, "event_id": "echo"}
        assert (await client.call("event.append", sent_back))["redacted"] == {"recall": 1}
        kept = (await client.call("event.get", {"event_id": "echo"}))["content"]
        assert "heron" not in kept and "[redacted: recall]" in json.loads(kept)["begin"]
        assert (await client.call("event.get", {"event_id": "bidi"}))["content"] == "a heron \u202edlo"
        assert "⟨U+202E⟩" in (await client.call("memory.get", {"id": "bidi"}))["item"]["content"]
        assert holders(data, ["Elm Street"]) == []
