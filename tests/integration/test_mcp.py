"""MCP over the bridge: the official client lists and calls the tools (it is a dev dependency only)."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.client import ROOT, RpcError, open_bridge
from chaos.daemon import Daemon


def test_the_official_client_lists_and_calls_the_tools(data: Path, config: Path) -> None:
    mcp = pytest.importorskip("mcp")
    import anyio
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async def converse() -> None:
        parameters = StdioServerParameters(
            command=sys.executable,
            args=["-P", "-m", "supervisor", "stdio", "--data", str(data), "--config", str(config)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        async with stdio_client(parameters) as (read, write), mcp.ClientSession(read, write) as session:
            hello = await session.initialize()
            assert names(hello)["name"] == "bulkhead"
            listed = await session.list_tools()
            assert [tool.name for tool in listed.tools] == [
                "memory_search",
                "memory_get",
                "memory_store",
                "memory_status",
                "memory_reindex",
            ]
            stored = body(await session.call_tool("memory_store", {"text": "Anna 喜欢乌龙茶", "tags": ["tea"]}))
            assert stored["version"] == 1
            found = body(await session.call_tool("memory_search", {"query": "乌龙茶", "tags": ["tea"]}))
            assert [hit["id"] for hit in found["hits"]] == [stored["unit_id"]]
            got = body(await session.call_tool("memory_get", {"id": stored["unit_id"]}))
            assert got["item"]["text"] == "Anna 喜欢乌龙茶"
            status = body(await session.call_tool("memory_status", {}))
            assert status["ready"]["write"]
            refused = await session.call_tool("memory_get", {"id": "nobody"})
            assert failed(refused) and body(refused)["code"] == 1013
            misspelt = await session.call_tool("memory_search", {"quary": "x"})
            assert failed(misspelt) and "did you mean 'query'" in body(misspelt)["error"]

    anyio.run(converse)
    import trio

    trio.run(Daemon(data, config).stop)


def names(hello: Any) -> dict[str, Any]:
    """Return the server's description of itself, in whichever spelling the client library has."""
    info = getattr(hello, "serverInfo", None) or hello.server_info
    described: dict[str, Any] = info.model_dump()
    return described


def body(result: Any) -> dict[str, Any]:
    """Return the JSON that a tool answered."""
    decoded: dict[str, Any] = json.loads(result.content[0].text)
    return decoded


def failed(result: Any) -> bool:
    """Say whether a tool's result is a failure."""
    return bool(getattr(result, "isError", None) or getattr(result, "is_error", False))


async def test_each_revision_is_answered_in_kind(data: Path, config: Path) -> None:
    async with open_bridge(data, config) as client:
        for asked, answered in (
            ("2024-11-05", "2024-11-05"),
            ("2025-06-18", "2025-06-18"),
            ("1999-01-01", "2025-11-25"),
        ):
            params = {"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
            hello = await client.call("initialize", params)
            assert hello["protocolVersion"] == answered
        assert await client.call("ping") == {}
        with pytest.raises(RpcError) as unknown:
            await client.call("server/discover")
        assert unknown.value.code == -32601
        with pytest.raises(RpcError, match="did you mean 'memory_search'"):
            await client.call("tools/call", {"name": "memory_serch", "arguments": {}})
        assert client.bad_lines == 0
    await Daemon(data, config).stop()
