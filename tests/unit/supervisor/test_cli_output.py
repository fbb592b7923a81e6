"""The command line in front of the scripted daemon: what it asks for, what it prints, how it exits."""

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from tests.unit.supervisor.scripted_house import ScriptedHouse

HIT = {
    "id": "01HZX",
    "corpus": "documents",
    "snippet": "忠臣不事二主，\n贞女不更二夫。",
    "score": 0.8349,
    "citation": "notes/史记.md#L3-L9",
    "ts": "2026-05-01T09:30:00.000000Z",
}
FOUND = {
    "hits": [HIT],
    "mode": "hybrid",
    "generation": 7,
    "delta": None,
    "behind": {"events": 3, "units": 1},
    "degraded": [],
    "building": False,
    "low_confidence": False,
    "took_ms": 12,
}
INDEX: dict[str, Any] = {
    "generation": 7,
    "delta": None,
    "behind": {"events": 0, "units": 0},
    "rows": {"events": 12000, "units": 3, "documents": 40},
    "vectors": {"have": 10, "want": 12043},
    "builds": {"started": 4, "published": 4},
    "building": None,
    "last_error": None,
    "skipped": [{"path": "notes/huge.md", "reason": "too large", "detail": "limit is 67108864 bytes"}],
    "held": [],
    "suspects": [],
}


# ---------------------------------------------------------------- the command itself


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("serch", "x"), "unknown command 'serch'; did you mean 'search'?"),
        (("search", "x", "--limt", "5"), "unknown option '--limt'; did you mean '--limit'?"),
        (("search", "x", "--lim", "5"), "unknown option '--lim'"),
        (("--jsn", "search", "x"), "unknown option '--jsn'; did you mean '--json'?"),
        (("search", "-word"), "--help"),
        (("search",), "QUERY"),
        (("search", "x", "--limit", "0"), "'0' is no whole number of at least 1"),
        (("search", "x", "--corpus", "notes"), "invalid choice: 'notes'"),
        (("search", "x", "--since", "yesterday"), "'yesterday' is no time; examples: 2026-05-01"),
        (("append", "text", "--actor", "user"), "--session ID and --actor ACTOR are needed"),
        (("append", "--session", "s", "--actor", "user"), "CONTENT is missing"),
        (("append", "text", "--jsonl", "file"), "not both"),
        (("append", "--jsonl", "/nowhere/file"), "not readable"),
        (("add", "a", "b", "--name", "n"), "--name goes with one PATH"),
        ((), "VERB"),
        (("search", b"\xff"), "is not UTF-8"),
    ],
)
def test_a_wrong_command_is_explained_with_2_and_starts_nothing(
    house: ScriptedHouse, arguments: tuple[str | bytes, ...], text: str
) -> None:
    outcome = house.command(*arguments)
    assert outcome.code == 2
    assert text in outcome.err
    assert outcome.out == ""
    assert house.starts() == []


@pytest.mark.parametrize(
    "verb", ["init", "serve", "stop", "stdio", "status", "add", "search", "get", "append", "index"]
)
def test_every_verb_explains_itself_and_takes_the_common_options(house: ScriptedHouse, verb: str) -> None:
    outcome = house.command(verb, "--help")
    assert outcome.code == 0
    assert all(option in outcome.out for option in ("--data", "--config", "--json"))


def test_common_options_count_before_and_after_the_verb(house: ScriptedHouse, tmp_path: Path) -> None:
    house.script(memory__search=FOUND)
    after = house.command("search", "x", "--data", str(house.data), "--json", data=False)
    before = house.command("--json", "search", "x")
    by_environment = house.command("search", "--json", "x", environment={"BULKHEAD_DATA": str(house.data)}, data=False)
    assert after.json == before.json == by_environment.json == FOUND


def test_version(house: ScriptedHouse) -> None:
    assert house.command("--version").out.startswith("bulkhead ")


def test_an_error_of_the_daemon_goes_to_stderr_with_its_hint(house: ScriptedHouse) -> None:
    error = {"code": -32602, "message": "memory.search: query is empty", "data": {"hint": "give at least one word"}}
    house.script(memory__search=[{"error": error}])
    outcome = house.command("search", "")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "bulkhead: memory.search: query is empty\nhint: give at least one word\n"
    outcome = house.command("search", "", "--json")
    assert json.loads(outcome.err) == {"error": error}


def test_a_temporary_failure_is_tried_again_and_ends_with_75(house: ScriptedHouse) -> None:
    error = {"code": 1001, "message": "mailbox is full", "data": {"retryable": True, "retry_after_ms": 1}}
    house.script(memory__search=[{"error": error}, {"error": error}, {"result": FOUND}])
    assert house.command("search", "x").code == 0
    house.script(memory__search=[{"error": error}])
    assert house.command("search", "x").code == 75


def test_no_daemon_is_69(house: ScriptedHouse) -> None:
    (house.data / "refuse-to-start").touch()
    outcome = house.command("status")
    assert outcome.code == 69
    assert "exit code 78" in outcome.err
    assert "hint: it said: first line; unknown key 'serch'" in outcome.err


def test_a_reader_that_leaves_early_is_no_error(house: ScriptedHouse) -> None:
    house.script(memory__search={**FOUND, "hits": [HIT] * 5000})
    command = [sys.executable, "-P", "-m", "supervisor", "--data", str(house.data), "search", "x", "--json"]
    # Unbuffered, Python takes the first half of a write for the whole and does not notice.
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(house.root), "PYTHONUNBUFFERED": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_a_result_that_cannot_be_written_is_a_failure(house: ScriptedHouse) -> None:
    house.script(memory__search=FOUND)
    command = [sys.executable, "-P", "-m", "supervisor", "--data", str(house.data), "search", "x", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(house.root)}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "bulkhead: result not written: No space left on device\n")
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], env=environment, check=False)
    assert closed.returncode == 0


def on_terminal(house: ScriptedHouse, *arguments: str, **environment: str) -> str:
    """Run a command whose stdout and stderr are a terminal; return what the terminal got."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 40, 120, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "supervisor", "--data", str(house.data), *arguments],
        env={**os.environ, "PYTHONPATH": str(house.root), **environment},
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
    ):
        os.close(terminal)
        seen = b""
        # The end of a terminal whose last user has gone is an error, EIO.
        with contextlib.suppress(OSError):
            while data := os.read(controller, 65536):
                seen += data
    os.close(controller)
    return seen.decode("utf-8")


def test_a_terminal_that_knows_no_chinese_gets_escapes_instead_of_a_crash(house: ScriptedHouse) -> None:
    house.script(memory__search=FOUND)
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    assert "\\u5fe0\\u81e3" in on_terminal(house, "search", "x", **ascii_only)
    assert "忠臣" in on_terminal(house, "search", "x", PYTHONUTF8="1")


def test_a_build_shows_its_progress_on_a_terminal_only(house: ScriptedHouse) -> None:
    building = {"stage": "embedding", "done": 5, "total": 10, "generation": 8}
    running = {**INDEX, "builds": {"started": 5, "published": 4}, "building": building}
    done = {**INDEX, "builds": {"started": 5, "published": 5}}
    answers: dict[str, Any] = {
        "index__rebuild": {"build": 5},
        "index__status": [{"result": running}, {"result": done}],
        "source__list": {"sources": []},
    }
    house.script(**answers)
    seen = on_terminal(house, "index", "--rebuild", "--wait")
    assert "embedding:  50%" in seen
    assert "5/10" in seen
    house.script(**answers)
    outcome = house.command("index", "--rebuild", "--wait")
    assert outcome.err == ""
    assert "embedding" not in outcome.out


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0"},
        {"PYTHONIOENCODING": "latin-1"},
        {"PYTHONIOENCODING": "gbk"},
    ],
)
def test_chinese_goes_in_and_out_under_any_locale(house: ScriptedHouse, environment: dict[str, str]) -> None:
    house.script(memory__search=FOUND)
    outcome = house.command("search", "忠臣 不事".encode(), environment=environment)
    assert outcome.code == 0
    assert "贞女不更二夫" in outcome.out
    assert house.requests("memory.search")[-1]["query"] == "忠臣 不事"
    outcome = house.command("append", "--session", "s", "--actor", "user", "-", stdin="静默".encode())
    assert outcome.code == 0
    assert house.requests("event.append")[-1]["content"] == "静默"


# ---------------------------------------------------------------- search and get


def test_search_asks_for_exactly_what_was_given(house: ScriptedHouse) -> None:
    house.script(memory__search=FOUND)
    house.command("search", "two", "words")
    assert house.requests("memory.search")[-1] == {"query": "two words"}
    options = (
        "--limit 5 --corpus events --corpus units --session s1 --actor user --tag a --tag b "
        "--since 2026-05-01T00:00:00Z --until 2026-05-02T00:00+08:00 --path notes/ --mode keyword --explain"
    )
    house.command("search", *options.split(), "--", "--flag", "-word")
    assert house.requests("memory.search")[-1] == {
        "query": "--flag -word",
        "limit": 5,
        "corpora": ["events", "units"],
        "mode": "keyword",
        "explain": True,
        "filters": {
            "session_ids": ["s1"],
            "actors": ["user"],
            "tags": ["a", "b"],
            "since": 1777593600000000,
            "until": 1777651200000000,
            "path": "notes/",
        },
    }


def test_times_without_an_offset_are_local(house: ScriptedHouse) -> None:
    house.script(memory__search=FOUND)
    for zone, expected in (("UTC", 1777593600), ("Asia/Shanghai", 1777564800), ("America/New_York", 1777608000)):
        house.command("search", "x", "--since", "2026-05-01", environment={"TZ": zone})
        assert house.requests("memory.search")[-1]["filters"]["since"] == expected * 1_000_000


def test_hits_are_printed_with_citations_and_columns_stay_straight(house: ScriptedHouse) -> None:
    latin = {**HIT, "snippet": "loyal ministers", "citation": "notes/a.md#L1-L2"}
    house.script(memory__search={**FOUND, "hits": [HIT, latin]})
    outcome = house.command("search", "忠臣", environment={"TZ": "UTC", "COLUMNS": "140"})
    assert outcome.err == ""
    head, _, first, second, blank, summary = outcome.out.splitlines()
    assert "notes/史记.md#L3-L9" in first
    assert "2026-05-01 09:30" in first
    assert "0.83" in first
    assert "忠臣不事二主， 贞女不更二夫。" in first
    # 史记 takes four columns for two characters.
    assert first.index("2026-05-01") + 2 == second.index("2026-05-01") == head.index("when")
    assert blank == ""
    assert summary == "2 hits, mode hybrid, generation 7, 4 newer items searched by keyword, 12 ms"
    assert "\x1b" not in outcome.out


def test_what_is_wrong_with_an_answer_is_said_beside_it(house: ScriptedHouse) -> None:
    house.script(
        memory__search={
            **FOUND,
            "hits": [],
            "generation": None,
            "mode": "keyword",
            "building": True,
            "degraded": [{"code": "no_generation", "detail": "no index yet"}],
            "low_confidence": True,
        }
    )
    outcome = house.command("search", "x")
    assert outcome.code == 0
    assert outcome.out == (
        "no hits, mode keyword, no generation yet, 4 newer items searched by keyword, "
        "a new generation is being built, 12 ms\n"
    )
    assert "note: no_generation: no index yet" in outcome.err
    assert "low confidence" in outcome.err


def test_a_memory_cannot_steer_the_terminal(house: ScriptedHouse) -> None:
    evil = "\x1b[2J\x1b]0;title\x07 \u202egnp.exe\u2066 \x9b31m"
    house.script(memory__search={**FOUND, "hits": [{**HIT, "snippet": evil, "citation": evil}]})
    outcome = house.command("search", "x", environment={"COLUMNS": "300"})
    assert "\\x1b[2J" in outcome.out
    assert not set("\x1b\x07\x9b\u202e\u2066") & set(outcome.out)


def test_an_id_that_looks_like_a_number_stays_as_it_is(house: ScriptedHouse) -> None:
    house.script(memory__search={**FOUND, "hits": [{**HIT, "citation": "1e5"}, {**HIT, "citation": "0012"}]})
    outcome = house.command("search", "x")
    assert "  1e5 " in outcome.out
    assert "  0012 " in outcome.out


@pytest.mark.parametrize(
    ("item", "params"),
    [
        ("01HZX", {"id": "01HZX"}),
        ("notes/a.md#L3-L9", {"id": "notes/a.md#L3-L9"}),
        ("notes/a.md#L3", {"id": "notes/a.md#L3"}),
        ("notes/a.md", {"path": "notes/a.md"}),
        ("a.MD", {"path": "a.MD"}),
        ("/absolute/a.txt", {"path": "/absolute/a.txt"}),
    ],
)
def test_get_tells_ids_citations_and_paths_apart(house: ScriptedHouse, item: str, params: dict[str, object]) -> None:
    house.script(memory__get={"corpus": "events", "item": {"content": "text\nmore", "ts": 0}})
    outcome = house.command("get", item, "--from-line", "3", "--lines", "2")
    assert outcome.out == "text\nmore\n"
    assert house.requests("memory.get")[-1] == {**params, "from_line": 3, "lines": 2}


def test_get_means_the_file_that_lies_here(
    house: ScriptedHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here.md").touch()
    monkeypatch.chdir(tmp_path)
    house.script(memory__get={"corpus": "documents", "item": {"text": "t", "path": "n/here.md", "from_line": 1}})
    outcome = house.command("get", "here.md")
    assert house.requests("memory.get")[-1] == {"path": str(tmp_path / "here.md")}
    assert outcome.err == "path n/here.md, from_line 1\n"


# ---------------------------------------------------------------- append and add


def test_append_gives_its_request_an_id_and_repeats_it_with_the_same(house: ScriptedHouse) -> None:
    lost = {"code": 1002, "message": "lost", "data": {"retryable": True, "outcome": "unknown", "retry_after_ms": 1}}
    house.script(
        event__append=[{"error": lost}, {"result": {"event_id": "E1", "seq": 5, "deduplicated": True}}],
    )
    outcome = house.command("append", "--session", "s", "--actor", "user", "--tag", "t", "text")
    assert outcome.out == "E1  seq 5  (was there already)\n"
    first, second = house.requests("event.append")
    assert first == second
    assert first.pop("request_id").startswith("cli-")
    assert first == {"session_id": "s", "actor": "user", "tags": ["t"], "content": "text"}


def test_append_uses_the_ids_that_it_is_given(house: ScriptedHouse) -> None:
    house.script(event__append={"event_id": "E1", "seq": 5, "deduplicated": False})
    options = "--session s --actor tool --kind tool_result --event-id E1 --request-id R1 --ts 2026-05-01T00:00:00Z"
    outcome = house.command("append", *options.split(), "text", "--json")
    assert outcome.json == {"event_id": "E1", "seq": 5, "deduplicated": False}
    (params,) = house.requests("event.append")
    assert params["event_id"] == "E1"
    assert params["request_id"] == "R1"
    assert params["kind"] == "tool_result"
    assert params["ts"] == 1777593600000000


def test_append_of_what_is_not_utf_8_is_refused(house: ScriptedHouse) -> None:
    outcome = house.command("append", "--session", "s", "--actor", "user", "-", stdin=b"abc\xff")
    assert outcome.code == 2
    assert "stdin is not UTF-8: byte 3 is 0xff" in outcome.err


def test_json_lines_are_appended_in_batches_with_defaults(house: ScriptedHouse, tmp_path: Path) -> None:
    house.script(event__append_many={"results": [{"deduplicated": True}]})
    file = tmp_path / "events.jsonl"
    lines = [json.dumps({"actor": "user", "content": f"第{number}", "session_id": "own"}) for number in range(450)]
    file.write_text("\n".join([*lines, "", '{"actor": "tool", "content": "x", "request_id": "R"}\r']))
    outcome = house.command("append", "--session", "s", "--jsonl", str(file), "--json")
    assert outcome.json == {"appended": 448, "deduplicated": 3}
    batches = [params["events"] for params in house.requests("event.append_many")]
    assert [len(batch) for batch in batches] == [200, 200, 51]
    events = [event for batch in batches for event in batch]
    assert [event["content"] for event in events[:450]] == [f"第{number}" for number in range(450)]
    assert events[0]["session_id"] == "own"
    assert events[-1] == {"session_id": "s", "actor": "tool", "content": "x", "request_id": "R"}
    assert len({event["request_id"] for event in events}) == 451


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"{", "line 2 is not JSON in UTF-8"),
        (b'"text"', "line 2 is no JSON object"),
        (b'{"content": "x"}', "line 2 lacks session_id, actor"),
        (b'{"content": "\xff"}', "line 2 is not JSON in UTF-8"),
    ],
)
def test_a_bad_line_ends_the_import_after_the_events_before_it(house: ScriptedHouse, line: bytes, text: str) -> None:
    house.script(event__append_many={"results": [{"deduplicated": False}]})
    good = b'{"session_id": "s", "actor": "user", "content": "x"}\n'
    outcome = house.command("append", "--jsonl", "-", stdin=good + line + b"\n" + good)
    assert outcome.code == 1
    assert text in outcome.err
    assert "the 1 events before it are stored" in outcome.err
    assert len(house.requests("event.append_many")) == 1


def test_add_registers_folders_by_their_absolute_paths(
    house: ScriptedHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "笔记").mkdir()
    monkeypatch.chdir(tmp_path)
    house.script(source__add={"source_id": "S1", "name": "笔记", "path": str(tmp_path / "笔记")})
    outcome = house.command("add", "笔记", "--name", "n")
    assert outcome.code == 0
    assert house.requests("source.add") == [{"path": str(tmp_path / "笔记"), "name": "n"}]
    assert "S1" in outcome.out
    outcome = house.command("add", "nowhere")
    assert outcome.code == 1
    assert "'" + str(tmp_path / "nowhere") + "' is not a folder" in outcome.err


# ---------------------------------------------------------------- the daemon and the index


def test_init_makes_a_private_folder_and_starts_nothing(house: ScriptedHouse, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh" / "data"
    first = house.command("init", "--data", str(fresh), "--json", data=False)
    second = house.command("init", "--data", str(fresh), "--json", data=False)
    assert first.json["created"] is True
    assert second.json["created"] is False
    assert first.json["data"] == str(fresh)
    assert fresh.stat().st_mode & 0o777 == 0o700
    assert list(fresh.iterdir()) == []
    assert str(fresh) in house.command("init", "--data", str(fresh), data=False).out
    (tmp_path / "file").touch()
    assert house.command("init", "--data", str(tmp_path / "file" / "data"), data=False).code == 1


def test_stop_waits_until_the_daemon_is_gone(house: ScriptedHouse) -> None:
    with house.bridge() as bridge:
        pid = bridge.result("pid")["pid"]
        bridge.close_stdin()
        bridge.wait()
    outcome = house.command("stop", "--json")
    assert (outcome.code, outcome.json) == (0, {"stopped": True, "pid": pid})
    # It was the bridge's child; the bridge has left, so whoever adopted it has collected it by now or soon will.
    assert not _runs(pid)
    outcome = house.command("stop")
    assert (outcome.code, outcome.out) == (0, "no daemon is running\n")
    assert len(house.starts()) == 1


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_status_is_readable(house: ScriptedHouse) -> None:
    actor = {"state": "READY", "restarts": 2, "pid": 4711, "mailbox": {"count": 3}, "in_hand_ms": 1500}
    house.script(
        system__status={
            "version": "0.1.0",
            "data_dir_id": "D",
            "pid": 42,
            "uptime_s": 3725,
            "ready": {"append": True, "write": True, "read": True, "search": False, "build": True, "cache": True},
            "actors": {"core_writer": actor, "searcher": {**actor, "state": "BACKOFF", "pid": None, "in_hand_ms": 0}},
            "index": INDEX,
            "loop_lag_ms": {"p50": 0.1, "p99": 2, "max": 30},
        }
    )
    outcome = house.command("status")
    assert outcome.err == ""
    for text in (
        "bulkhead 0.1.0, pid 42, up 1 h 2 min",
        "append, write, read, build, cache; not ready: search",
        "generation 7; rows events 12,000, units 3, documents 40; vectors 10 of 12,043; up to date",
        "p50 0.1 ms, p99 2 ms, max 30 ms",
        "1,500 ms",
        "BACKOFF",
    ):
        assert text in outcome.out
    assert house.command("status", "--json").json["pid"] == 42


def test_index_shows_what_was_left_out(house: ScriptedHouse) -> None:
    house.script(index__status=INDEX, source__list={"sources": [{"name": "notes", "path": "/n"}]})
    outcome = house.command("index")
    assert "generation 7" in outcome.out
    assert "notes/huge.md" in outcome.out
    assert "too large" in outcome.out
    assert house.command("index", "--json").json == INDEX
    assert "index.rebuild" not in (house.data / "requests").read_text()


def test_index_waits_for_the_build_that_it_asked_for(house: ScriptedHouse) -> None:
    building = {"stage": "write", "done": 5, "total": 10, "generation": 8}
    statuses = [
        {"result": INDEX},
        {"result": {**INDEX, "builds": {"started": 5, "published": 4}, "building": building}},
        {"result": {**INDEX, "generation": 8, "builds": {"started": 5, "published": 5}}},
    ]
    house.script(index__rebuild={"build": 5, "already_running": False}, index__status=statuses)
    outcome = house.command("index", "--rebuild", "--wait", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.json["generation"] == 8


def test_a_build_that_fails_is_a_failure_and_says_why(house: ScriptedHouse) -> None:
    failed = {**INDEX, "builds": {"started": 5, "published": 4}, "last_error": "disk is full"}
    house.script(index__rebuild={"build": 5}, index__status=failed, source__list={"sources": []})
    outcome = house.command("index", "--rebuild", "--wait")
    assert outcome.code == 1
    assert "index not rebuilt: disk is full" in outcome.err


def test_index_waits_until_nothing_is_behind(house: ScriptedHouse) -> None:
    behind = {**INDEX, "behind": {"events": 5, "units": 0}}
    house.script(index__status=[{"result": behind}, {"result": behind}, {"result": INDEX}])
    assert house.command("index", "--wait", "--json").json == INDEX


def test_a_build_for_another_model_is_no_failure_and_a_cancelled_one_is(house: ScriptedHouse) -> None:
    def ended(state: str, error: str | None) -> dict[str, Any]:
        end = {"build": 5, "state": state, "generation": 8, "error": error}
        return {**INDEX, "builds": {"started": 5, "published": 4, "ended": [end]}}

    sources: dict[str, Any] = {"sources": []}
    house.script(index__rebuild={"build": 5}, index__status=ended("successor", None), source__list=sources)
    assert house.command("index", "rebuild", "--wait").code == 0
    cancelled = ended("cancelled", "cancelled by command")
    house.script(index__rebuild={"build": 5}, index__status=cancelled, source__list=sources)
    outcome = house.command("index", "rebuild", "--wait")
    assert outcome.code == 1 and "index not rebuilt: cancelled by command" in outcome.err


def test_index_commands_say_what_came_of_them(house: ScriptedHouse) -> None:
    verified = {
        "generation": 8,
        "bytes": 1234567,
        "not_searched": None,
        "queries": {"asked": 24, "found": 24},
        "recall": {"at": 10, "value": 0.995},
    }
    house.script(
        index__cancel={"cancelled": [5, 6], "publishing": None},
        index__rollback={"generation": 7, "rolled_back_from": 8},
        index__verify=verified,
    )
    assert "cancelled build 5, 6" in house.command("index", "cancel").out
    assert "generation 7 serves again, instead of 8" in house.command("index", "rollback", "--generation", "7").out
    outcome = house.command("index", "verify")
    for text in ("1,234,567 bytes", "24 of 24 rows", "recall by vector: 0.995"):
        assert text in outcome.out
    assert house.command("index", "verify", "--json").json == verified
    requests = (house.data / "requests").read_text()
    assert requests.count("index.rollback") == 1


def test_a_command_can_be_interrupted(house: ScriptedHouse) -> None:
    house.script(index__status={**INDEX, "behind": {"events": 5, "units": 0}})
    command = [sys.executable, "-P", "-m", "supervisor", "--data", str(house.data), "index", "--wait"]
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(house.root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        while not (house.data / "requests").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait() == 130
