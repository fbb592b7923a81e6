"""One run: the systems take turns, window by window, idle and during a rebuild; never two of them at a time.

A window of a rebuild begins with some seconds of load alone, is measured from the request for the rebuild on, and
lasts until the new index serves and every client has succeeded with something new. A system that is quicker than the
one before it rebuilds again and again, until it has been under rebuild for as long.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from bench.incident.load import Load
from bench.incident.memory import Spec
from bench.incident.results import IDLE, REBUILD, Rebuild, Results, Usage, Window
from bench.incident.usage import Meter
from bench.incident.work import Sizes

LEAD_SHARE = 0.25  # of an idle window: load alone before a rebuild, for the picture
LEAD_S_MAX = 10.0
RECOVERED_S_MAX = 90.0
POLL_S = 0.1


class System(Protocol):
    """What is measured."""

    name: str
    folder: Path

    @property
    def spec(self) -> Spec:
        """Return where its clients find it."""
        ...

    def prepare(self) -> None:
        """Come into being and index everything."""
        ...

    def rebuild(self) -> Rebuild:
        """Rebuild the whole index."""
        ...

    def settle(self) -> None:
        """Finish what is under way."""
        ...

    def pids(self) -> list[int]:
        """Return the processes whose memory counts."""
        ...

    def close(self) -> None:
        """End."""
        ...


class Seat:
    """A system with its clients and its meter."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.windows: list[Window] = []
        self._load: Load | None = None
        self._meter = Meter(system.folder, self._pids)

    @property
    def usage(self) -> Usage:
        """Return the most that it took."""
        return self._meter.usage

    def prepare(self) -> float:
        """Index everything; return how long that took, in seconds."""
        began = time.monotonic()
        with self._meter:
            self.system.prepare()
        took = time.monotonic() - began
        self._load = Load(self.system.spec)
        return took

    def idle(self, seconds: float) -> None:
        """Measure a window without a rebuild."""
        load = self._clients()
        with self._meter:
            load.start()
            began = time.monotonic()
            time.sleep(seconds)
            ended = time.monotonic()
            ops = load.stop()
        window = Window(system=self.system.name, phase=IDLE, begin=began, end=ended, ops=ops)
        self.windows.append(window)
        self.system.settle()

    def rebuild(self, lead_s: float, at_least_s: float) -> float:
        """Measure a window of rebuilds; return for how long the index was being rebuilt."""
        load, rebuilds = self._clients(), list[Rebuild]()
        with self._meter:
            load.start()
            time.sleep(lead_s)
            began = time.monotonic()
            while not rebuilds or time.monotonic() - began < at_least_s:
                rebuilds.append(self.system.rebuild())
            self._recover(load, rebuilds[-1].end)
            ended = time.monotonic()
            ops = load.stop()
        self.windows.append(
            Window(system=self.system.name, phase=REBUILD, begin=began, end=ended, ops=ops, rebuilds=rebuilds)
        )
        self.system.settle()
        return ended - began

    def close(self) -> None:
        """End its clients, then the system."""
        if self._load is not None:
            self._load.close()
        self.system.close()

    def _recover(self, load: Load, since: float) -> None:
        give_up = time.monotonic() + RECOVERED_S_MAX
        while not load.recovered(since) and time.monotonic() < give_up:
            time.sleep(POLL_S)

    def _clients(self) -> Load:
        assert self._load is not None, "prepare() first"
        return self._load

    def _pids(self) -> list[int]:
        # SQLite works inside its clients; the clients of a daemon only wait.
        inside = [self._load.pid] if self.system.spec.works_in_clients and self._load is not None else []
        return [*self.system.pids(), *inside]


def run(systems: Sequence[System], sizes: Sizes, *, rounds: int, seconds: float) -> Results:
    """Measure; say on stderr how far it is."""
    seats = [Seat(system) for system in systems]
    try:
        first_index_s = {seat.system.name: _prepare(seat) for seat in seats}
        for number in range(1, rounds + 1):
            for seat in seats:
                _say(f"round {number} of {rounds}: {seat.system.name}, idle")
                seat.idle(seconds)
            lasted = seconds
            for seat in seats:
                _say(f"round {number} of {rounds}: {seat.system.name}, rebuild")
                lasted = seat.rebuild(min(seconds * LEAD_SHARE, LEAD_S_MAX), lasted)
        return Results(
            sizes=sizes,
            windows=[window for seat in seats for window in seat.windows],
            usage={seat.system.name: seat.usage for seat in seats},
            first_index_s=first_index_s,
        )
    finally:
        for seat in seats:
            seat.close()


def _prepare(seat: Seat) -> float:
    _say(f"{seat.system.name}: indexing everything")
    took = seat.prepare()
    _say(f"{seat.system.name}: took {took:.1f} s")
    return took


def _say(text: str) -> None:
    print(f"incident: {text}", file=sys.stderr, flush=True)
