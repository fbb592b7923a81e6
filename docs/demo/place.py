"""Where the demo happens: a temporary directory, the bridges into it, the processes seen there; and leaving it clean.

Everything is inside the one directory, the daemon's socket too, so what is left behind can be counted.
"""

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from bridge import REPOSITORY, Bridge, Refused

DEMO = REPOSITORY / "docs" / "demo"
LEAVE_S = 20.0
# A little more than the largest note that is read (config.toml: generation_builder.file_bytes_max).
ENORMOUS_BYTES = 65 * 1024 * 1024


class Place:
    """A temporary directory with a daemon in it."""

    def __init__(self) -> None:
        # The path of a unix socket may have about a hundred bytes, and TMPDIR is sometimes most of that.
        short = "/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else None  # noqa: S108 (mkdtemp makes it private)
        self.root = Path(tempfile.mkdtemp(prefix="bulkhead-demo-", dir=short)).resolve()
        self.data = self.root / "data"
        self._processes: set[psutil.Process] = set()
        self._bridges: list[Bridge] = []
        runtime = self.root / "run"
        runtime.mkdir(mode=0o700)
        self.environment = {
            **os.environ,
            "BULKHEAD_DATA": str(self.data),
            "XDG_RUNTIME_DIR": str(runtime),
            "XDG_STATE_HOME": str(self.root / "state"),
            "PYTHONUTF8": "1",
        }
        self.environment.pop("BULKHEAD_CONFIG", None)

    def open_bridge(self) -> Bridge:
        """Start a bridge; it is closed by `leave` at the latest."""
        bridge = Bridge(self.data, self.environment)
        self._bridges.append(bridge)
        return bridge

    def copy_notes(self) -> list[Path]:
        """Copy the sample workspace and the repository's docs here, with notes that must be left out; return both."""
        workspace, docs = self.root / "workspace", self.root / "docs"
        shutil.copytree(DEMO / "workspace", workspace)
        shutil.copytree(REPOSITORY / "docs", docs, ignore=shutil.ignore_patterns("demo", "__pycache__"))
        (workspace / "drafts").mkdir()
        (workspace / "drafts" / "unsent.md").write_text("# Not to be found\n\nIgnored by .gitignore.\n")
        (workspace / "photograph.md").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 16)
        with (workspace / "enormous.md").open("wb") as file:
            file.truncate(ENORMOUS_BYTES)
        return [workspace, docs]

    def watch(self, status: dict[str, Any]) -> None:
        """Remember the daemon of a system.status reply and its workers, so that none is forgotten at the end."""
        with contextlib.suppress(psutil.NoSuchProcess):
            daemon = psutil.Process(status["pid"])
            self._processes |= {daemon, *daemon.children(recursive=True)}

    def leave(self, *, keep: bool) -> list[str]:
        """Drain the daemon, end what is left, remove the directory; return what was left behind, which is nothing."""
        self._drain()
        for bridge in self._bridges:
            bridge.close()
        left = [f"process {_shown(process)}" for process in self._wait_for_processes()]
        if keep:
            return left
        shutil.rmtree(self.root, ignore_errors=True)
        return left + [f"file {path}" for path in (self.root, *self.root.rglob("*")) if path.exists()]

    def _drain(self) -> None:
        if not self._bridges:
            return
        # A bridge of its own: the others may be in the middle of an interrupted request.
        bridge = self.open_bridge()
        with contextlib.suppress(Refused, OSError):
            self.watch(bridge.call("system.status"))
            bridge.call("system.drain")

    def _wait_for_processes(self) -> list[psutil.Process]:
        """Wait until all have ended; end by force those that have not, and return them."""
        expires = time.monotonic() + LEAVE_S
        while (left := self._alive()) and time.monotonic() < expires:
            time.sleep(0.05)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return left

    def _alive(self) -> list[psutil.Process]:
        """Return the processes that were seen here, or that name this directory, and are still running."""
        named = [
            process
            for process in psutil.process_iter(["cmdline"])
            if any(str(self.root) in argument for argument in process.info["cmdline"] or ())
        ]
        return [process for process in self._processes.union(named) if _is_running(process)]


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _shown(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())}"
    except psutil.Error:
        return str(process.pid)
