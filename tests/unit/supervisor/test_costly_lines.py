"""Lines that would keep the loop busy are refused before Python code walks through them."""

import json

import msgspec
import pytest

from actors.errors import InvalidParams
from supervisor.params import EventAppend
from supervisor.rpc import METHOD_CHARS_MAX, VALUES_MAX, Malformed, check_depth, decode_params, free_form, parse


def test_a_method_of_a_million_characters_is_refused_and_not_repeated() -> None:
    answer = parse(json.dumps({"jsonrpc": "2.0", "id": 7, "method": "x" * 1_000_000}).encode())
    assert isinstance(answer, Malformed)
    assert answer.id == 7 and str(METHOD_CHARS_MAX) in answer.message and len(answer.message) < 200


def test_an_unknown_parameter_of_a_million_characters_is_not_repeated() -> None:
    raw = msgspec.Raw(json.dumps({"x" * 1_000_000: 1}).encode())
    with pytest.raises(InvalidParams) as refused:
        decode_params(raw, EventAppend, "event.append")
    assert len(refused.value.message) < 300


@pytest.mark.parametrize("value", [{"a": [0] * (VALUES_MAX + 1)}, {str(n): [] for n in range(VALUES_MAX + 1)}])
def test_an_object_of_very_many_values_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(InvalidParams, match=f"more than {VALUES_MAX} values"):
        check_depth(value, "meta")


def test_an_object_of_many_values_is_kept_as_it_is() -> None:
    value = {"a": [{"b": [1, 2]}] * 1000}
    assert check_depth(value, "meta") is value


def test_a_free_form_object_is_not_decoded_before_its_size_is_known() -> None:
    raw = msgspec.Raw(b"[" + b"{}," * 100 + b"not json")
    with pytest.raises(InvalidParams, match=r"meta: \d+ bytes of JSON, limit is 64 \(config: x\.y\)"):
        free_form(raw, "meta", bytes_max=64, key="x.y")


def test_a_free_form_object_is_an_object_or_nothing() -> None:
    assert free_form(msgspec.Raw(b"null"), "meta", bytes_max=64, key="x.y") is None
    assert free_form(msgspec.Raw(b'{"a": [1]}'), "meta", bytes_max=64, key="x.y") == {"a": [1]}
    for other in (b"[1]", b'"text"', b"1", b"{"):
        with pytest.raises(InvalidParams, match="meta: not readable"):
            free_form(msgspec.Raw(other), "meta", bytes_max=64, key="x.y")
