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
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from actors import generation as generations
from actors.child import CallContext
from actors.errors import BuildFailed, GenerationSuspect
from actors.generation import FORMAT, Manifest, Masked, build_path, sealed_path
from actors.generation_builder import earlier, store
from actors.generation_builder.changes import Key, notes_of, state_of
from actors.generation_builder.chunk import ChunkLimits
from actors.generation_builder.deferring import too_large
from actors.generation_builder.delta import Delta
from actors.generation_builder.documents import DocumentReader
from actors.generation_builder.draft_table import DraftTable
from actors.generation_builder.faults import storage_errors
from actors.generation_builder.patience import Patience
from actors.generation_builder.pending import embedding_order
from actors.generation_builder.rows import decode_events, decode_units, event_rows, unit_rows
from actors.generation_builder.scan import Scan
from actors.generation_builder.scan_report import no_text
from actors.generation_builder.vectors import VectorBook, matrix
from actors.messages.base import CORPORA, Corpus
from actors.messages.builder_work import BeginBuild, BeginDelta, Staged
from actors.messages.index import EmbeddingIdentity, GenerationRef, Skip
from actors.redaction import USUAL, Redactor

if TYPE_CHECKING:
    from actors.generation_builder.vectors import Matrix

STAGING = "staging"
# A step that reads notes returns after about this long, however slow the files are.
STEP_S = 10.0


class Draft:
    """One build. Made by `BeginBuild` or `BeginDelta`; ended by `seal` or `drop`."""

    def __init__(
        self,
        index: Path,
        begin: BeginBuild | BeginDelta,
        scan: Scan,
        limits: ChunkLimits,
        exact_values_max: int,
        *,
        scratch: Path,
        known: Manifest | None = None,
        patience: Patience | None = None,
        redactor: Redactor = USUAL,
    ) -> None:
        """Make the folder.

        `scratch` is where LanceDB of this process puts what does not fit into memory, `known` the manifest of the view
        before: what it says of notes that are no text.
        """
        self._begin = begin
        self._delta = Delta(begin, scan) if isinstance(begin, BeginDelta) else None
        self.number, self._delta_number, self._identity = _named(begin)
        self.name = generations.folder_name(self.number, self._delta_number)
        self.folder = build_path(index, self.number, self._delta_number)
        self._index = index
        self._scratch = scratch
        self._scan = scan
        self._known = known
        self._limits = limits
        self._exact_values_max = exact_values_max
        only = None if self._delta is None else self._delta.to_read
        self._documents = DocumentReader(
            scan, limits, only, deferred=self._deferred(), patience=patience, redactor=redactor
        )
        self._staging = self.folder / STAGING
        self._book: VectorBook | None = None
        self._fd: int | None = None  # of the folder
        self._tested: set[str] = set()  # the files that the self-test has seen
        self._untested = [generations.PENDING, generations.NOTES]  # … and those that are written after it
        self._tables: dict[Corpus, DraftTable] = {}
        with storage_errors(f"starting {self.name}"):
            try:
                self._open()
            except BaseException:
                self.drop()
                raise

    def _deferred(self) -> set[Key]:
        """Return the notes that this build leaves to a later one."""
        if self._delta is not None:
            return self._delta.deferred()
        assert isinstance(self._begin, BeginBuild)
        if self._begin.note_bytes_max is None:
            return set()
        found = (
            ((root.source.source_id, note.relative), state_of(note)) for root in self._scan.roots for note in root.notes
        )
        return too_large(found, self._begin.note_bytes_max)

    def _open(self) -> None:
        self._make_folders()
        if self._identity is not None:
            path = self._staging / "vectors.f32"
            self._book = VectorBook(path, self._identity.dimensions, normalised=self._identity.normalised)
        self._tables = {
            corpus: DraftTable(self.folder, self._staging, corpus, self._book, self._exact_values_max)
            for corpus in CORPORA
        }

    def _make_folders(self) -> None:
        if sealed_path(self._index, self.number, self._delta_number).exists():
            raise BuildFailed(f"{self.name} is sealed already; numbers are never used twice")
        self._index.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)
        self._staging.mkdir()
        self._scratch.mkdir(mode=0o700, exist_ok=True)
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
            raise BuildFailed(f"{self.name}: its folder was deleted while it was built")

    # ------------------------------------------------------------ staging

    def borrow_vectors(self, call: CallContext) -> None:
        """Take over vectors of the same identity: a delta those of the delta before, a generation those of the view
        before and of the lender.

        Who cannot be read lends nothing: what it had comes from the cache, or is embedded again.
        """
        if self._book is None:
            return
        begin, dimensions = self._begin, self._book.dimensions
        if isinstance(begin, BeginDelta):
            before = None if self._delta is None else self._delta.lender
            self._borrow([] if before is None else store.read_vectors(before, dimensions), call)
            return
        for lender in (begin.previous, begin.lender):
            if lender is not None and lender.identity == self._identity:
                self._borrow(earlier.vectors(lender, dimensions), call, total=lender.vectors_have)

    def _borrow(self, lent: "Iterable[tuple[list[bytes], Matrix]]", call: CallContext, *, total: int = 0) -> None:
        assert self._book is not None
        try:
            for hashes, vectors in lent:
                call.check()
                with storage_errors("borrowing vectors"):
                    self._book.add(hashes, vectors)
                call.progress("vectors", len(self._book), total)
        except GenerationSuspect as error:
            print(f"no vectors borrowed: {error.message}", file=sys.stderr)

    def hand_over(self, call: CallContext) -> Staged:
        """Stage what the delta before hands on. Raises GenerationSuspect."""
        if self._delta is None:
            return Staged(rows=0, wanted=[])
        wanted = self._delta.hand_over(self._tables, call.check)
        return Staged(rows=sum(table.rows for table in self._tables.values()), wanted=wanted)

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
        if isinstance(self._begin, BeginDelta):
            assert self._delta is not None
            wanted = self._delta.take_over_held(table, self._documents, call.check)
        elif self._documents.places and self._begin.previous is not None:
            for batch in earlier.documents(self._begin.previous):
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
        table = self._tables[corpus]
        if self._delta is not None and self._book is not None and corpus == "documents":
            # A note that was moved has vectors in the generation under another name. Events and units are new there.
            lent = store.read_vectors_of(self._delta.base, table.unserved(), self._book.dimensions)
            self._borrow(lent, call)
        table.write(call)

    def index_table(self, corpus: Corpus) -> None:
        """Build the indexes that a table of this size gets."""
        self._tables[corpus].index()

    def test(self, call: CallContext) -> None:
        """Test every table against what was staged; BuildFailed says what differs. A poor vector index is dropped."""
        normalised = self._identity is not None and self._identity.normalised
        for table in self._tables.values():
            table.test(normalised=normalised, check=call.check)
        with storage_errors("listing what was tested"):
            found = (path.relative_to(self.folder) for path in self.folder.rglob("*") if path.is_file())
            self._tested = {str(path) for path in found if path.parts[0] != STAGING}

    # ------------------------------------------------------------ sealing

    def seal(self, built_at: int) -> GenerationRef:
        """Make the folder durable and complete, and give it its name. `built_at` in µs since the epoch."""
        if not self._tested:
            raise BuildFailed(f"{self.name} was not tested yet")
        with storage_errors(f"sealing {self.name}"):
            self._write_pending()
            masked = self._write_notes()
            shutil.rmtree(self._staging)
            shutil.rmtree(self._scratch, ignore_errors=True)
            manifest = self._manifest(built_at, masked)
            generations.write_manifest(self.folder, manifest)
            self.require_folder()
            sealed = self.folder.rename(sealed_path(self._index, self.number, self._delta_number))
            generations.fsync_directory(self._index)
        self._close()
        if isinstance(self._begin, BeginDelta):
            return generations.with_delta(self._begin.base, sealed, manifest)
        return generations.reference(sealed, manifest)

    def _write_notes(self) -> Masked:
        """Write down which notes were read, and, of a delta, what it masks; return how much that is."""
        if self._delta is None:
            assert isinstance(self._begin, BeginBuild)
            before = [] if self._begin.previous is None else earlier.notes(self._begin.previous)
            notes = notes_of(self._scan, before, self._documents.unread)
            generations.write_record(self.folder / generations.NOTES, notes)
            return Masked()
        mask = self._delta.mask(self._documents)
        generations.write_record(self.folder / generations.MASK, mask)
        generations.write_record(self.folder / generations.NOTES, self._delta.notes(self._documents))
        self._untested += [generations.MASK, *self._delta.count_masked_terms(mask, self.folder, self._staging)]
        return self._delta.masked(mask)

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

    def _manifest(self, built_at: int, masked: Masked) -> Manifest:
        files = generations.fsync_tree(self.folder)
        expected = {*self._tested, *self._untested}
        if changed := sorted({entry.path for entry in files} ^ expected):
            raise BuildFailed(f"{self.name}: files changed after the self-test: {changed[0]!r}")
        return Manifest(
            format=FORMAT,
            generation=self.number,
            delta=self._delta_number,
            covers=self._begin.covers,
            identity=self._identity,
            rows={corpus: table.rows for corpus, table in self._tables.items()},
            vectors_have=sum(table.have for table in self._tables.values()),
            vectors_want=sum(table.want for table in self._tables.values()),
            lancedb_version=version("lancedb"),
            table_versions={corpus: table.version or 0 for corpus, table in self._tables.items()},
            vector_indexes={name: table.vector_index for name, table in self._tables.items() if table.vector_index},
            built_at=built_at,
            skipped=[*self._scan.skipped.list(), *self._documents.skipped.list(), *self._skipped_before()],
            held=self._documents.held.list(),
            sources=[root.state for root in self._scan.roots],
            files=files,
            items={corpus: table.items for corpus, table in self._tables.items()},
            masked=masked,
            deferred=self._documents.deferred,
        )

    def _skipped_before(self) -> list[Skip]:
        """Return what the view before says of notes that are no text, as far as a delta has not read them again."""
        if self._delta is None or self._known is None:
            return []
        return no_text(self._known, self._scan, read=self._delta.to_read)

    def drop(self) -> None:
        """Delete the folder. Whatever is in the way of that is left to the next recovery."""
        if self.in_place():
            shutil.rmtree(self.folder, ignore_errors=True)
        self._close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _close(self) -> None:
        if self._book is not None:
            self._book.close()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _named(begin: BeginBuild | BeginDelta) -> tuple[int, int | None, EmbeddingIdentity | None]:
    """Return the generation, the delta, and the identity of the vectors."""
    if isinstance(begin, BeginDelta):
        return begin.base.generation, begin.delta, begin.base.identity
    return begin.generation, None, begin.identity
