"""How many rows of a table hold each term: what makes the keyword scores of two tables comparable.

    <folder>/TERMS-<corpus>.arrow          of the table beside it; written with it
    <folder>/MASKED-TERMS-<corpus>.arrow   a delta's: of the rows of its generation that it masks; absent without any

BM25 weighs a term by how rare it is in its table, so the same row scores differently in a small delta and in the
generation below it. A reader adds up the counts of both, takes those of the masked rows away, and has the numbers of
the one table that they stand for (`actors/searcher/bm25.py`).

Owns the format: one Arrow IPC file, the terms in the order of their bytes, each once, with the number of rows that
hold it; the number of rows and of terms in all of them stand in the metadata of the schema. Promises: counting needs
memory for RUN_TERMS_MAX different terms, however many there are; a look-up reads a few pages of the mapped file.
It is not part of the analyser: a term is what stands between two spaces of the `terms` column, which is also what
LanceDB's whitespace tokenizer takes for one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from actors.messages.base import Corpus

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Counts = NDArray[np.int64]

COMPACT_TERMS = 200_000
RUN_TERMS_MAX = 1_000_000  # about 20 bytes each
BATCH_TERMS = 65_536
MERGE_STEP = 200_000
_ROWS, _LENGTH = b"rows", b"length"


def counts_path(folder: Path, corpus: Corpus) -> Path:
    """Return the file with the counts of a table."""
    return folder / f"TERMS-{corpus}.arrow"


def masked_counts_path(folder: Path, corpus: Corpus) -> Path:
    """Return the file with the counts of the rows that a delta masks in its generation."""
    return folder / f"MASKED-{counts_path(folder, corpus).name}"


class TermCounter:
    """Counts the terms of the rows it is given; more different ones than fit into memory go to files in `scratch`."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._rows = 0
        self._length = 0
        self._counted: list[pa.Table] = []
        self._held = 0  # terms in `_counted`
        self._compact_at = COMPACT_TERMS
        self._runs: list[Path] = []

    def add(self, terms: "pa.Array") -> None:
        """Count the rows of a piece of the `terms` column."""
        counted, length = _count(terms)
        self._rows += len(terms)
        self._length += length
        self._counted.append(counted)
        self._held += counted.num_rows
        if self._held >= self._compact_at:
            self._compact()

    def write(self, path: Path) -> None:
        """Write what was counted, and remove what was put into the scratch folder. Not durable on return."""
        runs = [*map(_read, self._runs), _sum(self._counted).sort_by("term")]
        _write(path, _merge(runs), rows=self._rows, length=self._length)
        del runs
        for run in self._runs:
            run.unlink()

    def _compact(self) -> None:
        summed = _sum(self._counted)
        if summed.num_rows > RUN_TERMS_MAX:
            run = self._scratch / f"terms-{id(self)}-{len(self._runs)}.arrow"
            _write(run, iter(summed.sort_by("term").to_batches()), rows=0, length=0)
            self._runs.append(run)
            summed = summed.slice(0, 0)
        self._counted = [summed]
        self._held = summed.num_rows
        self._compact_at = max(COMPACT_TERMS, 2 * self._held)


class TermCounts:
    """The counts of one file, mapped into memory. Immutable; freed with the last reference."""

    def __init__(self, path: Path) -> None:
        """Open a file that `TermCounter` wrote; raises OSError or ValueError when it cannot be read as one."""
        table = _read(path)
        metadata = table.schema.metadata
        if metadata is None or table.schema.names != ["term", "rows"]:
            raise ValueError(f"{path.name} holds no term counts")
        self.rows = int(metadata[_ROWS])
        self.length = int(metadata[_LENGTH])
        self._blocks = [_Block(batch) for batch in table.to_batches() if batch.num_rows]
        self._firsts = [block[0] for block in self._blocks]

    def rows_with(self, term: str) -> int:
        """Return how many rows hold a term."""
        wanted = term.encode()
        number = bisect_right(self._firsts, wanted) - 1
        return 0 if number < 0 else self._blocks[number].rows_with(wanted)


class _Block(Sequence[bytes]):
    """A piece of the sorted terms, over the buffers of Arrow: a scalar of Arrow for each look costs ten times more."""

    def __init__(self, batch: "pa.RecordBatch") -> None:
        terms, counts = batch.columns
        _, offsets, data = terms.buffers()
        self._count: int = batch.num_rows
        self._offsets = memoryview(offsets).cast("i")
        self._data = memoryview(data)
        self._counts = memoryview(counts.buffers()[1]).cast("q")

    def rows_with(self, term: bytes) -> int:
        """Return the count of a term, 0 when it is not here."""
        place = bisect_left(self, term)
        if place == self._count or self[place] != term:
            return 0
        return self._counts[place]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> bytes:  # type: ignore[override]
        return self._data[self._offsets[place] : self._offsets[place + 1]].tobytes()


def _count(terms: "pa.Array") -> "tuple[pa.Table, int]":
    """Return the different terms of some rows with the number of rows that hold each, and how many there are in all."""
    import numpy as np
    import pyarrow as pa

    rows, flat = _split(terms)
    encoded = flat.dictionary_encode()
    different = len(encoded.dictionary)
    places = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    held = np.sort(rows * different + places)
    first = np.diff(held, prepend=-1) > 0  # a term counts once a row
    counts = np.bincount(held[first] % max(different, 1), minlength=different)
    return pa.table([encoded.dictionary, pa.array(counts, pa.int64())], schema=_schema()), len(flat)


def occurrences(terms: "pa.ChunkedArray", asked: Sequence[str]) -> "tuple[Counts, Counts]":
    """Return how often each row holds each of the terms asked for (a row for a row), and how many terms it has."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    rows, flat = _split(pa.concat_arrays(terms.chunks) if terms.num_chunks else pa.array([], pa.string()))
    lengths = np.bincount(rows, minlength=len(terms))
    places = pc.index_in(flat, value_set=pa.array(dict.fromkeys(asked), pa.string()))
    asked_for = places.is_valid().to_numpy(zero_copy_only=False)
    pairs = rows[asked_for] * len(asked) + places.drop_null().to_numpy(zero_copy_only=False)
    return np.bincount(pairs, minlength=len(terms) * len(asked)).reshape(len(terms), len(asked)), lengths


def _split(terms: "pa.Array") -> "tuple[Counts, pa.Array]":
    """Return the terms of all rows one after the other: the number of the row of each, and the terms."""
    import numpy as np
    import pyarrow.compute as pc

    lists = pc.ascii_split_whitespace(terms)
    flat, rows = lists.flatten(), pc.list_parent_indices(lists)
    there = pc.greater(pc.binary_length(flat), 0)  # a row without terms is split into one empty one
    return rows.filter(there).to_numpy(zero_copy_only=False).astype(np.int64), flat.filter(there)


def _sum(counted: "Sequence[pa.Table]") -> "pa.Table":
    """Return one table of different terms from several, in no order; a term may be in each of them."""
    import pyarrow as pa

    table = pa.concat_tables([_schema().empty_table(), *counted])
    summed = table.group_by("term", use_threads=False).aggregate([("rows", "sum")])
    return pa.table([summed["term"], summed["rows_sum"]], schema=_schema())


def _merge(runs: "Sequence[pa.Table]") -> "Iterator[pa.RecordBatch]":
    """Yield the sum of sorted tables, a range of terms at a time."""
    largest = max(runs, key=len)
    pivots = [largest.column(0)[at].as_py() for at in range(MERGE_STEP, len(largest), MERGE_STEP)]
    bounds = [[0, *(_place(run.column(0), pivot) for pivot in pivots), len(run)] for run in runs]
    for number in range(len(pivots) + 1):
        pieces = [
            run.slice(bound[number], bound[number + 1] - bound[number]) for run, bound in zip(runs, bounds, strict=True)
        ]
        summed = _sum(pieces).sort_by("term") if len(runs) > 1 else pieces[0]
        yield from summed.combine_chunks().to_batches(max_chunksize=BATCH_TERMS)


def _place(terms: "pa.Array | pa.ChunkedArray", term: str) -> int:
    """Return where a term stands or would stand. Python orders strings by code point, which is the order of UTF-8."""
    return bisect_left(terms, term, key=lambda scalar: scalar.as_py())


def _write(path: Path, batches: "Iterator[pa.RecordBatch]", *, rows: int, length: int) -> None:
    import pyarrow as pa

    schema = _schema().with_metadata({_ROWS: str(rows), _LENGTH: str(length)})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))


def _read(path: Path) -> "pa.Table":
    """Return the table of a file without reading it; the mapping lives as long as what was returned."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def _schema() -> "pa.Schema":
    import pyarrow as pa

    return pa.schema([pa.field("term", pa.string(), nullable=False), pa.field("rows", pa.int64(), nullable=False)])
