"""A real daemon to be hurt: start it, find its processes, kill them, see that nothing is left."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import trio

from chaos.client import ROOT, Client, Disconnected, RpcError, open_socket
from supervisor import paths

READY_S = 60.0
POLL_S = 0.05


class Daemon:
    """A daemon on a data directory of its own."""

    def __init__(self, data: Path, config: Path | None = None) -> None:
        self.data = data
        self.config = config
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def socket_path(self) -> str:
        """Return where it listens."""
        return paths.socket_path(str(self.data))

    def start(self) -> None:
        """Start it in the foreground of this process; its stderr goes to a file in the data directory."""
        self.data.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "supervisor", "serve", "--data", str(self.data)]
        if self.config is not None:
            command += ["--config", str(self.config)]
        logs = self.data / "logs"
        logs.mkdir(exist_ok=True)
        with (logs / "stderr.txt").open("ab") as stderr:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def pid(self) -> int | None:
        """Return the process id of whoever serves the directory, started by us or by a bridge."""
        try:
            content = json.loads((self.data / "LOCK").read_bytes())
        except (OSError, ValueError):
            return None
        pid = int(content["pid"])
        return pid if psutil.pid_exists(pid) else None

    def kill(self) -> None:
        """SIGKILL the daemon; its workers follow by themselves."""
        pid = self.pid()
        if pid is not None:
            kill(pid)
        if self.process is not None and self.process.pid == pid:
            self.process.wait(10)
            self.process = None

    async def stop(self) -> None:
        """Ask it to drain and wait until it is gone."""
        pid = self.pid()
        try:
            async with open_socket(self.socket_path) as client:
                await client.call("system.drain")
        except (OSError, RpcError, Disconnected):
            self.kill()
        await wait_gone(pid, 20.0)
        if self.process is not None:
            self.process.wait(5)
            self.process = None

    async def connected(self, seconds: float = READY_S) -> None:
        """Wait until it accepts connections."""
        give_up = time.monotonic() + seconds
        while True:
            try:
                async with open_socket(self.socket_path) as client:
                    await client.call("system.health")
                    return
            except (OSError, Disconnected):
                if time.monotonic() > give_up:
                    raise
                await trio.sleep(0.02)

    def family(self) -> list[int]:
        """Return the pids of every process that works for this directory."""
        found = []
        for process in psutil.process_iter(["pid", "cmdline"]):
            line = " ".join(process.info["cmdline"] or ())
            if str(self.data) in line:
                found.append(process.info["pid"])
                found.extend(child.pid for child in _children(process))
        return sorted(set(found))


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        children: list[psutil.Process] = process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return children


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal; False when the process is gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


async def wait_gone(pid: int | None, seconds: float) -> bool:
    """Wait until a process has ended (a zombie counts as ended)."""
    give_up = time.monotonic() + seconds
    while pid is not None and _runs(pid):
        if time.monotonic() > give_up:
            return False
        await trio.sleep(0.02)
    return True


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def wait_until(client: Client, check: Any, seconds: float = READY_S, method: str = "system.status") -> Any:
    """Ask for a status again and again until `check(status)` is true; return that status."""
    give_up = time.monotonic() + seconds
    while True:
        status = await client.call(method)
        if check(status):
            return status
        if time.monotonic() > give_up:
            raise TimeoutError(f"{method} did not become what was waited for: {json.dumps(status)[:2000]}")
        await trio.sleep(POLL_S)


@contextmanager
def data_directory() -> Iterator[Path]:
    """Give a data directory that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="bh-"))
    try:
        yield folder / "data"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
