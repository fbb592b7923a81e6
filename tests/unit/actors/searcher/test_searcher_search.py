"""One search in a worker: which lists it gives in which case, and how it says what is missing."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from actors.errors import EmbeddingUnavailable, InvalidParams, NoGeneration
from actors.messages.index import EmbeddingIdentity
from actors.messages.searcher import Query, QueryResult
from actors.searcher.query_vectors import QueryVectors
from actors.searcher.search import Searching
from actors.searcher.store import GenerationStore
from actors.settings import SearcherSettings
from tests.unit.actors.searcher.searcher_generations import IDENTITY, MadeRow, make_generation

LIMITS = SearcherSettings(embed_deadline_ms=60_000, query_chars_max=200)  # the machine may be busy
HASTY = SearcherSettings(embed_deadline_ms=100)
FULL, NO_EMBEDDER, NO_VECTORS = 1, 2, 3


class ToyEmbedder:
    """Embeds "cat" and "dog" on two axes, everything else on a third; `answer` replaces that."""

    def __init__(self, identity: EmbeddingIdentity = IDENTITY) -> None:
        self.identity = identity
        self.asked: list[str] = []
        self.answer: Callable[[str], NDArray[np.float32]] = self._axes

    def embed_query(self, text: str) -> NDArray[np.float32]:
        self.asked.append(text)
        return self.answer(text)

    def _axes(self, text: str) -> NDArray[np.float32]:
        vector = np.zeros(4, dtype=np.float32)
        vector[{"cat": 0, "dog": 1}.get(text, 2)] = 3
        return vector


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GenerationStore]:
    index: Path = tmp_path_factory.mktemp("search")
    rows = [
        MadeRow(id="cat", text="the cat " + "sat on the mat " * 100 + "with user_id 7", vector=[1, 0, 0, 0]),
        MadeRow(id="dog", text="a dog barks", vector=[0, 1, 0, 0]),
        MadeRow(id="plain", text="cat without a vector"),
    ]
    store = GenerationStore(cache_bytes=32 << 20)
    bare = [msgspec.structs.replace(row, vector=None) for row in rows]
    for ref in (
        make_generation(index, FULL, {"events": rows}),
        make_generation(index, NO_EMBEDDER, {"events": bare}, identity=None),
        make_generation(index, NO_VECTORS, {"events": bare}),
    ):
        store.load(ref, deadline_ns=time.monotonic_ns() + 10**11)
    yield store
    for number in (FULL, NO_EMBEDDER, NO_VECTORS):
        store.drop(number)


@pytest.fixture
def embedder() -> ToyEmbedder:
    return ToyEmbedder()


@pytest.fixture
def search(store: GenerationStore, embedder: ToyEmbedder) -> Callable[..., QueryResult]:
    vectors = QueryVectors(lambda: embedder)

    def search(
        query: str = "cat", *, seconds: float = 60, limits: SearcherSettings = LIMITS, **members: object
    ) -> QueryResult:
        message = msgspec.structs.replace(Query(view=FULL, query=query), **members)
        deadline_ns = time.monotonic_ns() + int(seconds * 1e9)
        return Searching(message, store=store, vectors=vectors, settings=limits, deadline_ns=deadline_ns).run()

    return search


Search = Callable[..., QueryResult]


def codes(result: QueryResult) -> list[str]:
    return [code for code, _ in result.degraded]


def found(result: QueryResult) -> tuple[list[str], list[str]]:
    return [c.id for c in result.text], [c.id for c in result.vector]


def test_a_hybrid_search_gives_both_lists(search: Search) -> None:
    result = search()
    assert result.mode == "hybrid" and result.degraded == []
    assert found(result) == (["plain", "cat"], ["cat", "dog"])
    assert result.vector[0].vector_score == pytest.approx(1)
    assert {"text", "embed", "vector", "total"} <= result.timings_ms.keys()


def test_each_mode_gives_its_own_list(search: Search, embedder: ToyEmbedder) -> None:
    result = search(mode="keyword")
    assert (result.mode, found(result), embedder.asked) == ("keyword", (["plain", "cat"], []), [])
    result = search(mode="vector")
    assert (result.mode, found(result)) == ("vector", ([], ["cat", "dog"]))


def test_the_snippet_is_cut_around_the_match(search: Search) -> None:
    result = search("user_id", mode="keyword")
    assert len(result.text[0].snippet) <= LIMITS.snippet_chars_max and "user_id 7" in result.text[0].snippet


@pytest.mark.parametrize("limit", [0, -3, 1, 10**9])
def test_the_limit_is_clamped(search: Search, limit: int) -> None:
    assert len(search(limit=limit).text) == (1 if limit <= 1 else 2)


def test_a_query_longer_than_the_limit_is_refused(search: Search) -> None:
    with pytest.raises(InvalidParams, match=r"201 characters, limit is 200 .*query_chars_max"):
        search("x" * 201)


def test_a_generation_that_is_not_open_is_said_to_be_so(search: Search) -> None:
    with pytest.raises(NoGeneration):
        search(view=99)


# ------------------------------------------------------------------ no words


@pytest.mark.parametrize("query", ["", "   ", "\n\t", '"', "\u200b"])
def test_a_query_without_a_word_falls_to_vectors(search: Search, query: str, embedder: ToyEmbedder) -> None:
    embedder.answer = lambda text: np.array([0, 1, 0, 0], dtype=np.float32)
    result = search(query)
    assert (result.mode, found(result), result.degraded) == ("vector", ([], ["dog", "cat"]), [])
    result = search(query, mode="keyword")
    assert (result.mode, found(result), codes(result)) == ("keyword", ([], []), ["no_terms"])
    assert codes(search(query, view=NO_EMBEDDER)) == ["no_vectors", "no_terms"]


@pytest.mark.parametrize("query", ["???", "the of and", "...", "NEAR(", "cats OR dogs", "-word", '"unbalanced', "a:b"])
def test_stop_words_and_signs_are_no_error(search: Search, query: str) -> None:
    assert search(query).mode == "hybrid"


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=60))
def test_no_query_is_an_error(store: GenerationStore, query: str) -> None:
    vectors = QueryVectors(lambda: None)
    result = Searching(
        Query(view=FULL, query=query),
        store=store,
        vectors=vectors,
        settings=LIMITS,
        deadline_ns=time.monotonic_ns() + 10**11,
    ).run()
    assert result.mode == "keyword" and "embedder_unavailable" in codes(result)


# ------------------------------------------------------------------ no vectors


@pytest.mark.parametrize("mode", ["hybrid", "vector"])
@pytest.mark.parametrize(
    ("generation", "why"), [(NO_EMBEDDER, "without an embedding model"), (NO_VECTORS, "no vector yet")]
)
def test_without_vectors_keywords_answer(
    search: Search, embedder: ToyEmbedder, mode: str, generation: int, why: str
) -> None:
    result = search(mode=mode, view=generation)
    assert (result.mode, found(result), codes(result)) == ("keyword", (["plain", "cat"], []), ["no_vectors"])
    assert why in result.degraded[0][1] and embedder.asked == []


@pytest.mark.parametrize("mode", ["hybrid", "vector"])
def test_a_model_that_fails_degrades_to_keywords_and_is_asked_again(
    search: Search, embedder: ToyEmbedder, mode: str
) -> None:
    working = embedder.answer

    def fail(text: str) -> NDArray[np.float32]:
        raise EmbeddingUnavailable("weights are gone")

    embedder.answer = fail
    result = search(mode=mode)
    assert (result.mode, found(result)) == ("keyword", (["plain", "cat"], []))
    assert result.degraded == [("embedder_unavailable", "weights are gone")]
    embedder.answer = working
    assert search(mode=mode).degraded == []


def test_vectors_of_another_space_are_never_compared(store: GenerationStore, search: Search) -> None:
    """The same number of dimensions proves nothing."""
    other = ToyEmbedder(msgspec.structs.replace(IDENTITY, model="another"))
    vectors = QueryVectors(lambda: other)
    for _ in range(2):  # before and after the model's identity is known
        result = Searching(
            Query(view=FULL, query="cat"),
            store=store,
            vectors=vectors,
            settings=LIMITS,
            deadline_ns=time.monotonic_ns() + 10**11,
        ).run()
        assert (result.mode, codes(result)) == ("keyword", ["identity_mismatch"])
        assert "toy" in result.degraded[0][1] and "another" in result.degraded[0][1]
    assert other.asked == ["cat"]


def test_a_vector_that_was_given_is_used_instead_of_the_model(search: Search, embedder: ToyEmbedder) -> None:
    blob = np.array([0, 5, 0, 0], dtype="<f4").tobytes()
    result = search(vector=blob)
    assert (result.mode, found(result)[1], embedder.asked) == ("hybrid", ["dog", "cat"], [])


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ([1, 0, 0], "identity_mismatch"),
        ([0, 0, 0, 0], "embedder_unavailable"),
        ([1, float("nan"), 0, 0], "embedder_unavailable"),
        ([1, float("inf"), 0, 0], "embedder_unavailable"),
    ],
)
def test_a_vector_that_lance_would_answer_with_silence_is_refused(
    search: Search, values: list[float], code: str
) -> None:
    result = search(vector=np.array(values, dtype="<f4").tobytes())
    assert (result.mode, codes(result), found(result)[0]) == ("keyword", [code], ["plain", "cat"])


# ------------------------------------------------------------------ late vectors


def test_a_hanging_model_costs_the_first_caller_its_bound_and_later_ones_nothing(
    search: Search, embedder: ToyEmbedder
) -> None:
    released, working = threading.Event(), embedder.answer

    def hang(text: str) -> NDArray[np.float32]:
        released.wait(30)
        return working(text)

    embedder.answer = hang
    first = search("cat", limits=HASTY)
    assert (first.mode, codes(first), found(first)[0]) == ("keyword", ["embedding_late"], ["plain", "cat"])
    second = search("dog")  # patient, and yet it does not wait
    assert (second.mode, codes(second)) == ("keyword", ["embedding_late"])
    assert "busy with earlier work" in second.degraded[0][1] and embedder.asked == ["cat"]

    released.set()
    while (
        again := search("cat", limits=HASTY)
    ).mode != "hybrid":  # the call that nobody waited for any more is let finish
        assert codes(again) == ["embedding_late"]
    assert found(again)[1] == ["cat", "dog"] and embedder.asked == ["cat"]
    assert search("dog").mode == "hybrid"


def test_keywords_answer_also_when_the_deadline_is_nearer_than_the_bound_of_the_model(
    search: Search, embedder: ToyEmbedder
) -> None:
    released = threading.Event()

    def hang(text: str) -> NDArray[np.float32]:
        released.wait(30)
        raise EmbeddingUnavailable("never mind")

    embedder.answer = hang
    result = search("cat", seconds=2)
    released.set()
    assert codes(result) == ["embedding_late"] and found(result)[0] == ["plain", "cat"]


def test_the_same_question_is_embedded_once(search: Search, embedder: ToyEmbedder) -> None:
    assert search("cat").vector == search("cat").vector
    assert embedder.asked == ["cat"]
