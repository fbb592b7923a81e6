"""JSON-RPC 2.0 over lines: bytes to requests, answers to bytes. Pure: no I/O, no clock.

One line is one message, UTF-8, at most `line_bytes_max` (the splitter drains a longer one to its newline and
reports it, so the rest of the stream stays in step). Batches are not part of MCP any more and are refused.
Lone surrogates, NaN, unbalanced JSON and depth bombs are refused by msgspec's strict decoder.
"""

import difflib
import itertools
import json
import re
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from actors.errors import BulkheadError, InvalidParams

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
RESCUE_BYTES_MAX = 256 * 1024
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**63 - 1
DEPTH_MAX = 100
# A client's line may be 8 MiB. What Python code walks through, or what an error message repeats, is bounded here:
# the loop must not stand still for one client.
VALUES_MAX = 262_144
METHOD_CHARS_MAX = 128
NAME_CHARS_SHOWN = 64

Id = int | str
Params = TypeVar("Params", bound=msgspec.Struct)
Nested = TypeVar("Nested")
NULL = msgspec.Raw(b"null")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request (with `id`) or a notification (`id` is None). `params` are undecoded JSON, or empty."""

    method: str
    id: Id | None
    params: msgspec.Raw


class Malformed(msgspec.Struct, frozen=True, kw_only=True):
    """A line that is no request; the answer to it. `id` is known when the line was JSON and had a usable one."""

    id: Id | None
    code: int
    message: str


class _Line(msgspec.Struct):
    """What a request line may hold; further members are ignored, as JSON-RPC allows."""

    jsonrpc: object = None
    method: object = None
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    params: msgspec.Raw = msgspec.Raw(b"")


_lines = msgspec.json.Decoder(_Line)
_ids = msgspec.json.Decoder(int | str)


def parse(line: bytes) -> Request | Malformed:
    """Decode one line."""
    try:
        decoded = _lines.decode(line)
    except msgspec.ValidationError:
        batch = line.lstrip()[:1] == b"["
        text = "batches are not supported, send one request a line" if batch else "the line must hold one JSON object"
        return Malformed(id=None, code=INVALID_REQUEST, message=text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = f"the line is not valid JSON in UTF-8: {error}"
        return Malformed(id=_rescue_id(line), code=PARSE_ERROR, message=text)
    request_id: Id | None = None
    if decoded.id is not msgspec.UNSET:
        try:
            request_id = _ids.decode(decoded.id)
        except msgspec.DecodeError:
            return Malformed(id=None, code=INVALID_REQUEST, message="id must be a string or an integer")
    if decoded.jsonrpc != "2.0":
        return Malformed(id=request_id, code=INVALID_REQUEST, message="jsonrpc must be '2.0'")
    if not isinstance(decoded.method, str) or not decoded.method:
        return Malformed(id=request_id, code=INVALID_REQUEST, message="method must be a non-empty string")
    if len(decoded.method) > METHOD_CHARS_MAX:
        text = f"method is {len(decoded.method)} characters long, limit is {METHOD_CHARS_MAX}"
        return Malformed(id=request_id, code=INVALID_REQUEST, message=text)
    return Request(method=decoded.method, id=request_id, params=decoded.params)


def _rescue_id(line: bytes) -> Id | None:
    """Find the id in a line that only a lenient parser reads (NaN, lone surrogates): its sender gets the answer."""
    if len(line) > RESCUE_BYTES_MAX:
        return None
    try:
        decoded = json.loads(line)
    except (ValueError, RecursionError):
        return None
    found = decoded.get("id") if isinstance(decoded, dict) else None
    return found if isinstance(found, str | int) and not isinstance(found, bool) else None


def encode_result(request_id: Id, result: object) -> bytes:
    """Return the line that answers a request."""
    return _with_newline({"jsonrpc": "2.0", "id": request_id, "result": result})


def encode_error(request_id: Id | None, code: int, message: str, data: object = None) -> bytes:
    """Return the line that refuses a request."""
    error: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return _with_newline({"jsonrpc": "2.0", "id": request_id, "error": error})


def encode_failure(request_id: Id | None, error: BulkheadError) -> bytes:
    """Return the line that reports an operating error, with what the caller can do about it."""
    return encode_error(request_id, error.code, error.message, error_data(error))


def error_data(error: BulkheadError) -> dict[str, object]:
    """Return `error.data`: always outcome and retryable; the rest where it is known."""
    data: dict[str, object] = {
        "kind": type(error).__name__,
        "outcome": error.outcome,
        "retryable": error.retryable,
        "actor": error.actor,
        "epoch": error.epoch,
        "retry_after_ms": error.retry_after_ms,
        "hint": error.hint,
    }
    return {name: value for name, value in data.items() if value is not None}


def encode_notification(method: str, params: object) -> bytes:
    """Return the line of a notification."""
    return _with_newline({"jsonrpc": "2.0", "method": method, "params": params})


def _with_newline(message: object) -> bytes:
    # JSON text never holds a raw newline, and raw results made by the workers do not either.
    return msgspec.json.encode(message) + b"\n"


def suggest(word: str, known: Iterable[str]) -> str:
    """Return ', did you mean …?' for the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


_UNKNOWN = re.compile(r"^Object contains unknown field `([^`]*)`")


def decode_params(raw: msgspec.Raw, kind: type[Params], method: str) -> Params:
    """Decode parameters strictly; a refusal names the member, and for an unknown one the nearest known."""
    try:
        params = msgspec.json.decode(raw if bytes(raw) else b"{}", type=kind)
    except msgspec.ValidationError as error:
        text = str(error)
        match = _UNKNOWN.match(text)
        if match is not None:
            name = match[1][:NAME_CHARS_SHOWN]
            text = f"unknown parameter {name!r}{suggest(name, known_fields(kind))}"
        raise InvalidParams(f"{method}: {text}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidParams(f"{method}: parameters are not readable: {error}") from error
    if (field := _too_large(params)) is not None:
        raise InvalidParams(f"{method}: {field} is a whole number beyond 64 bits, which nothing here can hold")
    return params


def _too_large(params: msgspec.Struct) -> str | None:
    """Return which member is a whole number that neither a column nor a message can hold, also of rows in a list."""
    for name in params.__struct_fields__:
        value = getattr(params, name)
        if isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
            return name
        rows = value if isinstance(value, list | tuple) else (value,)
        for row in rows:
            if isinstance(row, msgspec.Struct) and (inside := _too_large(row)) is not None:
                return f"{name}.{inside}"
    return None


def free_form(raw: msgspec.Raw, field: str, *, bytes_max: int, key: str) -> dict[str, object] | None:
    """Return a free-form object that a client sent, or None; refuse what is too large before it is decoded.

    Decoding makes a Python object of every value, on the loop that everybody shares: 8 MiB of small ones take a second.
    """
    size = len(bytes(raw))
    if size > bytes_max:
        raise InvalidParams(f"{field}: {size} bytes of JSON, limit is {bytes_max} (config: {key})")
    try:
        value = msgspec.json.decode(raw, type=dict[str, object] | None)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidParams(f"{field}: not readable: {error}") from error
    return check_depth(value, field)


def check_depth(value: Nested, field: str) -> Nested:
    """Return a free-form object as it is, or refuse it when it is nested more deeply than every codec can follow.

    An object of very many values is refused as well, before it has been walked through.
    """
    level: list[object] = [value]
    seen = 0
    for _ in range(DEPTH_MAX + 1):
        inside = itertools.chain.from_iterable(map(_inside, level))
        level = list(itertools.islice(inside, VALUES_MAX + 1 - seen))
        seen += len(level)
        if seen > VALUES_MAX:
            raise InvalidParams(f"{field}: holds more than {VALUES_MAX} values")
        if any(isinstance(each, int) and not INTEGER_MIN <= each <= INTEGER_MAX for each in level):
            raise InvalidParams(f"{field}: holds a whole number beyond 64 bits; send it as text")
        if not level:
            return value
    raise InvalidParams(f"{field}: nested more than {DEPTH_MAX} levels deep")


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def known_fields(kind: type[msgspec.Struct]) -> list[str]:
    """Return the names of a parameter struct's members, nested ones included."""
    names = list(kind.__struct_encode_fields__)
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            names += field.type.__struct_encode_fields__
    return names


class LineSplitter:
    """Cut a byte stream into lines, with a limit.

    `feed` yields complete lines without their newline, and None for each line that was longer than the limit
    (once, when the limit is passed; the rest of that line is dropped). Blank lines are skipped, CRLF is tolerated.
    """

    def __init__(self, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._buffer = bytearray()
        self._searched = 0
        self._dropping = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """Add bytes and return the lines that are now complete."""
        self._buffer += data
        lines: list[bytes | None] = []
        start = 0
        while (end := self._buffer.find(b"\n", max(start, self._searched))) >= 0:
            lines += self._complete(bytes(self._buffer[start:end]))
            start = self._searched = end + 1
        del self._buffer[:start]
        self._searched = len(self._buffer)
        if len(self._buffer) > self._line_bytes_max:
            if not self._dropping:
                lines.append(None)
            self._dropping = True
        if self._dropping:
            self._buffer.clear()
            self._searched = 0
        return lines

    def _complete(self, line: bytes) -> list[bytes | None]:
        if self._dropping:
            self._dropping = False
            return []
        if len(line) > self._line_bytes_max:
            return [None]
        stripped = line.strip(b" \t\r")
        return [stripped] if stripped else []
