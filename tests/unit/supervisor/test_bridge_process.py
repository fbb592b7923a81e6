"""`bulkhead stdio` as a process, in front of a scripted daemon that it starts itself."""

import contextlib
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor import paths
from tests.bridge_client import PATIENCE_S, ROOT, BridgeClient
from tests.unit.supervisor.scripted_house import ScriptedHouse


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ---------------------------------------------------------------- start


def test_the_bridge_imports_the_standard_library_only() -> None:
    program = (
        "import sys; before = set(sys.modules); import supervisor.launcher, supervisor.bridge;"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
    )
    imported = set(done.stdout.split())
    assert imported - sys.stdlib_module_names == {"supervisor"}
    # Each of these would cost a tenth of the start-up time or more.
    assert not imported & {"argparse", "asyncio", "subprocess", "pathlib", "logging", "typing", "dataclasses"}


def test_a_daemon_is_started_when_there_is_none_and_outlives_the_bridge(house: ScriptedHouse) -> None:
    with house.bridge("--config", str(house.root / "config.toml")) as bridge:
        assert bridge.result("echo", text="忠臣不事二主") == {"text": "忠臣不事二主"}
        found = bridge.result("pid")
        # Neither the folder nor the terminal session of whoever happened to come first.
        assert found["cwd"] == "/"
        assert found["session"] == found["pid"]
        bridge.close_stdin()
        assert bridge.wait() == 0
    with house.bridge() as bridge:
        assert bridge.result("pid")["pid"] == found["pid"]
    assert house.starts() == [f"{found['pid']} {house.root / 'config.toml'}"]


def test_many_bridges_at_once_start_one_daemon(house: ScriptedHouse) -> None:
    (house.data / "slow-to-start").touch()
    with contextlib.ExitStack() as stack:
        bridges = [stack.enter_context(house.bridge()) for _ in range(8)]
        assert len({bridge.result("pid")["pid"] for bridge in bridges}) == 1
    assert len(house.starts()) == 1


def test_a_stale_socket_is_no_obstacle(house: ScriptedHouse) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(paths.socket_path(str(house.data)))
    stale.close()
    with house.bridge() as bridge:
        assert bridge.result("echo", a=1) == {"a": 1}


def test_a_daemon_with_another_environment_is_found_through_its_lock(house: ScriptedHouse, tmp_path: Path) -> None:
    with house.bridge() as bridge:
        pid = bridge.result("pid")["pid"]
    other = tmp_path / "other-run"
    other.mkdir(mode=0o700)
    with house.bridge(environment={"XDG_RUNTIME_DIR": str(other)}) as bridge:
        assert bridge.result("pid")["pid"] == pid


def test_a_daemon_that_refuses_to_start_is_explained_and_tried_again_for_the_next_request(house: ScriptedHouse) -> None:
    (house.data / "refuse-to-start").touch()
    with house.bridge() as bridge:
        answer = bridge.call("echo")
        assert answer["error"]["code"] == 1003
        assert "exit code 78" in answer["error"]["message"]
        assert answer["error"]["data"]["outcome"] == "not_executed"
        assert "unknown key 'serch'" in answer["error"]["data"]["hint"]
        (house.data / "refuse-to-start").unlink()
        assert bridge.result("echo", a=1) == {"a": 1}


def test_a_data_directory_that_cannot_be_made_is_an_answer_not_a_crash(house: ScriptedHouse, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with BridgeClient(tmp_path / "file" / "data", root=house.root) as bridge:
        assert bridge.call("echo")["error"]["code"] == 1003
        bridge.close_stdin()
        assert bridge.wait() == 0


def test_the_stderr_of_the_daemon_is_bounded(house: ScriptedHouse) -> None:
    log = Path(paths.daemon_stderr_path(str(house.data)))
    log.parent.mkdir()
    log.write_bytes(b"x" * (2 * 1024 * 1024))
    with house.bridge() as bridge:
        bridge.result("print")
    assert log.read_bytes() == b"printed by a native library\n"
    assert log.with_name("daemon.err.1").stat().st_size == 2 * 1024 * 1024


# ---------------------------------------------------------------- leaving


def test_piped_requests_are_answered_before_it_leaves(house: ScriptedHouse) -> None:
    lines = b"".join(
        b'{"jsonrpc":"2.0","id":%d,"method":"sleep","params":{"seconds":0.1}}\n' % number for number in range(3)
    )
    with house.bridge() as bridge:
        bridge.send(lines.rstrip(b"\n"))
        bridge.close_stdin()
        assert [bridge.read()["id"] for _ in range(3)] == [0, 1, 2]
        assert bridge.read_line() == b""
        assert bridge.wait() == 0


@pytest.mark.parametrize("stdin", ["null", "closed"])
def test_without_a_client_it_leaves_and_starts_nothing(house: ScriptedHouse, stdin: str) -> None:
    close: dict[str, Any] = {"preexec_fn": lambda: os.close(0)} if stdin == "closed" else {}
    with house.bridge(stdin=subprocess.DEVNULL, **close) as bridge:
        assert bridge.read_line() == b""
        assert bridge.wait() == 0
    assert house.starts() == []


def test_it_leaves_when_nobody_reads_its_answers(house: ScriptedHouse) -> None:
    with house.bridge() as bridge:
        bridge.result("echo")
        assert bridge.process.stdout is not None
        bridge.process.stdout.close()
        assert bridge.wait() == 0


def test_it_leaves_when_its_parent_is_gone_though_its_pipes_stay_open(house: ScriptedHouse) -> None:
    with house.bridge() as bridge:
        bridge.result("echo")
    reader, writer = os.pipe()
    answers, answers_end = os.pipe()
    # The host: starts the bridge on our pipes, says its pid, and is killed.
    program = (
        "import subprocess, sys, time;"
        "child = subprocess.Popen([sys.executable, '-P', '-m', 'supervisor', 'stdio', '--data', sys.argv[1]],"
        f" stdin={reader}, stdout={answers_end}, pass_fds=({answers_end},)); print(child.pid, flush=True);"
        "time.sleep(600)"
    )
    host = subprocess.Popen(
        [sys.executable, "-P", "-c", program, str(house.data)],
        env={**os.environ, "PYTHONPATH": str(house.root)},
        stdout=subprocess.PIPE,
        pass_fds=(reader, answers_end),
    )
    os.close(reader)
    os.close(answers_end)
    with host:
        assert host.stdout is not None
        host.stdout.readline()
        os.write(writer, b'{"jsonrpc":"2.0","id":1,"method":"echo"}\n')
        assert json.loads(os.read(answers, 65536))["id"] == 1
        host.kill()
    # Its end of the pipe closes with it, and nothing else holds it.
    ready, _, _ = select.select([answers], [], [], PATIENCE_S)
    assert ready
    assert os.read(answers, 1) == b""
    os.close(writer)
    os.close(answers)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_it_quietly(house: ScriptedHouse, number: signal.Signals, code: int) -> None:
    with house.bridge() as bridge:
        bridge.result("echo")
        bridge.ask("silence")
        bridge.process.send_signal(number)
        assert bridge.wait() == code
        assert bridge.process.stderr is not None
        assert bridge.process.stderr.read() == b""


def test_control_c_in_a_terminal_ends_it_once_and_leaves_the_terminal_blocking(house: ScriptedHouse) -> None:
    controller, terminal = pty.openpty()
    with house.bridge(stdin=terminal, stdout=terminal, start_new_session=True, preexec_fn=_take_terminal) as bridge:
        os.write(controller, b'{"jsonrpc":"2.0","id":1,"method":"echo"}\n')
        seen = b""
        while b'"result"' not in seen:
            assert select.select([controller], [], [], PATIENCE_S)[0]
            seen += os.read(controller, 65536)
        os.write(controller, b"\x03")
        assert bridge.wait() == 0
        assert os.get_blocking(terminal)
    os.close(controller)
    os.close(terminal)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_bridge_that_leaves_while_the_daemon_starts_holds_nobody_up(house: ScriptedHouse) -> None:
    (house.data / "slow-to-start").touch()
    with house.bridge() as bridge:
        wait_until(lambda: bool(house.starts()))
        bridge.process.kill()
        bridge.wait()
    with house.bridge() as bridge:
        assert bridge.result("echo", a=1) == {"a": 1}
    # If the second one finds LOCK held, it waits for the first.
    assert len(house.starts()) <= 4


# ---------------------------------------------------------------- bad lines


def test_bad_lines_get_one_answer_each_and_the_next_request_works(house: ScriptedHouse) -> None:
    with house.bridge() as bridge:
        bridge.send(b"not json\n\n\xff\xfe\n")
        bridge.send(b"x" * (9 * 1024 * 1024) + b"\n")
        bridge.send(b'{"jsonrpc":"2.0","id":"last","method":"echo"}\r\n')
        bridge.close_stdin()
        answers = []
        while line := bridge.read_line():
            answers.append(json.loads(line))
        assert sorted(str(answer.get("error", {}).get("code", answer["id"])) for answer in answers) == [
            "-32600",
            "-32700",
            "-32700",
            "last",
        ]
        assert bridge.wait() == 0


# ---------------------------------------------------------------- the daemon dies


def test_what_was_in_hand_is_answered_and_the_next_request_starts_a_daemon(house: ScriptedHouse) -> None:
    with house.bridge() as bridge:
        first = bridge.result("pid")["pid"]
        asked = [bridge.ask("silence"), bridge.ask("silence"), bridge.ask("die")]
        answers = [bridge.read() for _ in asked]
        assert [answer["id"] for answer in answers] == asked
        assert {answer["error"]["code"] for answer in answers} == {1002}
        assert {answer["error"]["data"]["outcome"] for answer in answers} == {"unknown"}
        assert bridge.result("pid")["pid"] != first
    assert len(house.starts()) == 2


def test_an_idle_bridge_does_not_bring_back_a_daemon_that_went(house: ScriptedHouse) -> None:
    with house.bridge() as bridge, house.bridge() as other:
        pid = other.result("pid")["pid"]
        bridge.result("echo")
        os.kill(pid, signal.SIGKILL)
        # `bridge` notices as soon as `other` does, who needs one; nothing is asked of `bridge`, so it starts none.
        wait_until(lambda: "result" in other.call("echo"))
        assert len(house.starts()) == 2
        assert bridge.result("echo", a=1) == {"a": 1}
        assert len(house.starts()) == 2


def test_bridges_keep_their_introduction_over_a_restart(house: ScriptedHouse) -> None:
    with house.bridge() as bridge:
        bridge.result("hello", client="test", principal="p")
        bridge.result("initialize", protocolVersion="2025-06-18")
        bridge.tell("notifications/initialized")
        bridge.ask("die")
        assert bridge.read()["error"]["code"] == 1002
        assert bridge.result("seen") == [
            {"method": "hello", "params": {"client": "test", "principal": "p"}},
            {"method": "initialize", "params": {"protocolVersion": "2025-06-18"}},
            {"method": "notifications/initialized", "params": {}},
        ]


def test_a_daemon_that_dies_again_and_again_is_started_again_and_again(house: ScriptedHouse) -> None:
    with house.bridge() as bridge:
        pids = set()
        for _ in range(3):
            pids.add(bridge.result("pid")["pid"])
            assert bridge.call("die")["error"]["code"] == 1002
        assert len(pids) == 3
        # The bridge is the parent of the daemons that it started, and leaves no zombie.
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


# ---------------------------------------------------------------- backpressure


def test_a_client_that_does_not_read_is_not_buffered_without_bound(house: ScriptedHouse) -> None:
    with house.bridge() as bridge:
        size = 4 * 1024 * 1024
        count = 12
        writer = threading.Thread(target=lambda: [bridge.ask("large", bytes=size) for _ in range(count)])
        writer.start()
        writer.join()
        first = bridge.read_line()
        resident = int(Path(f"/proc/{bridge.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert resident < 64 * 1024 * 1024
        lines = [first, *(bridge.read_line() for _ in range(count - 1))]
        assert [len(json.loads(line)["result"]) for line in lines] == [size] * count


def test_large_requests_pass_whole(house: ScriptedHouse) -> None:
    with house.bridge() as bridge:
        text = "中" * 1_000_000
        assert bridge.result("echo", text=text) == {"text": text}
