"""What the messages of all recipients have in common: their vocabulary, their base classes, and what searches share."""

from typing import ClassVar, Literal

import msgspec

Corpus = Literal["events", "units", "documents"]
CORPORA: tuple[Corpus, ...] = ("events", "units", "documents")
EventKind = Literal["message", "tool_call", "tool_result", "document_fragment"]
EventActor = Literal["user", "assistant", "system", "tool"]
UnitType = Literal["profile", "summary", "skill", "plan"]
UnitScope = Literal["user", "session", "global"]
UnitStatus = Literal["active", "deprecated", "forgotten"]
SearchMode = Literal["hybrid", "keyword", "vector"]
WatchMode = Literal["events", "polling"]
JsonValue = object


class Struct(msgspec.Struct, frozen=True, kw_only=True):
    """Plain immutable data that travels inside a message or an answer."""


class Caller(Struct, frozen=True, kw_only=True):
    """Who asks: what the connection proved of itself. No parameter of a request says any of it."""

    tenant: str = "default"
    principal: str = "local"
    client: str = ""  # what the program calls itself; not proved


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="$", omit_defaults=True):
    """Something said to an actor. `caller` is who caused it: set by the routes, in one place, for every message."""

    answer: ClassVar[type[msgspec.Struct]]
    caller: Caller = Caller()

    def may_repeat(self) -> bool:
        """Say whether doing it a second time is harmless, also when the first time took effect unseen."""
        return True


class Done(Struct, frozen=True, kw_only=True):
    """The answer of a command that has nothing to tell but that it is done."""


class Row(Struct, frozen=True, kw_only=True):
    """One row as JSON text."""

    row: bytes


class Rows(Struct, frozen=True, kw_only=True):
    """A page of rows: `rows` is a JSON array; `more` says whether the next page would hold any.

    `degraded` are (code, detail) pairs: why rows may be missing that ought to be in it.
    """

    rows: bytes
    count: int
    more: bool = False
    degraded: tuple[tuple[str, str], ...] = ()


class Statistics(Struct, frozen=True, kw_only=True):
    """Counters of a store, by name."""

    values: dict[str, int | float | str | bool | None]


class Filters(Struct, frozen=True, kw_only=True):
    """What a search may be narrowed to. Every given member must hold; a list means any of its values.

    `tags` is the exception: all of them must be present. `since` is inclusive and `until` exclusive, in µs.
    `path` is a prefix of the document's path. A member that does not apply to a corpus excludes that corpus.
    """

    session_ids: tuple[str, ...] = ()
    actors: tuple[EventActor, ...] = ()
    kinds: tuple[EventKind, ...] = ()
    tags: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None
    path: str | None = None
    types: tuple[UnitType, ...] = ()
    scopes: tuple[UnitScope, ...] = ()


class Candidate(Struct, frozen=True, kw_only=True):
    """One row that a search found, before ranking.

    `text_score` is a BM25 score (larger is better, unbounded), `vector_score` a cosine in [-1, 1]; None means that
    the row was not in that list. `snippet` is at most `snippet_chars_max` characters around the best match.
    `part` numbers the pieces of one long event; ranking keeps the best piece of an id.
    """

    id: str
    corpus: Corpus
    version: int = 0
    part: int = 0
    text_score: float | None = None
    vector_score: float | None = None
    snippet: str = ""
    ts: int = 0
    seq: int = 0
    session_id: str | None = None
    actor: str | None = None
    kind: str | None = None
    path: str | None = None
    from_line: int | None = None
    to_line: int | None = None
    heading: str | None = None
    type: str | None = None
    scope: str | None = None
    tags: tuple[str, ...] = ()


class Candidates(Struct, frozen=True, kw_only=True):
    """What a keyword search of the truth found among the rows newer than the bound it was given.

    `behind` counts rows that the keyword index had not reached when time ran out (0: complete).
    `changed` are unit ids whose rows in an older generation are out of date and must be masked.
    `latest` is the highest seq (or core_seq) that exists, so that the caller can say how far behind it is; `newer` is
    how many rows lie between its bound and there, where that is not the difference of the two (events, whose seq has
    gaps between segments). `degraded` are (code, detail) pairs: why rows may be missing that ought to be in it.
    """

    found: list[Candidate]
    latest: int
    behind: int = 0
    changed: tuple[str, ...] = ()
    newer: int | None = None
    degraded: tuple[tuple[str, str], ...] = ()
