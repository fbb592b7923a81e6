"""The command line in front of the real daemon: from an empty directory to answers, as in the README."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bridge_client import ROOT

PATIENCE_S = 60.0


class Shell:
    """Runs commands on one data directory."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        config = folder / "config.toml"
        config.write_text('[embedding]\nprovider = "none"\n')
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "BULKHEAD_DATA": str(self.data),
            "BULKHEAD_CONFIG": str(config),
            "COLUMNS": "200",
        }

    def run(self, *arguments: str, code: int = 0, stdin: str = "", environment: dict[str, str] | None = None) -> str:
        """Run a command that must end with `code`; return its stdout, or stderr when that is a failure."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "supervisor", *arguments],
            env={**self._environment, **(environment or {})},
            input=stdin.encode(),
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
        return (done.stdout if code == 0 else done.stderr).decode()

    def json(self, *arguments: str, stdin: str = "") -> Any:
        """Run a command with --json; return its result."""
        return json.loads(self.run(*arguments, "--json", stdin=stdin))


@pytest.fixture
def shell(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
    made = Shell(tmp_path)
    yield made
    made.run("stop")


def test_an_event_is_found_in_the_next_command_and_after_a_restart(shell: Shell) -> None:
    assert shell.json("init")["created"] is True
    appended = shell.json("append", "--session", "s1", "--actor", "user", "忠臣不事二主，贞女不更二夫")
    assert appended["seq"] == 1
    hit = shell.json("search", "忠臣")["hits"][0]
    assert hit["id"] == appended["event_id"]
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert "忠臣不事二主" in shell.run("search", "忠臣", environment=plain)
    assert shell.run("get", appended["event_id"]) == "忠臣不事二主，贞女不更二夫\n"
    first = shell.json("status")["pid"]
    assert shell.json("stop") == {"stopped": True, "pid": first}
    assert shell.json("search", "贞女")["hits"][0]["id"] == appended["event_id"]
    assert shell.json("status")["pid"] != first


def test_notes_are_indexed_cited_and_read(shell: Shell, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "deploy.md").write_text("# Deploy\n\nThe staging cluster is called osprey.\n", encoding="utf-8")
    (notes / "部署.md").write_text("# 部署\n\n生产集群的名字叫鱼鹰，位于上海。\n", encoding="utf-8")
    (added,) = shell.json("add", str(notes), "--name", "wiki")
    assert added["path"] == str(notes)
    assert shell.json("add", str(notes))[0]["source_id"] == added["source_id"]
    status = shell.json("index", "--rebuild", "--wait")
    assert status["rows"]["documents"] >= 2
    assert status["building"] is None
    hit = shell.json("search", "osprey", "--corpus", "documents")["hits"][0]
    assert "deploy.md" in hit["citation"]
    assert "osprey" in shell.run("get", hit["citation"])
    assert "鱼鹰" in shell.run("search", "鱼鹰 集群")
    assert (
        shell.run("get", str(notes / "部署.md"), "--from-line", "3", "--lines", "1")
        == "生产集群的名字叫鱼鹰，位于上海。\n"
    )
    assert "generation" in shell.run("index")
    # A note that lies elsewhere is not readable through the memory.
    (tmp_path / "secret.md").write_text("secret")
    assert "not a readable note" in shell.run("get", str(tmp_path / "secret.md"), code=1)


def test_a_conversation_is_imported_once_however_often(shell: Shell) -> None:
    lines = "".join(
        json.dumps({"session_id": "c", "actor": "user", "content": f"turn {at}", "event_id": f"e{at}"}) + "\n"
        for at in range(300)
    )
    assert shell.json("append", "--jsonl", "-", stdin=lines) == {"appended": 300, "deduplicated": 0}
    assert shell.json("append", "--jsonl", "-", stdin=lines) == {"appended": 0, "deduplicated": 300}
    hits = shell.json("search", "turn 299", "--session", "c", "--limit", "1")["hits"]
    assert [hit["id"] for hit in hits] == ["e299"]
    assert shell.json("search", "turn", "--session", "other")["hits"] == []


def test_status_and_refusals_are_readable(shell: Shell) -> None:
    text = shell.run("status")
    for actor in ("core_writer", "transcript_appender", "cache_manager", "generation_builder", "searcher"):
        assert actor in text
    assert "query is empty" in shell.run("search", "", code=1)
    assert "hint:" in shell.run("search", "", code=1)
    assert "no event or unit" in shell.run("get", "nothing-of-that-name", code=1)
    assert "no daemon is running" in shell.run("stop") + shell.run("stop")


def test_archives_are_made_listed_and_verified_by_command(shell: Shell, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(config.read_text() + "[transcript_appender]\nsegment_bytes_max = 65536\n")
    assert "nothing is archived" in shell.run("archive")
    for number in range(4):
        shell.json("append", "--session", "s1", "--actor", "user", f"word{number} {'x' * 40_000}")
    assert "add --yes" in shell.run("archive", "create", "--before", "0m", code=2)
    assert "--before" in shell.run("archive", "create", "--yes", code=2)
    listed = shell.json("archive", "create", "--before", "0m", "--yes", "--wait")
    assert [each["state"] for each in listed["segments"]] == ["active"]
    assert len(listed["archives"]) > 1
    shown = shell.run("archive", "list")
    assert all(each["name"] in shown for each in listed["archives"])
    events = sum(each["events"] for each in listed["archives"])
    assert f"{len(listed['archives'])} archives hold what was sealed, {events} events" in shell.run("archive", "verify")
    assert listed["archives"][0]["name"] in shell.run("archive", "search", "--session", "s1", "--limit", "1")
    assert "more with --after 1" in shell.run("archive", "search", "--limit", "1")


def test_claims_and_approvals_are_shown_and_settled_by_command(shell: Shell) -> None:
    assert "nobody holds the session" in shell.run("claim", "s1")
    assert "add --yes" in shell.run("claim", "s1", "--revoke", code=2)
    assert "nobody holds the session" in shell.run("claim", "s1", "--revoke", "--yes")
    assert "nothing waits for a decision" in shell.run("approvals")
    assert "needs the ID" in shell.run("approvals", "approve", code=2)
    assert "there is no approval 'x'" in shell.run("approvals", "deny", "x", code=1)


def test_jobs_are_listed_shown_replayed_and_cancelled(shell: Shell) -> None:
    def call(method: str, **params: object) -> Any:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return json.loads(shell.run("stdio", stdin=json.dumps(request) + "\n"))["result"]

    assert shell.run("jobs").strip() == "no jobs"
    job_id = call("job.add", kind="verify", payload={"a": 1})["job_id"]
    (leased,) = call("job.lease", kinds=["verify"])["jobs"]
    call("job.fail", job_id=job_id, token=leased["token"], error="no such thing", permanent=True)
    listed = shell.run("jobs", "--status", "dead")
    assert job_id in listed and "no such thing" in listed and "1/5" in listed
    assert shell.json("jobs", "show", job_id)["payload"] == {"a": 1}
    assert shell.run("jobs", "replay", job_id).strip() == f"{job_id} is queued"
    assert "is queued, not dead" in shell.run("jobs", "replay", job_id, code=1)
    assert shell.run("jobs", "cancel", job_id).strip() == f"{job_id} is cancelled"
    assert [each["status"] for each in shell.json("jobs")["jobs"]] == ["cancelled"]
    assert "takes a JOB" in shell.run("jobs", "show", code=2)
