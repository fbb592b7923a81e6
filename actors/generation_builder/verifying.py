"""Verifies what serves: on command, when a searcher could not read it, and slowly all the time (scrubbing.py).

Three questions, each harder than the one before: are the files those that were sealed (names, sizes, sha256); do the
tables open, with the rows that were sealed; do searches find what they should. For the last one the worker takes
questions from the rows of the view and answers them exactly, and the searcher is asked them as people's questions are.
What fails one of the three is not served any longer.
"""

import time

from actors.errors import BulkheadError, GenerationSuspect, NotFound
from actors.generation_builder.desk import Desk
from actors.generation_builder.publishing import Publisher, as_row
from actors.messages.base import Done, Row
from actors.messages.builder_work import SampleView, VerifyGeneration
from actors.messages.generation_builder import ReportSuspect
from actors.messages.index import GenerationRef, VectorProbe, ViewSample, WordProbe
from actors.messages.searcher import FoundRow, Tried, TryView

LIMIT = 100  # rows by words: a sample's words are in half as many rows at most
NEAREST = 10
# Real questions are wanted to have 0.98 of their nearest rows, and an index is published with 0.99 of those of its
# self-test. Below this it is no bad luck with the sample.
RECALL_MIN = 0.95
TOLERANCE = 1e-5  # of distances that two programs computed


class Verifier:
    """Verifies the serving view."""

    def __init__(self, desk: Desk, publisher: Publisher) -> None:
        self._desk = desk
        self._publisher = publisher

    async def verify(self, deadline_ns: int) -> Row:
        """Verify what serves now; raise GenerationSuspect, after the fall-back, when it fails."""
        began = time.monotonic()
        serving = self._desk.notice.serving
        if serving is None:
            raise NotFound("no generation is published, so there is nothing to verify")
        with self._publisher.pinned(serving):
            await self._files(serving, deadline_ns)
            answers = await self._answers(serving, deadline_ns)
        took_ms = round((time.monotonic() - began) * 1000, 1)
        found = {"generation": serving.generation, "delta": serving.delta, "verified": True, "rows": serving.rows}
        return as_row({**found, "bytes": serving.bytes, **answers, "took_ms": took_ms})

    async def look_into(self, suspect: ReportSuspect) -> Done:
        """Verify the files of a view that a searcher could not read, and fall back when they are damaged."""
        serving = self._desk.notice.serving
        if serving is not None and serving.view == suspect.view:
            message = VerifyGeneration(generation=serving.generation, delta=serving.delta)
            try:
                with self._publisher.pinned(serving):
                    await self._desk.work(message, GenerationRef)
            except GenerationSuspect as error:
                await self._fall_back(serving, error)
        return Done()

    async def _files(self, view: GenerationRef, deadline_ns: int) -> None:
        message = VerifyGeneration(generation=view.generation, delta=view.delta)
        try:
            await self._desk.seat.call(message, GenerationRef, deadline_ns=deadline_ns)
        except GenerationSuspect as error:
            await self._fall_back(view, error)
            raise

    async def _answers(self, view: GenerationRef, deadline_ns: int) -> dict[str, object]:
        """Return what searches found of what they should; raise GenerationSuspect when it is not enough."""
        try:
            sample = await self._desk.seat.call(SampleView(view=view), ViewSample, deadline_ns=deadline_ns)
            message = TryView(view=view, sample=sample, limit=LIMIT, nearest=NEAREST)
            tried = await self._desk.house.ask("searcher", message, Tried, deadline_ns=deadline_ns)
        except GenerationSuspect as error:
            await self._fall_back(view, error)
            raise
        except BulkheadError as error:
            # The files are sound. Who would have to search them is away, or the time is up.
            return {"recall": None, "queries": None, "not_searched": error.message}
        recall, queries = recall_of(sample.vectors, tried.vectors), queries_of(sample.words, tried.words)
        queries |= {"recent": tried.recent, "recent_answered": tried.recent_answered}
        wrong = _wrong(recall, queries)
        if wrong is not None:
            suspect = GenerationSuspect(f"generation {view.generation}: its files are what was sealed, but {wrong}")
            await self._fall_back(view, suspect, distrusted=True)
            raise suspect
        return {"recall": recall, "queries": queries, "not_searched": None}

    async def _fall_back(self, view: GenerationRef, error: GenerationSuspect, *, distrusted: bool = False) -> None:
        """Fall back, unless another generation serves by now."""
        serving = self._desk.notice.serving
        if serving is not None and serving.generation == view.generation:
            await self._publisher.fall_back(error, distrusted=view.generation if distrusted else None)


def recall_of(asked: list[VectorProbe], found: list[list[FoundRow]]) -> dict[str, object]:
    """Return how many of the rows nearest to each question were found. Of equally near rows any will do."""
    expected = sum(len(probe.distances) for probe in asked)
    hits = 0
    for probe, rows in zip(asked, found, strict=True):
        bound = max(probe.distances, default=-1.0) + TOLERANCE
        hits += min(len(probe.distances), sum(1.0 - row.score <= bound for row in rows))
    value = round(hits / expected, 4) if expected else None
    return {
        "at": NEAREST,
        "questions": len(asked),
        "expected": expected,
        "found": hits,
        "value": value,
        "least": RECALL_MIN,
    }


def queries_of(asked: list[WordProbe], found: list[list[FoundRow]]) -> dict[str, object]:
    """Return how many rows were found by their own words, how many of them first, and which were not."""
    places = [_place(probe, rows) for probe, rows in zip(asked, found, strict=True)]
    missed = [f"{probe.corpus}/{probe.id}" for probe, place in zip(asked, places, strict=True) if place is None]
    return {
        "asked": len(asked),
        "found": len(asked) - len(missed),
        "first": sum(place == 0 for place in places),
        "missed": missed[:NEAREST],
    }


def _place(probe: WordProbe, rows: list[FoundRow]) -> int | None:
    found = [(row.corpus, row.id, row.part) for row in rows]
    wanted = (probe.corpus, probe.id, probe.part)
    return found.index(wanted) if wanted in found else None


def _wrong(recall: dict[str, object], queries: dict[str, object]) -> str | None:
    value, missed = recall["value"], queries["missed"]
    if isinstance(value, float) and value < RECALL_MIN:
        return f"its recall is {value}, at least {RECALL_MIN} is required"
    if isinstance(missed, list) and missed:
        return f"{missed[0]} is not found by its own words (and {len(missed) - 1} more)"
    return None
