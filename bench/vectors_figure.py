"""The plot of `bench/vectors.py` as SVG: milliseconds of a vector search over rows, a colour for each dimension. Pure.

Both axes are logarithmic. The exact search is dashed, the index solid; what the builder chooses at that size has a dot.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 880.0, 460.0
LEFT, RIGHT, TOP, BOTTOM = 78.0, 660.0, 56.0, 400.0
DECADES_MS = (1.0, 10.0, 100.0, 1_000.0, 10_000.0)
DECADES_ROWS = (1_000, 10_000, 100_000, 1_000_000)
COLOURS = ("#0b7285", "#2f9e44", "#e8590c", "#9c36b5", "#1971c2", "#868e96")
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#495057}.title{font-weight:600;font-size:16px;fill:#212529}"
    ".grid{stroke:#dee2e6}.line{fill:none;stroke-width:2}.exact{stroke-dasharray:5 5;opacity:.75}"
    "@media(prefers-color-scheme:dark){text{fill:#adb5bd}.title{fill:#f1f3f5}.grid{stroke:#373a40}}"
)


class Point(NamedTuple):
    """Medians at one size in ms, and whether the builder leaves it at the exact search there."""

    rows: int
    dimensions: int
    exact_ms: float
    index_ms: float
    stays_exact: bool


def draw(points: Sequence[Point]) -> str:
    """Return the plot."""
    sizes = sorted({point.dimensions for point in points})
    parts = [*_grid()]
    for number, size in enumerate(sizes):
        own = sorted(point for point in points if point.dimensions == size)
        parts += _lines(own, COLOURS[number % len(COLOURS)])
        parts += _legend(f"{size:,} dimensions", COLOURS[number % len(COLOURS)], number)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" '
        f'aria-label="{escape("Median time of a vector search by rows and dimensions, exact and by the index")}">'
        f"<style>{STYLE}</style>"
        f'<text class="title" x="{LEFT:g}" y="26">One vector search, 100 candidates: median in milliseconds</text>'
        f"{''.join(parts)}{''.join(_key(len(sizes)))}</svg>\n"
    )


def _x(rows: float) -> float:
    return LEFT + (RIGHT - LEFT) * _share(rows, DECADES_ROWS[0], DECADES_ROWS[-1])


def _y(ms: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * _share(ms, DECADES_MS[0], DECADES_MS[-1])


def _share(value: float, low: float, high: float) -> float:
    return min(1.0, max(0.0, math.log(max(value, low) / low) / math.log(high / low)))


def _grid() -> Iterator[str]:
    for ms in DECADES_MS:
        yield f'<path class="grid" d="M{LEFT:g} {_y(ms):.1f}H{RIGHT:g}"/>'
        yield f'<text x="{LEFT - 10:g}" y="{_y(ms) + 4:.1f}" text-anchor="end">{ms:,.0f}</text>'
    for rows in DECADES_ROWS:
        yield f'<path class="grid" d="M{_x(rows):.1f} {TOP:g}V{BOTTOM:g}"/>'
        yield f'<text x="{_x(rows):.1f}" y="{BOTTOM + 22:g}" text-anchor="middle">{rows:,}</text>'
    yield f'<text x="{(LEFT + RIGHT) / 2:g}" y="{BOTTOM + 46:g}" text-anchor="middle">rows</text>'


def _lines(points: Sequence[Point], colour: str) -> Iterator[str]:
    for name, values in (("exact", [p.exact_ms for p in points]), ("index", [p.index_ms for p in points])):
        path = "L".join(f"{_x(point.rows):.1f} {_y(ms):.1f}" for point, ms in zip(points, values, strict=True))
        yield f'<path class="line {name}" stroke="{colour}" d="M{path}"/>'
    for point in points:
        ms = point.exact_ms if point.stays_exact else point.index_ms
        yield f'<circle cx="{_x(point.rows):.1f}" cy="{_y(ms):.1f}" r="4" fill="{colour}"/>'


def _legend(name: str, colour: str, number: int) -> Iterator[str]:
    y = TOP + 12 + 24 * number
    yield f'<path class="line" stroke="{colour}" d="M{RIGHT + 24:g} {y:g}h28"/>'
    yield f'<text x="{RIGHT + 62:g}" y="{y + 4:g}">{escape(name)}</text>'


def _key(number: int) -> Iterator[str]:
    y = TOP + 36 + 24 * number
    for name, kind in (("exact search", "exact"), ("index (IVF_SQ)", "index")):
        yield f'<path class="line {kind}" stroke="#868e96" d="M{RIGHT + 24:g} {y:g}h28"/>'
        yield f'<text x="{RIGHT + 62:g}" y="{y + 4:g}">{name}</text>'
        y += 24
    yield f'<circle cx="{RIGHT + 38:g}" cy="{y:g}" r="4" fill="#868e96"/>'
    yield f'<text x="{RIGHT + 62:g}" y="{y + 4:g}">chosen by the builder</text>'
