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

from chaos.client import FAMILY, Client, Disconnected, Hung, RpcError, environment, open_socket
from supervisor import paths

READY_S = 60.0
DRAIN_S = 20.0
EXIT_ALREADY_RUNNING = 75
STDERR = "stderr.txt"
LAST_WORDS_CHARS = 1500
POLL_S = 0.05


class NotStarted(OSError):
    """The daemon ended instead of answering, or did not answer in time; says its last words."""


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
        with (logs / STDERR).open("ab") as stderr:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env=environment(self.data),
                # As a bridge starts it: a session of its own, which the system schedules beside that of the load.
                start_new_session=True,
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
        """Ask it to drain and wait until it is gone; one that does not go is killed, and TimeoutError raised."""
        pid = self.pid()
        try:
            async with open_socket(self.socket_path) as client:
                await client.call("system.drain")
        except (OSError, RpcError, Disconnected, Hung):
            self.kill()
        if not await wait_gone(pid, DRAIN_S):
            self.kill()
            raise TimeoutError(f"daemon {pid} did not end within {DRAIN_S} s after system.drain; killed")
        if self.process is not None:
            self.process.wait(5)
            self.process = None

    async def connected(self, seconds: float = READY_S) -> None:
        """Wait until it answers. Raises NotStarted when the process that `start` made ends, or after so long."""
        give_up = time.monotonic() + seconds
        while True:
            try:
                async with open_socket(self.socket_path) as client:
                    await client.call("system.health")
                    return
            except (OSError, Disconnected) as error:
                status = self.process.poll() if self.process is not None else None
                if status not in (None, EXIT_ALREADY_RUNNING) or time.monotonic() > give_up:
                    how = f"ended with {status}" if status is not None else f"does not answer after {seconds} s"
                    raise NotStarted(f"the daemon on {str(self.data)!r} {how}: {self.last_words()}") from error
                await trio.sleep(0.02)

    def last_words(self) -> str:
        """Return the end of what it wrote to stderr."""
        try:
            text = (self.data / "logs" / STDERR).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return "(no stderr)"
        return text[-LAST_WORDS_CHARS:].strip() or "(nothing on stderr)"

    def family(self) -> list[int]:
        """Return the pids of every process that works for this directory, orphans included."""
        return sorted(process.pid for process in self._family())

    def described_family(self) -> list[str]:
        """Return the same as lines: pid and command."""
        return [f"{process.pid} {' '.join(_command(process))[:200]}" for process in self._family()]

    def _family(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._belongs(process)]

    def _belongs(self, process: psutil.Process) -> bool:
        """Look at what it was started with: its arguments, and the mark that children inherit."""
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                return False
            marked: bool = process.environ().get(FAMILY) == str(self.data)
            return marked or str(self.data) in " ".join(process.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False


def _command(process: psutil.Process) -> list[str]:
    try:
        line: list[str] = process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ["(gone)"]
    return line


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
