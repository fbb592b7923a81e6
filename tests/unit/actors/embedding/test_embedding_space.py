"""An endpoint that answers as another model than before is caught before any of its vectors is used."""

import array
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from actors.embedding import open_embedder
from actors.embedding.embedder import Embedder
from actors.embedding.failures import ForeignSpace
from actors.embedding.remote_query import RemoteQueryEmbedder
from actors.embedding.space import CANARY, Space, SpaceFile, same_space
from actors.errors import EmbeddingUnavailable
from tests.unit.actors.embedding.fake_endpoint import (
    Answer,
    FakeEndpoint,
    named,
    other_vectors,
    refused,
    unit_of,
    vectors,
)


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with FakeEndpoint() as running:
        yield running


@pytest.fixture
def spaces(tmp_path: Path) -> SpaceFile:
    return SpaceFile(tmp_path)


def opened(endpoint: FakeEndpoint, spaces: SpaceFile) -> Embedder:
    embedder = open_embedder(endpoint.settings(), spaces=spaces)
    assert embedder is not None
    return embedder


def embed(endpoint: FakeEndpoint, spaces: SpaceFile, *texts: str) -> None:
    """Embed as a new process does."""
    embedder = opened(endpoint, spaces)
    try:
        embedder.embed_documents(list(texts))
    finally:
        embedder.close()


def ask(endpoint: FakeEndpoint, spaces: SpaceFile, times: int = 1) -> bytes:
    """Embed a question as the daemon does."""

    async def run() -> bytes:
        embedder = RemoteQueryEmbedder(endpoint.settings(), spaces=spaces)
        try:
            for _ in range(times):
                vector = await embedder.embed("why", 30)
        finally:
            await embedder.close()
        return vector

    return trio.run(run)


def test_a_process_asks_for_one_more_text_and_no_more(endpoint: FakeEndpoint, spaces: SpaceFile) -> None:
    embedder = opened(endpoint, spaces)
    for text in ("a", "b", "c"):
        embedder.embed_documents([text])
    embedder.close()
    assert endpoint.texts == [["a"], [CANARY], ["b"], ["c"]]
    known = spaces.read(embedder.identity.key)
    assert known is not None and known.models == ["fake"]
    assert array.array("f", known.canary).tolist() == pytest.approx(unit_of(CANARY), rel=1e-6)


@pytest.mark.parametrize("model", ["fake", "other", None])
def test_another_model_behind_the_same_name_is_refused_by_the_next_process(
    endpoint: FakeEndpoint, spaces: SpaceFile, model: str | None
) -> None:
    embed(endpoint, spaces, "a")
    endpoint.script = lambda texts: other_vectors(texts, model)
    with pytest.raises(ForeignSpace, match="'fake'") as caught:
        embed(endpoint, spaces, "b")
    assert caught.value.hint
    endpoint.script = vectors
    embed(endpoint, spaces, "b")


def test_a_swap_in_the_middle_is_noticed_by_the_name_that_the_endpoint_gives(
    endpoint: FakeEndpoint, spaces: SpaceFile
) -> None:
    embedder = opened(endpoint, spaces)
    embedder.embed_documents(["a"])
    endpoint.script = other_vectors
    for _ in range(2):
        with pytest.raises(ForeignSpace, match="'other'"):
            embedder.embed_documents(["b"])
    embedder.close()


def test_another_spelling_of_the_same_model_is_no_other_model(endpoint: FakeEndpoint, spaces: SpaceFile) -> None:
    embedder = opened(endpoint, spaces)
    embedder.embed_documents(["a"])
    endpoint.script = lambda texts: named(texts, "vendor/fake-2024")
    embedder.embed_documents(["b"])
    embedder.embed_documents(["c"])
    embedder.close()
    assert endpoint.texts[2:] == [["b"], [CANARY], ["c"]]
    known = spaces.read(embedder.identity.key)
    assert known is not None and known.models == ["fake", "vendor/fake-2024"]


def test_a_question_is_held_to_the_model_of_the_documents(endpoint: FakeEndpoint, spaces: SpaceFile) -> None:
    embed(endpoint, spaces, "a")
    assert len(ask(endpoint, spaces)) == 16
    assert endpoint.texts[2:] == [["why"]], "a name that is known needs no second request"
    endpoint.script = other_vectors
    with pytest.raises(ForeignSpace):
        ask(endpoint, spaces)
    endpoint.script = lambda texts: named(texts, "replica")
    ask(endpoint, spaces, times=3)
    assert [texts for texts in endpoint.texts if texts == [CANARY]] == [[CANARY]] * 3


def test_a_question_before_any_document_is_believed(endpoint: FakeEndpoint, spaces: SpaceFile) -> None:
    ask(endpoint, spaces)
    assert endpoint.texts == [["why"]]


def test_an_endpoint_that_refuses_the_canary_blames_no_text(endpoint: FakeEndpoint, spaces: SpaceFile) -> None:
    endpoint.script = lambda texts: refused() if CANARY in texts else vectors(texts)
    with pytest.raises(EmbeddingUnavailable, match="tells models apart"):
        embed(endpoint, spaces, "a")


def test_a_file_that_is_damaged_or_gone_is_a_beginning(endpoint: FakeEndpoint, tmp_path: Path) -> None:
    spaces = SpaceFile(tmp_path / "gone")
    embed(endpoint, spaces, "a")  # a folder that takes nothing is no obstacle
    spaces = SpaceFile(tmp_path)
    embed(endpoint, spaces, "a")
    (file,) = tmp_path.iterdir()
    file.write_text("{")
    endpoint.script = other_vectors
    embed(endpoint, spaces, "b")
    spaces.write("x", Space(models=[], canary=b""))
    assert spaces.read("x") == Space(models=[], canary=b"") and spaces.read("y") is None


def test_two_vectors_of_one_text_are_compared_by_their_angle() -> None:
    def vector(*values: float) -> bytes:
        return array.array("f", [value / math.hypot(*values) for value in values]).tobytes()

    assert same_space(vector(1, 2, 3), vector(1, 2.05, 3))
    assert not same_space(vector(1, 2, 3), vector(1, 3, 2.9))
    assert not same_space(vector(1, 2, 3), vector(1, 2))
    nan = array.array("f", [float("nan")] * 3).tobytes()
    assert not same_space(nan, nan)


def test_a_status_of_the_canary_is_that_of_the_endpoint(endpoint: FakeEndpoint, spaces: SpaceFile) -> None:
    endpoint.script = lambda texts: Answer(429, {}, {"retry-after": "3"}) if CANARY in texts else vectors(texts)
    with pytest.raises(EmbeddingUnavailable) as caught:
        embed(endpoint, spaces, "a")
    assert caught.value.retry_after_ms == 3000
