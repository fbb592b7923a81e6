"""docs/examples/summarize.py on real conversations: killed twice, its daemon killed once, each session summed up once.

The larger conversations lie beside the repository, or in the folder that BULKHEAD_EVAL names; without them the
conversation of the demo remains.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor import paths
from tests.bridge_client import ROOT, BridgeClient

Json = dict[str, Any]
EXAMPLE = ROOT / "docs" / "examples" / "summarize.py"
DEMO = ROOT / "docs" / "demo" / "conversation.jsonl"
EVAL = Path(os.environ.get("BULKHEAD_EVAL") or ROOT.parent / "shared" / "eval" / "dev")
PATIENCE_S = 60.0
EVENTS_MAX = 60  # of each session
SESSIONS = 5
LEASE_MS = 2000
CONFIG = """
[embedding]
provider = "none"
[core_writer]
summarize_settle_ms = 0
"""


class Place:
    """A data directory, what talks to its daemon, and who works for it."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.config = folder / "config.toml"
        self.config.write_text(CONFIG, encoding="utf-8")

    def bridge(self) -> BridgeClient:
        return BridgeClient(self.data, arguments=("--config", str(self.config)), stderr=subprocess.DEVNULL)

    def worker(self, *, pace_s: float) -> subprocess.Popen[str]:
        """Start the example as its users do: a program of its own that knows a command and nothing else."""
        talk = [sys.executable, "-P", "-m", "supervisor", "stdio", "--data", str(self.data)]
        options = ["--drain", "--lease-ms", str(LEASE_MS), "--pace", str(pace_s)]
        return subprocess.Popen(
            [sys.executable, str(EXAMPLE), *options, "--bridge", shlex.join([*talk, "--config", str(self.config)])],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def kill_daemon(self) -> None:
        """SIGKILL the daemon, if there is one."""
        try:
            os.kill(int(json.loads((self.data / paths.LOCK).read_bytes())["pid"]), signal.SIGKILL)
        except (OSError, ValueError):
            return


@pytest.fixture
def place(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
    for name in ("BULKHEAD_DATA", "BULKHEAD_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    made = Place(tmp_path)
    yield made
    made.kill_daemon()


def demo() -> dict[str, list[Json]]:
    """Return the events of the demo by session."""
    sessions: dict[str, list[Json]] = defaultdict(list)
    for line in DEMO.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        sessions[event["session_id"]].append(event)
    return sessions


def evaluation() -> dict[str, list[Json]]:
    """Return conversations in English and in Chinese by session."""
    sessions: dict[str, list[Json]] = defaultdict(list)
    for name in ("locomo", "memorybank-zh"):
        for line in (EVAL / f"{name}.corpus.jsonl").read_text(encoding="utf-8").splitlines():
            turn = json.loads(line)
            session_id = f"{turn['group']}/{turn.get('session') or turn['date']}"
            sessions[session_id].append({"actor": "user", "content": turn["text"], "event_id": turn["id"]})
    names = list(sessions)
    return {name: sessions[name] for name in [*names[: SESSIONS - 2], *names[-2:]]}


CONVERSATIONS: dict[str, Callable[[], dict[str, list[Json]]]] = {"demo": demo, "evaluation": evaluation}


def until(bridge: BridgeClient, method: str, holds: Callable[[Any], bool], **params: object) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = bridge.call(method, **params)
        if "result" in answer and holds(answer["result"]):
            return answer["result"]
        assert time.monotonic() < deadline, answer
        time.sleep(0.1)


def told(bridge: BridgeClient, sessions: dict[str, list[Json]]) -> dict[str, int]:
    """Append the events and close the sessions; return the last seq of each once all have their jobs."""
    last: dict[str, int] = {}
    for session_id, events in sessions.items():
        batch = [{**event, "session_id": session_id} for event in events[:EVENTS_MAX]]
        results = until(bridge, "event.append_many", lambda result: True, events=batch)["results"]
        last[session_id] = results[-1]["seq"]
    until(
        bridge,
        "session.list",
        lambda listed: {each["session_id"]: each["last_seq"] for each in listed["sessions"]} == last,
    )
    for session_id in sessions:
        bridge.result("session.close", session_id=session_id)
    until(bridge, "job.list", lambda listed: len(listed["jobs"]) == len(last), kind="summarize")
    return last


def says(worker: subprocess.Popen[str], what: str) -> None:
    """Read on until the worker says that it did something."""
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.startswith(f"{what} "):
            return
    raise AssertionError(f"the worker left before it {what} anything")


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_each_session_is_summed_up_once_whoever_is_killed(place: Place, name: str) -> None:
    if name == "evaluation" and not EVAL.is_dir():
        pytest.skip("the evaluation data is not here")
    sessions = CONVERSATIONS[name]()
    with place.bridge() as bridge:
        last = told(bridge, sessions)
        # The first worker falls with a job in hand; the second after it put the unit, before it could say so.
        for moment in ("leased", "put"):
            with place.worker(pace_s=1.0) as worker:
                says(worker, moment)
                worker.kill()
        with place.worker(pace_s=0.2) as worker:
            says(worker, "put")
            place.kill_daemon()
            assert worker.stdout is not None
            worker.stdout.read()
            assert worker.wait(PATIENCE_S) == 0
        jobs = until(bridge, "job.list", lambda result: True, kind="summarize")["jobs"]
        assert {job["payload"]["session_id"]: job["payload"]["until_seq"] for job in jobs} == last
        assert {job["status"] for job in jobs} == {"done"}
        assert max(job["attempts"] for job in jobs) > 1
        units = bridge.result("unit.list", type="summary", scope="session", limit=500)["units"]
        assert sorted(unit["session_id"] for unit in units) == sorted(sessions)
        for unit in units:
            assert unit["version"] == 1
            assert unit["text"] and unit["event_refs"]
            said = ""
            for event_id in unit["event_refs"]:
                event = bridge.result("event.get", event_id=event_id)
                assert event["session_id"] == unit["session_id"]
                said += event["content"]
            assert all(sentence in said for sentence in unit["text"].splitlines())
        assert {job["result"]["unit_id"] for job in jobs} == {unit["unit_id"] for unit in units}
