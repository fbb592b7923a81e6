"""One table of a draft: its rows staged, then written with their vectors, indexed and tested.

Counts what it was given, so that the self-test can hold the finished table against it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from actors import generation as generations
from actors.child import CallContext
from actors.errors import BuildFailed
from actors.generation import VectorIndex
from actors.generation_builder import store
from actors.generation_builder.documents import Place, in_places
from actors.generation_builder.faults import storage_errors
from actors.generation_builder.index_policy import index_policy
from actors.generation_builder.item_counter import ItemCounter
from actors.generation_builder.pending import Missing
from actors.generation_builder.probes import Probes
from actors.generation_builder.rows import TableRow, is_embeddable
from actors.generation_builder.staging import NEWEST_FIRST, Stage, in_pieces, table_schema
from actors.generation_builder.vectors import VectorBook
from actors.messages.base import Corpus
from actors.messages.index import Items
from actors.term_counts import TermCounter, counts_path

if TYPE_CHECKING:
    import pyarrow as pa


class DraftTable:
    """The table of one corpus, from its first row to its test. `book` is None without an embedder."""

    def __init__(
        self, folder: Path, staging: Path, corpus: Corpus, book: VectorBook | None, exact_values_max: int
    ) -> None:
        self.corpus = corpus
        self.last_seq = 0  # of the last row that was staged: a page that comes twice is passed over
        self.version: int | None = None  # of the Lance table, once it is written
        self.vector_index: VectorIndex | None = None  # once it is indexed, when it got one
        self.want = 0  # rows that can have a vector
        self.have = 0  # rows that have one
        self.items = Items()  # once it is written
        self.missing: list[Missing] = []
        self._folder = folder
        self._staging = staging
        self._book = book
        self._exact_values_max = exact_values_max
        self._probes = Probes()
        self._ids: set[int] = set()
        self._asked: list[bytes] = []
        self._stage = Stage(staging / f"{corpus}.arrow", corpus)

    @property
    def rows(self) -> int:
        """Return how many rows were staged."""
        return self._stage.rows

    @property
    def newest_first(self) -> bool:
        """Say whether the rows lie newest first in the table; they are staged the other way round then."""
        return NEWEST_FIRST[self.corpus]

    @property
    def dimensions(self) -> int | None:
        """Return the size of the vectors, None when the table has none."""
        return None if self._book is None else self._book.dimensions

    def stage(self, rows: Iterable[TableRow], check: Callable[[], None]) -> list[bytes]:
        """Stage rows; return the hashes whose vectors are not at hand and were not asked for before."""
        wanted: list[bytes] = []
        for piece in in_pieces(rows):
            check()
            with storage_errors(f"staging {self.corpus}"):
                self._stage.append(piece)
            for row in piece:
                self._probes.offer(row)
                self._ids.add(hash(row.id))
                wanted += self._ask(row.hash, row.text)
        return wanted

    def take_over(self, batch: "pa.RecordBatch", places: Collection[Place]) -> list[bytes]:
        """Stage those rows of an earlier generation that belong to one of the places and were not staged anew."""
        rows, wanted = enumerate(batch.select(["tenant", "path", "id"]).to_pylist()), set(places)
        held = [
            number
            for number, row in rows
            if hash(row["id"]) not in self._ids and in_places(wanted, row["tenant"], row["path"])
        ]
        return self.adopt(batch, held)

    def adopt(self, batch: "pa.RecordBatch", numbers: Sequence[int]) -> list[bytes]:
        """Stage these rows of an earlier table as they are; return the hashes whose vectors are wanted, as `stage`."""
        if not numbers:
            return []
        batch = batch.take(numbers)
        with storage_errors(f"staging {self.corpus}"):
            self._stage.append_batch(batch)
        wanted: list[bytes] = []
        for row in batch.select(["id", "hash", "text"]).to_pylist():
            self._ids.add(hash(row["id"]))
            wanted += self._ask(row["hash"], row["text"])
        return wanted

    def unserved(self) -> list[bytes]:
        """Return the hashes that were asked for and whose vectors are not at hand."""
        return [] if self._book is None else [key for key in self._asked if key not in self._book]

    def _ask(self, key: bytes, text: str) -> list[bytes]:
        if self._book is None or not is_embeddable(text):
            return []
        self.want += 1
        if not self._book.ask(key):
            return []
        self._asked.append(key)
        return [key]

    def write(self, call: CallContext) -> None:
        """Write the staged rows as a table, with the vectors that are there by now."""
        if self.version is not None:
            raise BuildFailed(f"table {self.corpus} is written already")
        with storage_errors(f"staging {self.corpus}"):
            self._stage.close()
        counter = TermCounter(self._staging)
        batches = self._with_vectors(call, counter)
        self.version = store.write_table(self._folder, self.corpus, table_schema(self.dimensions), batches)
        with storage_errors(f"writing the term counts of {self.corpus}"):
            counter.write(counts_path(self._folder, self.corpus))
        self._sync()

    def _with_vectors(self, call: CallContext, counter: TermCounter) -> "Iterator[pa.RecordBatch]":
        """Yield the rows in the order of the table, each with its vector or null; note those that have none.

        Their terms are counted on the way.
        """
        done, ordinals, items = 0, _Ordinals(), ItemCounter()
        for number, batch in self._stage.pieces():
            call.check()
            counter.add(batch.column("terms"))
            if self._book is None:
                self._count(batch, [False] * batch.num_rows, items)
                yield batch
            else:
                yield self._join(self._book, number, batch, ordinals, items)
            done += batch.num_rows
            call.progress(f"write {self.corpus}", done, self.rows)
        self.items = items.result()

    def _count(self, batch: "pa.RecordBatch", present: Sequence[bool], items: ItemCounter) -> None:
        """Count the items of rows; those of a note have their place in common, the others their id."""
        names = ("tenant", "path") if self.corpus == "documents" else ("id",)
        keys = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
        for key, text, has in zip(keys, batch.column("text").to_pylist(), present, strict=True):
            items.add(key, embeddable=is_embeddable(text), present=has)

    def _join(
        self,
        book: VectorBook,
        number: int,
        batch: "pa.RecordBatch",
        ordinals: "_Ordinals",
        items: ItemCounter,
    ) -> "pa.RecordBatch":
        import pyarrow as pa

        vectors, present = book.gather(batch.column("hash").to_pylist())
        self.have += int(present.sum())
        self._count(batch, present.tolist(), items)
        paths, times, texts = (batch.column(name).to_pylist() for name in ("path", "ts", "text"))
        for row, path in enumerate(paths):
            ordinal = ordinals.next(path)
            if not present[row] and is_embeddable(texts[row]):
                self.missing.append(Missing(ordinal, times[row], number, row))
        column = pa.FixedSizeListArray.from_arrays(
            pa.array(vectors.reshape(-1)), book.dimensions, mask=pa.array(~present)
        )
        return pa.RecordBatch.from_arrays([*batch.columns, column], schema=table_schema(book.dimensions))

    def index(self) -> None:
        """Build the indexes that a table of this size gets."""
        self._require_written()
        plan = index_policy(self.rows, self.have, self.dimensions, exact_values_max=self._exact_values_max)
        self._take(store.index_table(self._folder, self.corpus, plan))

    def test(self, *, normalised: bool, check: Callable[[], None]) -> None:
        """Test the table against what was staged; BuildFailed says what differs. May drop the vector index."""
        self._require_written()
        facts = store.TableFacts(
            rows=self.rows,
            vectors=self.have,
            dimensions=self.dimensions,
            normalised=normalised,
            probes=self._probes.list(),
            vector_index=self.vector_index,
        )
        self._take(store.check_table(self._folder, self.corpus, facts, check))

    def _take(self, indexed: store.Indexed) -> None:
        """Note what became of the table, and make it durable when something did."""
        changed = indexed.version != self.version
        self.version, self.vector_index = indexed
        if changed:
            self._sync()

    def texts(self, missing: Sequence[Missing]) -> "Callable[[Missing], generations.PendingText]":
        """Return a function that looks up the hash, the embedded text and the name of a missing row."""
        pieces = dict(self._stage.pieces()) if missing else {}

        def look_up(row: Missing) -> generations.PendingText:
            piece = pieces[row.piece]
            columns = ("hash", "heading", "text", "id", "path", "from_line")
            key, heading, text, name, path, line = (piece.column(column)[row.row].as_py() for column in columns)
            place = f"{self.corpus}/{name}" if path is None else f"{path}:{line}"
            return generations.PendingText(key, generations.embedded_text(heading, text), place)

        return look_up

    def _require_written(self) -> None:
        if self.version is None:
            raise BuildFailed(f"table {self.corpus} is not written yet")

    def _sync(self) -> None:
        """fsync the table as soon as it is written: one burst at the end would be felt by everybody on this disk."""
        with storage_errors(f"fsync of table {self.corpus}"):
            generations.fsync_files(self._folder / f"{self.corpus}.lance")


class _Ordinals:
    """Numbers the pieces of each note, which follow each other."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._number = 0

    def next(self, path: str | None) -> int:
        self._number = self._number + 1 if path is not None and path == self._path else 0
        self._path = path
        return self._number
