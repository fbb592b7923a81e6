"""The synchronous client in front of the scripted daemon."""

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from supervisor.client import Client, DaemonUnavailable, RequestFailed
from tests.unit.supervisor.scripted_house import ScriptedHouse


@pytest.fixture
def client(house: ScriptedHouse, monkeypatch: pytest.MonkeyPatch) -> Client:
    """The client would start the real daemon; so the bridge of the house starts the scripted one first."""
    with house.bridge() as bridge:
        bridge.result("echo")
    return Client(str(house.data))


def test_a_request_gives_its_result(client: Client) -> None:
    with client:
        assert client.request("echo", {"text": "忠臣不事二主"}) == {"text": "忠臣不事二主"}
        assert client.request("large", {"bytes": 1_000_000}) == "x" * 1_000_000


def test_an_error_is_typed(client: Client, house: ScriptedHouse) -> None:
    data = {"outcome": "not_executed", "retryable": True, "hint": "wait"}
    house.script(refused=[{"error": {"code": 1001, "message": "full", "data": data}}])
    with client, pytest.raises(RequestFailed, match="full") as caught:
        client.request("refused")
    error = caught.value
    assert (error.code, error.retryable, error.outcome, error.hint) == (1001, True, "not_executed", "wait")


def test_a_refusal_without_an_id_is_about_the_request_in_hand(client: Client) -> None:
    with client, pytest.raises(RequestFailed, match="parse error"):
        client.request("nameless")


def test_a_late_answer_is_an_error_at_the_deadline_and_not_taken_for_the_next(client: Client) -> None:
    with client:
        with pytest.raises(RequestFailed, match="not answered within") as caught:
            client.request("silence", deadline_s=0.05)
        assert (caught.value.code, caught.value.outcome) == (1004, "unknown")
        with pytest.raises(RequestFailed, match="not answered within"):
            client.request("sleep", {"seconds": 0.2}, deadline_s=0.05)
        assert client.request("echo", {"a": 1}) == {"a": 1}


def test_progress_is_passed_on_and_other_lines_are_not_ours(client: Client) -> None:
    seen: list[dict[str, object]] = []
    with client:
        assert client.request("progress", {"a": 1}, on_progress=seen.append) == {"a": 1}
    assert seen == [{"progress": 1}]


def test_a_lost_daemon_is_an_error_with_an_unknown_outcome(client: Client, house: ScriptedHouse) -> None:
    with client:
        with pytest.raises(RequestFailed) as caught:
            client.request("die")
        assert (caught.value.code, caught.value.outcome, caught.value.retryable) == (1002, "unknown", True)
        with house.bridge() as bridge:
            bridge.result("echo")
        assert client.request("echo", {"a": 2}) == {"a": 2}


def test_without_a_daemon_a_client_that_may_not_start_one_says_so(house: ScriptedHouse) -> None:
    with Client(str(house.data), start=False) as client, pytest.raises(DaemonUnavailable, match="no daemon is running"):
        client.request("echo")
    assert house.starts() == []


def test_a_stopped_daemon_does_not_hold_a_client_beyond_its_deadline(client: Client, house: ScriptedHouse) -> None:
    pid = int(house.starts()[0].split()[0])
    client.connect()
    os.kill(pid, signal.SIGSTOP)
    try:
        with Client(str(house.data)) as late, pytest.raises(DaemonUnavailable, match=r"did not answer within 0\.1 s"):
            late.request("echo", deadline_s=0.1)
        with pytest.raises(RequestFailed, match="not answered"):
            client.request("echo", deadline_s=0.1)
    finally:
        os.kill(pid, signal.SIGCONT)
        client.close()


def test_a_client_starts_the_daemon_and_leaves_it_running(house: ScriptedHouse) -> None:
    program = (
        "import sys; from supervisor.client import Client\n"
        "with Client(sys.argv[1], sys.argv[2]) as client: print(client.request('pid')['pid'])"
    )
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(house.root)}
    pids = [
        subprocess.run(
            [sys.executable, "-P", "-W", "error", "-c", program, str(house.data), str(house.root / "config.toml")],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for _ in range(2)
    ]
    assert pids[0] == pids[1]
    assert house.starts() == [f"{pids[0].strip()} {house.root / 'config.toml'}"]
