"""JSON-RPC lines: what is accepted, what is refused and how, and the splitter's limits."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import InvalidParams, Overloaded
from supervisor import params
from supervisor.rpc import (
    LineSplitter,
    Malformed,
    Request,
    check_depth,
    decode_params,
    encode_error,
    encode_failure,
    encode_result,
    parse,
)


def test_a_request_is_parsed_without_decoding_its_params() -> None:
    request = parse(b'{"jsonrpc":"2.0","id":"a","method":"event.get","params":{"event_id":"x"}}')
    assert isinstance(request, Request)
    assert (request.id, request.method, bytes(request.params)) == ("a", "event.get", b'{"event_id":"x"}')


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        (b"nonsense", -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":NaN}}', -32700, 1),
        (rb'{"jsonrpc":"2.0","id":"s","method":"x","params":{"a":"\ud800"}}', -32700, "s"),
        (b'{"jsonrpc":"2.0","id":1,"method":"x","params":' + b"[" * 100_000, -32700, None),
        (b'\xff{"jsonrpc":"2.0"}', -32700, None),
        (b"[]", -32600, None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"x"}]', -32600, None),
        (b'"text"', -32600, None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"x"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":null,"method":"x"}', -32600, None),
        (b'{"jsonrpc":"1.0","id":7,"method":"x"}', -32600, 7),
        (b'{"jsonrpc":"2.0","id":7}', -32600, 7),
        (b'{"jsonrpc":"2.0","id":7,"method":5}', -32600, 7),
    ],
)
def test_a_malformed_line_is_answered_with_its_code(line: bytes, code: int, request_id: int | str | None) -> None:
    found = parse(line)
    assert isinstance(found, Malformed)
    assert (found.code, found.id) == (code, request_id)


@given(st.binary(max_size=300))
def test_no_line_raises(line: bytes) -> None:
    assert isinstance(parse(line), Malformed | Request)


def test_answers_are_one_line_each() -> None:
    failure = encode_failure(3, Overloaded("full\nvery full", actor="core_writer", epoch=2, retry_after_ms=50))
    for line in (encode_result(1, {"a": "b\nc"}), encode_error(None, -32700, "x\ny"), failure):
        assert line.endswith(b"\n") and line.count(b"\n") == 1
    data = json.loads(failure)["error"]["data"]
    assert data == {
        "kind": "Overloaded",
        "outcome": "not_executed",
        "retryable": True,
        "actor": "core_writer",
        "epoch": 2,
        "retry_after_ms": 50,
    }


def test_an_unknown_parameter_comes_with_a_suggestion() -> None:
    with pytest.raises(InvalidParams, match="unknown parameter 'sesion_id'; did you mean 'session_id'"):
        decode_params(
            msgspec.Raw(b'{"sesion_id":"s","actor":"user","content":"x"}'), params.EventAppend, "event.append"
        )
    with pytest.raises(InvalidParams, match="unknown parameter 'tagz'; did you mean 'tags'"):
        decode_params(msgspec.Raw(b'{"query":"x","filters":{"tagz":[]}}'), params.MemorySearch, "memory.search")


@pytest.mark.parametrize("raw", [b'{"query":5}', b'{"limit":0,"query":"x"}', b'"x"', b"{}", b'{"query":"\xff"}'])
def test_wrong_types_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidParams, match=r"^memory\.search: "):
        decode_params(msgspec.Raw(raw), params.MemorySearch, "memory.search")


def test_absent_params_are_an_empty_object() -> None:
    assert decode_params(msgspec.Raw(b""), params.NoParams, "system.status") == params.NoParams()


@given(
    st.lists(st.binary(max_size=40).map(lambda text: text.replace(b"\n", b"").strip(b" \t\r")), max_size=20),
    st.integers(1, 50),
    st.randoms(use_true_random=False),
)
def test_the_splitter_gives_the_same_lines_however_they_arrive(
    lines: list[bytes], limit: int, random: "object"
) -> None:
    stream = b"".join(line + b"\r\n" for line in lines)
    splitter, found = LineSplitter(limit), []
    while stream:
        size = random.randint(1, 30)  # type: ignore[attr-defined]
        found += splitter.feed(stream[:size])
        stream = stream[size:]
    expected = [None if len(line) + 1 > limit else line for line in lines if line]
    # A line of exactly the limit plus its CR may pass or not, depending on where the pieces were cut.
    assert len(found) == len(expected)
    assert all(a == b for a, b in zip(found, expected, strict=True) if b is not None)


def test_an_endless_line_costs_no_memory_and_the_stream_stays_in_step() -> None:
    splitter = LineSplitter(1000)
    found: list[bytes | None] = []
    for _ in range(10_000):
        found += splitter.feed(b"x" * 1000)
    found += splitter.feed(b"\nnext\n")
    assert found == [None, b"next"]


def nested(levels: int) -> object:
    value: object = 1
    for number in range(levels):
        value = [value] if number % 2 else {"a": value}
    return value


def test_deep_nesting_is_refused() -> None:
    assert check_depth(nested(100), "meta") == nested(100)
    with pytest.raises(InvalidParams, match="meta: nested more than 100 levels"):
        check_depth(nested(101), "meta")
    assert check_depth(None, "meta") is None
