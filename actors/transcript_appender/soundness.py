"""Is a row one that could have been written? Pure.

SQLite checks its pages and not the bits of its values. The hash covers the content; of the other columns the types and
limits are looked at, so that what a disk made of them is found before it is served, or breaks whoever serves it.
"""

from typing import get_args

import msgspec

from actors.messages.base import EventActor, EventKind
from actors.sql.rows import TS_MAX, TS_MIN
from actors.transcript_appender import store
from actors.transcript_appender.store import EventRow

_KINDS, _ACTORS = frozenset(get_args(EventKind)), frozenset(get_args(EventActor))
_TEXTS = ("event_id", "tenant", "session_id", "kind", "actor", "scope", "tags", "content")
_OPTIONAL_TEXTS = ("channel", "project", "trace_id", "request_id", "meta")
_tags = msgspec.json.Decoder(list[str])


def is_sound(row: EventRow) -> bool:
    """Say whether a row is one that could have been written: types, limits, and the hash of its content."""
    texts = [getattr(row, name) for name in _TEXTS]
    texts += [value for name in _OPTIONAL_TEXTS if (value := getattr(row, name)) is not None]
    if not all(isinstance(text, str) and is_text(text) for text in texts):
        return False
    if not (isinstance(row.ts, int) and TS_MIN <= row.ts <= TS_MAX and isinstance(row.content_hash, bytes)):
        return False
    if row.kind not in _KINDS or row.actor not in _ACTORS or not store.is_intact(row):
        return False
    try:
        _tags.decode(row.tags)
        return row.meta is None or isinstance(msgspec.json.decode(row.meta), dict)
    except msgspec.DecodeError:
        return False


def is_text(text: str) -> bool:
    """Say whether a text holds no half surrogate pairs, as which bytes that are none are read."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
