"""Is the loop itself turning? Two watches that do not depend on it.

* A heart beat task stamps the time every 50 ms and measures its own lateness (the loop lag of `system.status`).
* An OS thread compares the stamp: above `warn_ms` it dumps all stacks into an incident file, above `dead_ms` it
  ends the process with status 75, so that an outer manager or the next bridge starts a new one.
* A thread needs the GIL. `faulthandler.dump_traceback_later` does not: it is re-armed twice a second, dumps all
  stacks to stderr and ends the process with status 1 when it fires, a second after the thread would have.
"""

import bisect
import contextlib
import faulthandler
import io
import os
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

import msgspec
import trio

from supervisor import exit_codes
from supervisor.config import LogLimits
from supervisor.logs import write_incident

BEAT_S = 0.05
REARM_S = 0.5
# The thread leaves a file and a better exit code behind; faulthandler is for the case that it cannot run.
THREAD_FIRST_S = 1.0
LAGS_KEPT = 4096


class LoopLag(msgspec.Struct, frozen=True, kw_only=True):
    """How late the loop was, in ms, over the last few minutes (`max`: since the start)."""

    p50: float
    p99: float
    max: float


# Upper bounds of the classes of lag, in ms; one more class is open.
LAG_BOUNDS_MS = (0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 500, 1000)


class LagHistogram(msgspec.Struct, frozen=True, kw_only=True):
    """How often the loop was how late since the start: `counts` has one number per bound and one for what is above."""

    bounds_ms: tuple[float, ...]
    counts: list[int]


class LoopWatch:
    """The heart beat and its watchers."""

    def __init__(self, *, incidents: Path, limits: LogLimits, warn_ms: int, dead_ms: int) -> None:
        self._incidents = incidents
        self._limits = limits
        self._warn_s = warn_ms / 1000
        self._dead_s = dead_ms / 1000
        self._lags: deque[float] = deque(maxlen=LAGS_KEPT)
        self._max_ms = 0.0
        self._counts = [0] * (len(LAG_BOUNDS_MS) + 1)
        self._beat_at = time.monotonic()
        self._warned_at = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop-watch", daemon=True)

    async def run(self) -> None:
        """Beat until cancelled."""
        self._beat_at = time.monotonic()
        self._thread.start()
        rearm_at = 0.0
        try:
            while True:
                if time.monotonic() >= rearm_at:
                    faulthandler.dump_traceback_later(self._dead_s + THREAD_FIRST_S, exit=True)
                    rearm_at = time.monotonic() + REARM_S
                expected = time.monotonic() + BEAT_S
                await trio.sleep(BEAT_S)
                now = time.monotonic()
                self._note((now - expected) * 1000)
                self._beat_at = now
        finally:
            self._stopped.set()
            faulthandler.cancel_dump_traceback_later()

    def _note(self, lag_ms: float) -> None:
        self._lags.append(lag_ms)
        self._max_ms = max(self._max_ms, lag_ms)
        self._counts[bisect.bisect_left(LAG_BOUNDS_MS, lag_ms)] += 1

    def lag(self) -> LoopLag:
        """Return the lag so far."""
        ordered = sorted(self._lags) or [0.0]
        return LoopLag(
            p50=round(ordered[len(ordered) // 2], 2),
            p99=round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 2),
            max=round(self._max_ms, 2),
        )

    def histogram(self) -> LagHistogram:
        """Return all lags since the start, by class: what several daemons measured can be added up."""
        return LagHistogram(bounds_ms=LAG_BOUNDS_MS, counts=list(self._counts))

    def watched(self) -> bool:
        """Say whether the watching thread lives."""
        return self._thread.is_alive()

    def alive(self) -> bool:
        """Say whether the loop beat within the last two seconds and its watcher lives. Touches no disk."""
        return time.monotonic() - self._beat_at < 2.0 and self.watched()

    def _watch(self) -> None:
        while not self._stopped.wait(BEAT_S):
            silent_s = time.monotonic() - self._beat_at
            if silent_s > self._dead_s:
                self._dump("loop-dead", silent_s)
                os._exit(exit_codes.TEMPORARY)
            if silent_s > self._warn_s and self._warned_at != self._beat_at:
                self._warned_at = self._beat_at
                self._dump("loop-late", silent_s)

    def _dump(self, name: str, silent_s: float) -> None:
        stacks = ""
        with contextlib.suppress(OSError), tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            stacks = io.TextIOWrapper(file, encoding="utf-8", errors="replace").read()
        write_incident(self._incidents, self._limits, name, f"the loop was silent for {silent_s:.3f} s\n\n{stacks}")
