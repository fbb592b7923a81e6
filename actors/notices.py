"""What the builder, the searcher and the watch of the disk make public, on their boards.

`system.status`, `index.status` and readiness are made from these without asking anybody, so they answer at once
while every actor is dead. Times are µs since the epoch, UTC, unless the name says otherwise.
"""

import enum

import msgspec

from actors.messages.base import WatchMode
from actors.messages.generation_builder import ItemCounts
from actors.messages.index import (
    BuildEnd,
    Comparison,
    Covers,
    EmbeddingIdentity,
    GenerationRef,
    Progress,
    Skip,
    view_number,
)


class DiskLevel(enum.StrEnum):
    """How much room the disk has: enough, only for the truth, or none for writes."""

    OK = "ok"
    LOW = "low"
    FULL = "full"


class DiskNotice(msgspec.Struct, frozen=True, kw_only=True):
    """The disk of the data directory as it was last seen; the daemon posts it every second."""

    level: DiskLevel = DiskLevel.OK
    reason: str | None = None  # why the level is not ok
    free_bytes: int | None = None  # None: never seen
    total_bytes: int | None = None
    writes_refused: bool = False
    appends_refused: bool = False
    ballast_bytes: int = 0  # size of the ballast file
    problem: str | None = None  # why the last look brought nothing; the level is the one from before


class ForgetNotice(msgspec.Struct, frozen=True, kw_only=True):
    """What core_writer makes known of forgetting. Who answers from a copy of the truth heeds it before each answer."""

    orders: int = 0  # counted when their tombstones can be read; since the daemon started
    purge_until: int = 0  # generations up to this number must not stay
    look: int = 0  # which look at them is wanted


class EmbeddingNotice(msgspec.Struct, frozen=True, kw_only=True):
    """How the background embedding is doing. `state`: off, idle, running, paused, waiting (provider away)."""

    state: str = "off"
    embedded: int = 0  # texts, since the daemon started
    pending: int = 0  # texts that are still to be embedded
    failed: int = 0  # texts that the provider did not take; tried again with the next generation
    texts_per_s: float = 0.0
    eta_s: int | None = None  # until nothing is pending, at this rate
    error: str | None = None
    retry_at: int | None = None  # while it waits: when the provider is asked again
    refused: Skip | None = None  # the last text that the provider would not take, and why
    refusals: tuple[Skip, ...] = ()  # the last of those that are counted in `failed`
    foreign: str | None = None  # the endpoint answers as another model than before; none of its vectors is used


class ScrubNotice(msgspec.Struct, frozen=True, kw_only=True):
    """The slow check of what serves, file by file. `generation` and `delta` are those being read, or read last."""

    generation: int | None = None
    delta: int | None = None
    checked_bytes: int = 0
    total_bytes: int = 0
    finished_at: int | None = None  # of the last one that came to its end
    error: str | None = None  # what the last one found


class ArchivingNotice(msgspec.Struct, frozen=True, kw_only=True):
    """What is being archived. `queued` are numbers of segments; the first of them is `running`, `rows` of it done."""

    queued: tuple[int, ...] = ()
    running: int | None = None
    rows: int = 0
    archived: int = 0  # segments, since the daemon runs
    unindexed: bool = False  # a generation without them is to be built
    error: str | None = None  # why the last one that failed did


class SearchActivity(msgspec.Struct, frozen=True, kw_only=True):
    """Whether anybody is searching: how many searches are under way, and when one last began or ended."""

    in_hand: int = 0
    last_ns: int = 0  # CLOCK_MONOTONIC; 0: never


class SourceNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A root of notes: how its changes are noticed, and why so when it is polled."""

    source_id: str
    path: str
    watching: WatchMode = "polling"
    reason: str | None = None
    files: int | None = None  # notes; None: not walked yet
    held: Skip | None = None  # why all of it is kept as it was
    unfinished: bool = False  # a walk of it is under way, or hangs


class BuilderNotice(msgspec.Struct, frozen=True, kw_only=True):
    """The index as the builder knows it."""

    identity: EmbeddingIdentity | None = None
    serving: GenerationRef | None = None  # the view: a generation, and the delta over it if there is one
    base: GenerationRef | None = None  # the generation of the view, without the delta
    previous: tuple[GenerationRef, ...] = ()
    successor: GenerationRef | None = None  # of another embedding model, not published yet
    declined: str | None = None  # the identity that was rolled back from; no build is for it until one is asked for
    comparison: Comparison | None = None  # of the last two generations of different models
    highest: int = 0
    building: Progress | None = None
    builds_started: int = 0
    builds_published: int = 0  # the number of the last one that serves or has served; a successor does not count
    builds_ended: tuple[BuildEnd, ...] = ()  # the last of them, in the order of their ends
    asked: str | None = None  # why a build is to begin at once; of the next number
    purge_look: int = 0  # the last look for generations that must not stay: of which wish,
    purge_until: int = 0  # for which of them,
    purge_left: int = 0  # and how many folders it found
    cancelled: bool = False  # the last build was; none is made by itself until the truth moves
    last_error: str | None = None
    # Invariant: counted before a build starts, so that a build that kills its worker counts as well.
    attempts: int = 0  # at `attempted`, without success
    attempted: Covers | None = None
    build_ms: float = 0.0  # how long the last one took
    publish_ms: float = 0.0  # of it, from the flip of the pointer until the searcher served what it names
    delta_building: Progress | None = None
    deltas_published: int = 0
    delta_ms: float = 0.0  # how long the last delta took
    delta_error: str | None = None  # why the last one failed
    paused: bool = False  # after a rollback, until the truth moves or a build is asked for
    no_room: bool = False  # the disk is low: no builds, no embedding, no earlier generations
    disk_full_ns: int = 0  # CLOCK_MONOTONIC of the last build that the disk had no room for
    workers_replaced: int = 0  # because of their memory or of the builds they made; no deaths
    event_seq: int = 0  # what the truth had when it was last looked at
    event_gaps: tuple[tuple[int, int], ...] = ()  # ranges of seqs below it that no event has
    core_seq: int = 0
    files: int = 0
    sources: tuple[SourceNotice, ...] = ()
    skipped: tuple[Skip, ...] = ()
    held: tuple[Skip, ...] = ()
    suspects: tuple[Skip, ...] = ()
    scrub: ScrubNotice = ScrubNotice()
    archiving: ArchivingNotice = ArchivingNotice()
    embedding: EmbeddingNotice = EmbeddingNotice()
    items: ItemCounts | None = None  # as they were last counted


class SearcherNotice(msgspec.Struct, frozen=True, kw_only=True):
    """Which generation is being served, with which delta over it, and by how many workers."""

    serving: int | None = None
    delta: int | None = None
    workers_ready: int = 0
    loaded: int = 0  # how many of them have it open
    views: int = 0  # how many views the one with the most of them has open
    active_pid: int | None = None
    spare_pid: int | None = None
    failovers: int = 0
    hedges: int = 0  # searches given to the second worker because they took long
    repeats: int = 0  # … because the first one died or fell silent
    recycled: int = 0
    searches: int = 0
    degraded: int = 0
    last_error: str | None = None

    @property
    def view(self) -> int | None:
        """Return the number of what is being served, None when that is nothing."""
        return None if self.serving is None else view_number(self.serving, self.delta)
