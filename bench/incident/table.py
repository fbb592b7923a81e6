"""The numbers as markdown: everything, and the short table of ratios. Pure."""

from collections.abc import Callable, Sequence

from bench.incident.measure import Numbers, failures, longest_wait_s, median, numbers
from bench.incident.results import BULKHEAD, IDLE, MONOLITH, PACE_S, REBUILD, WRITES, Results

BEGIN, END = "<!-- incident: begin -->", "<!-- incident: end -->"
NONE = "–"


def full_table(results: Results) -> str:
    """Return every number: one table of operations, one of what a rebuild takes."""
    return f"{operations(results)}\n\n{costs(results)}"


def operations(results: Results) -> str:
    """Return latencies and failures, idle and during rebuilds, with the ratio of the two."""
    heads = [f"{system}{each}" for system in results.systems for each in (", idle", ", rebuild", ", ratio")]
    rows = [["", *heads], ["---", *["---:"] * len(heads)]]
    for kind in PACE_S:
        both = [[numbers(results.of(system, phase), kind) for phase in (IDLE, REBUILD)] for system in results.systems]
        rows += [
            [f"{kind} p50, ms", *(cell for pair in both for cell in compared(pair, lambda each: each.p50_ms))],
            [f"{kind} p99, ms", *(cell for pair in both for cell in compared(pair, lambda each: each.p99_ms))],
            [f"{kind} max, ms", *(cell for pair in both for cell in compared(pair, lambda each: each.max_ms))],
            [f"{kind} failed", *(cell for pair in both for cell in (*map(failed, pair), ""))],
        ]
        if kind == "search":
            cells = [cell for pair in both for cell in (*(f"{each.incomplete:,}" for each in pair), "")]
            rows.append(["search incomplete, and said so", *cells])
    return markdown(rows)


def compared(pair: Sequence[Numbers], of: Callable[[Numbers], float]) -> list[str]:
    """Return two latencies and their ratio."""
    idle, rebuild = map(of, pair)
    return [milliseconds(idle), milliseconds(rebuild), ratio(rebuild, idle)]


def failed(found: Numbers) -> str:
    """Return how many of how many attempts failed, and how."""
    how = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(found.failed.items()))
    return f"{found.errors:,} of {found.attempts:,}" + (f" ({how})" if how else "")


def costs(results: Results) -> str:
    """Return what a rebuild and the whole run took of time, disk and memory."""
    systems = results.systems
    rebuilds = {s: [each for window in results.of(s, REBUILD) for each in window.rebuilds] for s in systems}
    publishes = {s: [each.publish_s for each in rebuilds[s] if each.publish_s is not None] for s in systems}
    rows = [
        ["", *systems],
        ["---", *["---:"] * len(systems)],
        ["longest wait for a write, idle", *(duration(longest_wait_s(results.of(s, IDLE))) for s in systems)],
        ["longest wait for a write, rebuild", *(duration(longest_wait_s(results.of(s, REBUILD))) for s in systems)],
        ["publication, median", *(duration(median(publishes[s])) if publishes[s] else NONE for s in systems)],
        ["publication, longest", *(duration(max(publishes[s])) if publishes[s] else NONE for s in systems)],
        ["full rebuild, median", *(duration(median(each.end - each.begin for each in rebuilds[s])) for s in systems)],
        ["full rebuilds measured", *(f"{len(rebuilds[s])}" for s in systems)],
        ["first index, embedding included", *(duration(results.first_index_s[s]) for s in systems)],
        ["disk, at most", *(megabytes(results.usage[s].disk_bytes) for s in systems)],
        ["resident memory, at most", *(megabytes(results.usage[s].rss_bytes) for s in systems)],
    ]
    return markdown(rows)


def ratio_table(results: Results) -> str:
    """Return the short table: what a rebuild does to whoever is at work. Both systems must have taken part."""
    sides = (MONOLITH, BULKHEAD)
    sizes = results.sizes
    heads = [f"{each[0].upper()}{each[1:]}" for each in sides]
    rows = [
        [f"while {sizes.chunks:,} chunks × {sizes.dimensions:,} dimensions are indexed anew", *heads],
        ["---", "---:", "---:"],
        ["longest wait for a write", *(duration(longest_wait_s(results.of(side, REBUILD))) for side in sides)],
        ["writes failed", *(share_failed(results, side, WRITES) for side in sides)],
        ["searches failed", *(share_failed(results, side, ("search",)) for side in sides)],
        *([f"{kind}, p99 against idle", *(p99_ratio(results, side, kind) for side in sides)] for kind in PACE_S),
        ["publication of the new index", *(publication(results, side) for side in sides)],
        ["full rebuild", *(duration(rebuild_s(results, side)) for side in sides)],
    ]
    return markdown(rows)


def share_failed(results: Results, side: str, kinds: Sequence[str]) -> str:
    """Return how many of how many attempts failed during rebuilds."""
    ops = [op for window in results.of(side, REBUILD) for op in window.counted if op.kind in kinds]
    return f"{failures(ops, kinds):,} of {len(ops):,}"


def p99_ratio(results: Results, side: str, kind: str) -> str:
    """Return by how much a p99 grows during rebuilds."""
    idle, rebuild = (numbers(results.of(side, phase), kind).p99_ms for phase in (IDLE, REBUILD))
    return ratio(rebuild, idle)


def publication(results: Results, side: str) -> str:
    """Return the median publication."""
    known = [each.publish_s for window in results.of(side, REBUILD) for each in window.rebuilds]
    took = [each for each in known if each is not None]
    return duration(median(took)) if took else NONE


def rebuild_s(results: Results, side: str) -> float:
    """Return the median rebuild."""
    return median(each.end - each.begin for window in results.of(side, REBUILD) for each in window.rebuilds)


# ---------------------------------------------------------------- writing


def replace_between(text: str, block: str) -> str:
    """Return a document with what stands between its two marks replaced. Raises ValueError without marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no place for the table: a line {BEGIN!r} and, below it, a line {END!r}")
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table."""
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)


def milliseconds(value: float) -> str:
    """Return milliseconds with about two significant digits after one."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def duration(seconds: float) -> str:
    """Return a duration in the unit that reads best."""
    if seconds < 1:
        return f"{milliseconds(seconds * 1000)} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:,.0f} s"


def ratio(value: float, base: float) -> str:
    """Return how many times the base a value is."""
    if base <= 0:
        return NONE
    times = value / base
    return f"× {times:,.0f}" if times >= 100 else f"× {times:.1f}" if times >= 10 else f"× {times:.2f}"


def megabytes(size: int) -> str:
    """Return a size in MB."""
    return f"{size / 1e6:,.0f} MB"
