"""The report of a run as one HTML page: a table of all scenarios, and for each its numbers and its time line.

Self-contained: styles are inline, pictures are inline SVG, nothing is loaded. Reads well in light and dark.
"""

import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import msgspec

from chaos.figure import KINDS, draw
from chaos.runner import Result
from chaos.sums import key_numbers, loop_lag, operations, violations_of

STYLE = Path(__file__).with_name("report.css")
SHOWN, SHOWN_ON_PURPOSE = 40, 14
LINE_CHARS = 1200
COLUMNS = ("ops", "errors", "p99", "back", "lag")
HEADS = {"ops": "operations", "errors": "errors", "p99": "p99", "back": "back after", "lag": "loop lag"}
STATES = (
    ("ready", "ready"),
    ("starting", "starting"),
    ("degraded", "degraded"),
    ("away", "dead, waiting"),
    ("wedged", "overdue, being killed"),
    ("broken", "resting"),
    ("quarantined", "quarantined"),
)


def write_report(out: Path, results: Sequence[Result], *, seed: int, tier: str) -> Path:
    """Write DIR/index.html and return its path."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "index.html"
    path.write_text(page(results, seed=seed, tier=tier, when=time.strftime("%Y-%m-%d %H:%M")), encoding="utf-8")
    return path


def page(results: Sequence[Result], *, seed: int, tier: str, when: str) -> str:
    """Return the whole page."""
    seconds = sum(each.verdict.seconds for each in results)
    versions = results[0].verdict.versions if results else {}
    about = [f"tier {tier}, seed {seed}, {when}, {seconds:.0f} s"]
    about += [f"{name} {number}" for name, number in versions.items()]
    return "".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Bulkhead chaos</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{STYLE.read_text(encoding='utf-8')}</style></head><body><main>",
            "<h1>Bulkhead, hurt on purpose</h1>",
            f'<p class="soft">{escape(" · ".join(about))}</p>',
            totals(results),
            table(results),
            *(section(each) for each in results),
            "</main></body></html>",
        )
    )


def totals(results: Sequence[Result]) -> str:
    """Return the numbers of the whole run."""
    verdicts = [each.verdict for each in results]
    bad = sum(not each.good for each in results)
    counts = [
        ("bad" if bad else "good", str(bad), "failed"),
        ("", str(sum(each.word == "ok" for each in results)), "ok"),
        ("", str(sum(each.word == "noticed" for each in results)), "noticed"),
        ("", str(sum(each.word == "skipped" for each in results)), "skipped"),
        ("", f"{sum(verdict.faults for verdict in verdicts):,}", "faults fired"),
        ("", f"{sum(operations(verdict) for verdict in verdicts):,}", "operations"),
        ("", f"{violations_of('I1', results)}", "acknowledged writes lost"),
        ("", f"{violations_of('I6', results)}", "requests not answered in time"),
        ("", f"{loop_lag(verdicts)[1]:.0f} ms", "longest loop lag"),
    ]
    items = "".join(f'<li class="{kind}"><b>{number}</b><span>{name}</span></li>' for kind, number, name in counts)
    return f'<ul class="totals">{items}</ul>'


def table(results: Sequence[Result]) -> str:
    """Return the table of all scenarios."""
    heads = "".join(f"<th>{HEADS[each]}</th>" for each in COLUMNS)
    rows = "".join(row(each) for each in results)
    return (
        '<div class="table"><table><thead><tr><th></th><th>scenario</th><th>seconds</th><th>faults</th>'
        f"{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def row(result: Result) -> str:
    """Return one scenario's row."""
    verdict, numbers = result.verdict, dict(key_numbers(result.verdict))
    cells = "".join(f"<td>{escape(numbers.get(each, ''))}</td>" for each in COLUMNS)
    return (
        f'<tr><td>{badge(result)}</td><td><a href="#{escape(result.scenario)}">{escape(result.scenario)}</a>'
        f'<span class="purpose">{escape(result.purpose)}</span></td>'
        f"<td>{verdict.seconds:.1f}</td><td>{verdict.faults}</td>{cells}</tr>"
    )


def badge(result: Result) -> str:
    """Return the outcome as a coloured word."""
    return f'<span class="badge {result.word}">{result.word}</span>'


def section(result: Result) -> str:
    """Return one scenario: numbers, what was wrong, time lines, all facts."""
    verdict = result.verdict
    numbers = [("seconds", f"{verdict.seconds:.1f}"), ("faults", str(verdict.faults)), *key_numbers(verdict)]
    said = "".join(f"<span>{escape(HEADS.get(name, name))} <b>{escape(value)}</b></span>" for name, value in numbers)
    cells = f'<p class="soft">{escape(", ".join(result.faults))}</p>' if result.faults else ""
    skipped = f'<p class="soft">skipped: {escape(verdict.skipped)}</p>' if verdict.skipped else ""
    pictures = "".join(f"{draw(each)}{legend(each.scenario)}" for each in result.timelines)
    facts = escape(msgspec.json.format(msgspec.json.encode(verdict.facts), indent=1).decode())
    return (
        f'<section id="{escape(result.scenario)}"><h2>{badge(result)}{escape(result.scenario)}</h2>'
        f'<p class="purpose">{escape(result.purpose)}</p>{cells}{skipped}<div class="numbers">{said}</div>'
        f"{wrong(result)}{pictures}<details><summary>all facts</summary><pre>{facts}</pre></details></section>"
    )


def wrong(result: Result) -> str:
    """Return what was violated, the first of it in full."""
    texts = result.verdict.violations
    if not texts:
        return ""
    most = SHOWN_ON_PURPOSE if result.must_fail and result.good else SHOWN
    items = "".join(f"<li>{escape(text[:LINE_CHARS])}</li>" for text in texts[:most])
    more = f"<li>and {len(texts) - most} more</li>" if len(texts) > most else ""
    return f'<ul class="violations">{items}{more}</ul>'


def legend(scenario: str) -> str:
    """Return what the colours mean."""
    return f'<div class="legend" aria-label="legend of {escape(scenario)}">{"".join(_legend())}</div>'


def _legend() -> Iterator[str]:
    for kind in KINDS:
        yield f'<span><i style="background:var(--{kind})"></i>{kind}</span>'
    yield '<span><span class="x">×</span>error</span>'
    for name, text in STATES:
        yield f'<span><i class="box" style="background:var(--{name})"></i>{text}</span>'
