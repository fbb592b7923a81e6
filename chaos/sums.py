"""Key numbers of verdicts: in one line of text, and over a whole run."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from chaos.scenario import Verdict
from supervisor.loop_watch import LAG_BOUNDS_MS

if TYPE_CHECKING:
    from chaos.runner import Result


def brief(verdict: Verdict) -> str:
    """Return the key numbers of a verdict as short text."""
    return "  ".join(f"{name} {value}" for name, value in key_numbers(verdict))


def key_numbers(verdict: Verdict) -> list[tuple[str, str]]:
    """Return what a reader wants to know first: operations, failures, the slowest, how fast things came back."""
    facts: dict[str, Any] = verdict.facts
    ops = facts.get("ops") or {}
    numbers: list[tuple[str, str]] = []
    if ops:
        numbers.append(("ops", str(sum(each["count"] for each in ops.values()))))
        numbers.append(("errors", str(sum(sum(codes.values()) for codes in (facts.get("errors") or {}).values()))))
        numbers.append(("p99", f"{max(each['p99_ms'] for each in ops.values()):.0f} ms"))
    recovery = facts.get("recovery_ms") or {}
    if recovery:
        numbers.append(("back", f"{max(each['p99'] for each in recovery.values()):.0f} ms"))
    if facts.get("loop_lag_ms"):
        numbers.append(("lag", f"{facts['loop_lag_ms']['max']:.0f} ms"))
    return numbers


def loop_lag(verdicts: Iterable[Verdict]) -> tuple[float, float]:
    """Return the p99 and the worst delay of the daemon's loop, in ms, over all scenarios that measured it together."""
    lags: list[dict[str, Any]] = [
        lag
        for verdict in verdicts
        if isinstance(lag := verdict.facts.get("loop_lag_ms"), dict) and "lag" not in _waived(verdict)
    ]
    counts = [sum(column) for column in zip(*(lag["counts"] for lag in lags if lag.get("counts")), strict=True)]
    return lag_quantile(counts, 0.99), max((lag["max"] for lag in lags), default=0.0)


def lag_quantile(counts: list[int], share: float) -> float:
    """Return the upper bound, in ms, of the class in which a quantile of the loop's lag lies."""
    wanted, seen = share * sum(counts), 0
    for bound, count in zip(LAG_BOUNDS_MS, counts, strict=False):
        seen += count
        if seen >= wanted:
            return float(bound)
    return float("inf") if counts else 0.0


def operations(verdict: Verdict) -> int:
    """Return how many operations a scenario's load did."""
    facts: dict[str, Any] = verdict.facts
    return sum(each["count"] for each in (facts.get("ops") or {}).values())


def violations_of(invariant: str, results: "Iterable[Result]") -> int:
    """Return how often an invariant was violated, where it was not violated on purpose."""
    return sum(
        text.startswith(f"{invariant}:")
        for result in results
        if not result.must_fail
        for text in result.verdict.violations
    )


def _waived(verdict: Verdict) -> dict[str, str]:
    waived: Any = verdict.facts.get("waived", {})
    return dict(waived)
