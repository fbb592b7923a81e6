"""Mild preferences on top of the fused order: newer hits, and hits that differ. Pure. Both are off unless asked for.

They are not part of the default order because no merit could be measured: on questions with one right answer a
preference for what is new can only cost, and one for what differs changed nothing on four sets. A host that fills a
context window may want them all the same.
"""

from collections.abc import Sequence

import msgspec

from actors.searcher.ranking import Ranked, settle

DAY_US = 86_400_000_000


def prefer_recent(
    ranked: Sequence[Ranked], *, now_us: int, half_life_days: float = 30.0, share: float = 0.1
) -> list[Ranked]:
    """Return the hits with up to `share` of each score taken away by age: half of it after `half_life_days`.

    A hit without a time (0) counts as infinitely old, one from the future as new.
    """
    return settle(_scaled(hit, 1 - share * (1 - _freshness(hit, now_us, half_life_days))) for hit in ranked)


def prefer_different(ranked: Sequence[Ranked], *, share: float = 0.1) -> list[Ranked]:
    """Return the hits with `share` of a score taken away for every better hit with the same text or note."""
    seen: dict[str, int] = {}
    changed = []
    for hit in ranked:
        times = max(seen.get(place, 0) for place in _places(hit))
        for place in _places(hit):
            seen[place] = seen.get(place, 0) + 1
        changed.append(_scaled(hit, (1 - share) ** times))
    return settle(changed)


def _freshness(hit: Ranked, now_us: int, half_life_days: float) -> float:
    if hit.candidate.ts <= 0:
        return 0.0
    age_days = max(0, now_us - hit.candidate.ts) / DAY_US
    return float(0.5 ** (age_days / half_life_days))


def _places(hit: Ranked) -> tuple[str, str]:
    candidate = hit.candidate
    return f"text {candidate.snippet}", f"note {candidate.path or candidate.id}"


def _scaled(hit: Ranked, factor: float) -> Ranked:
    return msgspec.structs.replace(hit, score=hit.score * factor)
