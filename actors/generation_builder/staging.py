"""Rows on their way into a table: one Arrow IPC file a corpus, in the folder of the build.

Written in pieces as the pages of the truth come, read back from the mapped file piece by piece, in the order in which
the table is to have them. So a build needs memory for one piece, not for the corpus. Never fsynced, never sealed.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from actors.generation import STRING_COLUMNS
from actors.generation_builder.rows import TableRow
from actors.messages.base import Corpus

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_ROWS = 1000
PIECE_BYTES = 4 * 1024 * 1024
# Events and units are staged oldest first, as the truth is paged, and lie in the table newest first.
NEWEST_FIRST: dict[Corpus, bool] = {"events": True, "units": True, "documents": False}


class Stage:
    """The staged rows of one corpus."""

    def __init__(self, path: Path, corpus: Corpus) -> None:
        import pyarrow as pa

        self.corpus = corpus
        self.rows = 0
        self._schema = row_schema()
        self._path = path
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, self._schema)

    def append(self, piece: list[TableRow]) -> None:
        """Stage a piece of rows (see `in_pieces`)."""
        import pyarrow as pa

        if NEWEST_FIRST[self.corpus]:
            piece = piece[::-1]
        arrays = [pa.array([getattr(row, field.name) for row in piece], field.type) for field in self._schema]
        self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
        self.rows += len(piece)

    def append_batch(self, batch: "pa.RecordBatch") -> None:
        """Stage rows of an earlier generation as they are, without their vectors."""
        self._writer.write_batch(batch.select(self._schema.names).cast(self._schema))
        self.rows += batch.num_rows

    def close(self) -> None:
        """Finish the file; nothing can be staged after this."""
        self._writer.close()
        self._sink.close()

    def pieces(self) -> "Iterator[tuple[int, pa.RecordBatch]]":
        """Yield the rows in the order of the table, in numbered pieces. The file must be closed."""
        import pyarrow as pa

        with pa.memory_map(str(self._path)) as source:
            reader = pa.ipc.open_file(source)
            numbers = range(reader.num_record_batches)
            for number in reversed(numbers) if NEWEST_FIRST[self.corpus] else numbers:
                yield number, reader.get_batch(number)


def in_pieces(rows: Iterable[TableRow]) -> Iterator[list[TableRow]]:
    """Group rows so that no piece has more than PIECE_ROWS rows or much more than PIECE_BYTES of text."""
    piece: list[TableRow] = []
    size = 0
    for row in rows:
        piece.append(row)
        size += len(row.text) + len(row.terms)
        if len(piece) == PIECE_ROWS or size >= PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def row_schema() -> "pa.Schema":
    """Return the columns of a table without the vector."""
    import pyarrow as pa

    fields = [
        pa.field("id", pa.string(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("ts", pa.int64(), nullable=False),
        *(pa.field(name, pa.string()) for name in STRING_COLUMNS),
        pa.field("from_line", pa.int32()),
        pa.field("to_line", pa.int32()),
        pa.field("tags", pa.list_(pa.string()), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("terms", pa.string(), nullable=False),
        pa.field("hash", pa.binary(), nullable=False),
    ]
    return pa.schema(fields)


def table_schema(dimensions: int | None) -> "pa.Schema":
    """Return the columns of a table; the vector only with an embedder."""
    import pyarrow as pa

    schema = row_schema()
    return schema if dimensions is None else schema.append(pa.field("vector", pa.list_(pa.float32(), dimensions)))
