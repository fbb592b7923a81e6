"""What generation_builder says to its processes: the one that builds, the one that embeds, the one that watches."""

from typing import ClassVar

import msgspec

from actors.messages.archives import ArchiveWork
from actors.messages.base import Corpus, Done, Message, Struct, WatchMode
from actors.messages.core_writer import SourceRoot
from actors.messages.forgetting import CountGenerations
from actors.messages.generation_builder import ItemState
from actors.messages.index import Comparison, Covers, EmbeddingIdentity, GenerationRef, Items, Skip, ViewSample


class RecoverIndex(Message, frozen=True, kw_only=True):
    """Remove the remains of a crash, find and verify the generation to serve. Answers what there is.

    `building` is the generation that another process is building; its folder is left alone. `distrusted` are those that
    are what was sealed and do not answer as they should: they are put aside like damaged ones.
    """

    answer: ClassVar[type[msgspec.Struct]]
    building: int | None = None
    distrusted: dict[int, str] = {}  # number of the generation, and why


class IndexState(Struct, frozen=True, kw_only=True):
    """What lies on disk: the view to serve (None: no usable one) and its generation, the generations kept behind it,
    what was put aside. `deltas_highest` is the highest number of a delta.
    """

    current: GenerationRef | None
    base: GenerationRef | None = None
    deltas_highest: int = 0
    previous: list[GenerationRef]
    highest: int
    suspects: list[Skip]


RecoverIndex.answer = IndexState


class ScanResult(Struct, frozen=True, kw_only=True):
    """Which files the roots hold: `digest` changes when any of them does. `held` explains roots kept as they were.

    By source_id: `files_of` counts the notes, `held_roots` says which roots are held as a whole, `walk_ms_of` how long
    the last walk took, `unfinished` whose walk goes on: ask again.
    """

    digest: str
    files: int
    bytes: int
    skipped: list[Skip]
    held: list[Skip]
    files_of: dict[str, int] = {}
    held_roots: dict[str, Skip] = {}
    walk_ms_of: dict[str, float] = {}
    unfinished: list[str] = []


class ScanSources(Message, frozen=True, kw_only=True):
    """Walk the roots (names, sizes, times; contents are not read) and compute their digest.

    `only` those by source_id, and those that were never walked; of the others the last walk counts.
    """

    answer = ScanResult
    sources: list[SourceRoot]
    only: list[str] | None = None


class RootWatch(Struct, frozen=True, kw_only=True):
    """How the changes of a root are noticed, and why so when it is polled. `changes` grows with each that is."""

    source_id: str
    mode: WatchMode = "polling"
    reason: str | None = None
    changes: int = 0


class RootWatches(Struct, frozen=True, kw_only=True):
    """The watches of all roots."""

    watches: list[RootWatch]


class WatchSources(Message, frozen=True, kw_only=True):
    """Watch these roots and no others; answer when what is known of them is not `seen`, at the latest after `wait_ms`.

    An answer that is lost costs nothing: the next call with the same `seen` is given the same.
    """

    answer = RootWatches
    sources: list[SourceRoot]
    seen: list[RootWatch]
    wait_ms: int


class BeginBuild(Message, frozen=True, kw_only=True):
    """Start a generation in a temporary folder. `previous` lends its vectors where identity and hash agree.

    `lender` does so besides it: the successor, while the embedding model is being changed. Notes of more than
    `note_bytes_max` bytes are left to the next generation.
    """

    answer = Done
    generation: int
    covers: Covers
    identity: EmbeddingIdentity | None
    previous: GenerationRef | None
    lender: GenerationRef | None = None
    sources: list[SourceRoot]
    note_bytes_max: int | None = None


class Staged(Struct, frozen=True, kw_only=True):
    """Rows are staged. `wanted` are the content hashes whose vector the previous generation did not have."""

    rows: int
    wanted: list[bytes]
    more: bool = False


class BeginDelta(Message, frozen=True, kw_only=True):
    """Start a delta over a generation, in a temporary folder.

    `base` is the generation (without a delta), `before` the view whose delta hands on its rows: they need not be paged
    and read again. `changed_units` are those that changed since `before` (without: since the base). Of the notes to be
    read, larger ones than `note_bytes_max` and those beyond `notes_bytes_max` together are left to a generation.
    Answers what was handed on. GenerationSuspect when base or delta is not whole.
    """

    answer = Staged
    base: GenerationRef
    before: GenerationRef | None
    delta: int
    covers: Covers
    sources: list[SourceRoot]
    changed_units: list[str]
    note_bytes_max: int = 2 << 20
    notes_bytes_max: int = 4 << 20


class StageEvents(Message, frozen=True, kw_only=True):
    """Stage a page of events (the msgpack `rows` of an EventPage)."""

    answer = Staged
    rows: bytes


class StageUnits(Message, frozen=True, kw_only=True):
    """Stage a page of units (the msgpack `rows` of a PageUnits answer)."""

    answer = Staged
    rows: bytes


class StageDocuments(Message, frozen=True, kw_only=True):
    """Read, cut and stage the next `files_max` files of the scan; `more` until all of them are."""

    answer = Staged
    files_max: int


class StageVectors(Message, frozen=True, kw_only=True):
    """Give vectors for hashes that were `wanted`; rows that stay without are listed as pending."""

    answer = Done
    keys: list[bytes]
    dimensions: int
    blob: bytes


class WriteTable(Message, frozen=True, kw_only=True):
    """Write one corpus as a Lance table, in one commit, from what was staged."""

    answer = Done
    corpus: Corpus


class IndexTable(Message, frozen=True, kw_only=True):
    """Build the full-text index (and, above a size, the vector index) of one table."""

    answer = Done
    corpus: Corpus


class TestGeneration(Message, frozen=True, kw_only=True):
    """Self-test: counts, index coverage, finite unit vectors, CJK and Latin probes, recall of an ANN index."""

    answer = Done


class SealGeneration(Message, frozen=True, kw_only=True):
    """fsync every file and folder, write the manifest, rename into place. After this it is immutable."""

    answer = GenerationRef


class FlipGeneration(Message, frozen=True, kw_only=True):
    """Point CURRENT at a sealed generation, or at a sealed delta over it, atomically and durably."""

    answer = Done
    generation: int
    delta: int | None = None


class RetireGenerations(Message, frozen=True, kw_only=True):
    """Delete sealed generations and deltas except those of the views `keep`; also temporary folders and orphans.

    `building` as in RecoverIndex.
    """

    answer = Done
    keep: list[int]
    building: int | None = None


class ProbeIndex(Message, frozen=True, kw_only=True):
    """Check cheaply (names and sizes, no contents) that CURRENT names `generation` and that its files are there.

    GenerationSuspect when they are not: somebody deleted the index, which is allowed at any time.
    """

    answer = Done
    generation: int
    delta: int | None = None


class AbandonBuild(Message, frozen=True, kw_only=True):
    """Drop the build under way in this process and its temporary folder.

    `remains`: also every other temporary folder, because the process that built there has ended.
    """

    answer = Done
    remains: bool = False


class VerifyGeneration(Message, frozen=True, kw_only=True):
    """Compare every file with the manifest (size, sha256) and open the tables; of a delta too, if one is named."""

    answer = GenerationRef
    generation: int
    delta: int | None = None


class SampleView(Message, frozen=True, kw_only=True):
    """Take questions from the rows of a view and answer them exactly, without any index. GenerationSuspect as ever."""

    answer = ViewSample
    view: GenerationRef


class Scrubbed(Struct, frozen=True, kw_only=True):
    """So many bytes of a folder were read; where to go on, None after the last file."""

    bytes: int
    next: tuple[int, int] | None  # number of the file in the manifest, offset in it


class ScrubSlice(Message, frozen=True, kw_only=True):
    """Read a piece of the files of a sealed folder and compare each file with its manifest once it is through.

    `place` is where to go on (None: at the beginning). GenerationSuspect at the first file that differs.
    """

    answer = Scrubbed
    generation: int
    delta: int | None
    place: tuple[int, int] | None
    bytes_max: int


class CountedItems(Struct, frozen=True, kw_only=True):
    """Of one corpus: the items of a view that still are what the truth holds, and of notes those that are not in it.

    `refused` are incomplete items with a text that the model does not take. Of notes, `changed` are waiting to be
    read, and `failed` (by reason) are left out.
    """

    current: Items = Items()
    refused: int = 0
    changed: int = 0
    failed: dict[str, int] = {}


class CountInView(Message, frozen=True, kw_only=True):
    """Count the items of a view (None: of none). `changed_units` changed since; `refused` are hashes of texts."""

    answer: ClassVar[type[msgspec.Struct]]
    view: GenerationRef | None
    sources: list[SourceRoot]
    refused: list[bytes]
    changed_units: list[str]


class CountedView(Struct, frozen=True, kw_only=True):
    """What `CountInView` found, by corpus."""

    corpora: dict[str, CountedItems]


CountInView.answer = CountedView


class FindInView(Message, frozen=True, kw_only=True):
    """Look one item of a view up, which is not newer than the view: an event or unit by id, a note by its path."""

    answer = ItemState
    view: GenerationRef | None
    sources: list[SourceRoot]
    refused: list[bytes]
    corpus: Corpus
    key: str
    tenant: str


class EmbeddedBatch(Struct, frozen=True, kw_only=True):
    """Vectors for the next texts that had none. `next` is the offset to go on from, None at the end.

    `foreign` says why there are none: the endpoint answers as another model, whose vectors must not be used.
    """

    keys: list[bytes]
    dimensions: int
    blob: bytes
    next: int | None
    failed: list[Skip]
    foreign: str | None = None


class EmbedPending(Message, frozen=True, kw_only=True):
    """To the embedding worker: embed at most `texts_max` pending texts of a generation from `offset` on.

    Texts whose hash is in `skip` count but are not embedded: their vectors are in the cache already. `anew` makes sure
    once more that an endpoint still is the model that it was.
    """

    answer = EmbeddedBatch
    path: str
    offset: int
    texts_max: int
    skip: list[bytes] = []
    anew: bool = False


class PendingKeys(Struct, frozen=True, kw_only=True):
    """The hashes of the next pending texts, the offset after them (None at the end), how many the list holds in all."""

    keys: list[bytes]
    next: int | None
    total: int = 0


class PeekPending(Message, frozen=True, kw_only=True):
    """To the embedding worker: which texts would `EmbedPending` embed?"""

    answer = PendingKeys
    path: str
    offset: int
    texts_max: int


class PeekRows(Message, frozen=True, kw_only=True):
    """To the embedding worker: which texts do these events or units (the `rows` of a page) hold? `next` is None."""

    answer = PendingKeys
    corpus: Corpus
    rows: bytes


class EmbedRows(Message, frozen=True, kw_only=True):
    """To the embedding worker: embed these texts (by hash) of events or units, with the model of a generation.

    `anew` as in EmbedPending.
    """

    answer = EmbeddedBatch
    path: str
    corpus: Corpus
    rows: bytes
    keys: list[bytes]
    anew: bool = False


class ModelChange(Struct, frozen=True, kw_only=True):
    """What is known of a change of the embedding model. `successor` is sealed and does not serve yet, `declined` is
    the key of the identity that was rolled back from, `comparison` is of the last change that came to its end.
    """

    successor: GenerationRef | None = None
    declined: str | None = None
    comparison: "Comparison | None" = None


class KeepModelChange(Message, frozen=True, kw_only=True):
    """Keep this beside the generations, so that it survives a restart. Durable when it is answered."""

    answer = Done
    change: ModelChange


class RecallModelChange(Message, frozen=True, kw_only=True):
    """Answer what was kept last, without a successor that is not whole any more; nothing when there is nothing."""

    answer = ModelChange


GenerationBuilderWork = (
    RecoverIndex
    | ScanSources
    | BeginBuild
    | BeginDelta
    | StageEvents
    | StageUnits
    | StageDocuments
    | StageVectors
    | WriteTable
    | IndexTable
    | TestGeneration
    | SealGeneration
    | FlipGeneration
    | RetireGenerations
    | CountGenerations
    | AbandonBuild
    | ProbeIndex
    | VerifyGeneration
    | SampleView
    | ScrubSlice
    | KeepModelChange
    | RecallModelChange
    | CountInView
    | FindInView
    | ArchiveWork
)
EmbedderWork = EmbedPending | PeekPending | EmbedRows | PeekRows
SourceWatcherWork = WatchSources
