"""From a client's event to one that can be stored: without secrets, within the limits, with what is derived. Pure."""

import hashlib
from typing import NamedTuple

from actors.errors import InvalidParams
from actors.messages.transcript_appender import AppendEvents, EventDraft
from actors.redaction import Counts, Redactor
from actors.settings import TranscriptAppenderSettings
from actors.sql.limits import check_ids, check_json, check_tags, check_text, check_ts

_ROOM = "transcript_appender"
_WHAT = "append"


class Prepared(NamedTuple):
    """A draft within the limits, the sha256 of its content, and its JSON columns."""

    draft: EventDraft
    content_hash: bytes
    tags: str
    meta: str | None
    redacted: dict[str, int]


def prepare(message: AppendEvents, limits: TranscriptAppenderSettings, redactor: Redactor) -> list[Prepared]:
    """Redact and check every event of a message; raise InvalidParams for the first that is not acceptable."""
    if len(message.events) > limits.events_per_append_max:
        raise InvalidParams(
            f"append refused: {len(message.events)} events, the limit is {limits.events_per_append_max} "
            f"({_ROOM}.events_per_append_max)"
        )
    check_ids(_WHAT, {"tenant": message.tenant}, limits.id_chars_max, f"{_ROOM}.id_chars_max")
    return [_prepare(draft, limits, redactor) for draft in message.events]


def source_key(tenant: str, event: Prepared) -> bytes:
    """Return what two events have in common when one is the other sent twice: tenant, source, actor and content."""
    draft = event.draft
    return key_of_source(event.content_hash, tenant, draft.session_id, draft.channel, draft.project, draft.actor)


def key_of_source(content_hash: bytes, *source: str | None) -> bytes:
    """Return the key of a content from (tenant, session_id, channel, project, actor)."""
    digest = hashlib.sha256(content_hash)
    for part in source:
        encoded = b"" if part is None else part.encode()
        digest.update(b"-" if part is None else b"%d:" % len(encoded))
        digest.update(encoded)
    return digest.digest()


def _prepare(given: EventDraft, limits: TranscriptAppenderSettings, redactor: Redactor) -> Prepared:
    counts = Counts()
    draft = redactor.message(given, counts)
    ids = {
        "session_id": draft.session_id,
        "event_id": draft.event_id,
        "request_id": draft.request_id,
        "trace_id": draft.trace_id,
        "channel": draft.channel,
        "project": draft.project,
        "scope": draft.scope,
    }
    check_ids(_WHAT, ids, limits.id_chars_max, f"{_ROOM}.id_chars_max")
    check_ts(_WHAT, "ts", draft.ts)
    content = check_text(_WHAT, "content", draft.content, limits.content_bytes_max, f"{_ROOM}.content_bytes_max")
    return Prepared(
        draft=draft,
        content_hash=hashlib.sha256(content).digest(),
        tags=check_tags(_WHAT, draft.tags, count_max=limits.tags_max, chars_max=limits.tag_chars_max, room=_ROOM),
        meta=check_json(_WHAT, "meta", draft.meta, limits.meta_bytes_max, f"{_ROOM}.meta_bytes_max"),
        redacted=dict(sorted(counts.items())),
    )
