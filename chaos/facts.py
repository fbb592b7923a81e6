"""The numbers of a verdict, from what a stage has collected."""

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from chaos.observer import Observer
from chaos.sums import lag_quantile
from chaos.timeline import OK, latencies, pending_at, recoveries, spread

if TYPE_CHECKING:
    from chaos.stage import Stage


def summary(stage: "Stage") -> dict[str, object]:
    """Return what was measured: operations, errors, recoveries, lag, counts."""
    ops, observer = stage.ops, stage.observer
    kinds = sorted({op.name for op in ops})
    lives = observer.lives[: stage.lives_hurt]
    away = {**recoveries(observer.moves), "daemon": [later.begin - life.end for life, later in pairwise(lives)]}
    facts: dict[str, Any] = {
        "ops": {kind: latencies(op for op in ops if op.name == kind) for kind in kinds},
        "errors": {
            kind: found
            for kind in kinds
            if (found := dict(Counter(op.outcome for op in ops if op.name == kind and op.outcome != OK)))
        },
        "degraded": dict(Counter(code for op in ops for code in op.degraded)),
        "windows": {
            name: {kind: latencies(stage.inside(name, kind)) for kind in kinds}
            for name in sorted({span.name for span in stage.windows})
        },
        "acknowledged": len(stage.history.acknowledged()),
        "units": sum(put.outcome == "ok" for put in stage.history.puts.values()),
        "recovery_ms": {actor: spread(times) for actor, times in sorted(away.items()) if times},
        "restarts": dict(observer.recovered()),
        "daemon_lives": len(lives),
        "pending_error_ms": spread(pending_at(ops, stage.marks)),
        "loop_lag_ms": lag_facts(observer),
        "client_lag_ms_max": round(stage.lag.worst_s * 1000, 1),
        "rss_mib_max": round(observer.rss_bytes_max / 2**20, 1),
        "looks_at_current": observer.looks_at_current,
        "connections": stage.recorder.connections,
    }
    facts["phases_s"] = {name: round(end - begin, 1) for (name, begin), (_, end) in pairwise(stage.phases)}
    if observer.gaps:
        facts["transition_gaps"] = observer.gaps
    if stage.waived:
        facts["waived"] = stage.waived
    return {name: value for name, value in facts.items() if value not in ({}, 0) or name in ("errors", "restarts")}


def lag_facts(observer: Observer) -> dict[str, object]:
    """Return how late the daemon's loop was, over all of its lives; `counts` as in `supervisor.loop_watch`."""
    counts = [sum(column) for column in zip(*observer.lag_counts.values(), strict=True)]
    return {"p99": lag_quantile(counts, 0.99), "max": round(observer.lag_ms_max, 1), "counts": counts}
