"""The picture: both time lines one above the other, each operation a dot, failures red, rebuilds shaded. Pure.

One self-contained SVG on a card of its own, so that it reads on white and on dark pages; its colours follow the light
or dark setting of the reader. Time runs from the request for the rebuild; latency is logarithmic. Every failure is in a
lane of its own, from its begin to its end; one that took time is a cross among the dots as well. All numbers are user
units of the view box.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from bench.incident.measure import failures, longest_wait_s, median
from bench.incident.results import BULKHEAD, MONOLITH, OK, PACE_S, REBUILD, REPLAYED, WRITES, Op, Results, Window
from bench.incident.table import duration

WIDTH = 1120.0
LEFT, RIGHT = 76.0, 1096.0
TOP = 92.0
PANEL_HEIGHT, PANEL_GAP = 264.0, 20.0
HEAD_HEIGHT, LANE_HEIGHT, LANE_GAP, PLOT_HEIGHT = 44.0, 14.0, 10.0, 196.0
FOOT = 46.0
MS_MIN, MS_MAX = 0.4, 100_000.0
TICKS_MS = (1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0)
STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
TICKS_MAX = 14
CROSS_S = 0.001  # a failure that took no time would be a cross at the bottom, where the best are
TOUCHING = 3.0  # failures that are closer together are one stretch in their lane
LONG_S = 0.5  # an operation that took longer is drawn as long as it lasted
DOTS_MAX = 1200
SLOWEST = 200
CHAR, BOLD_CHAR = 6.4, 7.4
NAMES = {"append": "append", "approval": "approval", "search": "search"}

STYLE = """
.card{fill:#ffffff;stroke:#d8dee6}.head{fill:#111827;font-size:20px;font-weight:700}.sub{fill:#5b6675}
.name{fill:#111827;font-size:16px;font-weight:700}.bad{fill:#c81e1e;font-size:16px;font-weight:600}
.good{fill:#0b7a43;font-size:16px;font-weight:600}.tick{fill:#5b6675}.grid{stroke:#e7ebf0}
.plot{fill:#f9fafb}.rebuild{fill:#dbe6f7}.publish{fill:#f8cfcb}.label,.warn{paint-order:stroke;stroke-width:4px;stroke-linejoin:round}.label{fill:#34517c;stroke:#dbe6f7}.warn{fill:#a11212;stroke:#f8cfcb;font-weight:600}.after{fill:#a11212;font-weight:600}
.edge{stroke:#8aa5cf}.lane{fill:#eef1f5}.laneok{fill:#dcf3e5}
.append{stroke:#2563eb}.approval{stroke:#0891b2}.search{stroke:#9a6b00}.fail{stroke:#dc2626}
.dot{stroke-linecap:round;stroke-width:3.6;stroke-opacity:.62;fill:none}
.long{stroke-width:2;fill:none;stroke-opacity:.85}.cross{stroke-width:1.8;fill:none}.failed{fill:#dc2626}
@media (prefers-color-scheme:dark){
.card{fill:#0f141b;stroke:#2b3440}.head,.name{fill:#f1f5f9}.sub,.tick{fill:#9aa7b6}.grid{stroke:#222b36}
.plot{fill:#141b24}.rebuild{fill:#1d2f4d}.publish{fill:#5a1f22}.label{fill:#b5cdf5;stroke:#1d2f4d}.warn{fill:#ffc3be;stroke:#5a1f22}.after{fill:#ff9d96}
.edge{stroke:#4b6ca3}.lane{fill:#1a222d}.laneok{fill:#12351f}
.bad{fill:#ff8078}.good{fill:#4ade80}
.failed{fill:#ff5c5c}.append{stroke:#6ea0ff}.approval{stroke:#34cfe6}.search{stroke:#e8b949}.fail{stroke:#ff5c5c}}
"""

Scale = Callable[[float], float]


def draw(results: Results) -> str:
    """Return the picture of a run in which both took part, as one SVG document."""
    pair = windows_shown(results)
    first = min(earliest(window) for window in pair)
    last = max(latest(window) for window in pair)

    def x(at: float) -> float:
        return LEFT + (RIGHT - LEFT) * (min(max(at, first), last) - first) / (last - first)

    parts = [head(results)]
    for place, window in enumerate(pair):
        parts += panel(window, TOP + place * (PANEL_HEIGHT + PANEL_GAP), x)
    bottom = TOP + 2 * PANEL_HEIGHT + PANEL_GAP
    parts += axis(first, last, x, bottom)
    height = bottom + FOOT
    title = f"{message(pair[0])} {message(pair[1])}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" '
        f'font-size="12.5"><style>{STYLE}</style>'
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1:g}" height="{height - 1:g}" rx="12"/>'
        f"{''.join(parts)}</svg>\n"
    )


def windows_shown(results: Results) -> tuple[Window, Window]:
    """Return the round that is drawn: the one whose longest wait on the one file is the median, not the worst."""
    monolith, bulkhead = results.of(MONOLITH, REBUILD), results.of(BULKHEAD, REBUILD)
    places = sorted(range(len(monolith)), key=lambda place: longest_wait_s([monolith[place]]))
    place = places[(len(places) - 1) // 2]
    return monolith[place], bulkhead[place]


def earliest(window: Window) -> float:
    """Return when the load began, from the request for the rebuild."""
    return min((op.at - window.begin for op in window.ops), default=0.0)


def latest(window: Window) -> float:
    """Return when the last operation had ended, from the request for the rebuild."""
    return max(window.end - window.begin, *(op.end - window.begin for op in window.ops))


def message(window: Window) -> str:
    """Return what the reader is to take along, as a sentence."""
    writes, searches = (failures(window.counted, kinds) for kinds in (WRITES, ("search",)))
    waited = f"longest wait for a write {duration(longest_wait_s([window]))}"
    if not writes and not searches:
        return f"nothing failed, {waited}."
    return f"{writes:,} writes and {searches:,} searches failed, {waited}."


# ---------------------------------------------------------------- the frame


def head(results: Results) -> str:
    """Return the title, what is seen, and the legend."""
    sizes = results.sizes
    sub = (
        f"{sizes.chunks:,} chunks × {sizes.dimensions:,} dimensions, {sizes.files:,} notes; the same work, the same "
        "vectors, the same clients at the same pace; latency of each operation, one system at a time"
    )
    marks = "".join(legend())
    return (
        f'<text class="head" x="{LEFT - 52:g}" y="34">What a rebuild of the search index does to everybody else</text>'
        f'<text class="sub" x="{LEFT - 52:g}" y="55">{escape(sub)}</text>{marks}'
    )


def legend() -> Iterator[str]:
    """Yield a sample of each mark with its name, in one row."""
    left, y = LEFT - 50, 76.0
    for kind in PACE_S:
        yield f'<path class="dot {kind}" style="stroke-width:7;stroke-opacity:1" d="M{left + 4:g} {y:g}h0"/>'
        yield f'<text class="tick" x="{left + 13:g}" y="{y + 4:g}">{NAMES[kind]}</text>'
        left += 24 + len(NAMES[kind]) * CHAR + 8
    yield f'<path class="cross fail" d="{cross(left + 4, y)}"/>'
    yield f'<text class="tick" x="{left + 14:g}" y="{y + 4:g}">failed</text>'
    left += 24 + 6 * CHAR + 8
    for kind, name in (("rebuild", "index is being rebuilt"), ("publish", "being published, in one transaction")):
        yield f'<rect class="{kind}" x="{left:g}" y="{y - 6:g}" width="16" height="12" rx="2"/>'
        yield f'<text class="tick" x="{left + 22:g}" y="{y + 4:g}">{name}</text>'
        left += 30 + len(name) * CHAR + 8


def axis(first: float, last: float, x: Scale, bottom: float) -> Iterator[str]:
    """Yield the ticks of time."""
    step = next((each for each in STEPS_S if (last - first) / each <= TICKS_MAX), STEPS_S[-1])
    for number in range(math.ceil(first / step), int(last // step) + 1):
        at = number * step
        yield f'<text class="tick" x="{x(at):.1f}" y="{bottom + 16:g}" text-anchor="middle">{at:g} s</text>'
    yield (
        f'<text class="sub" x="{(LEFT + RIGHT) / 2:g}" y="{bottom + 34:g}" text-anchor="middle">'
        "time since the rebuild was requested</text>"
    )


# ---------------------------------------------------------------- one system


def panel(window: Window, top: float, x: Scale) -> Iterator[str]:
    """Yield the time line of one system."""
    begin = window.begin
    plot = top + HEAD_HEIGHT + LANE_HEIGHT + LANE_GAP
    bottom = plot + PLOT_HEIGHT
    ops = [shifted(op, -begin) for op in window.ops]

    def y(ms: float) -> float:
        share = math.log(min(max(ms, MS_MIN), MS_MAX) / MS_MIN) / math.log(MS_MAX / MS_MIN)
        return bottom - PLOT_HEIGHT * share

    yield title(window, top)
    yield f'<rect class="plot" x="{LEFT:g}" y="{plot:g}" width="{RIGHT - LEFT:g}" height="{PLOT_HEIGHT:g}"/>'
    yield from bands(window, x, plot)
    for ms in TICKS_MS:
        name = f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s"
        yield f'<path class="grid" d="M{LEFT:g} {y(ms):.1f}H{RIGHT:g}"/>'
        yield f'<text class="tick" x="{LEFT - 8:g}" y="{y(ms) + 4:.1f}" text-anchor="end">{name}</text>'
    yield from labels(window, x, plot)
    yield from lane(ops, x, top + HEAD_HEIGHT)
    yield from dots(ops, x, y)


def title(window: Window, top: float) -> str:
    """Return the name of the system and what happened, one beside the other."""
    good = not any(op.outcome != OK for op in window.counted)
    name = f"{window.system[0].upper()}{window.system[1:]}"
    left = LEFT - 52
    return (
        f'<text x="{left:g}" y="{top + 30:g}"><tspan class="name">{escape(name)}</tspan>'
        f'<tspan class="{"good" if good else "bad"}" dx="12">{escape(message(window))}</tspan></text>'
    )


def bands(window: Window, x: Scale, plot: float) -> Iterator[str]:
    """Yield the rebuilds, and within them the publications."""
    for rebuild in window.rebuilds:
        begin, end = rebuild.begin - window.begin, rebuild.end - window.begin
        yield band("rebuild", x(begin), x(end), plot)
        if rebuild.publish_s is not None and rebuild.publish_s > LONG_S:
            yield band("publish", x(end - rebuild.publish_s), x(end), plot)
        for at in (begin, end):
            yield f'<path class="edge" d="M{x(at):.1f} {plot:g}v{PLOT_HEIGHT:g}"/>'


def band(kind: str, left: float, right: float, plot: float) -> str:
    """Return a shaded stretch of time."""
    width = max(right - left, 0.5)
    return f'<rect class="{kind}" x="{left:.1f}" y="{plot:g}" width="{width:.1f}" height="{PLOT_HEIGHT:g}"/>'


def labels(window: Window, x: Scale, plot: float) -> Iterator[str]:
    """Yield what is written into the shaded stretches: into each that has room, or once for all of them."""
    y, count = plot + 16, len(window.rebuilds)
    first, last = window.rebuilds[0], window.rebuilds[-1]
    took = duration(median(each.end - each.begin for each in window.rebuilds))
    published = [each.publish_s for each in window.rebuilds if each.publish_s is not None]
    text = f"rebuild, {took}" if count == 1 else f"{count} rebuilds one after the other, {took} each"
    if published and max(published) <= LONG_S:
        text += f"; published in {duration(max(published))} at most"
    yield written("label", text, x(first.begin - window.begin) + 6, y)
    if first.publish_s is not None and first.publish_s > LONG_S:
        end = last.end - window.begin
        yield written("warn", f"publication, {duration(first.publish_s)}", x(end - first.publish_s) + 6, y)
    replayed = [op.at for op in window.ops if op.outcome == REPLAYED]
    if replayed:
        left = max(x(replayed[0] - window.begin), x(last.end - window.begin)) + 6
        yield written("after", f"{len(replayed):,} searches are told the old error", left, y + 18)


def written(kind: str, text: str, left: float, y: float) -> str:
    """Return a label, moved to the left as far as it has to be to stay in the picture."""
    left = min(left, RIGHT - len(text) * (CHAR if kind == "label" else BOLD_CHAR) - 4)
    return f'<text class="{kind}" x="{left:.1f}" y="{y:g}">{escape(text)}</text>'


def lane(ops: Sequence[Op], x: Scale, top: float) -> Iterator[str]:
    """Yield the lane of failures: green when there is none."""
    bad = [op for op in ops if op.outcome != OK]
    kind = "lane" if bad else "laneok"
    yield f'<rect class="{kind}" x="{LEFT:g}" y="{top:g}" width="{RIGHT - LEFT:g}" height="{LANE_HEIGHT:g}" rx="2"/>'
    yield f'<text class="tick" x="{LEFT - 8:g}" y="{top + 11:g}" text-anchor="end">failed</text>'
    for left, right in stretches(bad, x):
        yield (
            f'<rect class="failed" x="{left:.1f}" y="{top:g}" width="{max(right - left, 1.5):.1f}" '
            f'height="{LANE_HEIGHT:g}"/>'
        )


def stretches(bad: Sequence[Op], x: Scale) -> list[tuple[float, float]]:
    """Return from where to where something failed; what all but touches is one stretch."""
    joined: list[tuple[float, float]] = []
    for left, right in sorted((x(op.at), x(op.end)) for op in bad):
        if joined and left - joined[-1][1] < TOUCHING:
            joined[-1] = (joined[-1][0], max(joined[-1][1], right))
        else:
            joined.append((left, right))
    return joined


def dots(ops: Sequence[Op], x: Scale, y: Scale) -> Iterator[str]:
    """Yield the operations: a dot where each ended, a line for as long as a long one lasted, a cross on a failure."""
    for kind in PACE_S:
        good = [op for op in ops if op.kind == kind and op.outcome == OK]
        path = "".join(f"M{x(op.end):.1f} {y(op.seconds * 1000):.1f}h0" for op in thin(good))
        yield f'<path class="dot {kind}" d="{path}"/>'
        yield long_lines([op for op in good if op.seconds > LONG_S], kind, x, y)
    bad = [op for op in ops if op.outcome != OK]
    yield long_lines([op for op in bad if op.seconds > LONG_S], "fail", x, y)
    path = "".join(cross(x(op.end), y(op.seconds * 1000)) for op in thin(bad) if op.seconds > CROSS_S)
    if path:
        yield f'<path class="cross fail" d="{path}"/>'


def long_lines(ops: Sequence[Op], kind: str, x: Scale, y: Scale) -> str:
    """Return lines for operations that lasted long enough to be seen as such."""
    path = "".join(f"M{x(op.at):.1f} {y(op.seconds * 1000):.1f}H{x(op.end):.1f}" for op in ops)
    return f'<path class="long {kind}" d="{path}"/>' if path else ""


def cross(x: float, y: float) -> str:
    """Return the path of a cross."""
    return f"M{x - 3.5:.1f} {y - 3.5:.1f}l7 7m0 -7l-7 7"


def thin(ops: Sequence[Op]) -> list[Op]:
    """Return at most so many operations (and a few): the slowest, and of the others every n-th."""
    if len(ops) <= DOTS_MAX:
        return list(ops)
    ordered = sorted(ops, key=lambda op: op.seconds, reverse=True)
    rest = sorted(ordered[SLOWEST:], key=lambda op: op.at)
    return ordered[:SLOWEST] + rest[:: math.ceil(len(rest) / (DOTS_MAX - SLOWEST))]


def shifted(op: Op, by: float) -> Op:
    """Return an operation moved in time."""
    return Op(kind=op.kind, at=op.at + by, seconds=op.seconds, outcome=op.outcome, incomplete=op.incomplete)
