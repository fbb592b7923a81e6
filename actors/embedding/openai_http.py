"""Requests to an OpenAI-compatible /embeddings endpoint and what its answers mean. Pure: no I/O, no clock.

Vectors leave here as little-endian float32 bytes of unit norm, so that the daemon needs no numpy for them. Of what an
endpoint says about an error only its short code is kept: the rest may repeat the text that was sent.
"""

import array
import math
import re
import sys
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

NORM_MIN = 1e-9
RETRY_DEFAULT_MS = 5_000
RETRY_MAX_MS = 600_000
# Endpoints refuse an empty input; whoever sends one gets the vector of a full stop.
BLANK = "."

_SHORT = re.compile(r"[A-Za-z0-9_.-]{1,60}\Z")


class Meaning(Enum):
    """What the status of an answer says about asking again."""

    OK = "ok"
    INPUT = "input"  # too many texts, too long, or one that is not accepted: ask with fewer
    LIMITED = "limited"  # ask later
    UNAVAILABLE = "unavailable"  # the service is not there
    REFUSED = "refused"  # key, address or model are wrong: a person has to change something


class WrongAnswer(ValueError):
    """The body of an answer is not what was asked for."""


class Embedded(NamedTuple):
    """What came back: a vector a text, and which model the endpoint says they are of (None: it does not say)."""

    vectors: list[bytes]
    model: str | None


class _Item(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Body(msgspec.Struct):
    data: list[_Item]
    model: object = None


class _ErrorDetail(msgspec.Struct):
    code: str | int | None = None
    type: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorDetail


_decoder = msgspec.json.Decoder(_Body)
_error_decoder = msgspec.json.Decoder(_ErrorBody)


def embeddings_url(base_url: str) -> str:
    """Return the address that texts are sent to."""
    return base_url.rstrip("/") + "/embeddings"


def host_of(base_url: str) -> str:
    """Return the host and port of an address, for messages: the rest may be private."""
    return urlsplit(base_url).netloc


def build_body(texts: list[str], *, model: str, dimensions: int) -> bytes:
    """Return the request for some texts, which must be clean; `dimensions` lets the model shorten its vectors."""
    inputs = [text if text.strip() else BLANK for text in texts]
    return msgspec.json.encode({"model": model, "input": inputs, "dimensions": dimensions, "encoding_format": "float"})


def meaning_of(status: int) -> Meaning:
    """Sort an HTTP status. 408 and 5xx are the service's trouble; a redirect is an address that is wrong."""
    if status == 200:
        return Meaning.OK
    if status in (400, 413, 422):
        return Meaning.INPUT
    if status == 429:
        return Meaning.LIMITED
    if status == 408 or status >= 500:
        return Meaning.UNAVAILABLE
    return Meaning.REFUSED


def retry_after_ms(headers: Mapping[str, str], *, now_s: float) -> int:
    """Return for how long a limited endpoint wants to be left alone, within 0 and RETRY_MAX_MS.

    `headers` have lower-case names; `now_s` are seconds since the epoch, for a Retry-After that is a date.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is None:
        after = headers.get("retry-after")
        seconds = _number(after)
        if seconds is None:
            seconds = _seconds_until(after, now_s)
        milliseconds = RETRY_DEFAULT_MS if seconds is None else seconds * 1000
    return round(min(max(milliseconds, 0), RETRY_MAX_MS))


def error_code(body: bytes) -> str | None:
    """Return the code or type in an error body when it is a short name, else None."""
    try:
        detail = _error_decoder.decode(body).error
    except msgspec.DecodeError:
        return None
    names = (str(value) for value in (detail.code, detail.type) if value is not None)
    return next((name for name in names if _SHORT.match(name)), None)


def parse_answer(body: bytes, *, count: int, dimensions: int) -> Embedded:
    """Return the vectors in the order of the request; raises WrongAnswer unless every one is there and usable."""
    try:
        answer = _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise WrongAnswer("the answer is not a list of embeddings") from error
    items = answer.data
    if len(items) != count:
        raise WrongAnswer(f"{len(items)} vectors for {count} texts")
    model = answer.model if isinstance(answer.model, str) and answer.model else None
    return Embedded([_unit_bytes(values, dimensions) for values in _in_order(items)], model)


def _in_order(items: list[_Item]) -> list[list[float]]:
    """Restore the order of the request: answers may come in any, and some servers give no index at all."""
    if all(item.index is None for item in items):
        return [item.embedding for item in items]
    by_index = {item.index: item.embedding for item in items}
    try:
        return [by_index[index] for index in range(len(items))]
    except KeyError:
        raise WrongAnswer(f"the indexes of the vectors are not 0 to {len(items) - 1}") from None


def _unit_bytes(values: list[float], dimensions: int) -> bytes:
    if len(values) != dimensions:
        raise WrongAnswer(f"a vector has {len(values)} dimensions, {dimensions} are configured")
    norm = math.hypot(*values)
    if not NORM_MIN < norm < math.inf:  # NaN compares false
        raise WrongAnswer(f"a vector has length {norm}, a finite positive one is expected")
    packed = array.array("f", [value / norm for value in values])
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _seconds_until(date: str | None, now_s: float) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() - now_s if date is not None else None
    except (ValueError, OverflowError):
        return None
