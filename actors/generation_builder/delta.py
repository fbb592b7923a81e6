"""What makes a delta of a draft: what the delta before it hands on, which notes are read anew, what is masked.

A delta holds everything that changed since its generation. Most of that the delta before it held already, so its rows
are taken over as they are, and only what is new is paged, read and analysed. Of a generation's own rows none is ever
copied: those that are out of date are masked.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from actors import generation as generations
from actors.generation import Mask, Masked, NoteState, SourceNotes, document_path
from actors.generation_builder import store
from actors.generation_builder.changes import Changes, Key, Place, changes
from actors.generation_builder.deferring import beyond
from actors.generation_builder.documents import DocumentReader, in_places
from actors.generation_builder.draft_table import DraftTable
from actors.generation_builder.scan import Scan
from actors.generation_builder.staging import row_schema
from actors.messages.base import Corpus
from actors.messages.builder_work import BeginDelta
from actors.messages.index import Items
from actors.term_counts import TermCounter, masked_counts_path

if TYPE_CHECKING:
    import pyarrow as pa

Check = Callable[[], None]


class Delta:
    """One delta in the making, beside its draft. Raises GenerationSuspect when its generation cannot be read."""

    def __init__(self, begin: BeginDelta, scan: Scan) -> None:
        self.begin = begin
        self.base = Path(begin.base.path)
        self.changes: Changes = changes(scan, generations.read_notes(self.base))
        self._scan = scan
        self._before = _usable_before(begin)
        self._before_mask = Mask() if self._before is None else generations.read_mask(self._before)
        held = {} if self._before is None else _states(self._before)
        self._handed = {key for key, state in self.changes.notes.items() if held.get(key) == state}
        self._taken_over: set[Place] = set()

    @property
    def lender(self) -> Path | None:
        """Return the folder of the delta before, whose vectors are used again."""
        return self._before

    @property
    def to_read(self) -> set[Key]:
        """Return the notes that have to be read, now or later."""
        return self.changes.notes.keys() - self._handed

    def deferred(self) -> set[Key]:
        """Return those of them that wait for a full generation."""
        notes = [(key, self.changes.notes[key]) for key in self.to_read]
        begin = self.begin
        return beyond(notes, note_bytes_max=begin.note_bytes_max, bytes_max=begin.notes_bytes_max)

    # ------------------------------------------------------------ rows

    def hand_over(self, tables: dict[Corpus, DraftTable], check: Check) -> list[bytes]:
        """Stage what the delta before holds and nothing has changed since; return the hashes without a vector."""
        if self._before is None or self.begin.before is None:
            return []
        changed = set(self.begin.changed_units)
        handed = {self._place(key) for key in self._handed}
        wanted = self._hand_over(tables["events"], lambda row: True, check)
        wanted += self._hand_over(tables["units"], lambda row: row["id"] not in changed, check)
        wanted += self._hand_over(tables["documents"], lambda row: (row["tenant"], row["path"]) in handed, check)
        tables["events"].last_seq = self.begin.before.covers.event_seq
        tables["units"].last_seq = self.begin.before.covers.core_seq
        return wanted

    def _hand_over(self, table: DraftTable, wanted: Callable[[dict[str, object]], bool], check: Check) -> list[bytes]:
        hashes: list[bytes] = []
        for batch in self._rows_before(table):
            check()
            rows = batch.select(["tenant", "path", "id"]).to_pylist()
            hashes += table.adopt(batch, [number for number, row in enumerate(rows) if wanted(row)])
        return hashes

    def _rows_before(self, table: DraftTable) -> "Iterator[pa.RecordBatch]":
        """Yield the rows in the order in which they have to be staged."""
        assert self._before is not None
        batches = list(store.read_rows(self._before, table.corpus, row_schema().names))
        return reversed(batches) if table.newest_first else iter(batches)

    def take_over_held(self, table: DraftTable, reader: DocumentReader, check: Check) -> list[bytes]:
        """Stage the rows that the delta before has of notes that cannot be read at present."""
        wanted: list[bytes] = []
        if not reader.places or self._before is None:
            return wanted
        held = set(reader.places)
        for batch in store.read_rows(self._before, "documents", row_schema().names):
            check()
            rows = batch.select(["tenant", "path"]).to_pylist()
            places = {(row["tenant"], row["path"]) for row in rows}
            self._taken_over |= {(tenant, path) for tenant, path in places if in_places(held, tenant, path)}
            wanted += table.take_over(batch, reader.places)
        return wanted

    # ------------------------------------------------------------ the mask

    def mask(self, reader: DocumentReader) -> Mask:
        """Return what the delta takes the place of. What cannot be read at present keeps the rows it had."""
        unread = {self._place(key) for key in reader.unread} - self._taken_over
        documents = (self.changes.masked - unread) | self._taken_over
        units = dict.fromkeys((*self._before_mask.units, *self.begin.changed_units))
        return Mask(units=tuple(units), documents=tuple(sorted(documents)))

    def notes(self, reader: DocumentReader) -> list[SourceNotes]:
        """Return the notes that the delta holds; those that could not be read are read again next time."""
        found = []
        for root in self._scan.roots:
            source = root.source
            states = [
                state
                for (source_id, relative), state in self.changes.notes.items()
                if source_id == source.source_id and (source_id, relative) not in reader.unread
            ]
            found.append(
                SourceNotes(
                    source_id=source.source_id, path=source.path, name=source.name, tenant=source.tenant, notes=states
                )
            )
        return found

    def masked(self, mask: Mask) -> Masked:
        """Return how much of the generation is masked; only what was not masked before is counted anew."""
        known, counted = self._before_mask, Masked()
        if self._before is not None and set(known.documents) <= set(mask.documents):
            counted = generations.read_manifest(self._before).masked
        else:
            known = Mask()
        units = [unit for unit in mask.units if unit not in set(known.units)]
        documents = set(mask.documents) - set(known.documents)
        base = self.begin.base
        more = store.count_masked(
            self.base, units, documents, wanted=base.identity is not None, vectors=base.vectors_have > 0
        )
        return _sum(counted, more)

    def count_masked_terms(self, mask: Mask, folder: Path, scratch: Path) -> list[str]:
        """Write how many of the masked rows hold each term, so that a search can do without them; return the files."""
        counters: dict[Corpus, TermCounter] = {}
        for corpus, terms in store.read_masked_terms(self.base, mask.units, set(mask.documents)):
            if len(terms):
                counters.setdefault(corpus, TermCounter(scratch)).add(terms)
        paths = {corpus: masked_counts_path(folder, corpus) for corpus in counters}
        for corpus, path in paths.items():
            counters[corpus].write(path)
        return [path.name for path in paths.values()]

    def _place(self, key: Key) -> Place:
        source = next(root.source for root in self._scan.roots if root.source.source_id == key[0])
        return source.tenant, document_path(source.name, key[1])


def _usable_before(begin: BeginDelta) -> Path | None:
    """Return the folder of the delta before, None when there is none. GenerationSuspect when it is not whole."""
    before = begin.before
    if before is None or before.delta_path is None:
        return None
    assert before.generation == begin.base.generation, "a delta hands its rows on to one over the same generation"
    folder = Path(before.delta_path)
    generations.verify_shape(folder)
    return folder


def _states(folder: Path) -> dict[Key, NoteState]:
    return {
        (source.source_id, note.relative): note for source in generations.read_notes(folder) for note in source.notes
    }


def _sum(one: Masked, other: Masked) -> Masked:
    return Masked(
        rows={name: one.rows.get(name, 0) + other.rows.get(name, 0) for name in (*one.rows, *other.rows)},
        vectors_have=one.vectors_have + other.vectors_have,
        vectors_want=one.vectors_want + other.vectors_want,
        items={
            name: one.items.get(name, Items()).plus(other.items.get(name, Items()))
            for name in (*one.items, *other.items)
        },
    )
