"""Views, opened for reading: a generation, or a generation and a delta over it, as one set of rows.

Owns the open views of this process. Promises: a folder is opened only after every byte of it was compared with its
manifest, its tables were opened at the version that was sealed, and a keyword and a vector query went through each;
views of one generation share it, and it is freed with the last of them; nothing is ever written to; an error that
LanceDB raises while serving becomes `GenerationSuspect`, which names the folder, and no view with that folder is
served again before it has been verified anew.

A query asks the tables of both folders at the same time. Rows of the generation that the delta masks are left out;
the others are one list with those of the delta. Cosines compare as they are. BM25 scores do not, so with a delta
every keyword hit is scored anew with the frequencies of both tables, less those of the masked rows (`bm25.py`): it
has the score that it would have in one table of the same rows. Which rows of the generation are among its best is
decided by LanceDB with the frequencies of the generation alone; that matters only where the limit cuts, and as much
as the delta shifts them. Folders that were sealed without counts keep the scores of LanceDB.

LanceDB is imported on the first load, which takes seconds. Its async interface is used, on an event loop of our own:
the synchronous one costs 2 ms more for each query and cannot do the tables at once.
"""

import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import msgspec

from actors.errors import BulkheadError, GenerationSuspect, Interrupted, NoGeneration
from actors.generation import Mask, read_mask, verify
from actors.messages.base import Candidate, Corpus, Filters
from actors.messages.index import EmbeddingIdentity, GenerationRef, view_name, view_number
from actors.searcher.bm25 import Frequencies, scores, total
from actors.searcher.lance_filters import Condition, conditions
from actors.searcher.lance_queries import CARRIED, Wanted, by_terms, by_vector, count_rows, find
from actors.searcher.lance_tables import OpenFolder, open_tables
from actors.searcher.masking import Hidden, Masking
from actors.searcher.vector_index import Asked, asks_for_everything, how_to_ask
from actors.term_counts import TermCounts, occurrences

if TYPE_CHECKING:
    import asyncio

    import numpy as np
    import pyarrow as pa
    from lancedb.query import AsyncStandardQuery
    from numpy.typing import NDArray

    Scores = NDArray[np.float64]

Result = TypeVar("Result")
Row = dict[str, object]
Start = Callable[[OpenFolder, Corpus], "AsyncStandardQuery"]

COUNTS_MAX = 1024  # of what filters leave, kept for each open folder
LIMIT_MAX = 1000  # LanceDB takes any number, and 0 is an error
DELTA_CACHE_SHARE = 8  # a delta's caches get this part of those of a generation
ERROR_CHARS_MAX = 300


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What both lists of a search have in common. `limit` is 1 to LIMIT_MAX, `deadline_ns` is CLOCK_MONOTONIC."""

    corpora: tuple[Corpus, ...]
    filters: Filters
    tenant: str
    limit: int
    deadline_ns: int


class Scored(NamedTuple):
    """What one table answered: rows, and the score of each."""

    corpus: Corpus
    rows: "pa.Table"
    scores: "Scores"


class OpenView:
    """The folders of one view, and which rows of the first the second one masks."""

    def __init__(self, ref: GenerationRef, base: OpenFolder, delta: OpenFolder | None, mask: Mask) -> None:
        self.view = ref.view
        self.name = view_name(ref.view)
        self.identity: EmbeddingIdentity | None = base.identity
        self.vectors_have = ref.vectors_have
        self.base = base
        self.delta = delta
        self._masking = Masking(mask, {} if delta is None else delta.masked_rows)

    @property
    def folders(self) -> list[OpenFolder]:
        """Return what it is made of, the generation first."""
        return [self.base] if self.delta is None else [self.base, self.delta]

    def hidden(self, folder: OpenFolder, corpus: Corpus, tenant: str) -> Hidden | None:
        """Return which rows of a folder must not be answered."""
        return self._masking.hidden(corpus, tenant) if folder is self.base else None

    def counts(self, corpus: Corpus) -> list[tuple[int, TermCounts]]:
        """Return the counts that make one table of both, with their signs; none when there is nothing to join."""
        if self.delta is None or not all(corpus in folder.counts for folder in self.folders):
            return []
        masked = self.delta.masked_counts.get(corpus)
        return [*((1, folder.counts[corpus]) for folder in self.folders), *([] if masked is None else [(-1, masked)])]


class _FolderFailed(Exception):
    """LanceDB raised an error over the tables of a folder."""

    def __init__(self, folder: OpenFolder, error: Exception) -> None:
        super().__init__(str(error))
        self.folder = folder
        self.error = error


class GenerationStore:
    """The views this process has open, by number. Any thread may call any method."""

    def __init__(self, *, cache_bytes: int) -> None:
        self._cache_bytes = cache_bytes
        self._open: dict[int, OpenView] = {}
        self._loop = _EventLoop()

    def warm_up(self) -> None:
        """Import LanceDB before anybody waits for it."""
        import lancedb  # noqa: F401

    def load(self, ref: GenerationRef, *, deadline_ns: int, anew: bool = False) -> None:
        """Verify, open and probe a view; what is open already is used as it is, or verified `anew`.

        Raises GenerationSuspect.
        """
        if anew:
            self._verify_open(ref)
        if ref.view in self._open:
            return
        base, delta, mask = self._shared(ref), None, Mask()
        if base is None:
            base = self._open_folder(ref.path, view_number(ref.generation, None), self._cache_bytes, deadline_ns)
        if ref.delta_path is not None:
            cache_bytes = self._cache_bytes // DELTA_CACHE_SHARE
            delta = self._open_folder(ref.delta_path, ref.view, cache_bytes, deadline_ns)
            mask = read_mask(delta.path)
            if delta.identity != base.identity:
                raise GenerationSuspect(f"generation {delta.name}: its vectors are not of the space of its generation")
        self._open[ref.view] = OpenView(ref, base, delta, mask)

    def _verify_open(self, ref: GenerationRef) -> None:
        """Compare every byte of those folders of a view that are open with what was sealed; the others will be."""
        wanted = {_absolute(path) for path in (ref.path, ref.delta_path) if path is not None}
        opened = {folder.path: folder for view in list(self._open.values()) for folder in view.folders}
        for path in wanted & opened.keys():
            try:
                verify(path)
            except GenerationSuspect:
                self._forget(opened[path])
                raise

    def _shared(self, ref: GenerationRef) -> OpenFolder | None:
        """Return the generation of a view when another view has it open."""
        path = _absolute(ref.path)
        return next((opened.base for opened in list(self._open.values()) if opened.base.path == path), None)

    def _open_folder(self, path: str, view: int, cache_bytes: int, deadline_ns: int) -> OpenFolder:
        folder = _absolute(path)
        manifest = verify(folder)
        found = view_number(manifest.generation, manifest.delta)
        if found != view:
            raise GenerationSuspect(f"{folder.name} says it is generation {view_name(found)}, not {view_name(view)}")
        return self._run(open_tables(folder, manifest, cache_bytes), view, "opening", deadline_ns)

    def drop(self, view: int) -> None:
        """Let go of a view and its caches; nothing to do when it is not open. Searches on it may go on."""
        self._open.pop(view, None)

    def get(self, view: int) -> OpenView:
        """Return an open view, or raise NoGeneration."""
        try:
            return self._open[view]
        except KeyError:
            raise NoGeneration(f"generation {view_name(view)} is not open in this worker") from None

    def keyword(
        self, opened: OpenView, terms: Sequence[str], question: Question, snippet: Callable[[str], str]
    ) -> list[Candidate]:
        """Return the rows that hold any of the terms, by BM25, best first. Each corpus counts its own frequencies."""
        search = _search(opened, question, "_score", lambda folder, corpus: by_terms(folder.tables[corpus], terms))
        found = self._run(search, opened.view, "keyword search", question.deadline_ns)
        asked = tuple(dict.fromkeys(terms))
        frequencies = {corpus: _frequencies(opened.counts(corpus), asked) for corpus in {corpus for corpus, _ in found}}
        scored = [Scored(corpus, rows, _keyword_scores(rows, asked, frequencies[corpus])) for corpus, rows in found]
        return _best(scored, "text_score", question.limit, snippet)

    def nearest(
        self, opened: OpenView, vector: "Sequence[float]", question: Question, snippet: Callable[[str], str]
    ) -> list[Candidate]:
        """Return the rows whose vector has the smallest angle to `vector`, best first; rows without one never.

        The scores are exact, the list is unless a table has a vector index.
        """
        search = _search_vectors(opened, vector, question)
        found = self._run(search, opened.view, "vector search", question.deadline_ns)
        scored = [Scored(corpus, rows, 1.0 - _numbers(rows, "_distance")) for corpus, rows in found]
        return _best(scored, "vector_score", question.limit, snippet)

    def _run(self, work: "Coroutine[object, object, Result]", view: int, what: str, deadline_ns: int) -> Result:
        """Do the work on the event loop; give LanceDB's untyped errors the one meaning they can have here."""
        try:
            return self._loop.run(work)
        except (BulkheadError, MemoryError):
            raise
        except Exception as failure:
            name, error = view_name(view), failure
            if isinstance(failure, _FolderFailed):
                name, error = failure.folder.name, failure.error
            if time.monotonic_ns() >= deadline_ns:
                raise Interrupted(f"{what} in generation {name} stopped at its deadline") from error
            if what != "opening" and view not in self._open:
                raise NoGeneration(f"generation {view_name(view)} was closed during the {what}") from error
            if isinstance(failure, _FolderFailed):
                self._forget(failure.folder)
            raise GenerationSuspect(f"generation {name}: {what} failed: {_brief(error)}") from error

    def _forget(self, folder: OpenFolder) -> None:
        """Let go of every view with this folder: whoever wants one of them has it verified again."""
        for view, opened in list(self._open.items()):
            if folder in opened.folders:
                self.drop(view)


def _absolute(path: str) -> Path:
    return Path(path).absolute()  # LanceDB takes some relative names for addresses


async def _search(opened: OpenView, question: Question, score: str, start: Start) -> "list[tuple[Corpus, pa.Table]]":
    """Ask every table of every corpus that the filters do not rule out, all at the same time."""
    import asyncio

    asked = [*_asked(opened, question, score)]
    tables = await asyncio.gather(*(_find(folder, corpus, start, wanted) for folder, corpus, wanted in asked))
    return [(corpus, rows) for (_, corpus, _), rows in zip(asked, tables, strict=True)]


async def _search_vectors(
    opened: OpenView, vector: Sequence[float], question: Question
) -> "list[tuple[Corpus, pa.Table]]":
    """Decide for every table that has an index how thoroughly to ask it, then search them all at the same time."""
    asked: dict[tuple[OpenFolder, Corpus], Asked] = {}
    for folder in opened.folders:
        for corpus, index in folder.vector_indexes.items():
            needed = conditions(question.filters, question.tenant, corpus)
            if corpus in question.corpora and needed is not None:
                rows = folder.rows[corpus]
                matching = rows if asks_for_everything(index) else await _matching(folder, corpus, needed, question)
                asked[folder, corpus] = how_to_ask(index, rows=rows, matching=matching)
    return await _search(
        opened,
        question,
        "_distance",
        lambda folder, corpus: by_vector(folder.tables[corpus], vector, asked.get((folder, corpus))),
    )


async def _matching(folder: OpenFolder, corpus: Corpus, needed: list[Condition], question: Question) -> int:
    """Return how many rows fulfil the conditions. A folder never changes, so each is counted once."""
    key = (corpus, tuple(needed))
    if key not in folder.matching:
        count = await count_rows(folder.tables[corpus], needed, question.deadline_ns)
        if len(folder.matching) >= COUNTS_MAX:
            folder.matching.clear()
        folder.matching[key] = count
    return folder.matching[key]


def _asked(opened: OpenView, question: Question, score: str) -> Iterator[tuple[OpenFolder, Corpus, Wanted]]:
    for corpus in dict.fromkeys(question.corpora):
        needed: list[Condition] | None = conditions(question.filters, question.tenant, corpus)
        if needed is None:
            continue
        columns = [*CARRIED, "text", score]
        if score == "_score" and opened.counts(corpus):
            columns.append("terms")
        for folder in opened.folders:
            if corpus in folder.tables:
                hidden = opened.hidden(folder, corpus, question.tenant)
                yield folder, corpus, Wanted(needed, columns, question.limit, question.deadline_ns, hidden)


async def _find(folder: OpenFolder, corpus: Corpus, start: Start, wanted: Wanted) -> "pa.Table":
    try:
        return await find(lambda: start(folder, corpus), wanted)
    except (BulkheadError, MemoryError):
        raise
    except Exception as error:
        raise _FolderFailed(folder, error) from error


def _frequencies(counts: Sequence[tuple[int, TermCounts]], asked: tuple[str, ...]) -> Frequencies | None:
    """Return what the counts say of the terms that are asked for, None without counts."""
    if not counts:
        return None
    return total(
        [
            (sign, Frequencies(rows=part.rows, length=part.length, rows_with=tuple(map(part.rows_with, asked))))
            for sign, part in counts
        ]
    )


def _keyword_scores(rows: "pa.Table", asked: tuple[str, ...], of: Frequencies | None) -> "Scores":
    """Return the scores that the rows have with these frequencies; without any those of LanceDB."""
    if of is None:
        return _numbers(rows, "_score")
    held, lengths = occurrences(rows.column("terms"), asked)
    return scores(held, lengths, of)


def _numbers(rows: "pa.Table", column: str) -> "Scores":
    """Return a column of numbers; what is missing is not a number."""
    import numpy as np

    numbers: Scores = rows.column(column).to_numpy().astype(np.float64)
    return numbers


def _best(
    found: Sequence[Scored], kind: Literal["text_score", "vector_score"], limit: int, snippet: Callable[[str], str]
) -> list[Candidate]:
    """Merge the tables into one list, in an order that does not depend on how LanceDB happened to answer."""
    scored = []
    floor = _floor([each.scores for each in found], limit)
    for corpus, rows, values in found:
        kept = (values >= floor) & (values < math.inf)  # the others are not even made objects of Python
        rows_kept = rows.filter(kept).to_pylist()
        scored += [(score, corpus, row) for score, row in zip(values[kept].tolist(), rows_kept, strict=True)]
    scored.sort(key=lambda item: (-item[0], -_int(item[2]["ts"]), str(item[2]["id"]), _int(item[2]["part"]), item[1]))
    return [_candidate(row, corpus, kind, score, snippet) for score, corpus, row in scored[:limit]]


def _floor(scores_found: "Sequence[Scores]", limit: int) -> float:
    """Return the score that a row needs to be among the best: that of the last of them, as equal ones stay."""
    import numpy as np

    values = np.concatenate([np.empty(0), *scores_found])
    values = values[np.isfinite(values)]
    return float(np.partition(values, -limit)[-limit]) if len(values) > limit else -math.inf


def _candidate(row: Row, corpus: Corpus, kind: str, score: float, snippet: Callable[[str], str]) -> Candidate:
    facts = {name: row[name] for name in CARRIED}
    facts |= {"corpus": corpus, "snippet": snippet(str(row["text"] or "")), kind: score, "tags": row["tags"] or ()}
    return msgspec.convert(facts, Candidate)


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def _brief(error: Exception) -> str:
    """Return an error of LanceDB without the place in its source, short enough for a log line."""
    return f"{type(error).__name__}: {error}".split(", /", 1)[0][:ERROR_CHARS_MAX]


class _EventLoop:
    """An asyncio event loop on a thread of its own, to which any thread gives work and waits. Started on first use."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def run(self, work: "Coroutine[object, object, Result]") -> Result:
        import asyncio

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="lance-loop", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
