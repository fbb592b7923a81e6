"""A generation in the making: `gen-N.tmp`, from the first staged row to the rename that seals it.

Steps, in this order: stage pages of events and units, stage notes, give vectors, write each table, index each table,
test, seal. Each is a method that does a bounded piece of work; nobody sees the folder before the last one.

Promises: the rows staged are the rows written (counted again by the self-test); a page that is staged twice changes
nothing; memory is bounded by a page and a hash a row; a folder that was deleted under the build fails the build and
nothing else. Any error leaves the draft unusable: drop it.

Invariant: a method that raises has not touched anything outside of the folder.
"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from actors import generation as generations
from actors.child import CallContext
from actors.errors import BuildFailed, GenerationSuspect
from actors.generation import FORMAT, Manifest, PendingText, build_path, embedded_text, generation_path, scratch_path
from actors.generation_builder import store
from actors.generation_builder.chunk import ChunkLimits
from actors.generation_builder.documents import DocumentReader
from actors.generation_builder.faults import storage_errors
from actors.generation_builder.pending import Missing, embedding_order
from actors.generation_builder.probes import Probes
from actors.generation_builder.rows import (
    TableRow,
    decode_events,
    decode_units,
    event_rows,
    is_embeddable,
    unit_rows,
)
from actors.generation_builder.scan import Scan
from actors.generation_builder.staging import Stage, in_pieces, row_schema, table_schema
from actors.generation_builder.vectors import VectorBook, matrix
from actors.messages import CORPORA, BeginBuild, Corpus, GenerationRef, Staged

if TYPE_CHECKING:
    import pyarrow as pa

STAGING = "staging"
# A step that reads notes returns after about this long, however slow the files are.
STEP_S = 10.0


class _Table:
    """What is known of one corpus of the draft."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.probes = Probes()
        self.last_seq = 0
        self.want = 0
        self.have = 0
        self.missing: list[Missing] = []
        self.version: int | None = None


class Draft:
    """One build. Made by `BeginBuild`; ended by `seal` or `drop`."""

    def __init__(self, index: Path, begin: BeginBuild, scan: Scan, limits: ChunkLimits) -> None:
        self.number = begin.generation
        self.folder = build_path(index, begin.generation)
        self._index = index
        self._begin = begin
        self._scan = scan
        self._limits = limits
        self._previous = Path(begin.previous.path) if begin.previous is not None else None
        self._documents = DocumentReader(scan, limits)
        self._document_ids: set[str] = set()
        self._asked: set[bytes] = set()
        self._book: VectorBook | None = None
        self._names: set[str] = set()
        with storage_errors(f"starting generation {self.number}"):
            self._make_folders()
            self._tables = {corpus: _Table(Stage(self._staging / f"{corpus}.arrow", corpus)) for corpus in CORPORA}
            if begin.identity is not None:
                path = self._staging / "vectors.f32"
                self._book = VectorBook(path, begin.identity.dimensions, normalised=begin.identity.normalised)

    @property
    def _staging(self) -> Path:
        return self.folder / STAGING

    def _make_folders(self) -> None:
        if generation_path(self._index, self.number).exists():
            raise BuildFailed(f"generation {self.number} is sealed already; numbers are never used twice")
        self._index.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)
        self._staging.mkdir()
        scratch_path(self._index).mkdir(mode=0o700, exist_ok=True)
        self._inode = self.folder.stat().st_ino

    def in_place(self) -> bool:
        """Say whether the folder is still the one that this build made."""
        try:
            return self.folder.stat().st_ino == self._inode
        except OSError:
            return False

    def require_folder(self) -> None:
        """Raise BuildFailed when somebody deleted the folder, which is allowed at any time."""
        if not self.in_place():
            raise BuildFailed(f"generation {self.number}: its folder was deleted while it was being built")

    # ------------------------------------------------------------ staging

    def borrow_vectors(self, call: CallContext) -> None:
        """Take over the vectors of the generation before, when they are of the same identity.

        One that cannot be read lends nothing: what it had comes from the cache, or is embedded again.
        """
        previous = self._begin.previous
        if self._book is None or previous is None or previous.identity != self._begin.identity:
            return
        try:
            for hashes, vectors in store.read_vectors(Path(previous.path), self._book.dimensions):
                call.check()
                with storage_errors("borrowing vectors"):
                    self._book.add(hashes, vectors)
                call.progress("vectors", len(self._book), previous.vectors_have)
        except GenerationSuspect as error:
            print(f"no vectors borrowed: {error.message}", file=sys.stderr)

    def stage_events(self, page: bytes) -> Staged:
        """Stage a page of events; those up to the last one that is staged already are passed over."""
        table = self._tables["events"]
        events = [event for event in decode_events(page) if event.seq > table.last_seq]
        if events:
            table.last_seq = events[-1].seq
        # Parts backwards, as the whole stage is read backwards: in the table they follow each other.
        rows = (row for event in events for row in reversed([*event_rows(event, self._limits)]))
        return self._stage("events", rows)

    def stage_units(self, page: bytes) -> Staged:
        """Stage a page of units; those up to the last one that is staged already are passed over."""
        table = self._tables["units"]
        units = [unit for unit in decode_units(page) if unit.core_seq > table.last_seq]
        if units:
            table.last_seq = units[-1].core_seq
        rows = (row for unit in units for row in reversed([*unit_rows(unit, self._limits)]))
        return self._stage("units", rows)

    def stage_documents(self, files_max: int, call: CallContext) -> Staged:
        """Stage the next notes, at most `files_max`, fewer when they take long; after the last, what is held."""
        rows = 0
        wanted: list[bytes] = []
        until = monotonic() + STEP_S
        for _ in range(files_max):
            found = self._documents.next_file(call.check)
            if found is None:
                break
            staged = self._stage("documents", found, call)
            rows, wanted = rows + staged.rows, wanted + staged.wanted
            call.progress("documents", self._documents.files_done, self._documents.files)
            if monotonic() >= until:
                break
        if self._documents.files_done < self._documents.files:
            return Staged(rows=rows, wanted=wanted, more=True)
        held = self._stage_held(call)
        return Staged(rows=rows + held.rows, wanted=wanted + held.wanted)

    def _stage(self, corpus: Corpus, rows: Iterator[TableRow], call: CallContext | None = None) -> Staged:
        table = self._tables[corpus]
        count = 0
        wanted: list[bytes] = []
        for piece in in_pieces(rows):
            if call is not None:
                call.check()
            with storage_errors(f"staging {corpus}"):
                table.stage.append(piece)
            count += len(piece)
            for row in piece:
                table.probes.offer(row)
                wanted += self._ask_for(table, row.hash, row.text)
            if corpus == "documents":
                self._document_ids.update(row.id for row in piece)
        return Staged(rows=count, wanted=wanted)

    def _ask_for(self, table: _Table, key: bytes, text: str) -> list[bytes]:
        """Return the hash of a row when its vector is not there and was not asked for before."""
        if self._book is None or not is_embeddable(text):
            return []
        table.want += 1
        if key in self._book or key in self._asked:
            return []
        self._asked.add(key)
        return [key]

    def _stage_held(self, call: CallContext) -> Staged:
        """Take over the rows of places that cannot be read at present from the generation before."""
        places, self._documents.places = self._documents.places, []
        if not places or self._previous is None:
            return Staged(rows=0, wanted=[])
        table = self._tables["documents"]
        count = 0
        wanted: list[bytes] = []
        for batch in store.read_documents(self._previous, row_schema().names):
            call.check()
            rows = batch.select(["tenant", "path", "id", "hash", "text"]).to_pylist()
            kept = [
                number
                for number, row in enumerate(rows)
                if any(place.holds(row["tenant"], row["path"]) for place in places)
                and row["id"] not in self._document_ids
            ]
            if kept:
                with storage_errors("staging documents"):
                    table.stage.append_batch(batch.take(kept))
            for number in kept:
                self._document_ids.add(rows[number]["id"])
                wanted += self._ask_for(table, rows[number]["hash"], rows[number]["text"])
            count += len(kept)
        return Staged(rows=count, wanted=wanted)

    def add_vectors(self, keys: Sequence[bytes], dimensions: int, blob: bytes) -> None:
        """Add vectors from the cache. Raises BuildFailed when they are not of this build's shape."""
        if self._book is None or dimensions != self._book.dimensions:
            expected = None if self._book is None else self._book.dimensions
            raise BuildFailed(f"vectors of {dimensions} dimensions were given to a build that takes {expected}")
        with storage_errors("keeping vectors"):
            self._book.add(keys, matrix(blob, len(keys), dimensions))

    # ------------------------------------------------------------ tables

    def write_table(self, corpus: Corpus, call: CallContext) -> None:
        """Write what was staged as a table, with the vectors that are there by now."""
        table = self._tables[corpus]
        if table.version is not None:
            raise BuildFailed(f"table {corpus} is written already")
        with storage_errors(f"staging {corpus}"):
            table.stage.close()
        dimensions = None if self._book is None else self._book.dimensions
        batches = self._with_vectors(table, call)
        table.version = store.write_table(self.folder, corpus, table_schema(dimensions), batches)
        self._sync(corpus)

    def _with_vectors(self, table: _Table, call: CallContext) -> "Iterator[pa.RecordBatch]":
        """Yield the rows in the order of the table, each with its vector or null; note those that have none."""
        done, ordinals = 0, _Ordinals()
        for number, batch in table.stage.pieces():
            call.check()
            yield self._join_vectors(table, number, batch, ordinals) if self._book is not None else batch
            done += batch.num_rows
            call.progress(f"write {table.stage.corpus}", done, table.stage.rows)

    def _join_vectors(
        self, table: _Table, number: int, batch: "pa.RecordBatch", ordinals: "_Ordinals"
    ) -> "pa.RecordBatch":
        import pyarrow as pa

        assert self._book is not None
        vectors, present = self._book.gather(batch.column("hash").to_pylist())
        table.have += int(present.sum())
        paths, times, texts = (batch.column(name).to_pylist() for name in ("path", "ts", "text"))
        for row, path in enumerate(paths):
            ordinal = ordinals.next(path)
            if not present[row] and is_embeddable(texts[row]):
                table.missing.append(Missing(ordinal, times[row], number, row))
        column = pa.FixedSizeListArray.from_arrays(
            pa.array(vectors.reshape(-1)), self._book.dimensions, mask=pa.array(~present)
        )
        return pa.RecordBatch.from_arrays([*batch.columns, column], schema=table_schema(self._book.dimensions))

    def index_table(self, corpus: Corpus) -> None:
        """Build the indexes that a table of this size gets."""
        table = self._written(corpus)
        dimensions = None if self._book is None else self._book.dimensions
        table.version = store.index_table(self.folder, corpus, store.index_policy(table.stage.rows, dimensions))
        self._sync(corpus)

    def test(self, call: CallContext) -> None:
        """Test every table against what was staged; BuildFailed says what differs."""
        for corpus in CORPORA:
            table = self._written(corpus)
            facts = store.TableFacts(
                rows=table.stage.rows,
                vectors=table.have,
                dimensions=None if self._book is None else self._book.dimensions,
                normalised=self._begin.identity is not None and self._begin.identity.normalised,
                probes=table.probes.list(),
            )
            store.check_table(self.folder, corpus, facts, call.check)
        self._names = self._sealed_names()

    def _written(self, corpus: Corpus) -> _Table:
        table = self._tables[corpus]
        if table.version is None:
            raise BuildFailed(f"table {corpus} is not written yet")
        return table

    def _sync(self, corpus: Corpus) -> None:
        """fsync a table as soon as it is written: one burst at the end would be felt by everybody on this disk."""
        with storage_errors(f"fsync of table {corpus}"):
            generations.fsync_files(self.folder / f"{corpus}.lance")

    # ------------------------------------------------------------ sealing

    def seal(self, built_at: int) -> GenerationRef:
        """Make the folder durable and complete, and give it its name. `built_at` in µs since the epoch."""
        if not self._names:
            raise BuildFailed(f"generation {self.number} was not tested yet")
        with storage_errors(f"sealing generation {self.number}"):
            self._write_pending()
            self._close()
            shutil.rmtree(self._staging)
            shutil.rmtree(scratch_path(self._index), ignore_errors=True)
            manifest = self._manifest(built_at)
            generations.write_manifest(self.folder, manifest)
            self.require_folder()
            sealed = self.folder.rename(generation_path(self._index, self.number))
            generations.fsync_directory(self._index)
        return generations.reference(sealed, manifest)

    def _write_pending(self) -> None:
        pieces = {corpus: dict(table.stage.pieces()) for corpus, table in self._tables.items() if table.missing}
        written: set[bytes] = set()
        with (self.folder / generations.PENDING).open("wb") as file:
            for corpus, missing in embedding_order({name: table.missing for name, table in self._tables.items()}):
                piece = pieces[corpus][missing.piece]
                key, heading, text = (piece.column(name)[missing.row].as_py() for name in ("hash", "heading", "text"))
                if key not in written:
                    written.add(key)
                    file.write(generations.encode_pending_record(PendingText(key, embedded_text(heading, text))))

    def _manifest(self, built_at: int) -> Manifest:
        files = generations.fsync_tree(self.folder)
        names = {entry.path for entry in files}
        if names != self._names | {generations.PENDING}:
            changed = sorted(names ^ self._names)
            raise BuildFailed(f"generation {self.number}: files changed after the self-test: {changed[0]!r}")
        skipped = self._scan.skipped
        return Manifest(
            format=FORMAT,
            generation=self.number,
            delta=None,
            covers=self._begin.covers,
            identity=self._begin.identity,
            rows={corpus: table.stage.rows for corpus, table in self._tables.items()},
            vectors_have=sum(table.have for table in self._tables.values()),
            vectors_want=sum(table.want for table in self._tables.values()),
            lancedb_version=version("lancedb"),
            table_versions={corpus: table.version or 0 for corpus, table in self._tables.items()},
            built_at=built_at,
            skipped=[*skipped.list(), *self._documents.skipped.list()],
            held=self._documents.held.list(),
            sources=[root.state for root in self._scan.roots],
            files=files,
        )

    def _sealed_names(self) -> set[str]:
        found = (path.relative_to(self.folder) for path in self.folder.rglob("*") if path.is_file())
        return {str(path) for path in found if path.parts[0] != STAGING}

    def drop(self) -> None:
        """Delete the folder. Whatever is in the way of that is left to the next recovery."""
        self._close()
        if self.in_place():
            shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(scratch_path(self._index), ignore_errors=True)

    def _close(self) -> None:
        if self._book is not None:
            self._book.close()


class _Ordinals:
    """Numbers the pieces of each note, which follow each other."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._number = 0

    def next(self, path: str | None) -> int:
        self._number = self._number + 1 if path is not None and path == self._path else 0
        self._path = path
        return self._number
