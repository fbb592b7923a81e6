"""The supervisor of a real daemon: its exit codes, its incidents, what systemd is told, what it remembers."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from chaos.client import ROOT, Client, RpcError, open_socket
from chaos.daemon import Daemon, wait_until
from chaos.faults.control import at_start, forget_start
from tests.integration.conftest import CONFIG, Serve

EXIT_S = 30.0
LAUNCHER = "chaos.faults.worker"
UNIT = {"unit_id": "u", "type": "profile", "scope": "user", "text": "likes tea", "request_id": "r"}


async def ended(process: "subprocess.Popen[bytes]") -> int:
    """Wait for a process and return its exit code."""
    with trio.fail_after(EXIT_S):
        while (code := process.poll()) is None:  # noqa: ASYNC110 - a foreign process has no event
            await trio.sleep(0.02)
    return code


async def until(condition: Callable[[], bool], seconds: float = EXIT_S) -> None:
    """Wait until a condition holds that nobody announces."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.02)


@pytest.fixture
def daemon(data: Path, config: Path) -> Daemon:
    """Give a daemon that the test starts and ends itself."""
    config.write_text(CONFIG, encoding="utf-8")
    return Daemon(data, config)


async def test_sigterm_drains_and_ends_with_0(daemon: Daemon) -> None:
    daemon.start()
    await daemon.connected()
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGTERM)
    assert await ended(daemon.process) == 0


async def test_a_lock_that_is_removed_ends_the_daemon_with_73(daemon: Daemon) -> None:
    """Without its lock file a second daemon could start on the same directory."""
    daemon.start()
    await daemon.connected()
    assert daemon.process is not None
    (daemon.data / "LOCK").unlink()
    assert await ended(daemon.process) == 73


async def test_the_configuration_is_refused_with_78(daemon: Daemon, config: Path) -> None:
    config.write_text("[supervision]\nrestart_max = 5\n", encoding="utf-8")
    daemon.start()
    assert daemon.process is not None
    assert await ended(daemon.process) == 78


async def test_a_daemon_that_stands_still_ends_itself_and_leaves_its_stacks(daemon: Daemon, config: Path) -> None:
    config.write_text(CONFIG + "[supervision]\nloop_dead_ms = 1000\n", encoding="utf-8")
    daemon.start()
    await daemon.connected()
    assert daemon.process is not None
    async with open_socket(daemon.socket_path) as client, trio.open_nursery() as nursery:
        nursery.start_soon(stall, client, False)
        assert await ended(daemon.process) == 75
        nursery.cancel_scope.cancel()
    (stacks,) = (daemon.data / "incidents").glob("*-loop-dead.txt")
    assert "stall" in stacks.read_text()


async def test_so_does_one_whose_interpreter_lock_is_held(daemon: Daemon, config: Path) -> None:
    config.write_text(CONFIG + "[supervision]\nloop_dead_ms = 1000\n", encoding="utf-8")
    daemon.start()
    await daemon.connected()
    assert daemon.process is not None
    async with open_socket(daemon.socket_path) as client, trio.open_nursery() as nursery:
        nursery.start_soon(stall, client, True)
        assert await ended(daemon.process) == 1
        nursery.cancel_scope.cancel()
    assert "stall" in (daemon.data / "logs" / "stderr.txt").read_text()


async def stall(client: Client, hold_gil: bool) -> None:
    await client.send_line(
        b'{"jsonrpc": "2.0", "id": 1, "method": "debug.stall_loop", "params": {"seconds": 30, "hold_gil": %s}}\n'
        % (b"true" if hold_gil else b"false")
    )
    await trio.sleep_forever()


async def test_a_bug_in_an_actor_is_an_incident_and_nobody_elses_matter(serve: Serve, data: Path) -> None:
    async with serve() as (_, client):
        await wait_until(client, lambda s: s["ready"]["write"] and s["ready"]["append"])
        await client.call("debug.fail_actor", {"actor": "core_writer"})
        appended = await client.call("event.append", {"session_id": "s", "actor": "user", "content": "meanwhile"})
        assert appended["seq"] == 1
        status = await wait_until(client, lambda s: s["actors"]["core_writer"]["epoch"] == 2 and s["ready"]["write"])
        assert status["actors"]["transcript_appender"]["epoch"] == 1
        await until(lambda: any((data / "incidents").glob("*-core_writer-died.txt")))
        (incident,) = (data / "incidents").glob("*-core_writer-died.txt")
        assert "RuntimeError: injected" in incident.read_text()


async def test_systemd_is_told(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "n"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        texts: list[str] = []

        def seen(text: str) -> bool:
            with contextlib.suppress(BlockingIOError):
                texts.append(manager.recv(4096).decode())
            return any(text in each for each in texts)

        daemon.start()
        await until(lambda: seen("READY=1"))
        await until(lambda: seen("WATCHDOG=1"))
        await daemon.stop()
        await until(lambda: seen("STOPPING=1"))


async def test_what_is_condemned_stays_so_until_it_is_cleared(daemon: Daemon, config: Path) -> None:
    """Two workers end with the same message in hand; the next daemon still knows, until a command."""
    config.write_text(CONFIG.replace("enabled = true", f"enabled = true\nlauncher = {LAUNCHER!r}"), encoding="utf-8")
    at_start(daemon.data, "core_writer", {"fault": "exit", "text": UNIT["text"], "calls": None})
    daemon.start()
    await daemon.connected()
    async with open_socket(daemon.socket_path) as client:
        with pytest.raises(RpcError, match="1006"):
            await client.call("unit.put", {**UNIT, "deadline_ms": 60_000}, deadline_s=60)
        assert (await client.call("unit.put", {**UNIT, "unit_id": "v", "text": "innocent"}))["version"] == 1
        (listed,) = (await client.call("poison.list"))["messages"]
        assert listed["actor"] == "core_writer" and len(listed["causes"]) == 2
    await until((daemon.data / "poison.json").exists)
    forget_start(daemon.data, "core_writer")
    await daemon.stop()
    daemon.start()
    await daemon.connected()
    async with open_socket(daemon.socket_path) as client:
        with pytest.raises(RpcError, match="1006"):
            await client.call("unit.put", {**UNIT, "deadline_ms": 60_000})
        result = subprocess.run(
            [sys.executable, "-P", "-m", "supervisor", "poison", "clear", listed["key"], "--data", str(daemon.data)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert result.stdout == "1 let go\n"
        assert (await client.call("unit.put", {**UNIT, "deadline_ms": 60_000}))["version"] == 1
    await daemon.stop()
