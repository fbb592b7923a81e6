"""How far a build is, how fast and how long it will take: estimated from its rows and from builds before. Pure.

A build goes through its stages in a fixed order. What a stage takes is its rows times the cost of a row, as measured in
the build before, else as measured on two cores. So a stage without any report of its own (LanceDB says nothing while it
indexes) still moves on, ever more slowly: the estimate never stands still, never goes back and is never ahead of the
stage that the build is in. Only the caller knows the time.
"""

from collections.abc import Mapping
from typing import NamedTuple

from actors.messages.base import CORPORA

# What a row costs in each kind of stage, in seconds: 17,395 rows of 1,536 dimensions on two cores.
COSTS: Mapping[str, float] = {
    "begin": 100e-6,
    "events": 200e-6,
    "units": 200e-6,
    "documents": 400e-6,
    "write": 700e-6,
    "index": 500e-6,
    "test": 100e-6,
    "seal": 150e-6,
    "catch": 20e-6,
    "prepare": 100e-6,
    "flip": 5e-6,
}
# In these a stage counts rows; elsewhere files, or nothing.
IN_ROWS = ("begin", "events", "units", "write")
STAGE_S_MIN = 0.02
LEARN_ROWS_MIN = 500  # fewer tell nothing about the cost of a row
RATE_S_MIN = 0.2
CORRECTION_MAX = 20.0

STAGES: tuple[str, ...] = (
    "begin",
    *CORPORA,
    *(f"write {corpus}" for corpus in CORPORA),
    *(f"index {corpus}" for corpus in CORPORA),
    "test",
    "seal",
    "catch up",
    "prepare",
    "flip",
)


class Estimate(NamedTuple):
    """Where a build is: percent of its time, rows per second of the stage (None: it counts none), seconds left."""

    percent: float
    rows_per_s: float | None
    eta_s: int | None


class Pace:
    """One build on its way."""

    def __init__(self, rows: Mapping[str, int], costs: Mapping[str, float], now: float) -> None:
        """`rows` are those expected of each corpus, `costs` as `learned()` returned them, `now` in seconds."""
        self._rows: dict[str, int] = {corpus: max(0, rows.get(corpus, 0)) for corpus in CORPORA}
        self._costs = {**COSTS, **costs}
        self._expected = {stage: self._expect(stage) for stage in STAGES}
        self._took: dict[str, float] = {}
        self._stage = STAGES[0]
        self._began = self._entered = now
        self._first = self._done = self._total = 0
        self._percent = 0.0

    def _expect(self, stage: str) -> float:
        rows = self._rows.get(stage.rpartition(" ")[2], sum(self._rows.values()))
        cost: float = self._costs[_kind(stage)]
        return max(STAGE_S_MIN, rows * cost)

    def at(self, stage: str, done: int, total: int, now: float) -> None:
        """Note a stage that the build enters, or how far it is in the one it is in (also under an unknown name)."""
        if stage in self._expected and stage != self._stage:
            self._took[self._stage] = self._took.get(self._stage, 0.0) + now - self._entered
            self._stage, self._entered, self._first = stage, now, done
        self._done, self._total = done, total

    def estimate(self, now: float) -> Estimate:
        """Return where the build is; the percentage never falls."""
        share = self._share(now)
        place = STAGES.index(self._stage)
        before = sum(self._expected[stage] for stage in STAGES[:place])
        after = sum(self._expected[stage] for stage in STAGES[place + 1 :])
        here = self._expected[self._stage]
        percent = 100 * (before + share * here) / (before + here + after)
        self._percent = max(self._percent, percent)
        left = (after + (1 - share) * here) * self._correction(before + share * here, now)
        return Estimate(round(self._percent, 2), self._rate(now), round(left))

    def _share(self, now: float) -> float:
        """Return how much of the stage is done, 0 to 1: as it counts, else by what it is expected to take."""
        if self._total > self._first:
            return min(1.0, max(0, self._done - self._first) / (self._total - self._first))
        elapsed = max(0.0, now - self._entered)
        return elapsed / (elapsed + self._expected[self._stage])

    def _rate(self, now: float) -> float | None:
        elapsed = now - self._entered
        if _kind(self._stage) not in IN_ROWS or self._total <= self._first or elapsed < RATE_S_MIN:
            return None
        return round((self._done - self._first) / elapsed, 1)

    def _correction(self, expected: float, now: float) -> float:
        """Return how much slower this build is than expected, so far."""
        return min(CORRECTION_MAX, max(1 / CORRECTION_MAX, (now - self._began) / max(STAGE_S_MIN, expected)))

    def learned(self, rows: Mapping[str, int], now: float) -> dict[str, float]:
        """Return what a row cost in each kind of stage, once the build is through; `rows` are those it has."""
        self._took[self._stage] = self._took.get(self._stage, 0.0) + now - self._entered
        spent: dict[str, float] = {}
        counted: dict[str, int] = {}
        for stage, seconds in self._took.items():
            kind = _kind(stage)
            spent[kind] = spent.get(kind, 0.0) + seconds
            counted[kind] = counted.get(kind, 0) + rows.get(stage.rpartition(" ")[2], sum(rows.values()))
        return {kind: spent[kind] / counted[kind] for kind in spent if counted[kind] >= LEARN_ROWS_MIN}


def _kind(stage: str) -> str:
    return stage.partition(" ")[0]
