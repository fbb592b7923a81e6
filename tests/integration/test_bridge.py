"""Bridges in front of the real daemon: one daemon for all, nothing acknowledged lost, one answer for every line."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor import paths
from tests.bridge_client import PATIENCE_S, ROOT, BridgeClient

CLIENTS = 4
EVENTS = 25
KILLS = 5


class Place:
    """A data directory whose daemon embeds nothing, so that it is quick."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.config = folder / "config.toml"
        self.config.write_text('[embedding]\nprovider = "none"\n')

    def bridge(self, **popen: Any) -> BridgeClient:
        return BridgeClient(self.data, arguments=("--config", str(self.config)), **popen)

    def pid(self) -> int:
        """Return the daemon's pid, 0 when LOCK names none."""
        try:
            return int(json.loads((self.data / paths.LOCK).read_bytes())["pid"])
        except (OSError, ValueError):
            return 0

    def kill(self) -> None:
        pid = self.pid()
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def place(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
    for name in ("BULKHEAD_DATA", "BULKHEAD_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    made = Place(tmp_path)
    yield made
    made.kill()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def answer_until_result(bridge: BridgeClient, method: str, **params: object) -> Any:
    """Repeat a request until it has a result; every error on the way must say that it may be repeated."""
    deadline = time.monotonic() + PATIENCE_S
    while "result" not in (answer := bridge.call(method, **params)):
        assert answer["error"]["data"]["retryable"] is True, answer
        assert time.monotonic() < deadline, answer
        time.sleep(0.02)
    return answer["result"]


def append(bridge: BridgeClient, session: str, content: str) -> Any:
    return answer_until_result(
        bridge, "event.append", session_id=session, actor="user", content=content, request_id=f"{session}/{content}"
    )


def history(bridge: BridgeClient, session: str) -> list[Any]:
    events: list[Any] = []
    while True:
        after = {"after_seq": events[-1]["seq"]} if events else {"after_seq": 0}
        page = answer_until_result(bridge, "session.history", session_id=session, limit=100, **after)
        events += page["events"]
        if not page["more"]:
            return events


# ---------------------------------------------------------------- start and end


def test_an_mcp_host_and_a_native_client_share_a_daemon_that_neither_started_by_hand(place: Place) -> None:
    with place.bridge() as host, place.bridge() as native:
        opened = host.result(
            "initialize",
            protocolVersion="2025-06-18",
            capabilities={},
            clientInfo={"name": "test", "version": "1"},
        )
        host.tell("notifications/initialized")
        assert opened["serverInfo"]["name"]
        assert {tool["name"] for tool in host.result("tools/list")["tools"]} >= {"memory_search", "memory_store"}
        assert native.result("hello", client="test")["server"] == "bulkhead"
        assert native.result("system.status")["pid"] == place.pid()


def all_up(status: dict[str, Any]) -> bool:
    """Say whether every worker has started: each is three descriptors of the daemon."""
    return bool(all(status["ready"].values()) and status["searcher"]["workers_ready"] == 2)


def test_many_bridges_at_once_and_killed_leave_one_daemon_that_forgets_them(place: Place) -> None:
    with place.bridge() as steady:
        before = answer_until_result(steady, "system.status")
        wait_until(lambda: all_up(steady.result("system.status")))
        time.sleep(1)  # the processes that wait for their turn come last and are announced nowhere
        before = steady.result("system.status")
        with contextlib.ExitStack() as stack:
            bridges = [stack.enter_context(place.bridge()) for _ in range(10)]
            assert {bridge.result("system.status")["pid"] for bridge in bridges} == {before["pid"]}
            for bridge in bridges[:5]:
                bridge.process.kill()
            for bridge in bridges[5:]:
                bridge.close_stdin()
                assert bridge.wait() == 0
        wait_until(lambda: steady.result("system.status")["descriptors"] <= before["descriptors"] + 8)


def test_a_script_that_pipes_its_lines_and_closes_gets_its_answers(place: Place) -> None:
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "hello", "params": {"client": "script"}},
        {"jsonrpc": "2.0", "id": 2, "method": "system.health"},
        {"jsonrpc": "2.0", "id": 3, "method": "index.status"},
    ]
    with place.bridge() as bridge:
        bridge.send("\n".join(json.dumps(line) for line in lines).encode())
        bridge.close_stdin()
        answers = {answer["id"]: answer for answer in (bridge.read() for _ in lines)}
        assert answers.keys() == {1, 2, 3}
        assert all("result" in answer for answer in answers.values())
        assert bridge.read_line() == b""
        assert bridge.wait() == 0


def test_a_second_daemon_is_refused_and_the_first_goes_on(place: Place) -> None:
    with place.bridge() as bridge:
        pid = bridge.result("system.status")["pid"]
        second = subprocess.run(
            [sys.executable, "-P", "-m", "supervisor", "serve", "--data", str(place.data)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert second.returncode == 75
        assert "another daemon holds" in second.stderr
        assert second.stdout == ""
        assert bridge.result("system.status")["pid"] == pid


def test_a_configuration_that_cannot_be_used_is_told_to_the_client(place: Place) -> None:
    place.config.write_text("[searcher]\ncandidates_mx = 5\n")
    with place.bridge() as bridge:
        answer = bridge.call("system.health")
        assert answer["error"]["code"] == 1003
        assert answer["error"]["data"]["outcome"] == "not_executed"
        assert "candidates_mx" in answer["error"]["data"]["hint"]
        assert "candidates_max" in answer["error"]["data"]["hint"]
        place.config.write_text('[embedding]\nprovider = "none"\n')
        assert bridge.result("system.health")["live"] is True


def test_a_daemon_that_was_stopped_stays_stopped_until_somebody_asks(place: Place) -> None:
    with place.bridge() as idle, place.bridge() as other:
        first = idle.result("system.status")["pid"]
        assert other.result("system.drain") == {"draining": True}
        watch = os.pidfd_open(first)
        assert select.select([watch], [], [], PATIENCE_S)[0]
        os.close(watch)
        other.close_stdin()
        assert other.wait() == 0
        assert place.pid() == first
        assert answer_until_result(idle, "system.status")["pid"] != first


# ---------------------------------------------------------------- bad lines


def test_every_bad_line_gets_one_answer_and_nobody_else_notices(place: Place) -> None:
    with place.bridge() as bad, place.bridge() as good:
        good.result("hello", client="good")
        bad.send(b"x" * (8 * 1024 * 1024 + 1) + b"\n")
        bad.send(b"\xff\xfe\n")
        bad.send(b'{"jsonrpc":"2.0","id":1,\n')
        bad.send(b'[{"jsonrpc":"2.0","id":2,"method":"hello"}]\n')
        bad.send(b'{"jsonrpc":"2.0","id":3,"method":"hello","params":{"client":NaN}}\n')
        bad.send(b'{"jsonrpc":"2.0","id":4,"method":"system.helth"}\n')
        bad.send(b'{"jsonrpc":"2.0","id":5,"method":"hello","params":{"cliient":"x"}}\n')
        bad.send(b'{"jsonrpc":"2.0","id":6,"method":"hello","params":{"client":"\\ud800"}}\n')
        bad.send(b'{"jsonrpc":"2.0","id":7}\n')
        bad.send(b'{"jsonrpc":"2.0","id":{},"method":"hello"}\n')
        bad.send(b"[" * 100_000 + b"\n")
        bad.send(b'\r\n  \n{"jsonrpc":"2.0","id":8,"method":"hello"}\r\n')
        bad.close_stdin()
        answers = []
        while line := bad.read_line():
            answers.append(json.loads(line))
        assert bad.wait() == 0
        assert len(answers) == 12
        by_id = {answer["id"]: answer for answer in answers if answer["id"] is not None}
        # Of the others no id could be read by the daemon, whose decoder is stricter than most.
        assert by_id.keys() >= {4, 5, 7, 8}
        assert "did you mean 'system.health'" in by_id[4]["error"]["message"]
        assert "did you mean 'client'" in by_id[5]["error"]["message"]
        assert by_id[7]["error"]["code"] == -32600
        assert by_id[8]["result"]["server"] == "bulkhead"
        nameless = [answer["error"]["code"] for answer in answers if answer["id"] is None]
        assert len(nameless) + len(by_id) == len(answers)
        assert set(nameless) == {-32600, -32700}
        assert good.result("system.health")["live"] is True


# ---------------------------------------------------------------- the daemon is killed


def test_acknowledged_events_survive_kills_exactly_once_and_in_order(place: Place) -> None:
    with contextlib.ExitStack() as stack:
        bridges = [stack.enter_context(place.bridge()) for _ in range(CLIENTS)]
        acknowledged: list[list[Any]] = [[] for _ in bridges]
        failures: list[BaseException] = []

        def work(at: int) -> None:
            try:
                for number in range(EVENTS):
                    acknowledged[at].append(append(bridges[at], f"s{at}", f"event {number:03}"))
            except BaseException as error:  # a thread's error is the test's
                failures.append(error)

        threads = [threading.Thread(target=work, args=(at,)) for at in range(CLIENTS)]
        for thread in threads:
            thread.start()
        killed: set[int] = set()
        for kill in range(KILLS):
            # Each kill comes a little later in the work, with requests in hand.
            due = (kill + 1) * EVENTS * CLIENTS // (KILLS + 1)
            wait_until(lambda due=due: bool(failures) or sum(map(len, acknowledged)) >= due)  # type: ignore[misc]
            killed.add(place.pid())
            place.kill()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len(killed) == KILLS
        for at, bridge in enumerate(bridges):
            events = history(bridge, f"s{at}")
            assert [event["content"] for event in events] == [f"event {number:03}" for number in range(EVENTS)]
            ids = [(event["event_id"], event["seq"]) for event in events]
            assert ids == [(result["event_id"], result["seq"]) for result in acknowledged[at]]
            again = append(bridge, f"s{at}", "event 000")
            assert again["deduplicated"] is True
            assert (again["event_id"], again["seq"]) == ids[0]


def test_a_killed_daemon_leaves_nothing_that_stops_the_next(place: Place) -> None:
    with place.bridge() as bridge:
        append(bridge, "s", "before")
    first = place.pid()
    place.kill()
    with place.bridge() as bridge:
        assert [event["content"] for event in history(bridge, "s")] == ["before"]
        assert place.pid() != first
        hits = answer_until_result(bridge, "memory.search", query="before")["hits"]
        assert [hit["corpus"] for hit in hits] == ["events"]


def test_an_mcp_session_goes_on_after_the_daemon_was_replaced(place: Place) -> None:
    with place.bridge() as host:
        host.result(
            "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "t", "version": "1"}
        )
        host.tell("notifications/initialized")
        first = place.pid()
        place.kill()
        arguments = {"text": "the harbour master prefers tea", "type": "profile"}
        stored = answer_until_result(host, "tools/call", name="memory_store", arguments=arguments)
        assert not stored.get("isError"), stored
        found = answer_until_result(host, "tools/call", name="memory_search", arguments={"query": "harbour master"})
        assert "prefers tea" in json.dumps(found, ensure_ascii=False)
        assert place.pid() != first
