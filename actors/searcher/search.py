"""One search in a worker: what is asked of the model and of the generation, in which order, and what is said when
one of them has nothing to give.

The model starts on the question, keywords are searched meanwhile, and the vector joins if it comes in time. Promises:
whatever the embedding does, the keyword list is answered by the deadline; each list that is missing has a reason in
`degraded`; a question without a word in it is not an error. It does not rank: `ranking.py` does, in the actor, after
the rows that are newer than the generation have come in.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Literal

from actors.errors import BulkheadError, EmbeddingUnavailable, Interrupted, InvalidParams
from actors.messages.base import Candidate, SearchMode
from actors.messages.searcher import Query, QueryResult
from actors.redaction import USUAL, Redactor, recall_text
from actors.searcher.query_vectors import EmbeddingLate, QueryVector, QueryVectors, from_bytes
from actors.searcher.store import LIMIT_MAX, GenerationStore, OpenView, Question
from actors.settings import SearcherSettings
from actors.text import analyse_query, snippet

RESERVE_NS = 50_000_000  # what merging, snippets and the pipe need before the deadline
Missing = Literal[
    "no_vectors", "identity_mismatch", "embedder_unavailable", "embedding_late", "vector_search_late", "no_terms"
]


class _NoVector(Exception):
    """There is nothing to compare vectors with; the reply says why."""

    def __init__(self, code: Missing, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class Searching:
    """One search, used once."""

    def __init__(
        self,
        query: Query,
        *,
        store: GenerationStore,
        vectors: QueryVectors,
        settings: SearcherSettings,
        deadline_ns: int,
        redactor: Redactor = USUAL,
    ) -> None:
        if len(query.query) > settings.query_chars_max:
            raise InvalidParams(
                f"search refused: query is {len(query.query)} characters, limit is {settings.query_chars_max} "
                "(config: searcher.query_chars_max)"
            )
        self._query = query
        self._store = store
        self._vectors = vectors
        self._settings = settings
        self._redactor = redactor
        self._opened = store.get(query.view)
        self._terms = analyse_query(query.query)
        self._question = Question(
            corpora=query.corpora,
            filters=query.filters,
            tenant=query.tenant,
            limit=min(max(1, query.limit), LIMIT_MAX),
            deadline_ns=deadline_ns - RESERVE_NS,
        )
        self._degraded: list[tuple[str, str]] = []
        self._timings_ms: dict[str, float] = {}
        self._snippets: dict[str, str] = {}

    def run(self) -> QueryResult:
        """Return both lists. Raises GenerationSuspect, or Interrupted when not even keywords were in time."""
        begun_ns = time.monotonic_ns()
        pending = None if self._query.mode == "keyword" else self._begin_vector()
        text = self._keyword() if self._query.mode != "vector" or pending is None else None
        near = None if pending is None else self._nearest(pending, begun_ns)
        if text is None and near is None and self._query.mode == "vector":
            text = self._keyword()
        if text is None and near is None:
            self._degraded.append(("no_terms", "the query holds no word that could be searched for"))
        self._timings_ms["total"] = _ms_since(begun_ns)
        return QueryResult(
            text=text or [],
            vector=near or [],
            degraded=self._degraded,
            mode=_mode(text, near),
            timings_ms=self._timings_ms,
        )

    def _keyword(self) -> list[Candidate] | None:
        """Return the keyword list, None when the question has no terms."""
        if not self._terms:
            return None
        begun_ns = time.monotonic_ns()
        found = self._store.keyword(self._opened, self._terms, self._question, self._snippet)
        self._timings_ms["text"] = _ms_since(begun_ns)
        return found

    def _begin_vector(self) -> "Future[QueryVector] | None":
        """Start on the vector; None (and a reason) when it is known already that there will be none."""
        try:
            return _begin(self._query, self._opened, self._vectors)
        except _NoVector as missing:
            self._degraded.append((missing.code, missing.detail))
            return None

    def _nearest(self, pending: "Future[QueryVector]", begun_ns: int) -> list[Candidate] | None:
        """Return the vector list, None (and a reason) when there is no vector in time."""
        give_up_ns = min(begun_ns + self._settings.embed_deadline_ms * 1_000_000, self._question.deadline_ns)
        try:
            vector = self._await_vector(pending, give_up_ns)
            self._timings_ms["embed"] = _ms_since(begun_ns)
            searched_ns = time.monotonic_ns()
            found = self._store.nearest(self._opened, vector, self._question, self._snippet)
            self._timings_ms["vector"] = _ms_since(searched_ns)
            return found
        except _NoVector as missing:
            self._degraded.append((missing.code, missing.detail))
        except Interrupted as late:
            self._degraded.append(("vector_search_late", late.message))
        return None

    def _await_vector(self, pending: "Future[QueryVector]", give_up_ns: int) -> Sequence[float]:
        try:
            vector = self._vectors.wait(pending, (give_up_ns - time.monotonic_ns()) / 1e9)
        except EmbeddingLate as late:
            raise _NoVector("embedding_late", str(late)) from late
        except BulkheadError as refused:
            raise _NoVector("embedder_unavailable", refused.message) from refused
        identity = self._opened.identity
        if identity is None or vector.identity.key != identity.key:
            raise _mismatch(self._opened, vector.identity.key)
        return vector.values

    def _snippet(self, text: str) -> str:
        """Cut a snippet; a row that is in both lists is cut once."""
        cut = self._snippets.get(text)
        if cut is None:
            piece = snippet(text, self._terms, self._settings.snippet_chars_max)
            cut = self._snippets[text] = recall_text(self._redactor, piece, shown=True)
        return cut


def _begin(query: Query, opened: OpenView, vectors: QueryVectors) -> "Future[QueryVector]":
    if opened.identity is None:
        raise _NoVector("no_vectors", f"generation {opened.name} was built without an embedding model")
    if opened.vectors_have == 0:
        raise _NoVector("no_vectors", f"generation {opened.name} has no vector yet; they are made in the background")
    if query.vector is not None:
        return _given(query.vector, opened)
    if vectors.identity is not None and vectors.identity.key != opened.identity.key:
        raise _mismatch(opened, vectors.identity.key)
    try:
        return vectors.begin(query.query)
    except EmbeddingLate as late:
        raise _NoVector("embedding_late", str(late)) from late


def _given(blob: bytes, opened: OpenView) -> "Future[QueryVector]":
    """Take the vector that the actor got from a remote model for this generation's identity."""
    assert opened.identity is not None
    if len(blob) != 4 * opened.identity.dimensions:
        raise _mismatch(opened, f"a vector of {len(blob) / 4:g} dimensions")
    done: Future[QueryVector] = Future()
    try:
        done.set_result(from_bytes(blob, opened.identity))
    except EmbeddingUnavailable as refused:
        done.set_exception(refused)
    return done


def _mismatch(opened: OpenView, other: str) -> _NoVector:
    """Never compare vectors of two spaces: equal dimensions prove nothing."""
    here = None if opened.identity is None else opened.identity.key
    return _NoVector("identity_mismatch", f"generation {opened.name} holds vectors of {here!r}, the query {other!r}")


def _mode(text: list[Candidate] | None, near: list[Candidate] | None) -> SearchMode:
    """Return what the answer was made of."""
    if near is None:
        return "keyword"
    return "vector" if text is None else "hybrid"


def _ms_since(begun_ns: int) -> float:
    return round((time.monotonic_ns() - begun_ns) / 1e6, 2)
