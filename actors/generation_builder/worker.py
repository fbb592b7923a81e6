"""The builder's worker process: takes the steps of a build one by one, and looks after what lies on disk.

There may be two of them at a time. One holds the lock of the index folder, makes the deltas, publishes, recovers and
retires; the other (`rebuilding`) makes a full generation and nothing else, in a folder that nobody else touches.

Five lanes, so that looking never waits for building or verifying: `build` changes the index folder, `look` only reads
it, `walk` looks at the sources, which may hang, `verify` reads what is sealed, byte by byte, `archive` has a folder of
its own and writes what leaves the transcript. Between two messages the
only state that counts is the draft under way, and it is worthless: whatever goes wrong, the draft is dropped, and the
generation that is current stays as it is.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from actors import generation as generations
from actors.child import CallContext, serve
from actors.errors import BuildFailed, BulkheadError, Interrupted
from actors.frames import Setup
from actors.generation import Manifest, SourceState
from actors.generation_builder import model_change, shelf, store
from actors.generation_builder.archive_lane import ArchiveLane
from actors.generation_builder.chunk import ChunkLimits
from actors.generation_builder.draft import Draft
from actors.generation_builder.faults import storage_errors
from actors.generation_builder.index_lock import IndexLock
from actors.generation_builder.patience import Patience
from actors.generation_builder.roots import Roots
from actors.generation_builder.sampling import take_sample
from actors.generation_builder.scan import Scan, scan_limits
from actors.generation_builder.scan_report import FileRetries, report
from actors.generation_builder.scrub import Scrub
from actors.generation_builder.view_items import ViewItems
from actors.lance_import import leave_out_catalogues
from actors.messages.archives import AddToArchive, ArchiveWork, BeginArchive, SealArchive, VerifyArchive
from actors.messages.base import Done, Message
from actors.messages.builder_work import (
    AbandonBuild,
    BeginBuild,
    BeginDelta,
    CountInView,
    FindInView,
    FlipGeneration,
    GenerationBuilderWork,
    IndexTable,
    KeepModelChange,
    ProbeIndex,
    RecallModelChange,
    RecoverIndex,
    RetireGenerations,
    SampleView,
    ScanResult,
    ScanSources,
    ScrubSlice,
    SealGeneration,
    Staged,
    StageDocuments,
    StageEvents,
    StageUnits,
    StageVectors,
    TestGeneration,
    VerifyGeneration,
    WriteTable,
)
from actors.messages.core_writer import SourceRoot
from actors.messages.forgetting import CountGenerations, ForgetSlice
from actors.messages.index import GenerationRef
from actors.redaction import Redactor
from actors.settings import RoomSetup

BUILD, LOOK, WALK, VERIFY, ARCHIVE = "build", "look", "walk", "verify", "archive"
NICE_VERIFY = 19
# How long a scan waits for walks that get on: a tree that takes longer is told when it is done.
WALK_S = 2.0

Looking = (
    ScanSources | ProbeIndex | VerifyGeneration | SampleView | ScrubSlice | CountInView | FindInView | CountGenerations
)


class GenerationBuilderRoom:
    """What `actors/child.py` runs: see Room there."""

    work: object = GenerationBuilderWork
    lanes: Mapping[type[Message], str] = {
        RecoverIndex: BUILD,
        ScanSources: WALK,
        BeginBuild: BUILD,
        BeginDelta: BUILD,
        StageEvents: BUILD,
        StageUnits: BUILD,
        StageDocuments: BUILD,
        StageVectors: BUILD,
        WriteTable: BUILD,
        IndexTable: BUILD,
        TestGeneration: BUILD,
        SealGeneration: BUILD,
        FlipGeneration: BUILD,
        RetireGenerations: BUILD,
        CountGenerations: LOOK,
        AbandonBuild: BUILD,
        ProbeIndex: LOOK,
        KeepModelChange: BUILD,
        RecallModelChange: BUILD,
        CountInView: LOOK,
        FindInView: LOOK,
        VerifyGeneration: VERIFY,
        SampleView: VERIFY,
        ScrubSlice: VERIFY,
        BeginArchive: ARCHIVE,
        AddToArchive: ARCHIVE,
        SealArchive: ARCHIVE,
        VerifyArchive: ARCHIVE,
    }

    def __init__(self, setup: Setup) -> None:
        room = msgspec.msgpack.decode(setup.settings, type=RoomSetup)
        limits = room.generation_builder
        self._index = Path(room.directory)
        self._rebuilding = room.rebuilding
        self._lock = IndexLock(self._index)
        self._archives = ArchiveLane(Path(room.archive_directory), room.identity)
        self._draft: Draft | None = None
        self._scanned: Scan | None = None  # the last one, for a delta of the same digest
        self._retries = FileRetries(Patience(limits.root_hang_ms / 1000))
        self._scrub = Scrub(self._index)
        self._redactor = Redactor(room.redaction)
        self._chunks = ChunkLimits(limits.chunk_tokens, limits.chunk_tokens_max)
        self._exact_values_max = limits.exact_values_max
        self._roots = Roots(scan_limits(limits), hang_s=limits.root_hang_ms / 1000)
        self._patience = Patience(limits.root_hang_ms / 1000)
        # A generation is made in a process that has walked nothing yet, so it waits for long walks too.
        self._build_walk_s = limits.step_deadline_ms / 1000 / 2
        # Before LanceDB is imported and starts threads: the environment must not change under them.
        self._scratch = generations.scratch_path(self._index, delta=not self._rebuilding)
        os.environ["TMPDIR"] = str(self._scratch)

    def open(self, lane: str) -> dict[str, int | float | str | bool | None]:
        """Take the lock of the index folder; the other lanes need nothing. Verifying gives way to everything."""
        if lane == BUILD:
            self._hold_lock()
        elif (
            lane in (VERIFY, ARCHIVE) and sys.platform == "linux"
        ):  # elsewhere the nice value belongs to the whole process
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE_VERIFY)
        return {}

    def close(self, lane: str) -> None:
        """Drop the draft and give up the lock."""
        if lane == BUILD:
            self._drop_draft()
            self._lock.release()
        elif lane == ARCHIVE:
            self._archives.close()

    def idle(self, lane: str) -> bool:
        """Do nothing: there is no background work in this process."""
        return False

    def interrupt(self, lane: str) -> None:
        """Do nothing: the steps look at their call, and a call into LanceDB ends with the process."""

    def handle(self, message: Message, call: CallContext) -> msgspec.Struct:
        """Do one step. Errors of a step of the build end the build."""
        if isinstance(message, Looking):
            return self._look(message, call)
        if isinstance(message, ArchiveWork):
            return self._archives.handle(message, call)
        match message:
            case RecoverIndex():
                self._hold_lock()
                return shelf.recover(self._index, self._spared(message.building), call.check, message.distrusted)
            case KeepModelChange():
                self._hold_lock()
                model_change.keep(self._index, message.change)
                return Done()
            case RecallModelChange():
                return model_change.recall(self._index, call.check)
            case FlipGeneration():
                self._hold_lock()
                shelf.flip(self._index, message.generation, message.delta)
                return Done()
            case RetireGenerations():
                self._hold_lock()
                shelf.retire(self._index, message.keep, self._spared(message.building), message.building)
                return Done()
            case AbandonBuild():
                self._drop_draft()
                if message.remains:
                    shelf.remove_temporary(self._index, [])
                return Done()
            case BeginBuild():
                return self._begin(message, call)
            case BeginDelta():
                return self._begin_delta(message, call)
            case _:
                return self._do_step(message, call)

    # ------------------------------------------------------------ looking

    def _look(self, message: Looking, call: CallContext) -> msgspec.Struct:
        """Read and change nothing."""
        match message:
            case ScanSources():
                return self._scan_sources(message, call)
            case VerifyGeneration():
                return self._verify(message, call)
            case SampleView():
                return take_sample(message.view, call.check)
            case ScrubSlice():
                return self._scrub.read(message, call.check)
            case CountInView():
                return ViewItems(message.view, self._scan_known(message.sources, call)).count(message)
            case FindInView():
                return ViewItems(message.view, self._scan_known(message.sources, call)).find(message)
            case CountGenerations():
                return ForgetSlice(rows=generations.count_until(self._index, message.until), more=False)
            case ProbeIndex():
                shelf.probe(self._index, message.generation, message.delta)
                return Done()

    def _scan_sources(self, message: ScanSources, call: CallContext) -> ScanResult:
        manifest = shelf.current_manifest(self._index)
        known = _known(manifest)
        scan = self._roots.scan(message.sources, known, only=message.only, patience_s=WALK_S, check=call.check)
        self._scanned = scan
        return report(scan, manifest, self._retries, time.monotonic())

    def _scan_known(self, sources: list[SourceRoot], call: CallContext) -> Scan:
        """Return the last scan, or that of now when these roots were not scanned yet in this process."""
        scan = self._scanned
        if scan is None or [root.source for root in scan.roots] != sources:
            manifest = shelf.current_manifest(self._index)
            scan = self._scanned = self._scan(sources, manifest, call, patience_s=WALK_S)
        return scan

    def _scan(
        self, sources: list[SourceRoot], manifest: Manifest | None, call: CallContext, *, patience_s: float
    ) -> Scan:
        return self._roots.scan(sources, _known(manifest), patience_s=patience_s, check=call.check)

    def _verify(self, message: VerifyGeneration, call: CallContext) -> GenerationRef:
        folder = generations.generation_path(self._index, message.generation)
        found = generations.reference(folder, self._verify_folder(folder, call))
        if message.delta is None:
            return found
        folder = generations.delta_path(self._index, message.generation, message.delta)
        return generations.with_delta(found, folder, self._verify_folder(folder, call))

    def _verify_folder(self, folder: Path, call: CallContext) -> Manifest:
        manifest = generations.verify(folder, call.check)
        store.open_sealed(folder, manifest)
        return manifest

    # ------------------------------------------------------------ building

    def _begin(self, message: BeginBuild, call: CallContext) -> Done:
        self._drop_draft()
        self._hold_lock()
        manifest = None if message.previous is None else _manifest_of(message.previous)
        scan = self._scan(message.sources, manifest, call, patience_s=self._build_walk_s)
        self._draft = self._begin_draft(message, scan)
        with self._ends_build(self._draft):
            self._draft.borrow_vectors(call)
        return Done()

    def _begin_delta(self, message: BeginDelta, call: CallContext) -> Staged:
        self._drop_draft()
        self._hold_lock()
        manifest = _manifest_of(message.base if message.before is None else message.before)
        scan = self._scanned
        if scan is None or scan.digest != message.covers.sources_digest:
            scan = self._scanned = self._scan(message.sources, manifest, call, patience_s=WALK_S)
        self._draft = self._begin_draft(message, scan, known=manifest)
        with self._ends_build(self._draft):
            self._draft.borrow_vectors(call)
            return self._draft.hand_over(call)

    def _do_step(self, message: Message, call: CallContext) -> msgspec.Struct:
        if self._draft is None:
            raise BuildFailed(f"{type(message).__name__} refused: no build is under way in this process")
        with self._ends_build(self._draft):
            self._draft.require_folder()
            return self._step(self._draft, message, call)

    def _step(self, draft: Draft, message: Message, call: CallContext) -> msgspec.Struct:
        match message:
            case StageEvents():
                return draft.stage_events(message.rows, call)
            case StageUnits():
                return draft.stage_units(message.rows, call)
            case StageDocuments():
                return draft.stage_documents(message.files_max, call)
            case StageVectors():
                draft.add_vectors(message.keys, message.dimensions, message.blob)
            case WriteTable():
                draft.write_table(message.corpus, call)
            case IndexTable():
                draft.index_table(message.corpus)
            case TestGeneration():
                draft.test(call)
            case SealGeneration():
                sealed = draft.seal(time.time_ns() // 1000)
                self._draft = None
                return sealed
            case _:
                raise TypeError(f"the builder's worker does not take {type(message).__name__}")
        return Done()

    def _begin_draft(self, begin: BeginBuild | BeginDelta, scan: Scan, *, known: Manifest | None = None) -> Draft:
        return Draft(
            self._index,
            begin,
            scan,
            self._chunks,
            self._exact_values_max,
            scratch=self._scratch,
            known=known,
            patience=self._patience,
            redactor=self._redactor,
        )

    @contextmanager
    def _ends_build(self, draft: Draft) -> Iterator[None]:
        """Drop the draft on any error of the house, at once: a full disk is relieved before the next thing is tried."""
        try:
            yield
        except BulkheadError as error:
            try:
                if not isinstance(error, Interrupted):
                    draft.require_folder()  # the better reason, when that is what was behind the error
            finally:
                self._drop_draft()
            raise

    def _drop_draft(self) -> None:
        if self._draft is not None:
            draft, self._draft = self._draft, None
            draft.drop()

    def _spared(self, building: int | None) -> list[Path]:
        """Return the folders that a recovery must leave alone: those of the builds under way here and over there."""
        spared = [] if self._draft is None else [self._draft.folder, self._scratch]
        if building is not None:
            # Its deltas as well: it catches up before it is published.
            spared += [generations.scratch_path(self._index), *generations.build_paths(self._index, building)]
        return spared

    def _hold_lock(self) -> None:
        if self._rebuilding:
            return  # its folder is its own: the number is given to nobody else
        with storage_errors("taking the lock of the index folder"):
            self._lock.hold()


def _known(manifest: Manifest | None) -> dict[str, SourceState]:
    return {} if manifest is None else {state.source_id: state for state in manifest.sources}


def _manifest_of(view: GenerationRef) -> Manifest | None:
    return shelf.manifest_or_none(Path(view.path if view.delta_path is None else view.delta_path))


if __name__ == "__main__":
    leave_out_catalogues()
    serve(GenerationBuilderRoom)
