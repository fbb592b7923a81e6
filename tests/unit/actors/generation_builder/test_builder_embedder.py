"""The embedding worker: pending texts become vectors; a bad text is told apart, an absent provider is an error."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from actors import generation as generations
from actors.embedding import TextsRefused, resolve_identity
from actors.errors import EmbeddingUnavailable, GenerationSuspect
from actors.generation import PendingText
from actors.generation_builder.embedder import embed_each
from actors.messages.base import CORPORA
from actors.messages.builder_work import EmbeddedBatch, EmbedPending, PeekPending, PendingKeys
from actors.messages.index import Covers, EmbeddingIdentity
from actors.settings import EmbeddingSettings, RoomSetup
from tests.unit.actors.generation_builder.builder_kit import (
    EVENTS,
    IDENTITY,
    UNITS,
    Builder,
    rows_of,
    sha,
)
from tests.worker_client import WorkerClient

if TYPE_CHECKING:
    from actors.generation_builder.vectors import Matrix

MODULE = "actors.generation_builder.embedder"
SETTINGS = EmbeddingSettings(provider="local-use")


class FakeEmbedder:
    """Gives unit vectors, except where it is told not to. Counts its calls."""

    def __init__(self, behave: "Callable[[list[str], Matrix], Matrix]") -> None:
        self.identity: EmbeddingIdentity = IDENTITY
        self.calls: list[list[str]] = []
        self._behave = behave

    def embed_documents(self, texts: list[str]) -> "Matrix":
        self.calls.append(texts)
        vectors = np.zeros((len(texts), IDENTITY.dimensions), dtype=np.float32)
        vectors[:, 0] = 1
        return self._behave(texts, vectors)

    def embed_query(self, text: str) -> "Matrix":
        raise AssertionError("documents are embedded as documents")

    def close(self) -> None:
        pass


def test_every_text_gets_its_vector_in_one_call() -> None:
    fake = FakeEmbedder(lambda texts, vectors: vectors)
    vectors, failed = embed_each(fake, ["a", "b"])
    assert vectors.shape == (2, 8) and failed == {} and fake.calls == [["a", "b"]]
    assert embed_each(fake, [])[0].shape == (0, 8) and len(fake.calls) == 1


def test_a_text_that_the_provider_refuses_is_named_and_the_others_are_kept() -> None:
    def refuse(texts: list[str], vectors: "Matrix") -> "Matrix":
        raise TextsRefused({1: "too long"}, vectors)

    vectors, failed = embed_each(FakeEmbedder(refuse), ["a", "b", "c"])
    assert failed == {1: "too long"} and vectors[0, 0] == 1


def test_a_text_that_makes_the_model_fail_is_told_apart() -> None:
    def fail(texts: list[str], vectors: "Matrix") -> "Matrix":
        if "bad" in texts:
            raise EmbeddingUnavailable("gave a vector of length nan")
        return vectors

    vectors, failed = embed_each(FakeEmbedder(fail), ["a", "bad", "c"])
    assert failed == {1: "gave a vector of length nan"}
    assert vectors[:, 0].tolist() == [1, 0, 1]
    assert embed_each(FakeEmbedder(fail), ["bad"])[1] == {0: "gave a vector of length nan"}


def test_a_provider_that_is_away_is_asked_once_more_and_not_once_a_text() -> None:
    def away(texts: list[str], vectors: "Matrix") -> "Matrix":
        raise EmbeddingUnavailable("no connection")

    fake = FakeEmbedder(away)
    with pytest.raises(EmbeddingUnavailable, match="no connection"):
        embed_each(fake, ["a", "b", "c"])
    assert len(fake.calls) == 2


def test_a_provider_that_asks_for_a_pause_gets_it() -> None:
    def limited(texts: list[str], vectors: "Matrix") -> "Matrix":
        raise EmbeddingUnavailable("rate limit", retry_after_ms=5000)

    fake = FakeEmbedder(limited)
    with pytest.raises(EmbeddingUnavailable) as raised:
        embed_each(fake, ["a", "b"])
    assert raised.value.retry_after_ms == 5000 and len(fake.calls) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, 2.0])
def test_an_unsound_vector_is_not_passed_on(value: float) -> None:
    def damage(texts: list[str], vectors: "Matrix") -> "Matrix":
        vectors[1, 0] = value
        return vectors

    assert list(embed_each(FakeEmbedder(damage), ["a", "b", "c"])[1]) == [1]


def test_a_model_of_another_size_is_refused() -> None:
    with pytest.raises(EmbeddingUnavailable, match=r"shape \(1, 9\)"):
        embed_each(FakeEmbedder(lambda texts, vectors: np.ones((1, 9), dtype=np.float32)), ["a"])


# ---------------------------------------------------------------- the process


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerClient]:
    with WorkerClient(MODULE, RoomSetup(directory=str(tmp_path_factory.mktemp("e")), embedding=SETTINGS)) as worker:
        yield worker


def write_generation(folder: Path, identity: EmbeddingIdentity | None, texts: list[str]) -> str:
    """Write what the embedding worker reads of a generation: the list and the manifest."""
    folder.mkdir()
    (folder / generations.PENDING).write_bytes(
        generations.encode_pending(PendingText(sha(text), text) for text in texts)
    )
    manifest = generations.Manifest(
        format=generations.FORMAT,
        generation=1,
        delta=None,
        covers=Covers(),
        identity=identity,
        rows={},
        vectors_have=0,
        vectors_want=len(texts),
        lancedb_version="",
        table_versions={},
        built_at=0,
        skipped=[],
        held=[],
        sources=[],
        files=[],
    )
    generations.write_manifest(folder, manifest)
    return str(folder)


def test_pending_texts_are_embedded_piece_by_piece(embedder: WorkerClient, tmp_path: Path) -> None:
    texts = ["one", "zwei", "三", "four", "fünf"]
    path = write_generation(tmp_path / "gen-000001", resolve_identity(SETTINGS), texts)
    offset: int | None = 0
    keys: list[bytes] = []
    while offset is not None:
        peeked = embedder.call(PeekPending(path=path, offset=offset, texts_max=2), PendingKeys)
        skip = [sha("zwei")]
        batch = embedder.call(EmbedPending(path=path, offset=offset, texts_max=2, skip=skip), EmbeddedBatch)
        assert batch.next == peeked.next
        assert batch.keys == [key for key in peeked.keys if key not in skip] and batch.failed == []
        vectors = np.frombuffer(batch.blob, dtype="<f4").reshape(len(batch.keys), batch.dimensions)
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)
        keys, offset = keys + batch.keys, batch.next
    assert keys == [sha(text) for text in texts if text != "zwei"]


def test_neither_lancedb_nor_arrow_is_in_the_process(embedder: WorkerClient) -> None:
    if sys.platform != "linux":
        pytest.skip("the libraries of a process can be listed on Linux only")
    maps = Path(f"/proc/{embedder.process.pid}/maps").read_text()
    assert "lancedb" not in maps and "pyarrow" not in maps


def test_a_generation_of_another_identity_is_not_embedded(embedder: WorkerClient, tmp_path: Path) -> None:
    """E2: vectors of the same size from another model make a garbage ranking."""
    path = write_generation(tmp_path / "gen-000001", IDENTITY, ["text"])
    with pytest.raises(EmbeddingUnavailable, match="the generation wants vectors of 'fake"):
        embedder.call(EmbedPending(path=path, offset=0, texts_max=2), EmbeddedBatch)


def test_a_list_that_is_gone_or_torn_is_suspect(embedder: WorkerClient, tmp_path: Path) -> None:
    path = write_generation(tmp_path / "gen-000001", resolve_identity(SETTINGS), ["text"])
    for offset in (1, 3):
        with pytest.raises(GenerationSuspect):
            embedder.call(EmbedPending(path=path, offset=offset, texts_max=2), EmbeddedBatch)
    with pytest.raises(GenerationSuspect):
        embedder.call(PeekPending(path=str(tmp_path / "gone"), offset=0, texts_max=2), PendingKeys)


def test_without_a_model_the_process_stays_and_says_so(tmp_path: Path) -> None:
    settings = RoomSetup(directory=str(tmp_path), embedding=EmbeddingSettings(provider="none"))
    path = write_generation(tmp_path / "gen-000001", None, ["text"])
    with WorkerClient(MODULE, settings) as worker:
        for _ in range(2):
            with pytest.raises(EmbeddingUnavailable, match="no embedding model is configured"):
                worker.call(EmbedPending(path=path, offset=0, texts_max=2), EmbeddedBatch)


def test_what_was_embedded_is_in_the_next_generation(embedder: WorkerClient, tmp_path: Path) -> None:
    """The whole way: a build without vectors, its list, the embedding worker, the next build with all of them."""
    identity = resolve_identity(SETTINGS)
    with Builder(tmp_path / "index") as builder:
        first = builder.build(1, identity=identity, give=False)
        assert first.vectors_have == 0
        batch = embedder.call(EmbedPending(path=first.path, offset=0, texts_max=100), EmbeddedBatch)
        builder.begin(2, identity=identity, previous=first)
        assert set(builder.stage(events=EVENTS, units=UNITS)) == set(batch.keys)
        builder.give_blob(batch.keys, batch.dimensions, batch.blob)
        second = builder.finish()
    assert second.vectors_have == second.vectors_want == first.vectors_want
    assert [len(rows_of(second, corpus)) for corpus in CORPORA] == [5, 2, 0]
