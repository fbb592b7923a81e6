"""From two lists of candidates to one order. Pure: no storage, no clock, no randomness, the same answer every time.

The keyword list (BM25) and the vector list (cosine) are brought to one scale and added, `(1 - a)·text + a·vector`,
with a weight `a` that depends on the question and the model. A weighted sum, not reciprocal ranks: measured, ranks
with k = 60 throw the gain of the vectors away and damage questions for identifiers.

* Scale: min-max over the best `list_max` of each list. A keyword list with fewer hits than that means that every other
  document scored 0, so it is counted down to 0: without this the single hit of an issue number would count nothing.
* What is missing in a list counts 0 there. Pieces are documents of their own; of each id the best piece stays.
* What the question names exactly is among the first EXACT_IN_TOP, whatever the vectors say.
* Order: score, then time (newest first), then corpus, id and piece, so that no two hits can change places.
"""

import re
from collections.abc import Collection, Iterable, Sequence

import msgspec

from actors.messages.base import Candidate, Corpus, SearchMode
from actors.searcher.confidence import low_confidence
from actors.settings import SearcherSettings
from actors.text import is_code_like, is_mostly_unspaced

__all__ = [
    "Ranked",
    "at_least",
    "explain",
    "fuse",
    "identifiers",
    "low_confidence",
    "mask",
    "merge_overlay",
    "settle",
    "weight_for",
]

LIST_MAX = 100
EXACT_IN_TOP = 3
WEIGHTS = {"local-use": 0.25, "openai-compatible": 0.5}
"""The vector's share by embedding provider, where it is not the one of the settings (made for the default model).

The small fallback model misses too much to have more; a remote one usually deserves more.
"""
Key = tuple[Corpus, str, int]
_AROUND = "\"'`“”‘’「」『』《》()[]{}<>,;:!?。，；：！？"


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """A hit, its score in [0, 1], and how that came about.

    `text_part` and `vector_part` are the scores of the two lists on the common scale, `weight` the vector's share;
    the raw scores are in the candidate. `exact` counts the names in the question that it holds literally.
    """

    candidate: Candidate
    score: float
    text_part: float = 0.0
    vector_part: float = 0.0
    weight: float = 0.0
    exact: int = 0


def weight_for(query: str, settings: SearcherSettings, *, mode: SearchMode, provider: str | None = None) -> float:
    """Return the vector's share in the score.

    `mode` is what the answer was made of: one list alone counts in full. A weight that the user has set applies to
    every model.
    """
    if mode != "hybrid":
        return 1.0 if mode == "vector" else 0.0
    if is_code_like(query):
        return settings.vector_weight_code
    if settings.vector_weight != SearcherSettings().vector_weight:
        return settings.vector_weight
    if provider in WEIGHTS:
        return WEIGHTS[provider]
    return settings.vector_weight_unspaced if is_mostly_unspaced(query) else settings.vector_weight


def merge_overlay(
    generation: Iterable[Candidate], overlay: Iterable[Candidate], masked: Collection[str] = ()
) -> list[Candidate]:
    """Join the keyword hits of a generation with those of the rows newer than it, best first.

    Both are BM25 and need no conversion. `masked` are the ids of units that changed since: their rows in the
    generation are out of date. A row that both have (an event indexed meanwhile) is taken from the overlay.
    """
    newer = {_key(candidate): candidate for candidate in overlay}
    older = [candidate for candidate in mask(generation, masked) if _key(candidate) not in newer]
    return sorted([*newer.values(), *older], key=lambda candidate: (-(candidate.text_score or 0.0), *_tie(candidate)))


def mask(candidates: Iterable[Candidate], masked: Collection[str]) -> list[Candidate]:
    """Return the candidates without the units that changed since the generation was built."""
    return [c for c in candidates if c.corpus != "units" or c.id not in masked]


def fuse(
    text: Sequence[Candidate],
    vector: Sequence[Candidate],
    *,
    weight: float,
    list_max: int = LIST_MAX,
    exact: Sequence[str] = (),
) -> list[Ranked]:
    """Return the hits of both lists, best first, each id once.

    `exact` are the identifiers of the question (`identifiers`). The lists need not be sorted.
    """
    text_scores = {_key(c): c.text_score for c in text if c.text_score is not None}
    vector_scores = {_key(c): c.vector_score for c in vector if c.vector_score is not None}
    text_parts = _scale(text_scores, list_max, counts_down_to_zero=True)
    vector_parts = _scale(vector_scores, list_max, counts_down_to_zero=False)
    candidates = {_key(c): c for c in (*vector, *text)}
    ranked = []
    for key in text_parts.keys() | vector_parts.keys():
        text_part, vector_part = text_parts.get(key, 0.0), vector_parts.get(key, 0.0)
        ranked.append(
            Ranked(
                candidate=msgspec.structs.replace(
                    candidates[key], text_score=text_scores.get(key), vector_score=vector_scores.get(key)
                ),
                score=(1 - weight) * text_part + weight * vector_part,
                text_part=text_part,
                vector_part=vector_part,
                weight=weight,
                exact=sum(_holds(candidates[key], name) for name in exact) if key in text_parts else 0,
            )
        )
    return settle(ranked)


def settle(ranked: Iterable[Ranked]) -> list[Ranked]:
    """Return the hits in their final order: each id once, an exact one among the first EXACT_IN_TOP."""
    return _lift_exact(_best_pieces(ranked))


def identifiers(query: str) -> tuple[str, ...]:
    """Return what the question names exactly: its code-like words, or the whole of a question of one word."""
    words = [word for word in (word.strip(_AROUND) for word in query.split()) if word]
    named = words if len(words) == 1 else [word for word in words if is_code_like(word)]
    return tuple(dict.fromkeys(word.casefold() for word in named))


def at_least(ranked: Iterable[Ranked], min_score: float | None) -> list[Ranked]:
    """Leave out hits below a score, but never one that holds exactly what was asked for."""
    return [hit for hit in ranked if min_score is None or hit.exact or hit.score >= min_score]


def explain(hit: Ranked) -> dict[str, float | None]:
    """Return how a score came about, for the client that asked."""
    return {
        "text_score": hit.candidate.text_score,
        "vector_score": hit.candidate.vector_score,
        "text_part": hit.text_part,
        "vector_part": hit.vector_part,
        "vector_weight": hit.weight,
        "exact": hit.exact,
    }


def _scale(scores: dict[Key, float], list_max: int, *, counts_down_to_zero: bool) -> dict[Key, float]:
    """Bring the best `list_max` scores of a list to [0, 1]."""
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:list_max]
    if not best:
        return {}
    highest, lowest = best[0][1], best[-1][1]
    if counts_down_to_zero and len(best) < list_max:
        lowest = min(0.0, lowest)
    if highest <= lowest:
        return {key: 1.0 for key, _ in best}
    return {key: (score - lowest) / (highest - lowest) for key, score in best}


def _best_pieces(ranked: Iterable[Ranked]) -> list[Ranked]:
    """Sort the hits and keep the best piece of each id."""
    best: dict[tuple[Corpus, str], Ranked] = {}
    for hit in sorted(ranked, key=_order):
        best.setdefault((hit.candidate.corpus, hit.candidate.id), hit)
    return list(best.values())


def _lift_exact(ranked: list[Ranked]) -> list[Ranked]:
    """Move the best of the hits that hold most of what was named up into the first EXACT_IN_TOP.

    An incident elsewhere: a perfect keyword hit whose vector scored 0 fell below a threshold and was never seen.
    """
    best = max(ranked, key=lambda hit: (hit.exact, hit.text_part, hit.score), default=None)
    if best is None or not best.exact or best in ranked[:EXACT_IN_TOP]:
        return ranked
    lifted = msgspec.structs.replace(best, score=ranked[EXACT_IN_TOP - 1].score)
    rest = [hit for hit in ranked if hit is not best]
    return [*rest[: EXACT_IN_TOP - 1], lifted, *rest[EXACT_IN_TOP - 1 :]]


def _holds(candidate: Candidate, name: str) -> bool:
    """Say whether the candidate's id is the name, or its text, heading or path holds it as a word of its own."""
    if candidate.id.casefold() == name:
        return True
    pattern = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])")
    places = (candidate.snippet, candidate.heading or "", candidate.path or "")
    return any(name in (folded := place.casefold()) and pattern.search(folded) is not None for place in places)


def _key(candidate: Candidate) -> Key:
    return candidate.corpus, candidate.id, candidate.part


def _tie(candidate: Candidate) -> tuple[int, str, str, int]:
    return -candidate.ts, candidate.corpus, candidate.id, candidate.part


def _order(hit: Ranked) -> tuple[float, int, str, str, int]:
    return (-hit.score, *_tie(hit.candidate))
