"""Views for the searcher's tests: generations made by the real builder, and deltas over them.

A delta is made of a generation that holds what changed: renamed, with a mask and a manifest of its own.
"""

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast
from unittest import mock

import lancedb
import msgspec
import pyarrow as pa

from actors.child import CallContext, _Child
from actors.frames import Setup
from actors.generation import (
    MASK,
    Mask,
    Masked,
    delta_path,
    document_path,
    fsync_tree,
    read_manifest,
    verify,
    with_delta,
    write_manifest,
    write_record,
)
from actors.generation_builder.worker import GenerationBuilderRoom
from actors.messages.base import CORPORA, Corpus, Message
from actors.messages.builder_work import (
    BeginBuild,
    IndexTable,
    SealGeneration,
    Staged,
    StageDocuments,
    StageEvents,
    StageUnits,
    StageVectors,
    TestGeneration,
    WriteTable,
)
from actors.messages.core_writer import SourceRoot
from actors.messages.index import Covers, GenerationRef
from actors.term_counts import TermCounter, masked_counts_path
from tests.unit.actors.generation_builder.builder_kit import (
    IDENTITY,
    Event,
    event,
    settings,
    source,
    unit,
    vector_of,
)

MTIME_S = 1_700_000_000


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to index: events in order, units by id as (core_seq, text), notes by their place below the root."""

    events: tuple[str, ...] = ()
    units: Mapping[str, tuple[int, str]] = {}
    notes: Mapping[str, str] = {}

    def event_rows(self, after: int = 0) -> list[Event]:
        """Return the events behind a seq as a page holds them."""
        return [event(seq, text) for seq, text in enumerate(self.events, 1) if seq > after]

    def unit_rows(self, after: int = 0) -> list[Event]:
        """Return the units changed behind a core_seq as a page holds them."""
        rows = [unit(seq, text, unit_id=name) for name, (seq, text) in self.units.items() if seq > after]
        return sorted(rows, key=lambda row: cast(int, row["core_seq"]))

    @property
    def covers(self) -> Covers:
        """Return how far it goes."""
        return Covers(event_seq=len(self.events), core_seq=max([seq for seq, _ in self.units.values()], default=0))


class ViewBuilder:
    """Makes generations and deltas in one index folder; the notes of all of them lie below one root."""

    def __init__(self, place: Path) -> None:
        self.index = place / "index"
        self._place = place
        self._root = place / "notes"
        self._source = source(self._root)

    def generation(self, number: int, truth: Truth) -> GenerationRef:
        """Build a generation of this truth, with all vectors."""
        return _build(
            self.index,
            number,
            truth.covers,
            notes=self._put(truth.notes),
            events=truth.event_rows(),
            units=truth.unit_rows(),
        )

    def delta(self, base: GenerationRef, number: int, before: Truth, now: Truth) -> GenerationRef:
        """Build a delta with what changed between two truths; `base` was built from the first one."""
        covered = before.covers
        changed = {name: text for name, text in now.notes.items() if before.notes.get(name) != text}
        mask = Mask(
            units=tuple(name for name in before.units if now.units.get(name) != before.units[name]),
            documents=tuple(
                (self._source.tenant, document_path(self._source.name, name))
                for name in before.notes
                if now.notes.get(name) != before.notes[name]
            ),
        )
        elsewhere = self._place / f"delta-{base.generation}-{number}"
        made = _build(
            elsewhere,
            base.generation,
            now.covers,
            notes=self._put(changed),
            events=now.event_rows(covered.event_seq),
            units=now.unit_rows(covered.core_seq),
        )
        return make_delta(self.index, base, number, Path(made.path), mask)

    def _put(self, notes: Mapping[str, str]) -> SourceRoot:
        """Have these notes, and no others, below the root; the same note always has the same time."""
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir(parents=True)
        for name, text in notes.items():
            (self._root / name).write_text(text)
            os.utime(self._root / name, (MTIME_S, MTIME_S))
        return self._source


def make_delta(index: Path, base: GenerationRef, number: int, made: Path, mask: Mask) -> GenerationRef:
    """Turn a generation into a delta over another one; the folder it was made in is gone afterwards."""
    folder = delta_path(index, base.generation, number)
    made.rename(folder)
    write_record(folder / MASK, mask)
    masked = _masked(Path(base.path), mask, folder)
    manifest = msgspec.structs.replace(read_manifest(folder), delta=number, masked=masked, files=fsync_tree(folder))
    write_manifest(folder, manifest)
    return with_delta(base, folder, verify(folder))


def _masked(base: Path, mask: Mask, folder: Path) -> Masked:
    """Count the rows of a generation that a mask names, and write the counts of their terms."""
    rows: dict[str, int] = {}
    have = want = 0
    for corpus, table in _tables(base):
        if corpus == "units":
            hit = [name in mask.units for name in table["id"].to_pylist()]
        else:
            names = zip(table["tenant"].to_pylist(), table["path"].to_pylist(), strict=True)
            hit = [name in mask.documents for name in names]
        gone = table.filter(pa.array(hit, pa.bool_()))
        if gone.num_rows:
            rows[corpus] = gone.num_rows
            have += gone.num_rows - gone["vector"].null_count
            want += gone.num_rows
            counter = TermCounter(folder)
            for piece in gone["terms"].chunks:
                counter.add(piece)
            counter.write(masked_counts_path(folder, corpus))
    return Masked(rows=rows, vectors_have=have, vectors_want=want)


def _tables(folder: Path) -> "Iterator[tuple[Corpus, pa.Table]]":
    connection = lancedb.connect(str(folder))
    for corpus in CORPORA:
        yield corpus, connection.open_table(corpus).to_arrow()


def _build(
    index: Path, number: int, covers: Covers, *, notes: SourceRoot, events: Sequence[Event], units: Sequence[Event]
) -> GenerationRef:
    with mock.patch.dict(os.environ):  # the room sets TMPDIR for the whole process
        raw = msgspec.Raw(msgspec.msgpack.encode(settings(index)))
        room = GenerationBuilderRoom(Setup("builder", 1, raw, 200, 0, False, 0))
    call = CallContext(1, time.monotonic_ns() + 600 * 10**9, cast(_Child, _NoParent()))

    def do(message: Message) -> msgspec.Struct:
        return room.handle(message, call)

    do(BeginBuild(generation=number, covers=covers, identity=IDENTITY, previous=None, sources=[notes]))
    wanted: list[bytes] = []
    for page in (
        StageEvents(rows=msgspec.msgpack.encode(events)),
        StageUnits(rows=msgspec.msgpack.encode(units)),
        StageDocuments(files_max=1_000_000),
    ):
        staged = do(page)
        assert isinstance(staged, Staged) and not staged.more
        wanted += staged.wanted
    blob = b"".join(map(vector_of, wanted))
    do(StageVectors(keys=wanted, dimensions=IDENTITY.dimensions, blob=blob))
    for corpus in CORPORA:
        do(WriteTable(corpus=corpus))
        do(IndexTable(corpus=corpus))
    do(TestGeneration())
    sealed = do(SealGeneration())
    room.close("build")
    assert isinstance(sealed, GenerationRef)
    return sealed


class _NoParent:
    """Takes the reports of a call that nobody waits for."""

    def send(self, frame: object) -> None:
        """Drop a report."""
