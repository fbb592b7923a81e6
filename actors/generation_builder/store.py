"""LanceDB, as far as building needs it: with vector_index.py the only code of this room that touches it. No state.

LanceDB is imported in the first function that needs it (two to three seconds, most of it a generated client that
nobody here uses and that cannot be left out cleanly), so recovery and scanning answer at once after a start.

What was measured with 0.40 and is relied on:
* a table made from a stream of batches is one commit, its rows in the order of the stream;
* with the same rows in the same order, and one indexing worker, keyword scores and their ties are the same in every
  build, whatever the memory limit and the number of cores;
* a keyword index on an empty table covers nothing, so an empty table gets none;
* `on_bad_vectors="error"` takes a row without a vector for a bad one; "null" leaves it as it is, and the self-test
  counts the vectors afterwards.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from actors.errors import BuildFailed, BulkheadError, GenerationSuspect
from actors.generation import Manifest, Masked, VectorIndex
from actors.generation_builder import vector_index
from actors.generation_builder.changes import Place
from actors.generation_builder.faults import brief, storage_errors
from actors.generation_builder.index_policy import IndexPlan
from actors.generation_builder.item_counter import Tally, items_of
from actors.generation_builder.probes import Probe
from actors.generation_builder.rows import is_embeddable
from actors.generation_builder.vectors import HASH_BYTES, sound
from actors.messages.base import CORPORA, Corpus
from actors.text import LANCE_TOKENIZE

if TYPE_CHECKING:
    import pyarrow as pa
    from lancedb.table import Table

    from actors.generation_builder.vectors import Matrix

INDEXING_MEMORY_MIB = 512
READ_ROWS = 4096
KEYS_PER_QUERY = 500
PRESENT = " AND vector IS NOT NULL"
TERMS_INDEX = "terms_idx"


class TableFacts(NamedTuple):
    """What a finished table must be like."""

    rows: int
    vectors: int
    dimensions: int | None
    normalised: bool
    probes: Sequence[Probe]
    vector_index: VectorIndex | None = None


class Indexed(NamedTuple):
    """A table with its indexes: its version, and the vector index that it got."""

    version: int
    vector_index: VectorIndex | None


def write_table(folder: Path, corpus: Corpus, schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]") -> int:
    """Write a table in one commit and return its version. An error that `batches` raises is raised as it is."""
    import lancedb
    import pyarrow as pa

    failed: list[BulkheadError] = []
    reader = pa.RecordBatchReader.from_batches(schema, _keep_error(batches, failed))
    try:
        with storage_errors(f"writing table {corpus}"):
            connection = lancedb.connect(str(folder))
            table = connection.create_table(corpus, data=reader, schema=schema, on_bad_vectors="null")
            return int(table.version)
    except BulkheadError:
        if failed:
            raise failed[0] from None
        raise


def index_table(folder: Path, corpus: Corpus, plan: IndexPlan) -> Indexed:
    """Build the indexes of a table."""
    table = open_table(folder, corpus)
    if plan.keyword:
        from lancedb.index import FTS

        # One worker: the same rows give the same index on every machine, and a build gives way to everybody else.
        config = FTS(**LANCE_TOKENIZE, with_position=False, num_workers=1, memory_limit=INDEXING_MEMORY_MIB)
        with storage_errors(f"keyword index of table {corpus}"):
            table.create_index("terms", config=config, name=TERMS_INDEX)
    vector = plan.vector
    if vector is not None and not vector_index.build(table, folder / f"{corpus}.lance", vector):
        vector = None
    return Indexed(int(table.version), vector)


def check_table(folder: Path, corpus: Corpus, facts: TableFacts, check: Callable[[], None]) -> Indexed:
    """Test a finished table; BuildFailed says what was expected and what was found.

    A vector index that is not good enough is no reason to fail: it is dropped. Returns the table as it is then.
    """
    table = open_table(folder, corpus)
    sample: vector_index.Sample | None = None
    with storage_errors(f"self-test of table {corpus}"):
        _expect(corpus, "rows", facts.rows, table.count_rows())
        if facts.rows:
            statistics = table.index_stats(TERMS_INDEX)
            _expect(corpus, "rows in the keyword index", facts.rows, statistics.num_indexed_rows if statistics else 0)
            _expect(corpus, "rows outside the keyword index", 0, statistics.num_unindexed_rows)
        for probe in facts.probes:
            check()
            _expect(corpus, f"rows {probe.id!r} found by their term {probe.term!r}", 1, _found_by(table, probe))
        if facts.vector_index is not None and facts.dimensions is not None:
            sample = vector_index.Sample.of(table, facts.rows, facts.dimensions)
        _check_rows(table, corpus, facts, check, sample)
        kept = None
        if facts.vector_index is not None and sample is not None:
            kept = vector_index.keep_or_drop(table, folder / f"{corpus}.lance", facts.vector_index, sample, check)
        return Indexed(int(table.version), kept)


def open_table(folder: Path, corpus: Corpus) -> "Table":
    """Open a table of the generation that is being built."""
    import lancedb

    with storage_errors(f"opening table {corpus}"):
        return lancedb.connect(str(folder)).open_table(corpus)


def open_sealed(folder: Path, manifest: Manifest) -> None:
    """Open every table of a sealed generation at the version and with the rows that were sealed."""
    import lancedb

    try:
        connection = lancedb.connect(str(folder))
        for corpus in CORPORA:
            table = connection.open_table(corpus)
            found = (int(table.version), table.count_rows())
            sealed = (manifest.table_versions[corpus], manifest.rows[corpus])
            if found != sealed:
                raise GenerationSuspect(f"generation {folder.name}: table {corpus} is {found}, sealed {sealed}")
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise GenerationSuspect(f"generation {folder.name}: tables not readable: {brief(error)}") from error


def read_vectors(folder: Path, dimensions: int) -> "Iterator[tuple[list[bytes], Matrix]]":
    """Yield the hashes and vectors of a sealed generation, some thousand rows at a time. Raises GenerationSuspect."""
    yield from _vectors(folder, dimensions, "vector IS NOT NULL")


def _vectors(folder: Path, dimensions: int, where: str) -> "Iterator[tuple[list[bytes], Matrix]]":
    import numpy as np

    for corpus in CORPORA:
        for batch in _read(folder, corpus, ["hash", "vector"], where):
            values = batch.column("vector").flatten().to_numpy(zero_copy_only=False)
            vectors = np.ascontiguousarray(values, dtype=np.float32).reshape(batch.num_rows, dimensions)
            yield batch.column("hash").to_pylist(), vectors


def read_vectors_of(folder: Path, keys: Sequence[bytes], dimensions: int) -> "Iterator[tuple[list[bytes], Matrix]]":
    """Yield those of these hashes that a sealed generation has vectors for, with them. Raises GenerationSuspect."""
    for start in range(0, len(keys), KEYS_PER_QUERY):
        listed = ", ".join(f"X'{key.hex()}'" for key in keys[start : start + KEYS_PER_QUERY])
        yield from _vectors(folder, dimensions, f"vector IS NOT NULL AND hash IN ({listed})")


def read_rows(folder: Path, corpus: Corpus, columns: list[str]) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of a table of a sealed generation. Raises GenerationSuspect."""
    yield from _read(folder, corpus, columns, None)


def read_where(folder: Path, corpus: Corpus, columns: list[str], where: str) -> "Iterator[pa.RecordBatch]":
    """Yield rows of a table of a sealed generation. `where` is ours, never a client's. Raises GenerationSuspect."""
    yield from _read(folder, corpus, columns, where)


def read_at(folder: Path, corpus: Corpus, rows: Sequence[int], columns: list[str]) -> "Iterator[pa.RecordBatch]":
    """Yield the rows at these places of a table of a sealed generation. Raises GenerationSuspect."""
    import lancedb

    try:
        found = lancedb.connect(str(folder)).open_table(corpus).take_offsets(list(rows)).select(columns).to_arrow()
        yield from found.to_batches(READ_ROWS)
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise GenerationSuspect(f"generation {folder.name}: {corpus} not readable: {brief(error)}") from error


def count_masked(
    folder: Path, units: Sequence[str], documents: Collection[Place], *, wanted: bool, vectors: bool
) -> Masked:
    """Count what a sealed generation holds of these units, and of these notes (tenant and path).

    `wanted` says whether its rows are to have vectors, `vectors` whether any has one.
    """
    found = {
        "units": list(tally_items(folder, "units", units, vectors=vectors).values()),
        "documents": list(tally_notes(folder, documents, vectors=vectors).values()),
    }
    tallied = [*found["units"], *found["documents"]]
    return Masked(
        rows={corpus: sum(tally.rows for tally in tallies) for corpus, tallies in found.items()},
        vectors_have=sum(tally.present for tally in tallied),
        vectors_want=sum(tally.embeddable for tally in tallied) if wanted else 0,
        items={corpus: items_of(tallies) for corpus, tallies in found.items()},
    )


def tally_items(folder: Path, corpus: Corpus, ids: Sequence[str], *, vectors: bool) -> dict[str, Tally]:
    """Return those of these events or units that a sealed generation holds, with their rows."""
    found: dict[str, Tally] = {}
    for batch in _rows_with(folder, corpus, "id", ids, ["id", "text"]):
        for row in batch.to_pylist():
            found[row["id"]] = found.get(row["id"], Tally()).plus(Tally(1, is_embeddable(row["text"]), 0))
    for batch in _rows_with(folder, corpus, "id", list(found), ["id"], condition=PRESENT) if vectors else ():
        for row in batch.to_pylist():
            found[row["id"]] = found[row["id"]].plus(Tally(present=1))
    return found


def tally_notes(folder: Path, places: Collection[Place], *, vectors: bool) -> dict[Place, Tally]:
    """Return those of these notes (tenant and path) that a sealed generation holds rows of, with their rows."""
    found: dict[Place, Tally] = {}
    paths = sorted({path for _, path in places})
    for batch in _rows_with(folder, "documents", "path", paths, ["tenant", "path", "text"]):
        for row in batch.to_pylist():
            place = row["tenant"], row["path"]
            if place in places:
                found[place] = found.get(place, Tally()).plus(Tally(1, is_embeddable(row["text"]), 0))
    paths = sorted({path for _, path in found})
    for batch in (
        _rows_with(folder, "documents", "path", paths, ["tenant", "path"], condition=PRESENT) if vectors else ()
    ):
        for row in batch.to_pylist():
            place = row["tenant"], row["path"]
            if place in found:
                found[place] = found[place].plus(Tally(present=1))
    return found


def read_keys_of(folder: Path, corpus: Corpus, hashes: Sequence[bytes]) -> Iterator[tuple[str, str, str | None]]:
    """Yield tenant, id and path of rows without a vector that have one of these hashes. Raises GenerationSuspect."""
    for start in range(0, len(hashes), KEYS_PER_QUERY):
        listed = ", ".join(f"X'{key.hex()}'" for key in hashes[start : start + KEYS_PER_QUERY])
        for batch in _read(folder, corpus, ["tenant", "id", "path"], f"vector IS NULL AND hash IN ({listed})"):
            for row in batch.to_pylist():
                yield row["tenant"], row["id"], row["path"]


def read_masked_terms(
    folder: Path, units: Sequence[str], documents: Collection[tuple[str, str]]
) -> "Iterator[tuple[Corpus, pa.Array]]":
    """Yield the terms of the rows of a sealed generation that belong to these units and notes."""
    import pyarrow as pa

    for batch in _rows_with(folder, "units", "id", units, ["terms"]):
        yield "units", batch.column("terms")
    paths = sorted({path for _, path in documents})
    for batch in _rows_with(folder, "documents", "path", paths, ["tenant", "path", "terms"]):
        rows = batch.select(["tenant", "path"]).to_pylist()
        kept = [number for number, row in enumerate(rows) if (row["tenant"], row["path"]) in documents]
        yield "documents", batch.column("terms").take(pa.array(kept, pa.int64()))


def _rows_with(
    folder: Path, corpus: Corpus, column: str, values: Sequence[str], columns: list[str], *, condition: str = ""
) -> "Iterator[pa.RecordBatch]":
    """Yield columns of the rows that have one of these values in `column`."""
    for start in range(0, len(values), KEYS_PER_QUERY):
        # Digits instead of text: they cannot end a literal, whatever a note is called.
        digits = (value.encode().hex() for value in values[start : start + KEYS_PER_QUERY])
        listed = ", ".join(f"CAST(X'{each}' AS STRING)" for each in digits)
        yield from _read(folder, corpus, columns, f"{column} IN ({listed}){condition}")


def _read(folder: Path, corpus: Corpus, columns: list[str], where: str | None) -> "Iterator[pa.RecordBatch]":
    """Read a table of a sealed generation. `where` is ours, never a client's."""
    import lancedb

    try:
        query = lancedb.connect(str(folder)).open_table(corpus).search().select(columns)
        if where is not None:
            query = query.where(where)
        yield from query.to_batches(batch_size=READ_ROWS)
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise GenerationSuspect(f"generation {folder.name}: {corpus} not readable: {brief(error)}") from error


def _keep_error(batches: "Iterable[pa.RecordBatch]", failed: list[BulkheadError]) -> "Iterator[pa.RecordBatch]":
    """Pass batches on and keep what stops them: LanceDB would leave only its text."""
    try:
        yield from batches
    except BulkheadError as error:
        failed.append(error)
        raise


def _found_by(table: "Table", probe: Probe) -> int:
    """Ask the keyword index for a term, among the rows of one id only, so that no limit can hide the row."""
    from lancedb.expr import col, lit
    from lancedb.query import MatchQuery

    query = table.search(MatchQuery(probe.term, "terms"), query_type="fts").where(
        (col("id") == lit(probe.id)) & (col("part") == lit(probe.part)), prefilter=True
    )
    return int(query.select(["id", "_score"]).limit(2).to_arrow().num_rows)


def _check_rows(
    table: "Table",
    corpus: Corpus,
    facts: TableFacts,
    check: Callable[[], None],
    sample: vector_index.Sample | None,
) -> None:
    """Go through all rows: ids unique, hashes whole, vectors finite and of the right length. Show the sample all."""
    columns = ["id", "part", "hash"] if facts.dimensions is None else ["id", "part", "hash", "vector"]
    places: set[int] = set()
    vectors = unsound = broken = 0
    for batch in table.search().select(columns).to_batches(batch_size=READ_ROWS):
        check()
        ids, parts, hashes = (batch.column(name).to_pylist() for name in ("id", "part", "hash"))
        places.update(map(hash, zip(ids, parts, strict=True)))
        broken += sum(len(value) != HASH_BYTES for value in hashes)
        if facts.dimensions is not None:
            present = batch.column("vector").drop_null()
            matrix = present.flatten().to_numpy(zero_copy_only=False).reshape(len(present), facts.dimensions)
            vectors += len(present)
            unsound += len(present) - int(sound(matrix, normalised=facts.normalised).sum())
            if sample is not None:
                sample.offer(matrix)
    _expect(corpus, "different ids", facts.rows, len(places))
    _expect(corpus, f"hashes that are not {HASH_BYTES} bytes", 0, broken)
    _expect(corpus, "vectors", facts.vectors, vectors)
    _expect(corpus, "vectors that are not finite or not of the right length", 0, unsound)


def _expect(corpus: Corpus, what: str, expected: int, found: int) -> None:
    if expected != found:
        raise BuildFailed(f"self-test of table {corpus}: {what}: expected {expected}, found {found}")
