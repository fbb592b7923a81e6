"""What the builder and the searcher make public about themselves, on their boards.

`system.status`, `index.status` and readiness are made from these without asking anybody, so they answer at once
while every actor is dead. Times are µs since the epoch, UTC, unless the name says otherwise.
"""

import msgspec

from actors.messages import Covers, EmbeddingIdentity, GenerationRef, Progress, Skip


class EmbeddingNotice(msgspec.Struct, frozen=True, kw_only=True):
    """How the background embedding is doing. `state`: off, idle, running, waiting (provider away)."""

    state: str = "off"
    embedded: int = 0
    failed: int = 0
    texts_per_s: float = 0.0
    error: str | None = None


class BuilderNotice(msgspec.Struct, frozen=True, kw_only=True):
    """The index as the builder knows it."""

    identity: EmbeddingIdentity | None = None
    serving: GenerationRef | None = None
    previous: tuple[GenerationRef, ...] = ()
    highest: int = 0
    building: Progress | None = None
    builds_started: int = 0
    builds_published: int = 0
    last_error: str | None = None
    # Invariant: counted before a build starts, so that a build that kills its worker counts as well.
    attempts: int = 0  # at `attempted`, without success
    attempted: Covers | None = None
    build_ms: float = 0.0  # how long the last one took
    paused: bool = False  # after a rollback, until the truth moves or a build is asked for
    event_seq: int = 0  # what the truth had when it was last looked at
    core_seq: int = 0
    files: int = 0
    skipped: tuple[Skip, ...] = ()
    held: tuple[Skip, ...] = ()
    suspects: tuple[Skip, ...] = ()
    embedding: EmbeddingNotice = EmbeddingNotice()


class SearcherNotice(msgspec.Struct, frozen=True, kw_only=True):
    """Which generation is being served, and by how many workers."""

    serving: int | None = None
    workers_ready: int = 0
    loaded: int = 0  # how many of them have the serving generation open
    active_pid: int | None = None
    spare_pid: int | None = None
    failovers: int = 0
    searches: int = 0
    degraded: int = 0
    last_error: str | None = None
