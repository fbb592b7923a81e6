"""Generations, opened for reading: the only code of this room that touches LanceDB.

Owns the open tables of each generation in this process. Promises: a generation is opened only after every byte of it
was compared with its manifest, its tables were opened at the version that was sealed, and a keyword and a vector
query went through each; it is never written to; an error that LanceDB raises while serving becomes
`GenerationSuspect`, because LanceDB keeps no checksums and has no type for damage.

LanceDB is imported on the first load, which takes seconds. Its async interface is used, on an event loop of our own:
the synchronous one costs 2 ms more for each query and cannot do the three corpora at once.
"""

import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from actors.errors import BulkheadError, GenerationSuspect, Interrupted, NoGeneration
from actors.generation import Manifest, verify
from actors.messages import CORPORA, Candidate, Corpus, EmbeddingIdentity, Filters, GenerationRef
from actors.searcher.lance_filters import Condition, conditions, prefix_end

if TYPE_CHECKING:
    import asyncio

    from lancedb.expr import Expr
    from lancedb.query import AsyncStandardQuery
    from lancedb.table import AsyncTable

Result = TypeVar("Result")
Row = dict[str, object]

LIMIT_MAX = 1000  # LanceDB takes any number, and 0 is an error
ERROR_CHARS_MAX = 300
_FACTS = ("id", "version", "part", "ts", "seq", "session_id", "actor", "kind", "path", "from_line", "to_line")
_CARRIED = (*_FACTS, "heading", "type", "scope", "tags")
_REQUIRED = {*_CARRIED, "tenant", "text", "terms"}


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What both lists of a search have in common. `limit` is 1 to LIMIT_MAX, `deadline_ns` is CLOCK_MONOTONIC."""

    corpora: tuple[Corpus, ...]
    filters: Filters
    tenant: str
    limit: int
    deadline_ns: int


class OpenGeneration:
    """The tables of one generation that have rows.

    There is no `close`: a query on a closed table brings the process down. The last search that holds it frees it.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.number = manifest.generation
        self.identity: EmbeddingIdentity | None = manifest.identity
        self.vectors_have = manifest.vectors_have
        self.tables: dict[Corpus, AsyncTable] = {}


class GenerationStore:
    """The generations this process has open, by number. Any thread may call any method."""

    def __init__(self, *, cache_bytes: int) -> None:
        self._cache_bytes = cache_bytes
        self._open: dict[int, OpenGeneration] = {}
        self._loop = _EventLoop()

    def warm_up(self) -> None:
        """Import LanceDB before anybody waits for it."""
        import lancedb  # noqa: F401

    def load(self, ref: GenerationRef, *, deadline_ns: int) -> None:
        """Verify, open and probe a generation; nothing to do when it is open. Raises GenerationSuspect."""
        if ref.generation in self._open:
            return
        folder = Path(ref.path).absolute()  # LanceDB takes some relative names for addresses
        manifest = verify(folder)
        if manifest.generation != ref.generation:
            raise GenerationSuspect(f"{folder.name} says it is generation {manifest.generation}, not {ref.generation}")
        opening = _open_tables(folder, manifest, self._cache_bytes)
        self._open[ref.generation] = self._run(opening, ref.generation, "opening", deadline_ns)

    def drop(self, number: int) -> None:
        """Let go of a generation and its caches; nothing to do when it is not open. Searches on it may go on."""
        self._open.pop(number, None)

    def get(self, number: int) -> OpenGeneration:
        """Return an open generation, or raise NoGeneration."""
        try:
            return self._open[number]
        except KeyError:
            raise NoGeneration(f"generation {number} is not open in this worker") from None

    def keyword(
        self, opened: OpenGeneration, terms: Sequence[str], question: Question, snippet: Callable[[str], str]
    ) -> list[Candidate]:
        """Return the rows that hold any of the terms, by BM25, best first. Each corpus counts its own frequencies."""
        search = _search_tables(opened, question, "_score", lambda corpus: _by_terms(opened.tables[corpus], terms))
        found = self._run(search, opened.number, "keyword search", question.deadline_ns)
        return _best(found, "_score", lambda score: score, question.limit, snippet)

    def nearest(
        self, opened: OpenGeneration, vector: "Sequence[float]", question: Question, snippet: Callable[[str], str]
    ) -> list[Candidate]:
        """Return the rows whose vector has the smallest angle to `vector`, best first; rows without one never."""
        search = _search_tables(opened, question, "_distance", lambda corpus: _by_vector(opened.tables[corpus], vector))
        found = self._run(search, opened.number, "vector search", question.deadline_ns)
        return _best(found, "_distance", lambda distance: 1.0 - distance, question.limit, snippet)

    def _run(self, work: "Coroutine[object, object, Result]", number: int, what: str, deadline_ns: int) -> Result:
        """Do the work on the event loop; give LanceDB's untyped errors the one meaning they can have here."""
        try:
            return self._loop.run(work)
        except (BulkheadError, MemoryError):
            raise
        except Exception as error:
            if time.monotonic_ns() >= deadline_ns:
                raise Interrupted(f"{what} in generation {number} stopped at its deadline") from error
            if what != "opening" and number not in self._open:
                raise NoGeneration(f"generation {number} was closed during the {what}") from error
            raise GenerationSuspect(f"generation {number}: {what} failed: {_brief(error)}") from error


async def _open_tables(folder: Path, manifest: Manifest, cache_bytes: int) -> OpenGeneration:
    import lancedb

    session = lancedb.Session(
        index_cache_size_bytes=cache_bytes * 2 // 3, metadata_cache_size_bytes=cache_bytes - cache_bytes * 2 // 3
    )
    connection = await lancedb.connect_async(str(folder), session=session)
    opened = OpenGeneration(manifest)
    for corpus in CORPORA:
        if manifest.rows.get(corpus, 0) == 0:
            continue
        table = await connection.open_table(corpus)
        await _check_table(table, corpus, manifest)
        await _check_index(table, corpus, manifest)
        await _probe(table, corpus, manifest)
        opened.tables[corpus] = table
    return opened


async def _check_table(table: "AsyncTable", corpus: Corpus, manifest: Manifest) -> None:
    """Compare a table with the manifest: LanceDB opens an older version in silence when the newest one is gone."""
    version, rows = await table.version(), await table.count_rows()
    if version != manifest.table_versions.get(corpus) or rows != manifest.rows[corpus]:
        raise GenerationSuspect(
            f"generation {manifest.generation}: table {corpus} is at version {version} with {rows} rows, sealed was "
            f"version {manifest.table_versions.get(corpus)} with {manifest.rows[corpus]} rows"
        )
    schema = await table.schema()
    missing = _REQUIRED - set(schema.names)
    if missing:
        raise GenerationSuspect(f"generation {manifest.generation}: table {corpus} lacks columns {sorted(missing)}")
    if manifest.identity is not None:
        size = getattr(schema.field("vector").type, "list_size", None) if "vector" in schema.names else None
        if size != manifest.identity.dimensions:
            raise GenerationSuspect(
                f"generation {manifest.generation}: table {corpus} has vectors of {size} dimensions, the manifest says "
                f"{manifest.identity.dimensions}"
            )


async def _check_index(table: "AsyncTable", corpus: Corpus, manifest: Manifest) -> None:
    """Make sure that the keyword index covers every row.

    Listing indexes loads them, so it is done here, once, and not on the way of a query.
    """
    indexes = {tuple(index.columns): index.name for index in await table.list_indices()}
    name = indexes.get(("terms",))
    stats = await table.index_stats(name) if name is not None else None
    if stats is None or stats.num_unindexed_rows != 0:
        uncovered = manifest.rows[corpus] if stats is None else stats.num_unindexed_rows
        raise GenerationSuspect(
            f"generation {manifest.generation}: table {corpus} has {uncovered} rows outside its keyword index"
        )


async def _probe(table: "AsyncTable", corpus: Corpus, manifest: Manifest) -> None:
    """Make one keyword and one vector query, so that files that cannot be read are found before they are needed."""
    sample = (await table.query().select(["terms"]).limit(1).to_arrow()).to_pylist()
    terms = (sample[0]["terms"] or "").split()[:1]
    if terms and (await _by_terms(table, terms).select(["id", "_score"]).limit(1).to_arrow()).num_rows != 1:
        raise GenerationSuspect(
            f"generation {manifest.generation}: table {corpus} does not find a term of its own first row"
        )
    if manifest.identity is not None:
        count = manifest.identity.dimensions
        probe = _by_vector(table, [1 / math.sqrt(count)] * count)
        await probe.select(["id", "_distance"]).limit(1).to_arrow()


async def _search_tables(
    opened: OpenGeneration, question: Question, score: str, start: "Callable[[Corpus], AsyncStandardQuery]"
) -> list[tuple[Corpus, list[Row]]]:
    """Ask every corpus that the filters do not rule out, all at the same time."""
    import asyncio

    asked = []
    for corpus in dict.fromkeys(question.corpora):
        needed = conditions(question.filters, question.tenant, corpus)
        if corpus in opened.tables and needed is not None:
            asked.append((corpus, _finish(start(corpus), needed, score, question)))
    rows = await asyncio.gather(*(work for _, work in asked))
    return [(corpus, found) for (corpus, _), found in zip(asked, rows, strict=True)]


async def _finish(query: "AsyncStandardQuery", needed: list[Condition], score: str, question: Question) -> list[Row]:
    """Narrow a query before it ranks, and run it until the deadline. `score` must be named to be returned."""
    expression, lists = _where(needed)
    query = query.where(expression)
    for text in lists:
        query = query.where(text)
    query = query.select([*_CARRIED, "text", score]).limit(question.limit)
    left_ns = question.deadline_ns - time.monotonic_ns()
    if left_ns <= 0:
        raise Interrupted("search stopped at its deadline")
    rows: list[Row] = (await query.to_arrow(timeout=timedelta(microseconds=max(1, left_ns // 1000)))).to_pylist()
    return rows


def _by_terms(table: "AsyncTable", terms: Sequence[str]) -> "AsyncStandardQuery":
    """Begin a keyword query. A MatchQuery: a plain string would be parsed, and a quoted one fail."""
    from lancedb.query import MatchQuery

    return table.query().nearest_to_text(MatchQuery(" ".join(terms), "terms"))


def _by_vector(table: "AsyncTable", vector: Sequence[float]) -> "AsyncStandardQuery":
    """Begin a vector query, exact. Rows without a vector have no distance and are never returned."""
    return table.query().nearest_to(vector).column("vector").distance_type("cosine").bypass_vector_index()


def _where(needed: Iterable[Condition]) -> "tuple[Expr, list[str]]":
    """Return the conditions as one typed expression, and those on lists as SQL, for which LanceDB has no expression.

    Joining the two makes LanceDB print the expression as SQL and parse it again, and its printer leaves a quote after
    a backslash as it is: the value `\\' OR …` would become a condition. Hence `_literal`: no value is ever printed as
    text. tests/unit/actors/searcher/test_searcher_filters.py holds it against arbitrary strings.
    """
    expression: Expr | None = None
    lists = []
    for condition in needed:
        if condition.operator == "has":
            lists.append(f"array_has({condition.column}, {_literal(condition.value).to_sql()})")
        else:
            part = _compare(condition)
            expression = part if expression is None else expression & part
    assert expression is not None, "a search without a tenant"
    return expression, lists


def _compare(condition: Condition) -> "Expr":
    from lancedb.expr import col

    column, value = col(condition.column), condition.value
    match condition.operator:
        case "eq":
            return column == _literal(value)
        case "any_of":
            assert isinstance(value, tuple)
            return column.isin([_literal(one) for one in value])
        case "at_least":
            return column >= _literal(value)
        case "below":
            return column < _literal(value)
        case "starts_with":
            assert isinstance(value, str)
            end, begins = prefix_end(value), column >= _literal(value)
            return begins if end is None else begins & (column < _literal(end))
        case "has":
            raise AssertionError("conditions on lists are written elsewhere")


def _literal(value: object) -> "Expr":
    """Return a value as an expression that prints as a number, or as hexadecimal digits and a cast."""
    from lancedb.expr import lit

    assert isinstance(value, int | str)
    return lit(value) if isinstance(value, int) else lit(value.encode()).cast("string")


def _best(
    found: Iterable[tuple[Corpus, list[Row]]],
    column: str,
    score_of: Callable[[float], float],
    limit: int,
    snippet: Callable[[str], str],
) -> list[Candidate]:
    """Merge the corpora into one list, in an order that does not depend on how LanceDB happened to answer."""
    scored = []
    for corpus, rows in found:
        for row in rows:
            value = row[column]
            if isinstance(value, float) and math.isfinite(value):
                scored.append((score_of(value), corpus, row))
    scored.sort(key=lambda item: (-item[0], -_int(item[2]["ts"]), str(item[2]["id"]), _int(item[2]["part"]), item[1]))
    kind = "text_score" if column == "_score" else "vector_score"
    return [_candidate(row, corpus, kind, score, snippet) for score, corpus, row in scored[:limit]]


def _candidate(row: Row, corpus: Corpus, kind: str, score: float, snippet: Callable[[str], str]) -> Candidate:
    facts = {name: row[name] for name in _CARRIED}
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
