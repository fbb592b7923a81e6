"""Turn claims and approvals of a real daemon, whose parts are killed in the middle of it."""

import random
from pathlib import Path
from typing import Any

import pytest
import trio

from chaos.client import Client, RpcError, open_socket
from chaos.daemon import Daemon, kill, wait_until
from tests.integration.conftest import Serve

HELD = 1019


async def core_pid(client: Client) -> int:
    """Return the pid of core's worker, once it has one."""
    status = await wait_until(client, lambda status: status["actors"]["core_writer"]["pid"])
    return int(status["actors"]["core_writer"]["pid"])


async def insisted(client: Client, method: str, **params: object) -> dict[str, Any]:
    """Make a request until it is answered, however often core dies meanwhile."""
    while True:
        try:
            answer: dict[str, Any] = await client.call(method, params)
            return answer
        except RpcError as error:
            if error.code == HELD or not error.data["retryable"]:
                raise
            await trio.sleep(0.05)


async def taken(client: Client, session: str, request_id: str) -> dict[str, Any]:
    """Acquire a claim by one request."""
    return await insisted(client, "claim.acquire", session_id=session, lease_ms=60_000, request_id=request_id)


async def test_claims_and_approvals_survive_kills(serve: Serve, data: Path, config: Path) -> None:
    rng = random.Random(5)
    async with serve() as (_, client):
        tokens: list[int] = []
        for number in range(8):
            if rng.random() < 0.5:
                kill(await core_pid(client))
            claim = await taken(client, "s", f"r{number}")
            tokens.append(claim["token"])
            with pytest.raises(RpcError) as held:
                await taken(client, "s", f"other{number}")
            assert held.value.code == HELD
            assert 0 < held.value.data["retry_after_ms"] <= 60_000
            if rng.random() < 0.5:
                kill(await core_pid(client))
            await insisted(client, "claim.release", session_id="s", claim_id=claim["claim_id"])
            assert (await insisted(client, "claim.get", session_id="s"))["claim"] is None
        assert tokens == sorted(set(tokens))
        last = await taken(client, "s", "last")
        asked = await insisted(client, "approval.request", action="deploy", detail={"to": "production"})
        kill(await core_pid(client))
        assert (await insisted(client, "claim.get", session_id="s"))["claim"]["token"] == last["token"]
    again = Daemon(data, config)
    again.start()
    try:
        await again.connected()
        async with open_socket(again.socket_path) as client:
            assert (await client.call("claim.get", {"session_id": "s"}))["claim"]["token"] == last["token"]
            assert (await client.call("claim.revoke", {"session_id": "s"}))["released"]
            assert (await taken(client, "s", "after"))["token"] > last["token"]
            pending = await client.call("approval.list", {"status": "pending"})
            assert [each["approval_id"] for each in pending["approvals"]] == [asked["approval_id"]]
            decision = {"approval_id": asked["approval_id"], "decision": "approved"}
            assert (await client.call("approval.decide", decision))["status"] == "approved"
            with pytest.raises(RpcError, match="is approved by 'local' since"):
                await client.call("approval.decide", {**decision, "decision": "denied"})
    finally:
        with trio.CancelScope(shield=True):
            await again.stop()


async def test_a_claim_is_over_by_itself(serve: Serve) -> None:
    async with serve() as (_, client):
        await client.call("claim.acquire", {"session_id": "s", "lease_ms": 300, "holder": "crashed"})
        with pytest.raises(RpcError, match="held by 'crashed'") as held:
            await client.call("claim.acquire", {"session_id": "s"})
        await trio.sleep(held.value.data["retry_after_ms"] / 1000)
        assert (await client.call("claim.acquire", {"session_id": "s"}))["token"]
