"""No tenant sees another one's memory: thousands of requests that try to, over every method, and the mutations that
show that the suite would notice.

Every text, id, tag and path that a tenant stores has a canary. What attackers may know (ids, cursors, paths, tags) is
what they aim with; an answer that has any canary of another tenant that was not in a request before is a leak.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import trio

from actors.errors import InvalidParams
from chaos.client import Client, RpcError, open_bridge, open_socket
from chaos.daemon import Daemon, data_directory
from chaos.faults import control
from supervisor.routes.permissions import NEEDS, needs
from supervisor.routes.table import METHODS
from supervisor.rpc import decode_params
from tests.integration.attacks import CANARY, Attack, Ears, Loot
from tests.integration.conftest import indexed
from tests.integration.tenancy_kit import (
    ALL,
    ATTACKERS,
    BYSTANDER,
    OPERATOR,
    VICTIM,
    Tenant,
    configure,
    connected,
    drain,
    populate,
    running,
    token_of,
)

SEEDS, REQUESTS = 8, 1400
assert SEEDS * REQUESTS >= 10_000
REQUESTS_MUTATED = 700
LANES = 4  # requests at a time of one attacker
DONE = "done"
DENIED, CONFLICT = 1020, 1014
NAMES = re.compile(rf"{CANARY.pattern}|[0-9A-Z]{{26}}")
# What a search costs, and where most of the ways of narrowing are: more of it.
EXTRA = ("memory.search",) * 6 + ("memory.get",) * 3


class House(NamedTuple):
    """A daemon whose tenants have something of everything, and what is known of it."""

    daemon: Daemon
    loot: Loot
    ears: list[Ears]  # of the attackers; what one of them has said once is known to it in every later test


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Give one house to all attacks: what they leave behind is the attackers' own."""
    folder = tmp_path_factory.mktemp("tenants")
    with data_directory() as path:
        config = path.with_name("config.toml")
        config.write_text(configure(folder), encoding="utf-8")
        daemon = Daemon(path, config)
        daemon.start()
        try:
            trio.run(daemon.connected)
            yield House(daemon, trio.run(populate, daemon, folder), [Ears(tenant.letter) for tenant in ATTACKERS])
        finally:
            trio.run(drain, daemon)


def methods_to_attack() -> list[str]:
    """Return all methods that a daemon without chaos has."""
    return [name for name, method in METHODS.items() if not method.chaos_only]


async def attack(house: House, *, seed: int, requests: int) -> Counter[str]:
    """Let every attacker make its share of the requests; return how often each method was tried."""
    tried: Counter[str] = Counter()
    refused = [name for name in methods_to_attack() if needs(name) == "admin"]
    asked = [name for name in methods_to_attack() if name not in refused]
    plan = [*refused, *asked, *asked, *EXTRA]
    share = -(-requests // len(ATTACKERS))
    async with trio.open_nursery() as nursery:
        for number, (tenant, ears) in enumerate(zip(ATTACKERS, house.ears, strict=True)):
            made = Attack(seed * 100 + number, house.loot, tenant.letter)
            wanted = [plan[(number * share + index) % len(plan)] for index in range(share)]
            nursery.start_soon(_attack_as, (house.daemon, tenant), made, wanted, ears, tried)
    return tried


async def _attack_as(
    place: tuple[Daemon, Tenant], made: Attack, wanted: Sequence[str], ears: Ears, tried: Counter[str]
) -> None:
    async with connected(place[0], place[1].principal) as client:
        waiting = list(wanted)

        async def lane() -> None:
            while waiting:
                method = waiting.pop()
                done = await _ask(client, method, made.request(method, METHODS[method].params), ears)
                tried[method] += 1
                tried[DONE] += done

        async with trio.open_nursery() as nursery:
            for _ in range(LANES):
                nursery.start_soon(lane)
        ears.hear("notifications", client.notifications)
        assert client.bad_lines == 0


async def _ask(client: Client, method: str, params: dict[str, object], ears: Ears) -> bool:
    """Make a request and return whether it was carried out."""
    done = False
    ears.say(params)
    try:
        answer = await client.call(method, params)
    except RpcError as error:
        answer = {"message": error.message, "data": error.data}
        assert needs(method) != "admin" or error.code == DENIED, f"{method} was looked into: {answer}"
        assert error.code != -32603, f"{method} {params} met a bug: {answer}"
    else:
        done = True
        assert needs(method) != "admin", f"{method} was done for somebody who may not"
    ears.hear({method: params}, answer)
    return done


async def snapshot(daemon: Daemon) -> str:
    """Return all that the victim has, as it sees it."""
    async with connected(daemon, VICTIM.admin) as client:
        seen: dict[str, Any] = {}
        for method, params in (
            ("session.list", {}),
            ("unit.list", {"status": None}),
            ("approval.list", {}),
            ("job.list", {}),
        ):
            seen[method] = await client.call(method, {"limit": 500, **params})
        for session in seen["session.list"]["sessions"]:
            name = session["session_id"]
            seen[name] = await client.call("session.history", {"session_id": name})
            seen[f"claim of {name}"] = await client.call("claim.get", {"session_id": name})
        # How far an order to forget has come changes by itself.
        forgets = await client.call("memory.forget_list")
        seen["forgets"] = [each["forget_id"] for each in forgets["forgets"]]
        seen["sources"] = [each["source_id"] for each in (await client.call("source.list"))["sources"]]
    return json.dumps(seen, sort_keys=True)


# ---------------------------------------------------------------- the attack


def test_every_method_is_attacked_with_requests_that_it_takes() -> None:
    loot: Loot = {"session": ["s"], "event": ["e"], "unit": ["u"], "item": ["e", "u"], "path": ["notes/a.md"]}
    made = Attack(0, loot)
    for name, method in METHODS.items():
        taken = 0
        for _ in range(100):
            request = made.request(name, method.params)
            try:
                decode_params(msgspec.Raw(msgspec.json.encode(request)), method.params, name)
                taken += 1
            except InvalidParams:
                pass
        assert taken > 10, f"{name} takes hardly any of its attacks: say in attacks.py (OVERRIDES) what it takes"


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_nothing_of_another_tenant_is_in_any_answer(house: House, seed: int) -> None:
    before = await snapshot(house.daemon)
    tried = await attack(house, seed=seed, requests=REQUESTS)
    leaks = [leak for ears in house.ears for leak in ears.leaks]
    assert not leaks, f"{len(leaks)} leaks, the first: {leaks[0]}"
    assert tried.pop(DONE) > REQUESTS // 4, "hardly any attack got as far as an answer"
    assert sum(tried.values()) >= REQUESTS
    assert set(tried) == set(methods_to_attack())
    assert await snapshot(house.daemon) == before


async def test_another_tenants_id_is_answered_like_one_that_nobody_has(house: House) -> None:
    async with connected(house.daemon, BYSTANDER.principal) as client:
        for method, params in _by_id(house.loot):
            nobodys = json.loads(NAMES.sub(_nobodys, json.dumps(params)))
            theirs, missing = await _outcome(client, method, params), await _outcome(client, method, nobodys)
            assert NAMES.sub("…", theirs) == NAMES.sub("…", missing), method


def _nobodys(name: re.Match[str]) -> str:
    return name[0][:-4] + ("0000" if name[0][-4:] != "0000" else "1111")


def _by_id(loot: Loot) -> list[tuple[str, dict[str, object]]]:
    """Return what names one item of the victim, which comes last."""
    last = {kind: values[-1] for kind, values in loot.items()}
    return [
        ("session.get", {"session_id": last["session"]}),
        ("session.close", {"session_id": last["session"]}),
        ("session.archive", {"session_id": last["session"]}),
        ("session.history", {"session_id": last["session"]}),
        ("claim.get", {"session_id": loot["session"][-4]}),
        ("claim.renew", {"session_id": loot["session"][-4], "claim_id": loot["claim"][-2]}),
        ("claim.release", {"session_id": loot["session"][-4], "claim_id": loot["claim"][-2]}),
        ("approval.get", {"approval_id": last["approval"]}),
        ("approval.decide", {"approval_id": last["approval"], "decision": "approved"}),
        ("event.get", {"event_id": last["event"]}),
        ("event.units", {"event_id": last["event"]}),
        ("unit.get", {"unit_id": last["unit"]}),
        ("unit.history", {"unit_id": last["unit"]}),
        ("unit.refs", {"unit_id": last["unit"]}),
        ("job.get", {"job_id": last["job"]}),
        ("job.cancel", {"job_id": last["job"]}),
        ("job.replay", {"job_id": last["job"]}),
        ("memory.get", {"id": last["event"]}),
        ("memory.get", {"id": last["unit"]}),
        ("memory.get", {"id": last["item"]}),
        ("memory.get", {"path": loot["path"][-2]}),
        ("memory.get", {"path": loot["path"][-3]}),
        ("index.item", {"id": last["event"]}),
        ("index.item", {"id": last["unit"]}),
        ("index.item", {"id": loot["path"][-3]}),
        ("archive.search", {"session_id": last["session"]}),
        ("memory.forget_status", {"forget_id": last["forget"]}),
        ("memory.forget", {"ids": [last["event"], last["unit"]], "reason": "x", "dry_run": True}),
        ("memory.forget", {"filter": {"session_id": last["session"]}, "reason": "x", "dry_run": True}),
    ]


async def _outcome(client: Client, method: str, params: dict[str, object]) -> str:
    try:
        return json.dumps(await client.call(method, params))
    except RpcError as error:
        return json.dumps([error.code, error.message, error.data])


async def test_an_id_that_another_tenant_has_is_not_available(house: House) -> None:
    """Ids are one space over all tenants: who knows one may learn that it is taken, and nothing else."""
    event, unit = house.loot["event"][-1], house.loot["unit"][-1]
    async with connected(house.daemon, ATTACKERS[0].principal) as client:
        with pytest.raises(RpcError, match="is not available") as refused:
            await client.call("event.append", {"session_id": "s", "actor": "user", "content": "x", "event_id": event})
        assert refused.value.code == CONFLICT
        with pytest.raises(RpcError, match="is not available") as refused:
            await client.call("unit.put", {"unit_id": unit, "type": "plan", "scope": "user", "text": "x"})
        assert refused.value.code == CONFLICT
        # A request_id is its tenant's own: one that another has used is as good as new.
        request = {"session_id": "s", "actor": "user", "content": "x", "request_id": house.loot["request"][-1]}
        first = await client.call("event.append", request)
        assert not first["deduplicated"]
        assert await client.call("event.append", request) == {**first, "deduplicated": True}


async def test_the_state_of_the_house_names_nothing_of_other_tenants(house: House) -> None:
    async with connected(house.daemon, ATTACKERS[0].principal) as client:
        status = await client.call("system.status")
        index = await client.call("index.status")
        with pytest.raises(RpcError, match=r"needs 'admin', and principal 'a-user' may forget, read, write"):
            await client.call("system.metrics")
    assert "data_dir" not in status and "rows" not in status["index"]
    assert index["items"] is None and len(index["sources"]) == 1
    assert {each["reason"] for each in index["skipped"]} >= {"binary"}
    assert {match[1] for match in CANARY.finditer(json.dumps(index))} == {ATTACKERS[0].letter}
    async with connected(house.daemon, OPERATOR) as operator:
        whole = await operator.call("index.status")
        assert len(whole["sources"]) == len(ALL) and whole["items"] is not None
        assert (await operator.call("system.metrics"))["denied"] > 0


async def test_a_search_of_one_session_finds_nothing_of_another(house: House) -> None:
    """The scope narrows within a tenant, in the truth and in the index."""
    async with connected(house.daemon, BYSTANDER.principal) as client:
        for session in ("one", "other"):
            unit = {"type": "summary", "scope": "session", "session_id": session, "text": "The zugzwang of May."}
            await client.call("unit.put", {**unit, "unit_id": f"zugzwang-{session}"})
        await client.call(
            "unit.put", {"type": "profile", "scope": "user", "text": "zugzwang", "unit_id": "zugzwang-user"}
        )
        for indexed_first in (False, True):
            if indexed_first:
                async with connected(house.daemon, OPERATOR) as operator:
                    await indexed(operator)
            assert await _units(client) == {"zugzwang-one", "zugzwang-other", "zugzwang-user"}
            assert await _units(client, session_ids=["one"]) == {"zugzwang-one"}
            assert await _units(client, scopes=["user"]) == {"zugzwang-user"}


async def _units(client: Client, **filters: object) -> set[str]:
    found = await client.call("memory.search", {"query": "zugzwang", "corpora": ["units"], "filters": filters})
    return {hit["id"] for hit in found["hits"]}


# ---------------------------------------------------------------- would it be noticed?


@pytest.mark.parametrize("worker", ["core_writer", "transcript_appender", "searcher"])
async def test_a_worker_that_forgets_the_tenant_is_noticed(worker: str, data: Path, tmp_path: Path) -> None:
    control.at_start(data, worker, {"fault": "mutation", "name": "tenant_off"})
    launched = configure(tmp_path).replace("enabled = true", 'enabled = true\nlauncher = "chaos.faults.worker"')
    async with running(data, launched) as daemon:
        house = House(daemon, await populate(daemon, tmp_path), [Ears(tenant.letter) for tenant in ATTACKERS])
        await attack(house, seed=0, requests=REQUESTS_MUTATED)
    assert any(ears.leaks for ears in house.ears), f"{worker} forgot the tenant, and nobody noticed"


# ---------------------------------------------------------------- who is who


async def test_who_has_not_said_who_it_is_may_ask_for_next_to_nothing(house: House) -> None:
    made = Attack(0, house.loot)
    async with open_socket(house.daemon.socket_path) as client:
        for method in methods_to_attack():
            if NEEDS[method] is None:
                continue
            with pytest.raises(RpcError) as refused:
                await client.call(method, made.request(method, METHODS[method].params))
            assert refused.value.code == DENIED
            assert "BULKHEAD_TOKEN" in refused.value.data["hint"]
        with pytest.raises(RpcError, match="hello refused") as refused:
            await client.call("hello", {"principal": ATTACKERS[0].principal, "token": token_of(OPERATOR)})
        assert refused.value.code == DENIED
        assert (await client.call("system.health"))["live"]
        assert (await client.call("tools/list"))["tools"]


async def test_a_connection_is_somebody_from_the_next_line_on(house: House) -> None:
    """All lines come in one write: who asks is settled in their order, however many are under way."""
    first, second = ATTACKERS[0], ATTACKERS[1]
    lines = [
        ("event.append", {"session_id": "early", "actor": "user", "content": "x"}),
        ("hello", {"token": token_of(first.principal)}),
        ("event.append", {"session_id": "of-one-write", "actor": "user", "content": "x"}),
        ("hello", {"token": token_of(second.principal)}),
        ("session.history", {"session_id": "of-one-write"}),
    ]
    async with open_socket(house.daemon.socket_path) as client:
        text = b"".join(
            json.dumps({"jsonrpc": "2.0", "id": f"n{number}", "method": method, "params": params}).encode() + b"\n"
            for number, (method, params) in enumerate(lines)
        )
        await client.send_line(text)
        with trio.fail_after(20):
            while len(client.strays) < len(lines):
                await client.call("system.health")
    answers = {each["id"]: each for each in client.strays}
    assert answers["n0"]["error"]["code"] == DENIED
    assert answers["n1"]["result"]["tenant"] == first.name
    assert "result" in answers["n2"]
    assert answers["n3"]["error"]["code"] == DENIED
    async with connected(house.daemon, first.principal) as client:
        assert (await client.call("session.history", {"session_id": "of-one-write"}))["events"]


async def test_the_bridge_is_whom_its_token_says(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = ATTACKERS[2]
    arguments = {"text": "The bridge was here.", "unit_id": "of-the-bridge"}
    monkeypatch.setenv("BULKHEAD_TOKEN", token_of(tenant.principal))
    async with open_bridge(house.daemon.data, house.daemon.config) as client:
        await client.call("initialize", {"protocolVersion": "2025-06-18"})
        stored = await client.call("tools/call", {"name": "memory_store", "arguments": arguments})
        assert not stored["isError"]
        refused = await client.call("tools/call", {"name": "memory_reindex", "arguments": {}})
        assert refused["isError"] and refused["structuredContent"]["code"] == DENIED
    async with connected(house.daemon, tenant.principal) as client:
        assert (await client.call("unit.get", {"unit_id": "of-the-bridge"}))["text"] == arguments["text"]
    monkeypatch.setenv("BULKHEAD_TOKEN", "of nobody")
    async with open_bridge(house.daemon.data, house.daemon.config) as client:
        with pytest.raises(RpcError, match="has not said who it is"):
            await client.call("unit.get", {"unit_id": "of-the-bridge"})


async def test_a_file_of_principals_that_others_may_read_stops_the_start(data: Path, tmp_path: Path) -> None:
    config = data.with_name("config.toml")
    config.write_text(configure(tmp_path), encoding="utf-8")
    (tmp_path / "principals.toml").chmod(0o640)
    daemon = Daemon(data, config)
    daemon.start()
    assert daemon.process is not None
    assert await trio.to_thread.run_sync(daemon.process.wait, 60) == 78
    assert "its mode is 0640, must be 0600" in daemon.last_words()
    daemon.process = None
