"""Checks of what clients send to the truth, before any transaction. Pure.

Each raises InvalidParams that names the field, the value found, the limit and its key in config.toml. `what` is what
was attempted ("append", "unit.put"), `config` the key.
"""

import msgspec

from actors.errors import InvalidParams
from actors.sql.rows import TS_MAX, TS_MIN

# Encoders and decoders recurse. What one process just managed to write, another must manage to read, for ever.
JSON_DEPTH_MAX = 100


def check_text(what: str, field: str, value: str, bytes_max: int, config: str) -> bytes:
    """Return the text in UTF-8; refuse more than `bytes_max` bytes and half surrogate pairs. NUL is allowed."""
    try:
        encoded = value.encode()
    except UnicodeEncodeError as error:
        raise InvalidParams(
            f"{what} refused: {field} holds a lone surrogate at character {error.start}, which is not text",
            hint="send the text as valid UTF-8",
        ) from error
    if len(encoded) > bytes_max:
        raise InvalidParams(f"{what} refused: {field} is {len(encoded)} bytes, the limit is {bytes_max} ({config})")
    return encoded


def check_id(what: str, field: str, value: str | None, chars_max: int, config: str) -> None:
    """Refuse an id that is empty, longer than `chars_max` characters, or holds NUL or half surrogate pairs."""
    if value is None:
        return
    if not value:
        raise InvalidParams(f"{what} refused: {field} is empty")
    if len(value) > chars_max:
        raise InvalidParams(f"{what} refused: {field} is {len(value)} characters, the limit is {chars_max} ({config})")
    if "\0" in value:
        raise InvalidParams(f"{what} refused: {field} holds NUL at character {value.index(chr(0))}: {value!r}")
    check_text(what, field, value, 4 * chars_max, config)


def check_ids(what: str, ids: dict[str, str | None], chars_max: int, config: str) -> None:
    """Check several ids, by field."""
    for field, value in ids.items():
        check_id(what, field, value, chars_max, config)


def check_tags(what: str, tags: tuple[str, ...], *, count_max: int, chars_max: int, room: str) -> str:
    """Return the tags as a JSON array; refuse too many and those that `check_id` refuses."""
    if len(tags) > count_max:
        raise InvalidParams(f"{what} refused: {len(tags)} tags, the limit is {count_max} ({room}.tags_max)")
    for index, tag in enumerate(tags):
        check_id(what, f"tags[{index}]", tag, chars_max, f"{room}.tag_chars_max")
    return msgspec.json.encode(tags).decode()


def check_json(what: str, field: str, value: dict[str, object] | None, bytes_max: int, config: str) -> str | None:
    """Return the value as JSON text; refuse more than `bytes_max` bytes, deep nests, and what JSON can't express."""
    if value is None:
        return None
    if _is_deeper(value, JSON_DEPTH_MAX):
        raise InvalidParams(f"{what} refused: {field} is nested more than {JSON_DEPTH_MAX} levels deep")
    try:
        encoded = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidParams(f"{what} refused: {field} is not JSON: {error}") from error
    if len(encoded) > bytes_max:
        raise InvalidParams(f"{what} refused: {field} is {len(encoded)} bytes, the limit is {bytes_max} ({config})")
    return encoded.decode()


def check_ts(what: str, field: str, ts: int | None) -> None:
    """Refuse a time outside the years 1 to 9999."""
    if ts is not None and not TS_MIN <= ts <= TS_MAX:
        raise InvalidParams(
            f"{what} refused: {field} is {ts} µs since 1970, the limits are {TS_MIN} and {TS_MAX}",
            hint="times are microseconds since the epoch, UTC",
        )


def _is_deeper(value: object, levels: int) -> bool:
    """Say whether a JSON value is nested deeper than so many levels, without recursion."""
    layer = [value]
    for _ in range(levels):
        inner: list[object] = []
        for each in layer:
            if isinstance(each, dict):
                inner.extend(each.values())
            elif isinstance(each, list | tuple):
                inner.extend(each)
        layer = [each for each in inner if isinstance(each, dict | list | tuple)]
        if not layer:
            return False
    return True
