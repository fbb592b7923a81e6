"""How much two generations agree about what was asked lately. Pure: the actor does the asking.

Made when the embedding model changes, before the new generation serves, so that people can see what the change did to
their answers. Of the questions only numbers are kept.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median

from actors.messages.base import Corpus
from actors.messages.index import Comparison

TOP = 10
RECENT = 32  # questions that are kept in memory for the next comparison

Hit = tuple[Corpus, str, int]  # corpus, id, part


class Pairing:
    """The answers of two generations to one question, after another."""

    def __init__(self, earlier: int, later: int) -> None:
        self._generations = earlier, later
        self._overlaps: list[float] = []
        self._correlations: list[float] = []
        self._earlier_ms: list[float] = []
        self._later_ms: list[float] = []
        self._with_vectors = 0

    def add(
        self,
        earlier: Sequence[Hit],
        later: Sequence[Hit],
        *,
        earlier_ms: float,
        later_ms: float,
        with_vectors: bool,
    ) -> None:
        """Add one question: both lists of hits, best first, how long each took, whether both used vectors."""
        self._overlaps.append(overlap(earlier[:TOP], later[:TOP]))
        correlation = rank_correlation(earlier, later)
        if correlation is not None:
            self._correlations.append(correlation)
        self._earlier_ms.append(earlier_ms)
        self._later_ms.append(later_ms)
        self._with_vectors += with_vectors

    def result(self) -> Comparison:
        """Return the means over all questions."""
        earlier, later = self._generations
        return Comparison(
            earlier=earlier,
            later=later,
            queries=len(self._overlaps),
            with_vectors=self._with_vectors,
            top=TOP,
            overlap=_rounded(fmean(self._overlaps)) if self._overlaps else None,
            rank_correlation=_rounded(fmean(self._correlations)) if self._correlations else None,
            earlier_ms=_rounded(median(self._earlier_ms)) if self._earlier_ms else None,
            later_ms=_rounded(median(self._later_ms)) if self._later_ms else None,
        )


def overlap(earlier: Sequence[Hit], later: Sequence[Hit]) -> float:
    """Return the share of hits that are in both lists, of the longer one; 1 when both are empty."""
    longer = max(len(earlier), len(later))
    return len({*earlier} & {*later}) / longer if longer else 1.0


def rank_correlation(earlier: Sequence[Hit], later: Sequence[Hit]) -> float | None:
    """Return Spearman's coefficient over the hits that are in both lists; None when they are fewer than two."""
    common = {*earlier} & {*later}
    count = len(common)
    if count < 2:
        return None
    places = {hit: place for place, hit in enumerate(hit for hit in later if hit in common)}
    distance = math.fsum(
        (place - places[hit]) ** 2 for place, hit in enumerate(hit for hit in earlier if hit in common)
    )
    return 1 - 6 * distance / (count * (count * count - 1))


def _rounded(value: float) -> float:
    return round(value, 3)
