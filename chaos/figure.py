"""The time line of a scenario as inline SVG: latencies above, one lane per actor below, faults through both. Pure.

Colours come from the page (classes, see report.css), so the picture follows light and dark. Dots of one kind are one
path: thousands of operations cost a few kilobytes. All numbers are user units of the view box.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape

from chaos.timeline import OK, Mark, Move, Op, Span, Timeline

WIDTH = 1120.0
LEFT, RIGHT = 108.0, 1104.0
LABEL_ROWS = 3
LABEL_ROW = 15.0
LABEL_TOP = 14.0
PLOT_TOP = LABEL_TOP + 8.0 + LABEL_ROWS * LABEL_ROW
BEFORE, AFTER = 0.02, 0.04  # what is drawn around the scenario, as a share of it
PLOT_HEIGHT = 190.0
LANE_HEIGHT, LANE_GAP = 14.0, 7.0
CHAR = 6.1  # width of a character of a label, a little generous
LABEL_GAP = 8.0
DOTS_MAX = 2500
SLOWEST = 400
CROSSES_MAX = 1000
MS_MIN = 1.0
DECADES_MS = (1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0)
TICKS_MAX = 12
STEPS_S = (0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400)
KINDS = ("append", "unit", "history", "search")
LANES = {
    "transcript_appender": "transcript",
    "core_writer": "core",
    "cache_manager": "cache",
    "generation_builder": "builder",
    "searcher": "searcher",
}

Scale = Callable[[float], float]


def draw(timeline: Timeline) -> str:
    """Return the picture as one SVG element."""
    seconds = max(timeline.seconds, 0.1)

    first, last = -BEFORE * seconds, (1.0 + AFTER) * seconds

    def x(at: float) -> float:
        return LEFT + (RIGHT - LEFT) * (min(max(at, first), last) - first) / (last - first)

    top_ms = highest(timeline.ops)

    def y(ms: float) -> float:
        share = math.log(max(ms, MS_MIN) / MS_MIN) / math.log(top_ms / MS_MIN)
        return PLOT_TOP + PLOT_HEIGHT * (1.0 - min(share, 1.0))

    bottom = lane_top(len(LANES) + 1) - LANE_GAP
    parts = [
        *windows(timeline.windows, x),
        *grid(y, top_ms),
        *axis(seconds, x, bottom),
        *lanes(timeline, x, first, last),
        *dots(timeline.ops, x, y),
        *faults(timeline.marks, x, bottom),
    ]
    height = bottom + 26.0
    label = f"{timeline.scenario}: {len(timeline.ops)} operations, {len(timeline.marks)} faults, {seconds:.0f} seconds"
    return (
        f'<svg class="figure" viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(label)}" '
        f'font-size="11" font-family="system-ui, sans-serif" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


# ---------------------------------------------------------------- scales


def highest(ops: Iterable[Op]) -> float:
    """Return the upper end of the latency axis in ms: a step above the slowest operation, at least a second."""
    slowest = max((op.seconds * 1000 for op in ops), default=0.0)
    return next((each for each in (1_000.0, 3_000.0, 10_000.0, 30_000.0) if each >= slowest * 1.1), 100_000.0)


def lane_top(index: int) -> float:
    """Return the upper edge of a lane; the daemon's is number 0."""
    return PLOT_TOP + PLOT_HEIGHT + 18.0 + index * (LANE_HEIGHT + LANE_GAP)


def grid(y: Scale, top_ms: float) -> Iterator[str]:
    """Yield the lines of the latency axis with their names."""
    for ms in DECADES_MS:
        if ms <= top_ms:
            name = f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s"
            yield f'<path class="grid" d="M{LEFT:g} {y(ms):.1f}H{RIGHT:g}"/>'
            yield f'<text class="tick" x="{LEFT - 8:g}" y="{y(ms) + 3.5:.1f}" text-anchor="end">{name}</text>'


def axis(seconds: float, x: Scale, bottom: float) -> Iterator[str]:
    """Yield the ticks of time."""
    step = next((each for each in STEPS_S if seconds / each <= TICKS_MAX), STEPS_S[-1])
    count = int(seconds / step)
    for number in range(count + 1):
        at = number * step
        yield f'<path class="grid" d="M{x(at):.1f} {bottom:g}v4"/>'
        yield f'<text class="tick" x="{x(at):.1f}" y="{bottom + 17:g}" text-anchor="middle">{clock(at, step)}</text>'


def clock(at: float, step: float) -> str:
    """Return a time as seconds, or as minutes and seconds where that reads better."""
    if step < 60:
        return f"{at:g} s"
    return f"{int(at // 60)}:{int(at % 60):02}" if at < 3600 else f"{at / 3600:.1f} h"


# ---------------------------------------------------------------- operations


def dots(ops: Sequence[Op], x: Scale, y: Scale) -> Iterator[str]:
    """Yield one path of dots per kind, and a cross for every failure."""
    good = [op for op in ops if op.outcome == OK]
    for place, kind in enumerate((*KINDS, None)):
        mine = [op for op in good if (op.name == kind if kind else op.name not in KINDS)]
        if mine:
            path = "".join(f"M{x(op.at):.1f} {y(op.seconds * 1000):.1f}h0" for op in thin(mine))
            yield f'<path class="dots kind{place}" d="{path}"/>'
    for op in thin([op for op in ops if op.outcome != OK], CROSSES_MAX):
        told = f"{op.name} {op.outcome}, {op.seconds * 1000:.0f} ms at {op.at:.2f} s. {op.detail}"
        yield (
            f'<path class="cross" d="M{x(op.at) - 3:.1f} {y(op.seconds * 1000) - 3:.1f}l6 6m0 -6l-6 6">'
            f"<title>{escape(told[:300])}</title></path>"
        )


def thin(ops: Sequence[Op], most: int = DOTS_MAX) -> list[Op]:
    """Return at most so many operations (and a few): the slowest, and of the others every n-th."""
    if len(ops) <= most:
        return list(ops)
    ordered = sorted(ops, key=lambda op: op.seconds, reverse=True)
    rest = sorted(ordered[SLOWEST:], key=lambda op: op.at)
    return ordered[:SLOWEST] + rest[:: math.ceil(len(rest) / (most - SLOWEST))]


def windows(spans: Sequence[Span], x: Scale) -> Iterator[str]:
    """Yield a band for each window of measurement; the first one of a name that has room carries it."""
    names = sorted({span.name for span in spans})
    named: set[str] = set()
    for span in spans:
        left, right = x(span.begin), x(span.end)
        yield (
            f'<rect class="window window{names.index(span.name) % 2}" x="{left:.1f}" y="{PLOT_TOP:g}" '
            f'width="{max(right - left, 0.5):.1f}" height="{PLOT_HEIGHT:g}"><title>{escape(span.name)}</title></rect>'
        )
        if span.name not in named and right - left > len(span.name) * CHAR + 8:
            named.add(span.name)
            yield (
                f'<text class="name" x="{left + 4:.1f}" y="{PLOT_TOP + PLOT_HEIGHT - 5:g}">{escape(span.name)}</text>'
            )


# ---------------------------------------------------------------- lanes


def lanes(timeline: Timeline, x: Scale, first: float, last: float) -> Iterator[str]:
    """Yield the lives of the daemon and the states of each actor, as far as they are between two times."""
    for index, name in enumerate(("daemon", *LANES.values())):
        middle = lane_top(index) + LANE_HEIGHT / 2 + 4
        yield f'<text class="lane" x="{LEFT - 8:g}" y="{middle:.1f}" text-anchor="end">{name}</text>'
        yield bar("lane0", (first, last), lane=index, x=x)
    for number, life in enumerate(timeline.lives, start=1):
        if life.begin < last and life.end > first:
            yield bar("alive", (life.begin, life.end), lane=0, x=x, told=f"daemon {number}, pid {life.name}")
    for index, actor in enumerate(LANES, start=1):
        for move, end in stretches(timeline.moves, timeline.lives, actor):
            if move.at > last or end < first:
                continue
            told = f"{LANES[actor]} {move.after}, epoch {move.epoch}, at {move.at:.2f} s: {move.cause}"
            yield bar(f"state {move.after}", (move.at, end), lane=index, x=x, told=told)


def stretches(moves: Sequence[Move], lives: Sequence[Span], actor: str) -> Iterator[tuple[Move, float]]:
    """Yield each state of an actor with its end: the next change, or the end of the daemon's life."""
    mine = [move for move in moves if move.actor == actor]
    for index, move in enumerate(mine):
        ends = [mine[index + 1].at] if index + 1 < len(mine) and mine[index + 1].life == move.life else []
        if 0 < move.life <= len(lives):
            ends.append(lives[move.life - 1].end)
        yield move, min(ends, default=move.at)


def bar(kind: str, span: tuple[float, float], *, lane: int, x: Scale, told: str = "") -> str:
    """Return a bar in a lane, never too narrow to be seen."""
    left = x(span[0])
    width = max(x(span[1]) - left, 1.5 if kind != "lane0" else 0.0)
    title = f"<title>{escape(told[:300])}</title>" if told else ""
    return (
        f'<rect class="{kind}" x="{left:.1f}" y="{lane_top(lane):g}" width="{width:.1f}" '
        f'height="{LANE_HEIGHT:g}" rx="2">{title}</rect>'
    )


# ---------------------------------------------------------------- faults


def faults(marks: Sequence[Mark], x: Scale, bottom: float) -> Iterator[str]:
    """Yield a line for each fault, an arrow onto the lane that it hit, and one label for those of a kind in a row."""
    for group, row in labelled(marks, x):
        for mark in group:
            start = PLOT_TOP if row is None or mark is not group[0] else LABEL_TOP + 4.0 + row * LABEL_ROW
            told = f"{mark.name} {mark.target} at {mark.at:.2f} s. {mark.detail}"
            yield (
                f'<path class="fault" d="M{x(mark.at):.1f} {start:g}V{bottom:g}">'
                f"<title>{escape(told[:300])}</title></path>"
            )
            lane = lane_of(mark.target)
            if lane is not None:
                yield f'<path class="hit" d="M{x(mark.at):.1f} {lane_top(lane):g}l-3.4 -6h6.8z"/>'
        if row is not None:
            yield flag(x(group[0].at), label_of(group), LABEL_TOP + row * LABEL_ROW)


def flag(at: float, text: str, y: float) -> str:
    """Return a label beside a line, on its left where there is no room on the right."""
    side = -1 if turned(at, text) else 1
    anchor = ' text-anchor="end"' if side < 0 else ""
    return f'<text class="flag" x="{at + 4 * side:.1f}" y="{y:g}"{anchor}>{escape(text)}</text>'


def label_of(group: Sequence[Mark]) -> str:
    """Return the short name of some faults of one kind."""
    mark = group[0]
    text = f"{mark.name} {LANES.get(mark.target, mark.target)}".strip()[:40]
    return text if len(group) == 1 else f"{text} × {len(group)}"


def turned(at: float, text: str) -> bool:
    """Say whether a label stands on the left of its line, as there is no room on the right."""
    return at + 4 + len(text) * CHAR > RIGHT


def labelled(marks: Sequence[Mark], x: Scale) -> list[tuple[list[Mark], int | None]]:
    """Return the faults in groups of a kind that lie close together, each with the row of its label if it has room."""
    groups: list[list[Mark]] = []
    for mark in marks:
        same = groups and (groups[-1][0].name, groups[-1][0].target) == (mark.name, mark.target)
        if same and x(mark.at) - x(groups[-1][-1].at) < len(label_of(groups[-1])) * CHAR + LABEL_GAP:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    rows = label_rows([(x(group[0].at), label_of(group)) for group in groups])
    return list(zip(groups, rows, strict=True))


def label_rows(labels: Sequence[tuple[float, str]]) -> list[int | None]:
    """Return for each label (place, text; in order of time) the row in which it overlaps no other, if there is one."""
    taken: list[list[tuple[float, float]]] = [[] for _ in range(LABEL_ROWS)]
    rows: list[int | None] = []
    for at, text in labels:
        width = len(text) * CHAR + 4
        left, right = (at - width, at) if turned(at, text) else (at, at + width)
        free = next((row for row in range(LABEL_ROWS) if not overlaps(left, right, taken[row])), None)
        if free is not None:
            taken[free].append((left, right))
        rows.append(free)
    return rows


def overlaps(left: float, right: float, taken: Iterable[tuple[float, float]]) -> bool:
    """Say whether a stretch comes too close to one that is taken."""
    return any(left < end + LABEL_GAP and begin < right + LABEL_GAP for begin, end in taken)


def lane_of(target: str) -> int | None:
    """Return the lane of a fault's target, if it has one."""
    if target == "daemon":
        return 0
    return list(LANES).index(target) + 1 if target in LANES else None
