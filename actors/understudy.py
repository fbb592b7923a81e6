"""The process that will follow a worker, started ahead: its modules are imported, it waits to be told what it is.

A worker needs a quarter of a second of CPU before it can open its store, which is most of a restart. For the SQLite
rooms that is spent beforehand. Until it gets its Setup frame such a process has opened nothing and knows nothing; it
leaves at the end of its stdin and dies with its parent like any other worker. Costs 20 MB of memory each.
"""

import contextlib
import subprocess

from actors.worker import WorkerSpec, spawn

LEAVE_S = 2.0


class Understudies:
    """The processes that wait for one actor's workers, by what they run. Outlives the incarnations."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str | None, str], subprocess.Popen[bytes]] = {}

    def prepare(self, spec: WorkerSpec) -> None:
        """Start a process for this kind of worker unless one waits already. Blocks for a few ms, as any start."""
        if not spec.understudy or self._living(spec) is not None:
            return
        self._waiting[_role(spec)] = spawn(spec)

    def take(self, spec: WorkerSpec) -> "subprocess.Popen[bytes] | None":
        """Return a process that waits, which is the caller's from now on; None when there is none that lives."""
        living = self._living(spec)
        if living is not None:
            del self._waiting[_role(spec)]
        return living

    def dismiss(self) -> None:
        """Let all of them go."""
        for process in self._waiting.values():
            _end(process)
        self._waiting.clear()

    def pids(self) -> list[int]:
        """Return the process ids of those that wait."""
        return [process.pid for process in self._waiting.values() if process.poll() is None]

    def _living(self, spec: WorkerSpec) -> "subprocess.Popen[bytes] | None":
        process = self._waiting.get(_role(spec))
        if process is not None and process.poll() is not None:
            _end(self._waiting.pop(_role(spec)))
            process = None
        return process


def _role(spec: WorkerSpec) -> tuple[str | None, str]:
    return spec.launcher, spec.module


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process that has nothing to lose, and close what connects us."""
    process.kill()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(LEAVE_S)
