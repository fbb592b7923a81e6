"""Questions whose answers are known, taken from the rows of a view: what a verification asks the searcher.

By words: some rows of every table, each with a word of its text that so few rows have that a search for it must return
them all, this one among them. By meaning: directions between vectors of the view, as in the self-test of an index, and
the distances of the rows nearest to each, found by comparing it with every vector: through no index, and with what the
delta masks left out. Both are the same for the same view. Reads only; a pass over the vectors takes as long as reading
them (17,395 × 1,536: a second or two).
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from actors import generation as generations
from actors.generation import Mask
from actors.generation_builder import store
from actors.generation_builder.vector_index import Sample, halfway
from actors.messages.base import CORPORA, Corpus
from actors.messages.index import GenerationRef, VectorProbe, ViewSample, WordProbe
from actors.term_counts import TermCounts, counts_path
from actors.text import analyse_query

if TYPE_CHECKING:
    import pyarrow as pa

    from actors.generation_builder.vectors import Matrix

ROWS_A_TABLE = 8  # asked for by their words
WORDS_A_ROW = 200  # looked at
ROWS_WITH_MAX = 50  # a search returns twice as many
OFFSETS = 400  # rows of a table that are looked at for vectors
QUESTIONS = 20
ROW_COLUMNS = ["id", "part", "tenant", "path", "text", "terms"]
VECTOR_COLUMNS = ["id", "tenant", "path", "vector"]


class Table(NamedTuple):
    """A table of a view, and what of it is masked."""

    folder: Path
    corpus: Corpus
    rows: int
    masked: Mask

    def shown(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the rows that the view has."""
        import pyarrow as pa

        if not self.masked.units and not self.masked.documents:
            return batch
        units, documents = set(self.masked.units), set(self.masked.documents)
        names = ("id", "tenant", "path")
        ids, tenants, paths = (batch.column(name).to_pylist() for name in names)
        kept = [
            number
            for number, (row_id, tenant, path) in enumerate(zip(ids, tenants, paths, strict=True))
            if not (self.corpus == "units" and row_id in units)
            and not (self.corpus == "documents" and (tenant, path) in documents)
        ]
        return batch.take(pa.array(kept, pa.int64()))


def take_sample(view: GenerationRef, check: Callable[[], None]) -> ViewSample:
    """Return questions about a view. Raises GenerationSuspect, and what `check` raises."""
    tables = _tables(view)
    words = [probe for table in tables for probe in _words(table, tables, check)]
    return ViewSample(words=words, vectors=_vectors(view, tables, check))


def _tables(view: GenerationRef) -> list[Table]:
    base = Path(view.path)
    folders = [(base, Mask())]
    if view.delta_path is not None:
        delta = Path(view.delta_path)
        folders = [(base, generations.read_mask(delta)), (delta, Mask())]
    found = []
    for folder, masked in folders:
        rows = generations.read_manifest(folder).rows
        found += [Table(folder, corpus, rows[corpus], masked) for corpus in CORPORA if rows[corpus]]
    return found


def _spread(rows: int, count: int) -> list[int]:
    """Return at most so many row numbers, evenly over the table."""
    return [rows * step // count for step in range(count)] if rows > count else list(range(rows))


# ---------------------------------------------------------------- by words


def _words(table: Table, tables: list[Table], check: Callable[[], None]) -> Iterator[WordProbe]:
    counts = [_counts(other) for other in tables if other.corpus == table.corpus]
    if any(each is None for each in counts):
        return  # of an older version: nobody can say how rare a word is
    known = [each for each in counts if each is not None]
    for batch in store.read_at(table.folder, table.corpus, _spread(table.rows, ROWS_A_TABLE), ROW_COLUMNS):
        for row in table.shown(batch).to_pylist():
            check()
            query = _rare_word(str(row["text"]), set(str(row["terms"]).split()), known)
            if query is not None:
                yield WordProbe(corpus=table.corpus, id=row["id"], part=row["part"], tenant=row["tenant"], query=query)


def _counts(table: Table) -> TermCounts | None:
    with suppress(OSError, ValueError):
        return TermCounts(counts_path(table.folder, table.corpus))
    return None


def _rare_word(text: str, terms: set[str], counts: list[TermCounts]) -> str | None:
    """Return the word of a text that fewest rows have, None when all of them are common."""
    found: list[tuple[int, str]] = []
    for word in dict.fromkeys(text.split()[:WORDS_A_ROW]):
        asked = analyse_query(word)
        if terms.isdisjoint(asked):
            continue  # the row is indexed by another form of it
        rows = sum(each.rows_with(term) for each in counts for term in asked)
        if rows <= ROWS_WITH_MAX:
            found.append((rows, word))
    return min(found)[1] if found else None


# ---------------------------------------------------------------- by meaning


def _vectors(view: GenerationRef, tables: list[Table], check: Callable[[], None]) -> list[VectorProbe]:
    import numpy as np

    if view.identity is None or not view.vectors_have:
        return []
    dimensions = view.identity.dimensions
    tenant, starts = _starts(tables, dimensions, check)
    if tenant is None or len(starts) < 2:
        return []
    questions = halfway(starts, QUESTIONS)
    sample = Sample(questions)
    for table in tables:
        for batch in store.read_where(table.folder, table.corpus, VECTOR_COLUMNS, "vector IS NOT NULL"):
            check()
            sample.offer(_of_tenant(table.shown(batch), tenant, dimensions))
    lists = [row[np.isfinite(row)].tolist() for row in np.sort(sample.nearest, axis=1)]
    return [
        VectorProbe(tenant=tenant, vector=question.astype("<f4").tobytes(), distances=distances)
        for question, distances in zip(questions, lists, strict=True)
    ]


def _starts(tables: list[Table], dimensions: int, check: Callable[[], None]) -> "tuple[str | None, Matrix]":
    """Return vectors to make questions of, all of one tenant: a search never sees the rows of two."""
    import numpy as np

    tenant: str | None = None
    found: list[Matrix] = []
    for table in tables:
        for batch in store.read_at(table.folder, table.corpus, _spread(table.rows, OFFSETS), VECTOR_COLUMNS):
            check()
            shown = table.shown(batch)
            if tenant is None and shown.num_rows:
                tenant = shown.column("tenant")[0].as_py()
            if tenant is not None:
                found.append(_of_tenant(shown, tenant, dimensions))
    return tenant, np.concatenate(found) if found else np.empty((0, dimensions), dtype=np.float32)


def _of_tenant(batch: "pa.RecordBatch", tenant: str, dimensions: int) -> "Matrix":
    """Return the vectors of a tenant's rows that have one."""
    import numpy as np
    import pyarrow as pa

    tenants = batch.column("tenant").to_pylist()
    kept = pa.array([number for number, each in enumerate(tenants) if each == tenant], pa.int64())
    vectors = batch.take(kept).column("vector").drop_null()
    values = vectors.flatten().to_numpy(zero_copy_only=False)
    matrix: Matrix = np.ascontiguousarray(values, dtype=np.float32).reshape(len(vectors), dimensions)
    return matrix
