"""The body of a search reply: hits, and how good they are (P7). Pure."""

import msgspec

from actors.messages.base import Candidate, SearchMode
from actors.messages.index import GenerationRef
from actors.searcher.ranking import Ranked, explain
from actors.sql.rows import rfc3339

SCORE_DIGITS = 4


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """How complete an answer is. `behind` counts rows that the generation does not have (the words of which were
    searched in the truth, unless `degraded` says otherwise)."""

    mode: SearchMode
    generation: GenerationRef | None
    behind: dict[str, int]
    degraded: list[tuple[str, str]]
    building: bool
    low_confidence: bool
    took_ms: float


def encode_reply(ranked: list[Ranked], quality: Quality, *, explained: bool) -> bytes:
    """Return the reply as JSON text."""
    serving = quality.generation
    return msgspec.json.encode(
        {
            "hits": [_hit(hit, explained) for hit in ranked],
            "mode": quality.mode,
            "generation": serving.generation if serving else None,
            "delta": serving.delta if serving else None,
            "covers": {
                "event_seq": serving.covers.event_seq if serving else 0,
                "core_seq": serving.covers.core_seq if serving else 0,
            },
            "vectors": {"have": serving.vectors_have, "want": serving.vectors_want} if serving else None,
            "behind": quality.behind,
            "degraded": [{"code": code, "detail": detail} for code, detail in quality.degraded],
            "building": quality.building,
            "low_confidence": quality.low_confidence,
            "took_ms": round(quality.took_ms, 1),
        }
    )


def _hit(hit: Ranked, explained: bool) -> dict[str, object]:
    found = hit.candidate
    row: dict[str, object] = {
        "id": hit_id(found),
        "corpus": found.corpus,
        "snippet": found.snippet,
        "score": round(hit.score, SCORE_DIGITS),
        "citation": citation(found),
        "ts": rfc3339(found.ts),
    }
    optional = {
        "session_id": found.session_id,
        "seq": found.seq if found.corpus == "events" else None,
        "actor": found.actor,
        "kind": found.kind,
        "version": found.version if found.corpus == "units" else None,
        "type": found.type,
        "scope": found.scope if found.corpus == "units" else None,
        "path": found.path,
        "from_line": found.from_line,
        "to_line": found.to_line,
        "heading": found.heading,
        "tags": list(found.tags) or None,
    }
    row.update({name: value for name, value in optional.items() if value is not None})
    if explained:
        row["explain"] = explain(hit)
    return row


def hit_id(found: Candidate) -> str:
    """Return the id by which memory.get finds the item again: a document's is its path and lines."""
    return citation(found) if found.corpus == "documents" else found.id


def citation(found: Candidate) -> str:
    """Return where it stands, in a form that a person can follow."""
    if found.corpus == "documents":
        lines = f"L{found.from_line}" + ("" if found.to_line == found.from_line else f"-L{found.to_line}")
        return f"{found.path}#{lines}"
    if found.corpus == "units":
        return f"unit:{found.id}@{found.version}"
    return f"session:{found.session_id}#{found.seq}"
