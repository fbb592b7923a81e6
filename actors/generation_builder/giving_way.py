"""When the background embedding lets searches go first, and how much it takes on at a time. Pure but for the waiting.

A model of this machine wants every core for as long as a call takes, and a search that comes meanwhile wants one now.
A call cannot be interrupted, so calls are kept short: about a second of work at the speed that was measured, a single
text while people are searching. And before each call, searches that are under way, or were a moment ago, go first, but
not for ever: after a bounded wait the call is made all the same, so that steady searching slows the embedding down and
never starves it. A remote model takes no CPU here; it is given what it accepts at a time and waits for nobody.
"""

import time

import trio

from actors.actor import Board
from actors.embedding.identity import REMOTE
from actors.messages.index import EmbeddingIdentity
from actors.notices import SearchActivity
from actors.settings import EmbeddingSettings, GenerationBuilderSettings

# How much of the model's time one call takes: nobody searches, somebody does.
CALL_AIM_S, BUSY_CALL_AIM_S = 1.0, 0.1


class GivingWay:
    """How one incarnation gives way."""

    def __init__(
        self, searching: Board[SearchActivity], limits: GenerationBuilderSettings, embedding: EmbeddingSettings
    ) -> None:
        self._searching = searching
        self._limits = limits
        self._embedding = embedding
        self._text_s: float | None = None  # what a text takes the model; None until it was measured

    def texts_at_once(self, identity: EmbeddingIdentity) -> int:
        """Return how many texts the next call may have."""
        if identity.provider == REMOTE:
            return max(1, self._embedding.batch_max)
        busy = self._left_s() > 0
        if self._text_s is None:
            return 1 if busy else self._limits.embed_texts_per_call
        aim_s = BUSY_CALL_AIM_S if busy else CALL_AIM_S
        return min(self._limits.embed_texts_per_call, max(1, int(aim_s / max(self._text_s, 1e-6))))

    def measured(self, texts: int, seconds: float) -> None:
        """Note how long a call took; the latest one counts, as texts differ and the machine does."""
        if texts:
            self._text_s = seconds / texts

    async def wait(self, identity: EmbeddingIdentity) -> None:
        """Let searches go first, at most for `embed_yield_ms_max`."""
        if identity.provider == REMOTE:
            return
        with trio.move_on_after(self._limits.embed_yield_ms_max / 1000):
            while (left_s := self._left_s()) > 0:
                with trio.move_on_after(left_s):
                    await self._searching.wait_changed()

    def _left_s(self) -> float:
        """Return for how long the last search still counts as recent; the whole time while one is under way."""
        quiet_s = self._limits.embed_quiet_ms / 1000
        activity = self._searching.notice
        if activity.in_hand:
            return quiet_s
        return quiet_s - (time.monotonic_ns() - activity.last_ns) / 1e9 if activity.last_ns else 0.0
