"""What happened when: operations, faults, states of the actors, lives of the daemon. Data, and sums over it.

Times are seconds of CLOCK_MONOTONIC while a scenario runs; `Timeline` has them relative to the moment when the faults
could begin. Pure.
"""

from collections.abc import Iterable

import msgspec

OK = "ok"
HUNG = "hung"
LOST = "lost"


class Op(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one request: when it began, what it was, how long it took, what came of it.

    `outcome` is "ok", an error code as text, "hung" (no answer long after the deadline) or "lost" (the connection
    ended before the answer). `late_s` is by how much the answer came after the deadline, less what this process
    itself was late.
    """

    at: float
    name: str
    seconds: float
    outcome: str = OK
    degraded: tuple[str, ...] = ()
    detail: str = ""
    late_s: float = 0.0
    generation: int | None = None

    @property
    def end(self) -> float:
        """Return when it was over."""
        return self.at + self.seconds


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that really fired."""

    at: float
    name: str
    target: str = ""
    detail: str = ""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time with a name: a window of measurement, or a life of the daemon."""

    name: str
    begin: float
    end: float


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One change of an actor's state, as `system.metrics` tells it. `life` counts the daemon's incarnations."""

    at: float
    life: int
    actor: str
    epoch: int
    before: str
    after: str
    cause: str

    @property
    def key(self) -> tuple[str, int, str, str, str]:
        """Return what identifies the entry between two readings of the ring."""
        return (self.actor, self.epoch, self.before, self.after, self.cause)


class Timeline(msgspec.Struct, kw_only=True):
    """Everything that the picture of a scenario is made of.

    Times are seconds since the faults could begin; what came before is negative. `seconds` is until the last operation
    of the load had ended; the judgement after it is not drawn.
    """

    scenario: str
    seconds: float
    ops: list[Op]
    marks: list[Mark]
    moves: list[Move]
    lives: list[Span]
    windows: list[Span]


def shifted(timeline: Timeline, by: float) -> Timeline:
    """Return the time line with all times moved by so many seconds."""
    replace = msgspec.structs.replace
    return replace(
        timeline,
        ops=[replace(op, at=op.at + by) for op in timeline.ops],
        marks=[replace(mark, at=mark.at + by) for mark in timeline.marks],
        moves=[replace(move, at=move.at + by) for move in timeline.moves],
        lives=[replace(span, begin=span.begin + by, end=span.end + by) for span in timeline.lives],
        windows=[replace(span, begin=span.begin + by, end=span.end + by) for span in timeline.windows],
    )


def within(ops: Iterable[Op], spans: Iterable[Span]) -> list[Op]:
    """Return the operations that began inside one of the spans."""
    known = list(spans)
    return [op for op in ops if any(span.begin <= op.at <= span.end for span in known)]


def percentile(values: Iterable[float], share: float) -> float:
    """Return a percentile (0 for no values)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def latencies(ops: Iterable[Op]) -> dict[str, float | int]:
    """Return how many, and how long they took in ms."""
    took = [op.seconds * 1000 for op in ops]
    return {
        "count": len(took),
        "p50_ms": round(percentile(took, 0.5), 1),
        "p99_ms": round(percentile(took, 0.99), 1),
        "max_ms": round(max(took, default=0.0), 1),
    }


def spread(values: Iterable[float]) -> dict[str, float | int]:
    """Return count, median, p99 and maximum of some durations given in seconds, in ms."""
    ms = [value * 1000 for value in values]
    return {
        "count": len(ms),
        "median": round(percentile(ms, 0.5), 1),
        "p99": round(percentile(ms, 0.99), 1),
        "max": round(max(ms, default=0.0), 1),
    }


def recoveries(moves: Iterable[Move]) -> dict[str, list[float]]:
    """Return per actor how long it was away each time: from its death (or being overdue) until it was ready again."""
    since: dict[tuple[int, str], float] = {}
    found: dict[str, list[float]] = {}
    for move in moves:
        where = (move.life, move.actor)
        if move.after in ("wedged", "failed"):
            since.setdefault(where, move.at)
        elif move.after == "ready" and where in since:
            found.setdefault(move.actor, []).append(max(0.0, move.at - since.pop(where)))
    return found


def pending_at(ops: Iterable[Op], marks: Iterable[Mark]) -> list[float]:
    """Return, for each operation under way at a fault that then failed, the time from the fault to its error."""
    instants = sorted(mark.at for mark in marks)
    return [
        op.end - at
        for op in ops
        if op.outcome not in (OK, HUNG)
        for at in [next((each for each in reversed(instants) if each < op.end), None)]
        if at is not None and op.at <= at
    ]
