"""A generation in the making: `gen-N.tmp`, from the first staged row to the rename that seals it.

Steps, in this order: stage pages of events and units, stage notes, give vectors, write each table, index each table,
test, seal. Each is a method that does a bounded piece of work; nobody sees the folder before the last one.

Promises: the rows staged are the rows written (counted again by the self-test); a page that is staged twice changes
nothing; memory is bounded by a page and a hash a row; a folder that was deleted under the build fails the build and
nothing else. Any error leaves the draft unusable: drop it.

Invariant: a method that raises has not touched anything outside of its folders.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from time import monotonic

from actors import generation as generations
from actors.child import CallContext
from actors.errors import BuildFailed, GenerationSuspect
from actors.generation import FORMAT, Manifest, build_path, generation_path, scratch_path
from actors.generation_builder import store
from actors.generation_builder.chunk import ChunkLimits
from actors.generation_builder.documents import DocumentReader
from actors.generation_builder.draft_table import DraftTable
from actors.generation_builder.faults import storage_errors
from actors.generation_builder.pending import embedding_order
from actors.generation_builder.rows import decode_events, decode_units, event_rows, unit_rows
from actors.generation_builder.scan import Scan
from actors.generation_builder.staging import row_schema
from actors.generation_builder.vectors import VectorBook, matrix
from actors.messages import CORPORA, BeginBuild, Corpus, GenerationRef, Staged

STAGING = "staging"
# A step that reads notes returns after about this long, however slow the files are.
STEP_S = 10.0


class Draft:
    """One build. Made by `BeginBuild`; ended by `seal` or `drop`."""

    def __init__(self, index: Path, begin: BeginBuild, scan: Scan, limits: ChunkLimits) -> None:
        self.number = begin.generation
        self.folder = build_path(index, begin.generation)
        self._index = index
        self._begin = begin
        self._scan = scan
        self._limits = limits
        self._documents = DocumentReader(scan, limits)
        self._staging = self.folder / STAGING
        self._book: VectorBook | None = None
        self._fd: int | None = None  # of the folder
        self._tested: set[str] = set()  # the files that the self-test has seen
        self._tables: dict[Corpus, DraftTable] = {}
        with storage_errors(f"starting generation {self.number}"):
            try:
                self._open()
            except BaseException:
                self.drop()
                raise

    def _open(self) -> None:
        self._make_folders()
        identity = self._begin.identity
        if identity is not None:
            path = self._staging / "vectors.f32"
            self._book = VectorBook(path, identity.dimensions, normalised=identity.normalised)
        self._tables = {corpus: DraftTable(self.folder, self._staging, corpus, self._book) for corpus in CORPORA}

    def _make_folders(self) -> None:
        if generation_path(self._index, self.number).exists():
            raise BuildFailed(f"generation {self.number} is sealed already; numbers are never used twice")
        self._index.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)
        self._staging.mkdir()
        scratch_path(self._index).mkdir(mode=0o700, exist_ok=True)
        self._fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def in_place(self) -> bool:
        """Say whether the folder is still the one that this build made."""
        if self._fd is None:
            return False
        try:
            # The open descriptor keeps the inode from being given to another folder of the same name.
            return os.path.samestat(os.fstat(self._fd), self.folder.stat())
        except OSError:
            return False

    def require_folder(self) -> None:
        """Raise BuildFailed when somebody deleted the folder, which is allowed at any time."""
        if not self.in_place():
            raise BuildFailed(f"generation {self.number}: its folder was deleted while it was built")

    # ------------------------------------------------------------ staging

    def borrow_vectors(self, call: CallContext) -> None:
        """Take over the vectors of the generation before and of the lender, when they are of the same identity.

        One that cannot be read lends nothing: what it had comes from the cache, or is embedded again.
        """
        for lender in (self._begin.previous, self._begin.lender):
            if self._book is not None and lender is not None and lender.identity == self._begin.identity:
                self._borrow_from(lender, self._book, call)

    def _borrow_from(self, lender: GenerationRef, book: VectorBook, call: CallContext) -> None:
        try:
            for hashes, vectors in store.read_vectors(Path(lender.path), book.dimensions):
                call.check()
                with storage_errors("borrowing vectors"):
                    book.add(hashes, vectors)
                call.progress("vectors", len(book), lender.vectors_have)
        except GenerationSuspect as error:
            print(f"no vectors borrowed: {error.message}", file=sys.stderr)

    def stage_events(self, page: bytes, call: CallContext) -> Staged:
        """Stage a page of events; those up to the last one that is staged already are passed over."""
        table = self._tables["events"]
        events = [event for event in decode_events(page) if event.seq > table.last_seq]
        if events:
            table.last_seq = events[-1].seq
        # Parts backwards, as the whole stage is read backwards: in the table they follow each other.
        rows = (row for event in events for row in reversed([*event_rows(event, self._limits)]))
        before = table.rows
        wanted = table.stage(rows, call.check)
        return Staged(rows=table.rows - before, wanted=wanted)

    def stage_units(self, page: bytes, call: CallContext) -> Staged:
        """Stage a page of units; those up to the last one that is staged already are passed over."""
        table = self._tables["units"]
        units = [unit for unit in decode_units(page) if unit.core_seq > table.last_seq]
        if units:
            table.last_seq = units[-1].core_seq
        rows = (row for unit in units for row in reversed([*unit_rows(unit, self._limits)]))
        before = table.rows
        wanted = table.stage(rows, call.check)
        return Staged(rows=table.rows - before, wanted=wanted)

    def stage_documents(self, files_max: int, call: CallContext) -> Staged:
        """Stage the next notes, at most `files_max`, fewer when they take long; after the last, what is held."""
        table, reader = self._tables["documents"], self._documents
        before, until = table.rows, monotonic() + STEP_S
        wanted: list[bytes] = []
        for _ in range(files_max):
            rows = reader.next_file(call.check)
            if rows is None:
                break
            wanted += table.stage(rows, call.check)
            call.progress("documents", reader.files_done, reader.files)
            if monotonic() >= until:
                break
        more = reader.files_done < reader.files
        if not more:
            wanted += self._take_over_held(table, call)
        return Staged(rows=table.rows - before, wanted=wanted, more=more)

    def _take_over_held(self, table: DraftTable, call: CallContext) -> list[bytes]:
        """Stage the rows that the generation before has of places that cannot be read at present."""
        wanted: list[bytes] = []
        previous = self._begin.previous
        if self._documents.places and previous is not None:
            for batch in store.read_documents(Path(previous.path), row_schema().names):
                call.check()
                wanted += table.take_over(batch, self._documents.places)
        self._documents.places = []
        return wanted

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
        self._tables[corpus].write(call)

    def index_table(self, corpus: Corpus) -> None:
        """Build the indexes that a table of this size gets."""
        self._tables[corpus].index()

    def test(self, call: CallContext) -> None:
        """Test every table against what was staged; BuildFailed says what differs."""
        normalised = self._begin.identity is not None and self._begin.identity.normalised
        for table in self._tables.values():
            table.test(normalised=normalised, check=call.check)
        with storage_errors("listing what was tested"):
            found = (path.relative_to(self.folder) for path in self.folder.rglob("*") if path.is_file())
            self._tested = {str(path) for path in found if path.parts[0] != STAGING}

    # ------------------------------------------------------------ sealing

    def seal(self, built_at: int) -> GenerationRef:
        """Make the folder durable and complete, and give it its name. `built_at` in µs since the epoch."""
        if not self._tested:
            raise BuildFailed(f"generation {self.number} was not tested yet")
        with storage_errors(f"sealing generation {self.number}"):
            self._write_pending()
            shutil.rmtree(self._staging)
            shutil.rmtree(scratch_path(self._index), ignore_errors=True)
            manifest = self._manifest(built_at)
            generations.write_manifest(self.folder, manifest)
            self.require_folder()
            sealed = self.folder.rename(generation_path(self._index, self.number))
            generations.fsync_directory(self._index)
        self._close()
        return generations.reference(sealed, manifest)

    def _write_pending(self) -> None:
        missing = {corpus: table.missing for corpus, table in self._tables.items()}
        look_up = {corpus: self._tables[corpus].texts(rows) for corpus, rows in missing.items()}
        written: set[bytes] = set()
        with (self.folder / generations.PENDING).open("wb") as file:
            for corpus, row in embedding_order(missing):
                pending = look_up[corpus](row)
                if pending.hash not in written:
                    written.add(pending.hash)
                    file.write(generations.encode_pending_record(pending))

    def _manifest(self, built_at: int) -> Manifest:
        files = generations.fsync_tree(self.folder)
        if changed := sorted({entry.path for entry in files} ^ {*self._tested, generations.PENDING}):
            raise BuildFailed(f"generation {self.number}: files changed after the self-test: {changed[0]!r}")
        return Manifest(
            format=FORMAT,
            generation=self.number,
            delta=None,
            covers=self._begin.covers,
            identity=self._begin.identity,
            rows={corpus: table.rows for corpus, table in self._tables.items()},
            vectors_have=sum(table.have for table in self._tables.values()),
            vectors_want=sum(table.want for table in self._tables.values()),
            lancedb_version=version("lancedb"),
            table_versions={corpus: table.version or 0 for corpus, table in self._tables.items()},
            built_at=built_at,
            skipped=[*self._scan.skipped.list(), *self._documents.skipped.list()],
            held=self._documents.held.list(),
            sources=[root.state for root in self._scan.roots],
            files=files,
        )

    def drop(self) -> None:
        """Delete the folder. Whatever is in the way of that is left to the next recovery."""
        if self.in_place():
            shutil.rmtree(self.folder, ignore_errors=True)
        self._close()
        shutil.rmtree(scratch_path(self._index), ignore_errors=True)

    def _close(self) -> None:
        if self._book is not None:
            self._book.close()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
