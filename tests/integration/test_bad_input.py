"""Bad input and bad days: a clear typed error or a reported skip each, and the daemon goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from chaos.client import ROOT, Client, RpcError, open_bridge, open_socket
from chaos.daemon import Daemon
from chaos.history import read_session
from tests.integration.conftest import Serve

EVENT: dict[str, Any] = {"session_id": "s", "actor": "user", "content": "x"}


async def raw(client: Client, line: bytes, count: int = 1) -> list[dict[str, Any]]:
    """Send raw bytes and return the answers to them."""
    client.strays.clear()
    await client.send_line(line + b"\n")
    with trio.fail_after(30):
        while len(client.strays) < count:  # noqa: ASYNC110 - the client has no event for lines that are not its own
            await trio.sleep(0.005)
    return list(client.strays)


async def test_lines_that_are_no_requests(serve: Serve) -> None:
    async with serve() as (_, client):
        cases = {
            b"x" * (9 << 20): -32600,
            b"nonsense": -32700,
            b'{"jsonrpc":"2.0","id":"raw","method":"event.append","params":{"content":NaN}}': -32700,
            b"\xff\xfe": -32700,
            b"[]": -32600,
            b'{"jsonrpc":"2.0","id":"raw"}': -32600,
            b'{"jsonrpc":"2.0","id":{},"method":"system.health"}': -32600,
            b"[" * 1_000_000: -32600,
            b'{"a":' * 100_000: -32700,
        }
        for line, code in cases.items():
            (answer,) = await raw(client, line)
            assert answer["error"]["code"] == code, line[:80]
            assert (await client.call("system.health"))["live"]


@pytest.mark.parametrize(
    ("method", "params", "complaint"),
    [
        ("memory.serch", {}, "did you mean 'memory.search'"),
        ("memory.search", {"qery": "x"}, "did you mean 'query'"),
        ("memory.search", {"query": "x", "filters": {"actor": ["user"]}}, "did you mean 'actors'"),
        ("memory.search", {"query": ""}, "query is empty"),
        ("memory.search", {"query": " \n\t"}, "query is empty"),
        ("memory.search", {"query": "x" * 10_000}, "limit is 8192"),
        ("memory.search", {"query": 5}, "Expected `str`"),
        ("memory.search", {"query": "x", "limit": 0}, "limit"),
        ("memory.search", {"query": "x", "limit": 100_000}, "at most 200"),
        ("memory.search", {"query": "x", "corpora": ["everything"]}, "corpora"),
        ("memory.search", {"query": "x", "min_score": 7}, "min_score"),
        ("memory.search", {"query": "x", "filters": {"since": "yesterday"}}, "not a time"),
        ("memory.search", {"query": "x", "deadline_ms": 10_000_000}, "limit is 120000"),
        ("event.append", {**EVENT, "actor": "robot"}, "robot"),
        ("event.append", {**EVENT, "content": ""}, "content"),
        ("event.append", {**EVENT, "content": "x" * 5_000_000}, "content_bytes_max"),
        ("event.append", {**EVENT, "tags": ["x"] * 1000}, "tags"),
        ("event.append", {**EVENT, "ts": "2026-13-01"}, "not a time"),
        ("event.append", {**EVENT, "meta": {"a": "x" * 300_000}}, "meta"),
        ("event.append", {**EVENT, "meta": json.loads("[" * 500 + "]" * 500)}, "meta"),
        ("event.append", {**EVENT, "meta": {"a": json.loads("[" * 500 + "]" * 500)}}, "nested"),
        ("event.append", {**EVENT, "wait_for": "ever"}, "searchable"),
        ("event.append", {"session_id": "s", "actor": "user"}, "content"),
        ("event.append_many", {"events": []}, "events"),
        ("event.append_many", {"events": [EVENT] * 1001}, "limit is 1000"),
        ("session.history", {"session_id": "s", "after_seq": 1, "before_seq": 9}, "not both"),
        ("session.history", {"session_id": "s", "limit": 501}, "at most 500"),
        ("session.list", {"before": "nonsense"}, "before"),
        ("job.add", {"kind": "dance"}, "dance"),
        ("job.add", {"kind": "embed", "priority": 1001}, "the limits are -1000 and 1000"),
        ("job.add", {"kind": "embed", "not_before": 1, "delay_ms": 1}, "not both"),
        ("job.lease", {"kinds": []}, "kinds"),
        ("job.lease", {"kinds": ["embed"], "limit": 33}, "jobs_per_lease_max"),
        ("job.complete", {"job_id": "j", "token": 10**30}, "token"),
        ("job.list", {"before": 10**30}, "before is a whole number beyond 64 bits"),
        ("unit.list", {"before_core_seq": 2**63}, "before_core_seq is a whole number beyond 64 bits"),
        ("session.history", {"session_id": "s", "after_seq": 2**64}, "after_seq"),
        (
            "event.append",
            {"session_id": "s", "actor": "user", "content": "c", "meta": {"n": [10**30]}},
            "beyond 64 bits",
        ),
        ("event.append_many", {"events": [{"session_id": "s", "actor": "user", "content": "c", "ts": 10**30}]}, "ts"),
        ("unit.put", {"type": "poem", "scope": "user", "text": "x"}, "poem"),
        ("unit.put", {"type": "plan", "scope": "user", "text": "x", "confidence": 2}, "confidence"),
        ("source.add", {"path": "relative/folder"}, "absolute"),
        ("source.add", {"path": "/does/not/exist"}, "/does/not/exist"),
        ("memory.get", {}, "either id or path"),
        ("memory.get", {"id": "a", "path": "b"}, "either id or path"),
    ],
)
async def test_parameters_that_cannot_be_used(
    shared: Client, method: str, params: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(RpcError) as refused:
        await shared.call(method, params)
    assert refused.value.code in (-32602, -32601, 1013)
    assert complaint in refused.value.message + str(refused.value.data.get("hint"))


async def test_what_is_odd_but_legal_is_kept_as_it_is(serve: Serve) -> None:
    texts = [
        "a\x00b",
        "é" * 100,
        "👩‍👩‍👧‍👦 family",
        "\u202eevil",
        "\ufeffbom",
        "line\r\nline",
        "\u2028",
        "  ",
        "\x7f\x1b[31m",
    ]
    async with serve() as (_, client):
        for text in texts:
            appended = await client.call("event.append", {**EVENT, "content": text})
            event = await client.call("event.get", {"event_id": appended["event_id"]})
            assert event["content"] == text
        page = await client.call("session.history", {"session_id": "s"})
        assert [event["content"] for event in page["events"]] == texts


async def test_lone_surrogates_are_refused_and_nothing_is_stored(serve: Serve) -> None:
    async with serve() as (_, client):
        line = rb'{"jsonrpc":"2.0","id":"raw","method":"event.append","params":'
        line += rb'{"session_id":"s","actor":"user","content":"bad \ud800 text"}}'
        (answer,) = await raw(client, line)
        assert answer["error"]["code"] == -32700 and answer["id"] == "raw"
        assert (await client.call("session.history", {"session_id": "s"}))["events"] == []


async def test_queries_that_look_like_syntax_never_fail_and_are_found(serve: Serve) -> None:
    tokens = [
        "POL-358",
        "ask-codex",
        "don't",
        "Downloads/transcripts",
        "2026.4.10",
        "snake_case",
        "--flag",
        "C++",
        "a:b",
        "R&D",
        "cats OR dogs",
        "^x",
    ]
    async with serve() as (_, client):
        for token in tokens:
            await client.call("event.append", {**EVENT, "content": f"about {token} here"})
        for token in tokens:
            found = await client.call("memory.search", {"query": token, "mode": "keyword"})
            assert any(token in hit["snippet"] for hit in found["hits"][:3]), token
        for query in (
            '"unbalanced',
            "NOT",
            "NEAR(",
            "*",
            "AND AND",
            "(",
            "'",
            "\\",
            "%",
            "_",
            "-word",
            "{0}",
            "🙂",
            "！？",
        ):
            await client.call("memory.search", {"query": query})


async def test_a_request_id_in_flight_may_not_be_used_twice(serve: Serve) -> None:
    async with serve() as (_, client):
        line = b'{"jsonrpc":"2.0","id":"raw","method":"memory.search","params":{"query":"x"}}'
        first, second = await raw(client, line + b"\n" + line, count=2)
        assert {first.get("id"), second.get("id")} == {"raw", None}


async def test_native_output_on_descriptor_1_does_not_break_the_protocol(data: Path, config: Path) -> None:
    command = [
        sys.executable,
        "-P",
        "-m",
        "supervisor",
        "serve",
        "--stdio",
        "--data",
        str(data),
        "--config",
        str(config),
    ]
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "debug.write_stdout", "params": {"text": "native noise\n"}},
        {"jsonrpc": "2.0", "id": 2, "method": "event.append", "params": EVENT},
    ]
    done = await trio.run_process(
        command,
        stdin="".join(json.dumps(line) + "\n" for line in lines).encode(),
        capture_stdout=True,
        capture_stderr=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(answer["id"] for answer in answers) == [1, 2]
    assert b"native noise" in done.stderr


async def test_a_second_daemon_on_the_same_directory_is_refused(serve: Serve) -> None:
    async with serve() as (daemon, client):
        command = [sys.executable, "-P", "-m", "supervisor", "serve", "--data", str(daemon.data)]
        second = await trio.run_process(
            command, capture_stderr=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        assert second.returncode == 75
        assert b"another daemon holds" in second.stderr
        assert (await client.call("system.health"))["live"]


async def test_a_stale_socket_and_a_stale_lock_do_not_matter(data: Path, config: Path) -> None:
    daemon = Daemon(data, config)
    daemon.start()
    await daemon.connected()
    daemon.kill()
    assert Path(daemon.socket_path).exists()
    async with open_bridge(data, config) as client:
        assert (await client.call("system.health"))["live"]
    await daemon.stop()


async def test_stdin_at_its_end_from_the_start(data: Path, config: Path) -> None:
    for verb in (["stdio"], ["serve", "--stdio"]):
        command = [sys.executable, "-P", "-m", "supervisor", *verb, "--data", str(data), "--config", str(config)]
        with trio.fail_after(30):
            done = await trio.run_process(
                command,
                stdin=b"",
                capture_stdout=True,
                check=False,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        assert (done.returncode, done.stdout) == (0, b"")
    daemon = Daemon(data, config)
    if daemon.pid() is not None:
        await daemon.stop()


async def test_a_client_that_vanishes_or_floods_harms_only_itself(serve: Serve) -> None:
    async with serve() as (daemon, client):
        for piece in (
            b'{"jsonrpc":"2.0","id":1,"meth',
            b"x" * 100_000,
            b'{"jsonrpc":"2.0","id":1,"method":"system.status"}\n' * 500,
        ):
            async with open_socket(daemon.socket_path) as other:
                await other.send_line(piece)
        with trio.fail_after(20):
            assert (await client.call("system.health"))["live"]
        descriptors = (await client.call("system.status"))["descriptors"]
        for _ in range(50):
            async with open_socket(daemon.socket_path) as other:
                await other.call("system.health")
        assert (await client.call("system.status"))["descriptors"] <= descriptors + 2


@pytest.mark.skipif(
    os.getuid() != 0 or sys.platform != "linux", reason="needs a small file system, which only root can mount"
)
async def test_a_full_disk_refuses_appends_and_nothing_acknowledged_is_lost(data: Path, config: Path) -> None:
    data.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(data)], check=False)
    if mounted.returncode:
        pytest.skip("mounting is not allowed in this environment")
    try:
        daemon = Daemon(data, config)
        daemon.start()
        await daemon.connected()
        async with open_socket(daemon.socket_path) as client:
            stored, refused = [], None
            for number in range(200):
                try:
                    params = {**EVENT, "content": f"{number} " + "x" * 500_000, "request_id": f"r{number}"}
                    stored.append(await client.call("event.append", params))
                except RpcError as error:
                    refused = error
                    break
            assert refused is not None and refused.code == 1005 and refused.outcome == "not_executed", refused
            events = await read_session(client, "s")
            assert [event["event_id"] for event in events] == [each["event_id"] for each in stored]
            assert (await client.call("memory.search", {"query": "xxx"}))["hits"] is not None
        await daemon.stop()
    finally:
        subprocess.run(["umount", "-l", str(data)], check=True)
