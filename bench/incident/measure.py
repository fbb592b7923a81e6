"""Sums over what was seen. Pure.

A blocked client comes less often, so the percentiles of its attempts look good just when nothing works. Here every
turn of the pace counts, also those that a client missed because it was still waiting; and a turn lasts until an
operation of its kind has *succeeded*, as for somebody who tries again until it works. Of several windows the median is
taken of their percentiles, and the largest of their largest.
"""

import math
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from bench.incident.results import OK, PACE_S, WRITES, Op, Window


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of operation in one phase; milliseconds until it succeeded."""

    attempts: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    failed: dict[str, int]
    incomplete: int

    @property
    def errors(self) -> int:
        """Return how many attempts failed."""
        return sum(self.failed.values())


def percentile(values: Iterable[float], share: float) -> float:
    """Return a percentile by the nearest rank; 0 for no values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)] if ordered else 0.0


def waits(window: Window, kind: str) -> list[float]:
    """Return for every turn of a kind the seconds until an operation succeeded, at least until the load ended."""
    pace_s = PACE_S[kind]
    mine = sorted((op for op in window.ops if op.kind == kind), key=lambda op: op.at)
    good = [op.end for op in mine if op.outcome == OK]
    last = max([window.end, *(op.end for op in window.ops)])
    waited = []
    for op in mine:
        if not window.begin <= op.at < window.end:
            continue
        for turn in turns(op, pace_s, window.end):
            place = bisect_right(good, turn)
            waited.append((good[place] if place < len(good) else last) - turn)
    return waited


def turns(op: Op, pace_s: float, end: float) -> list[float]:
    """Return when an operation began and the turns that its client missed meanwhile, as far as they count."""
    count = max(1, math.ceil((min(op.end, end) - op.at) / pace_s))
    return [op.at + number * pace_s for number in range(count)]


def numbers(windows: Sequence[Window], kind: str) -> Numbers:
    """Sum up one kind of operation over the windows of a phase."""
    waited = [found for window in windows if (found := waits(window, kind))]
    counted = [op for window in windows for op in window.counted if op.kind == kind]
    return Numbers(
        attempts=len(counted),
        p50_ms=median(percentile(each, 0.5) for each in waited) * 1000,
        p99_ms=median(percentile(each, 0.99) for each in waited) * 1000,
        max_ms=max((max(each) for each in waited), default=0.0) * 1000,
        failed=dict(Counter(op.outcome for op in counted if op.outcome != OK)),
        incomplete=sum(1 for op in counted if op.incomplete),
    )


def longest_wait_s(windows: Sequence[Window], kinds: Iterable[str] = WRITES) -> float:
    """Return the longest time that a client of one of the kinds had to wait for a success."""
    return max((wait for window in windows for kind in kinds for wait in waits(window, kind)), default=0.0)


def median(values: Iterable[float]) -> float:
    """Return the median; 0 for no values."""
    known = list(values)
    return statistics.median(known) if known else 0.0


def failures(ops: Iterable[Op], kinds: Iterable[str]) -> int:
    """Return how many operations of some kinds failed."""
    wanted = set(kinds)
    return sum(1 for op in ops if op.kind in wanted and op.outcome != OK)
