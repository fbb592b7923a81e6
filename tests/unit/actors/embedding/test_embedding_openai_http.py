"""Requests and answers of an endpoint, without one."""

import array
import json
import math

import pytest

from actors.embedding.openai_http import (
    RETRY_DEFAULT_MS,
    RETRY_MAX_MS,
    Meaning,
    WrongAnswer,
    build_body,
    embeddings_url,
    error_code,
    meaning_of,
    parse_answer,
    retry_after_ms,
)


def values(blob: bytes) -> list[float]:
    return array.array("f", blob).tolist()


def body(*rows: object) -> bytes:
    return json.dumps({"data": list(rows)}).encode()


def test_the_request_has_what_every_endpoint_needs() -> None:
    request = json.loads(build_body(["one", " \n", ""], model="m", dimensions=3))
    assert request == {"model": "m", "input": ["one", ".", "."], "dimensions": 3, "encoding_format": "float"}


def test_the_address_is_the_base_and_embeddings() -> None:
    assert embeddings_url("https://h/v1") == embeddings_url("https://h/v1/") == "https://h/v1/embeddings"


def test_vectors_are_put_in_the_order_of_the_request_and_scaled() -> None:
    answer = body({"index": 1, "embedding": [0, 2]}, {"index": 0, "embedding": [3, 4]})
    first, second = (values(blob) for blob in parse_answer(answer, count=2, dimensions=2).vectors)
    assert first == pytest.approx([0.6, 0.8])
    assert second == [0.0, 1.0]


def test_an_answer_without_indexes_is_in_order() -> None:
    answer = body({"embedding": [1, 0]}, {"embedding": [0, 1]})
    assert [values(blob) for blob in parse_answer(answer, count=2, dimensions=2).vectors] == [[1.0, 0.0], [0.0, 1.0]]


def test_huge_values_do_not_overflow() -> None:
    (blob,) = parse_answer(body({"embedding": [1e300, 1e300]}), count=1, dimensions=2).vectors
    assert values(blob) == pytest.approx([math.sqrt(0.5)] * 2)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"not json",
        b"[]",
        b'{"data": [{"index": 0, "embedding": [NaN, 1]}, {"index": 1, "embedding": [1, 1]}]}',
        body({"index": 0, "embedding": [1, 1]}),
        body(*[{"index": i, "embedding": [1, 1]} for i in range(3)]),
        body({"index": 0, "embedding": [1, 1]}, {"index": 0, "embedding": [1, 1]}),
        body({"index": 1, "embedding": [1, 1]}, {"index": 2, "embedding": [1, 1]}),
        body({"index": 0, "embedding": [1, 1]}, {"embedding": [1, 1]}),
        body({"index": 0, "embedding": [1, 1]}, {"index": 1, "embedding": [1, 1, 1]}),
        body({"index": 0, "embedding": [1, 1]}, {"index": 1, "embedding": [0, 0]}),
        body({"index": 0, "embedding": [1, 1]}, {"index": 1, "embedding": [None, 1]}),
        body({"index": 0, "embedding": [1, 1]}, {"index": 1, "embedding": "AACAPw=="}),
        b'{"data": [{"index": 0, "embedding": [1e999, 1]}, {"index": 1, "embedding": [1, 1]}]}',
    ],
)
def test_an_answer_that_is_not_two_usable_vectors_is_wrong(answer: bytes) -> None:
    with pytest.raises(WrongAnswer):
        parse_answer(answer, count=2, dimensions=2)


@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        (200, Meaning.OK),
        (400, Meaning.INPUT),
        (413, Meaning.INPUT),
        (422, Meaning.INPUT),
        (429, Meaning.LIMITED),
        (408, Meaning.UNAVAILABLE),
        (500, Meaning.UNAVAILABLE),
        (503, Meaning.UNAVAILABLE),
        (599, Meaning.UNAVAILABLE),
        (301, Meaning.REFUSED),
        (401, Meaning.REFUSED),
        (403, Meaning.REFUSED),
        (404, Meaning.REFUSED),
        (204, Meaning.REFUSED),
    ],
)
def test_a_status_says_whether_to_ask_again(status: int, meaning: Meaning) -> None:
    assert meaning_of(status) is meaning


@pytest.mark.parametrize(
    ("headers", "milliseconds"),
    [
        ({}, RETRY_DEFAULT_MS),
        ({"retry-after": "7"}, 7000),
        ({"retry-after": "0.5"}, 500),
        ({"retry-after-ms": "250", "retry-after": "7"}, 250),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 90_000),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:01 GMT"}, 0),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": "99999999"}, RETRY_MAX_MS),
        ({"retry-after": "soon"}, RETRY_DEFAULT_MS),
        ({"retry-after": "nan"}, RETRY_DEFAULT_MS),
        ({"retry-after": "inf"}, RETRY_DEFAULT_MS),
        ({"retry-after": ""}, RETRY_DEFAULT_MS),
    ],
)
def test_a_limit_says_for_how_long(headers: dict[str, str], milliseconds: int) -> None:
    assert retry_after_ms(headers, now_s=10.0) == milliseconds


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b'{"error": {"code": "context_length_exceeded", "message": "x"}}', "context_length_exceeded"),
        (b'{"error": {"code": null, "type": "server_error"}}', "server_error"),
        (b'{"error": {"code": 20015}}', "20015"),
        (b'{"error": {"code": "the text you sent: secret", "type": "bad"}}', "bad"),
        (b'{"error": {"code": "what you sent"}}', None),
        (b'{"error": "secret"}', None),
        (b"<html>", None),
    ],
)
def test_of_an_error_only_its_short_code_is_kept(answer: bytes, code: str | None) -> None:
    assert error_code(answer) == code
