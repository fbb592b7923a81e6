"""What is said to searcher, and what it says to its workers."""

from typing import ClassVar

import msgspec

from actors.messages.base import CORPORA, Candidate, Corpus, Done, Filters, Message, Row, SearchMode, Struct
from actors.messages.core_writer import SourceRoot
from actors.messages.index import Comparison, GenerationRef, ViewSample


class SearchAnswer(Struct, frozen=True, kw_only=True):
    """The result of a search as JSON text, ready for the client."""

    body: bytes


class Search(Message, frozen=True, kw_only=True):
    """Search the memory. `mode` hybrid falls back to keyword when there are no vectors to compare with."""

    answer = SearchAnswer
    query: str
    limit: int = 10
    corpora: tuple[Corpus, ...] = CORPORA
    filters: Filters = Filters()
    mode: SearchMode = "hybrid"
    min_score: float | None = None
    explain: bool = False
    tenant: str = "default"


class ReadDocument(Message, frozen=True, kw_only=True):
    """Read lines of a note under a registered root. `path` as it appears in a hit, or absolute."""

    answer = Row
    path: str
    from_line: int = 1
    lines: int | None = None
    tenant: str = "default"


class Folder(Struct, frozen=True, kw_only=True):
    """A folder that exists and may be read: absolute, links followed."""

    path: str


class ResolveFolder(Message, frozen=True, kw_only=True):
    """Find out whether a path leads to a readable folder, and to which; InvalidParams when it does not.

    Done by a search worker: looking at a dead network mount may hang, and must not hang the truth.
    """

    answer = Folder
    path: str


class PrepareGeneration(Message, frozen=True, kw_only=True):
    """From the builder: the spare opens and probes this view, so that it can take over at once.

    `anew`: it looks at every byte of it, also where it has it open.
    """

    answer = Done
    generation: GenerationRef
    anew: bool = False


class ServeGeneration(Message, frozen=True, kw_only=True):
    """From the builder, after the pointer was flipped: new queries go to this view (None: to none)."""

    answer = Done
    generation: GenerationRef | None


class CompareGenerations(Message, frozen=True, kw_only=True):
    """Ask both generations what was asked lately. A worker must have both open: see PrepareGeneration."""

    answer = Comparison
    earlier: GenerationRef
    later: GenerationRef


class FoundRow(Struct, frozen=True, kw_only=True):
    """A row that a search found, with its score in that list."""

    corpus: Corpus
    id: str
    part: int
    score: float


class Tried(Struct, frozen=True, kw_only=True):
    """What the questions of a sample found, in their order, and of the questions asked lately how many found anything.

    Found by vector where a question has one, else by words.
    """

    words: list[list[FoundRow]]
    vectors: list[list[FoundRow]]
    recent: int
    recent_answered: int


class TryView(Message, frozen=True, kw_only=True):
    """Ask a view the questions of a sample, in a worker that has it open, as real searches are asked.

    `limit` rows by words, `nearest` rows by vector. GenerationSuspect when it cannot be read.
    """

    answer = Tried
    view: GenerationRef
    sample: ViewSample
    limit: int
    nearest: int


class IndexView(Struct, frozen=True, kw_only=True):
    """The view that the searcher serves, and those that are still read by somebody, by number (see `split_view`)."""

    serving: int | None
    leased: list[int]


class GetIndexView(Message, frozen=True, kw_only=True):
    """Return which views are still in use, so that the other generations and deltas can be retired."""

    answer = IndexView


SearcherMessage = (
    Search
    | ReadDocument
    | ResolveFolder
    | PrepareGeneration
    | ServeGeneration
    | CompareGenerations
    | TryView
    | GetIndexView
)


class Query(Message, frozen=True, kw_only=True):
    """To a search worker: find candidates in a view.

    `vector` is given when the actor embedded the query itself (a remote provider); else the worker's own model
    embeds it, within `searcher.embed_deadline_ms`: a late vector degrades the answer to keywords.
    """

    answer: ClassVar[type[msgspec.Struct]]
    view: int
    query: str
    limit: int = 100
    corpora: tuple[Corpus, ...] = CORPORA
    filters: Filters = Filters()
    mode: SearchMode = "hybrid"
    tenant: str = "default"
    vector: bytes | None = None


class QueryResult(Struct, frozen=True, kw_only=True):
    """The two lists of a search, each best first. `degraded` are (code, detail) pairs."""

    text: list[Candidate]
    vector: list[Candidate]
    degraded: list[tuple[str, str]]
    mode: SearchMode
    timings_ms: dict[str, float]


Query.answer = QueryResult


class LoadGeneration(Message, frozen=True, kw_only=True):
    """To a search worker: verify, open and probe a view, and keep it open beside the ones it has.

    `anew`: verify also what is open.
    """

    answer = Done
    generation: GenerationRef
    anew: bool = False


class DropGeneration(Message, frozen=True, kw_only=True):
    """To a search worker: close a view; files that only it needs may be deleted after this."""

    answer = Done
    view: int


class ReadLines(Message, frozen=True, kw_only=True):
    """To a search worker: read lines of a file that must lie under one of `sources`."""

    answer = Row
    path: str
    from_line: int
    lines: int | None
    sources: list[SourceRoot]


class WarmUp(Message, frozen=True, kw_only=True):
    """To a search worker: load LanceDB and the embedding model before anybody waits for them.

    `gently` when another worker serves meanwhile: the loading gives way to it.
    """

    answer = Done
    gently: bool = False


SearcherWork = Query | LoadGeneration | DropGeneration | ReadLines | ResolveFolder | WarmUp
