"""What is said to generation_builder: hints, orders, questions about what can be found."""

from typing import ClassVar, Literal

import msgspec

from actors.messages.archives import ArchiveEvents, VerifyArchive
from actors.messages.base import Corpus, Done, Message, Row, Struct

State = Literal["searchable", "pending", "failed"]


class ItemState(Struct, frozen=True, kw_only=True):
    """Whether an item is found by its words, and by its meaning; `reason` says why it is not."""

    words: State
    meaning: State
    reason: str | None = None


class TruthAdvanced(Message, frozen=True, kw_only=True):
    """A hint that events, units or sources changed. May be lost: the builder also looks for itself."""

    answer = Done


class Rebuild(Message, frozen=True, kw_only=True):
    """Build a full generation from the truth. Answers once it is queued; two requests coalesce."""

    answer: ClassVar[type[msgspec.Struct]]
    reason: str
    force: bool = True


class RebuildQueued(Struct, frozen=True, kw_only=True):
    """`build` numbers the build that will cover this request: `index.status` shows when it is published."""

    build: int
    already_running: bool


Rebuild.answer = RebuildQueued


class VerifyIndex(Message, frozen=True, kw_only=True):
    """Verify what serves, now: every file, and that searches find what they should."""

    answer = Row


class CancelBuild(Message, frozen=True, kw_only=True):
    """End the full build under way and withdraw the one that is asked for; with `build` only that one.

    Answers which were cancelled, once process and folder are gone, and which is past being cancelled.
    """

    answer = Row
    build: int | None = None


class RollbackIndex(Message, frozen=True, kw_only=True):
    """Serve the previous generation again; automatic builds pause until the truth moves or one is asked for.

    `generation` names another one of those that are kept: after a change of the model the last one of the old model.
    """

    answer = Row
    generation: int | None = None

    def may_repeat(self) -> bool:
        """Say no: a second time would roll back one generation further."""
        return False


class ReportSuspect(Message, frozen=True, kw_only=True):
    """The searcher could not read a view; the builder verifies what it is made of and rebuilds what is damaged."""

    answer = Done
    view: int
    detail: str


class StateCounts(Struct, frozen=True, kw_only=True):
    """How many items can be found in one way; `reasons` say of how many why they failed."""

    searchable: int = 0
    pending: int = 0
    failed: int = 0
    reasons: dict[str, int] = {}

    @property
    def total(self) -> int:
        """Return how many there are in all."""
        return self.searchable + self.pending + self.failed


class CorpusItems(Struct, frozen=True, kw_only=True):
    """The items of a corpus. Invariant: `accepted` is the total of `words`, and of `meaning`."""

    accepted: int
    words: StateCounts
    meaning: StateCounts


class ItemCounts(Struct, frozen=True, kw_only=True):
    """The items by corpus, of one moment: the view that served (by number), and the truth as it was read after that."""

    at: int  # µs UTC
    view: int | None
    corpora: dict[str, CorpusItems]


class CountItems(Message, frozen=True, kw_only=True):
    """Count what was accepted and what can be found, now."""

    answer = ItemCounts


class GetItemState(Message, frozen=True, kw_only=True):
    """Say whether one item can be found. `seq` is that of the event, or the core_seq of the unit."""

    answer = ItemState
    corpus: Corpus
    key: str
    seq: int = 0
    tenant: str = "default"


class HoldBuild(Message, frozen=True, kw_only=True):
    """Chaos only: pause the build when it reaches `stage`, until it is killed or `stage` is None."""

    answer = Done
    stage: str | None


GenerationBuilderMessage = (
    TruthAdvanced
    | Rebuild
    | CancelBuild
    | VerifyIndex
    | RollbackIndex
    | ReportSuspect
    | CountItems
    | GetItemState
    | HoldBuild
    | ArchiveEvents
    | VerifyArchive
)
