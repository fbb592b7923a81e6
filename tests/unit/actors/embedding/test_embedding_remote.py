"""Documents through a real HTTP server on the loopback interface."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from actors.embedding import TextsRefused, open_embedder
from actors.embedding.failures import Late, Limited, Unreachable
from actors.embedding.remote import RemoteEmbedder
from actors.errors import EmbeddingUnavailable
from actors.settings import EmbeddingSettings
from tests.unit.actors.embedding.fake_endpoint import (
    Answer,
    FakeEndpoint,
    data_of,
    refused,
    unit_of,
    vector_of,
    vectors,
)


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with FakeEndpoint() as running:
        yield running


@contextmanager
def opened(settings: EmbeddingSettings) -> Iterator[RemoteEmbedder]:
    embedder = open_embedder(settings)
    assert isinstance(embedder, RemoteEmbedder)
    try:
        yield embedder
    finally:
        embedder.close()


def expect(texts: list[str]) -> np.ndarray:
    return np.array([unit_of(text) for text in texts], np.float32)


def at_most(count: int) -> Callable[[list[str]], Answer]:
    return lambda texts: vectors(texts) if len(texts) <= count else refused("too_many_inputs")


def test_vectors_arrive_in_order_with_prefixes_and_unit_norm(endpoint: FakeEndpoint) -> None:
    texts = [f"text {number}" for number in range(5)]
    with opened(endpoint.settings(batch_max=2, prefix="| ")) as embedder:
        found = embedder.embed_documents(texts)
        question = embedder.embed_query("why")
    sent = [f"document | {text}" for text in texts]
    assert endpoint.texts == [sent[:2], sent[2:4], sent[4:], ["query | why"]]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expect(sent), rtol=1e-6)
    np.testing.assert_allclose(question, expect(["query | why"])[0], rtol=1e-6)


def test_no_texts_are_no_request(endpoint: FakeEndpoint) -> None:
    with opened(endpoint.settings()) as embedder:
        assert embedder.embed_documents([]).shape == (0, 4)
    assert endpoint.requests == []


def test_odd_texts_are_sent_in_a_form_that_endpoints_accept(endpoint: FakeEndpoint) -> None:
    with opened(endpoint.settings()) as embedder:
        embedder.embed_documents(["", " ", "a\0b", "\ud800x", "👍"])
    assert endpoint.texts == [[".", ".", "ab", "\ufffdx", "👍"]]


def test_equal_texts_are_sent_once(endpoint: FakeEndpoint) -> None:
    with opened(endpoint.settings()) as embedder:
        found = embedder.embed_documents(["a", "b", "a"])
    assert endpoint.texts == [["a", "b"]]
    np.testing.assert_allclose(found, expect(["a", "b", "a"]), rtol=1e-6)


def test_a_permuted_answer_is_put_in_order(endpoint: FakeEndpoint) -> None:
    endpoint.script = lambda texts: data_of(
        *({"index": i, "embedding": vector_of(texts[i])} for i in reversed(range(len(texts))))
    )
    with opened(endpoint.settings()) as embedder:
        np.testing.assert_allclose(embedder.embed_documents(["a", "b", "c"]), expect(["a", "b", "c"]), rtol=1e-6)


@pytest.mark.parametrize(
    "answer",
    [
        data_of({"index": 0, "embedding": [1, 2, 3]}),
        data_of({"index": 0, "embedding": [float("nan"), 1, 1, 1]}),
        data_of({"index": 0, "embedding": [0, 0, 0, 0]}),
        data_of(),
        Answer(200, b"<html>welcome to the hotel network</html>"),
        Answer(200, b"\x00\x01", {"content-encoding": "gzip"}),
        Answer(302, {}, {"location": "http://127.0.0.1:9/v1/embeddings"}),
        Answer(401, {"error": {"code": "invalid_api_key"}}),
        Answer(404, {}),
    ],
)
def test_a_wrong_answer_is_an_error_and_never_a_vector(endpoint: FakeEndpoint, answer: Answer) -> None:
    endpoint.script = lambda _: answer
    with opened(endpoint.settings()) as embedder, pytest.raises(EmbeddingUnavailable) as caught:
        embedder.embed_documents(["private words"])
    assert not isinstance(caught.value, Unreachable | Limited | Late)
    assert "private" not in caught.value.message
    assert caught.value.hint
    assert len(endpoint.requests) == 1


def test_a_cap_on_the_batch_is_found_by_halving_and_remembered(endpoint: FakeEndpoint) -> None:
    endpoint.script = at_most(10)
    texts = [str(number) for number in range(64)]
    with opened(endpoint.settings(batch_max=64)) as embedder:
        np.testing.assert_allclose(embedder.embed_documents(texts), expect(texts), rtol=1e-6)
        asked = len(endpoint.requests)
        np.testing.assert_allclose(embedder.embed_documents(texts), expect(texts), rtol=1e-6)
    assert [len(batch) for batch in endpoint.texts[:asked] if len(batch) > 10] == [64, 32, 16]
    assert [len(batch) for batch in endpoint.texts[asked:]] == [8] * 8


def test_one_bad_text_is_isolated_and_named_and_the_others_arrive(endpoint: FakeEndpoint) -> None:
    endpoint.script = lambda texts: refused() if "bad" in texts else vectors(texts)
    texts = ["a", "b", "c", "d", "e", "bad", "f", "g"]
    with opened(endpoint.settings()) as embedder:
        with pytest.raises(TextsRefused) as caught:
            embedder.embed_documents(texts)
        before = len(endpoint.requests)
        embedder.embed_documents([text for text in texts if text != "bad"])
    assert list(caught.value.refused) == [5]
    assert "400" in caught.value.refused[5] and "invalid_input" in caught.value.refused[5]
    assert "SECRET" not in caught.value.message
    good = [row for row, text in enumerate(texts) if text != "bad"]
    np.testing.assert_allclose(caught.value.vectors[good], expect([texts[row] for row in good]), rtol=1e-6)
    assert not caught.value.vectors[5].any()
    assert len(endpoint.requests) == before + 1, "a bad text says nothing about the size of a batch"


def test_an_endpoint_that_refuses_everything_is_not_the_texts_fault(endpoint: FakeEndpoint) -> None:
    endpoint.script = lambda _: refused("unknown_parameter")
    with opened(endpoint.settings()) as embedder, pytest.raises(EmbeddingUnavailable) as caught:
        embedder.embed_documents(["a", "b"])
    assert "unknown_parameter" in caught.value.message
    assert endpoint.texts == [["a", "b"], ["a"], ["ok"]]


@pytest.mark.parametrize(
    ("headers", "milliseconds"), [({"Retry-After": "7"}, 7000), ({"retry-after-ms": "120"}, 120), ({}, 5000)]
)
def test_a_rate_limit_is_handed_to_the_caller(
    endpoint: FakeEndpoint, headers: dict[str, str], milliseconds: int
) -> None:
    endpoint.script = lambda _: Answer(429, {}, headers)
    with opened(endpoint.settings()) as embedder, pytest.raises(Limited) as caught:
        embedder.embed_documents(["a"])
    assert caught.value.retry_after_ms == milliseconds
    assert caught.value.retryable
    assert len(endpoint.requests) == 1


def test_after_a_rate_limit_the_next_call_goes_on_where_it_stopped(endpoint: FakeEndpoint) -> None:
    endpoint.script = lambda texts: Answer(429, {}) if len(endpoint.requests) == 3 else vectors(texts)
    texts = [str(number) for number in range(10)]
    with opened(endpoint.settings(batch_max=2)) as embedder:
        with pytest.raises(Limited):
            embedder.embed_documents(texts)
        np.testing.assert_allclose(embedder.embed_documents(texts), expect(texts), rtol=1e-6)
    assert sum(len(batch) for batch in endpoint.texts) == 10 + 2


@pytest.mark.parametrize("status", [500, 502, 503, 408])
def test_a_service_that_is_down_is_unreachable(endpoint: FakeEndpoint, status: int) -> None:
    endpoint.script = lambda _: Answer(status, b"<html>SECRET</html>")
    with opened(endpoint.settings()) as embedder, pytest.raises(Unreachable, match=str(status)) as caught:
        embedder.embed_documents(["a"])
    assert "SECRET" not in caught.value.message
    assert endpoint.texts == [["a"]]


def test_nobody_listening_is_unreachable() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        settings = EmbeddingSettings(
            provider="openai-compatible",
            model="fake",
            base_url=f"http://127.0.0.1:{bound.getsockname()[1]}",
            dimensions=4,
        )
        with opened(settings) as embedder, pytest.raises(Unreachable, match="not reachable"):
            embedder.embed_documents(["a"])


@pytest.mark.parametrize("how", ["hang", "drip"])
def test_the_deadline_covers_the_whole_exchange(endpoint: FakeEndpoint, how: str) -> None:
    endpoint.script = lambda texts: Answer(200, vectors(texts).body, hang=how == "hang", drip=how == "drip")
    with opened(endpoint.settings(deadline_ms=200)) as embedder:
        with pytest.raises(Late, match=r"0\.2 s"):
            embedder.embed_documents(["a"])
        endpoint.script = vectors
        np.testing.assert_allclose(embedder.embed_documents(["a"]), expect(["a"]), rtol=1e-6)


def test_a_connection_that_was_closed_meanwhile_is_made_again(endpoint: FakeEndpoint) -> None:
    endpoint.script = lambda texts: Answer(200, {}, leave=True) if len(endpoint.requests) == 2 else vectors(texts)
    with opened(endpoint.settings()) as embedder:
        embedder.embed_documents(["a"])
        np.testing.assert_allclose(embedder.embed_documents(["b"]), expect(["b"]), rtol=1e-6)
    assert endpoint.texts == [["a"], ["b"], ["b"]]


def test_an_endpoint_that_always_leaves_is_unreachable(endpoint: FakeEndpoint) -> None:
    endpoint.script = lambda _: Answer(200, {}, leave=True)
    with opened(endpoint.settings()) as embedder, pytest.raises(Unreachable, match="RemoteProtocolError"):
        embedder.embed_documents(["a"])
    assert len(endpoint.requests) == 2


def test_an_answer_without_end_does_not_fill_the_memory(
    endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.embedding.endpoint.ANSWER_BYTES_MAX", 1000)
    endpoint.script = lambda _: Answer(200, b" " * 100_000)
    with opened(endpoint.settings()) as embedder, pytest.raises(EmbeddingUnavailable, match=r"100000 bytes.* 1000"):
        embedder.embed_documents(["a"])


def test_the_key_comes_from_the_environment(endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(endpoint.settings(api_key="env:BULKHEAD_TEST_KEY")) as embedder:
        monkeypatch.delenv("BULKHEAD_TEST_KEY", raising=False)
        with pytest.raises(EmbeddingUnavailable, match="'BULKHEAD_TEST_KEY'"):
            embedder.embed_documents(["a"])
        monkeypatch.setenv("BULKHEAD_TEST_KEY", "hush\n")
        embedder.embed_documents(["a"])
        monkeypatch.setenv("BULKHEAD_TEST_KEY", "hush\r\nx-evil: 1")
        with pytest.raises(EmbeddingUnavailable) as caught:
            embedder.embed_documents(["b"])
    assert "hush" not in caught.value.message
    assert [headers["authorization"] for headers in endpoint.headers] == ["Bearer hush"]


def test_without_a_key_no_authorization_is_sent(endpoint: FakeEndpoint) -> None:
    with opened(endpoint.settings()) as embedder:
        embedder.embed_documents(["a"])
    assert "authorization" not in endpoint.headers[0]


def test_a_redirect_takes_neither_text_nor_key_elsewhere(
    endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BULKHEAD_TEST_KEY", "hush")
    with FakeEndpoint() as other:
        endpoint.script = lambda _: Answer(307, {}, {"location": f"{other.base_url}/embeddings"})
        settings = endpoint.settings(api_key="env:BULKHEAD_TEST_KEY")
        with opened(settings) as embedder, pytest.raises(EmbeddingUnavailable, match="307"):
            embedder.embed_documents(["a"])
        assert other.requests == []


def test_proxies_are_not_asked_for_this_machine(endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with opened(endpoint.settings()) as embedder:
        embedder.embed_documents(["a"])
    assert endpoint.texts == [["a"]]


def test_nothing_is_logged(endpoint: FakeEndpoint, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with opened(endpoint.settings()) as embedder:
        embedder.embed_documents(["a"])
    assert [record for record in caplog.records if record.name.startswith("http")] == []


def test_threads_wait_for_each_other(endpoint: FakeEndpoint) -> None:
    with opened(endpoint.settings()) as embedder:
        found: dict[int, np.ndarray] = {}

        def run(number: int) -> None:
            found[number] = embedder.embed_documents([f"text {number}"])

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number, vector in found.items():
        np.testing.assert_allclose(vector, expect([f"text {number}"]), rtol=1e-6)
    assert len(found) == 4


@pytest.mark.parametrize("cap", [10, 16, 20, 64])
@pytest.mark.parametrize("status", [400, 413])
def test_a_size_that_was_found_stays_whatever_the_number_of_texts(
    endpoint: FakeEndpoint, cap: int, status: int
) -> None:
    """A call with a few texts more than the size is cut to it, and the size is not halved again for that."""
    endpoint.script = lambda texts: vectors(texts) if len(texts) <= cap else Answer(status, {})
    with opened(endpoint.settings(batch_max=64)) as embedder:
        for count in (64, 9, 17, 11, 33, 23, 64):
            texts = [f"{count} {number}" for number in range(count)]
            np.testing.assert_allclose(embedder.embed_documents(texts), expect(texts), rtol=1e-6)
    size = {10: 8, 16: 16, 20: 16, 64: 64}[cap]
    assert [len(batch) for batch in endpoint.texts[-(64 // size) :]] == [size] * (64 // size)
    assert len([batch for batch in endpoint.texts if len(batch) > cap]) == {10: 3, 16: 2, 20: 2, 64: 0}[cap]


@pytest.mark.parametrize(
    "rows",
    [
        [{"index": 0, "embedding": [1, 2, 3, 4]}, {"index": 0, "embedding": [4, 3, 2, 1]}],
        [{"index": 1, "embedding": [1, 2, 3, 4]}, {"index": 2, "embedding": [4, 3, 2, 1]}],
        [{"index": 0, "embedding": [1, 2, 3, 4]}, {"embedding": [4, 3, 2, 1]}],
        [{"index": 0, "embedding": [1, 2, 3, 4]}],
        [{"index": number, "embedding": [1, 2, 3, 4]} for number in range(3)],
        [{"index": 0, "embedding": [1, 2, 3, 4]}, {"index": 1, "embedding": [1e999, 1, 1, 1]}],
        [{"index": 0, "embedding": [1, 2, 3, 4]}, {"index": 1, "embedding": [0, 0, 0, 0]}],
    ],
    ids=["duplicate indexes", "from one", "half of them", "fewer", "more", "infinite", "zero"],
)
def test_an_answer_that_cannot_be_matched_with_the_texts_is_used_for_none(
    endpoint: FakeEndpoint, rows: list[dict[str, object]]
) -> None:
    endpoint.script = lambda _: data_of(*rows)
    with opened(endpoint.settings()) as embedder, pytest.raises(EmbeddingUnavailable, match="wrong answer"):
        embedder.embed_documents(["a", "b"])
