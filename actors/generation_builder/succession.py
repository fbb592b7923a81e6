"""A change of the embedding model: which model the next build is for, and when the old generation is relieved.

Vectors of two models cannot be compared, so another model means a generation of its own, and making its vectors may
take hours. Meanwhile the old generation goes on serving, questions are embedded by the model it was made with, and
builds that follow the truth are made for that model. Beside it a *successor* is built for the new one: complete, sealed
and not published. Its list of missing vectors is worked through in the background; every so often it is built again
with what there is by then, and published once enough of it is embedded, or once everything has been tried.

Where nothing would be gained by that (the old model is out of reach, or the old generation has no vectors either), the
new generation is published at once and its vectors follow, as after a first start.

A rollback over a change of the model declines it: builds stay with the model that serves until a rebuild is asked for.
All of that survives a restart, as far as it still fits to what is configured. Owns no generation and does nothing
itself: the actor asks it. Reads the notice board only.
"""

import msgspec

from actors.actor import Board, House
from actors.embedding.identity import settings_for
from actors.errors import BulkheadError
from actors.mailbox import deadline_after
from actors.messages.builder_work import ModelChange
from actors.messages.index import Comparison, EmbeddingIdentity, GenerationRef
from actors.messages.searcher import CompareGenerations
from actors.notices import BuilderNotice
from actors.settings import EmbeddingSettings, GenerationBuilderSettings

# Why a build is made.
OUTGROWN = "the delta has outgrown its share"
WASTED = "much of the generation is out of date"
QUIET = "the truth is quiet"
NOTES_WAIT = "notes wait that are too large for a delta"
IDENTITY_CHANGED = "embedding identity changed"
NEW_VECTORS = "new vectors"
ALL_TRIED = "every text was tried"
FOLLOWING = (OUTGROWN, WASTED, QUIET, NOTES_WAIT)  # what the truth does, not the model
COMPARE_S = 20.0


class Succession:
    """What one incarnation of the builder asks about the model."""

    def __init__(
        self, board: Board[BuilderNotice], limits: GenerationBuilderSettings, embedding: EmbeddingSettings
    ) -> None:
        self._board = board
        self._limits = limits
        self._embedding = embedding
        self._owed: str | None = None  # a build for the successor that failed

    def recalled(self, kept: ModelChange, serving: GenerationRef | None) -> ModelChange:
        """Return what holds of what was kept: what the incarnation before has made public is newer."""
        notice = self._board.notice
        public = ModelChange(successor=notice.successor, declined=notice.declined, comparison=notice.comparison)
        if public != ModelChange():
            return public
        successor = kept.successor
        published = serving is None or serving.identity == notice.identity
        if successor is not None and (published or successor.identity != notice.identity):
            successor = None
        return msgspec.structs.replace(kept, successor=successor)

    def due(self) -> str | None:
        """Return why a build for the new model is due, or None."""
        if not self._changing():
            return None
        return IDENTITY_CHANGED if self._board.notice.successor is None else self._owed

    def choose(self, reason: str) -> tuple[EmbeddingIdentity | None, GenerationRef | None]:
        """Return the model that a build is for, and the generation that lends its vectors besides the one before."""
        notice = self._board.notice
        if notice.serving is None or notice.serving.identity == notice.identity:
            return notice.identity, None
        if not self._changing() or (reason in FOLLOWING and self._gradual()):
            return notice.serving.identity, None
        return notice.identity, notice.successor

    def may_publish(self, sealed: GenerationRef, reason: str) -> bool:
        """Say whether a generation may serve; otherwise it is the successor.

        Texts that came since the successor before was built do not count: under steady appends there are always some
        that no model has seen yet, and a share of 100 % would never be reached.
        """
        serving, before = self._board.notice.serving, self._board.notice.successor
        if serving is None or sealed.identity == serving.identity or reason == ALL_TRIED or not self._gradual():
            return True
        came = 0 if before is None else max(0, sealed.vectors_want - before.vectors_want)
        wanted = sealed.vectors_want - came
        return sealed.vectors_have * 100 >= wanted * self._limits.model_change_coverage_percent

    def failed(self, reason: str) -> None:
        """Note that a build failed: one for the successor is made up for, nobody else would ask for it again."""
        if reason in (NEW_VECTORS, ALL_TRIED):
            self._owed = reason

    def built(self, sealed: GenerationRef) -> None:
        """Note that a build for the new model did not fail."""
        if sealed.identity == self._board.notice.identity:
            self._owed = None

    def kept_behind(self, sealed: GenerationRef, count: int) -> tuple[GenerationRef, ...]:
        """Return what is kept for a rollback behind `sealed`: the last `count`, and the last one of another model.

        Right after a change of the model one generation follows the other as the last texts are embedded; the way back
        to the old model must not be lost by that.
        """
        notice = self._board.notice
        behind = (notice.base, *notice.previous) if notice.base is not None else notice.previous
        refs = [ref for ref in behind if ref.generation != sealed.generation]
        kept = refs[:count]
        others = [ref for ref in refs if ref.identity != sealed.identity and ref.vectors_have]
        if count and others and not any(ref in others for ref in kept):
            kept.append(others[0])
        return tuple(kept)

    def declined_by(self, earlier: GenerationRef) -> str | None:
        """Return the key of the identity that a rollback to `earlier` declines, None when it is the configured one."""
        configured = self._board.notice.identity
        return None if earlier.identity == configured else _key(configured)

    async def compare(self, house: House, later: GenerationRef) -> Comparison | None:
        """Have the searcher ask both generations what was asked lately; None when the model stays or nobody can.

        Needs `later` to be prepared. What comes of it is for people to read: it decides nothing.
        """
        earlier = self._board.notice.serving
        if earlier is None or earlier.identity == later.identity:
            return self._board.notice.comparison
        message = CompareGenerations(earlier=earlier, later=later)
        try:
            return await house.ask("searcher", message, Comparison, deadline_ns=deadline_after(COMPARE_S))
        except BulkheadError as error:
            house.log.info("generations not compared", extra={"error": error.message})
            return None

    def _changing(self) -> bool:
        notice = self._board.notice
        if notice.serving is None or notice.serving.identity == notice.identity:
            return False
        return notice.declined is None or notice.declined != _key(notice.identity)

    def _gradual(self) -> bool:
        """Say whether the old generation gives something meanwhile that the new one could not give yet."""
        serving = self._board.notice.serving
        if serving is None or serving.identity is None or not serving.vectors_have:
            return False
        return settings_for(serving.identity, self._embedding) is not None


def _key(identity: EmbeddingIdentity | None) -> str:
    return "" if identity is None else identity.key
