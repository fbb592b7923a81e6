"""The background embedding: texts that have no vector yet are embedded into the cache, a few at a time.

It works through PENDING lists, newest first, in a worker of its own (which is started when there is something to do and
stopped afterwards): that of the successor while there is one (`succession.py`), else that of the delta that serves,
which holds what is newest, and then that of its generation. A slow model, a rate limit and an outage are the same case:
coverage below 100 %, shown and never waited for. What has been embedded is in the cache, so nothing is embedded twice:
not after a kill, and not when the next generation lists it again.

What was accepted a moment ago goes before all lists (`ahead.py`): a delta that is made right afterwards has vectors
for it.

A provider that is away is asked again after longer and longer pauses, or after the one it asked for; meanwhile the
worker stays, and so does the place in the list. A text that it does not take is named and passed over; the next list
has it again. Searches go first: see `giving_way.py`.
"""

import time
from collections.abc import Callable

import msgspec
import trio

from actors.actor import Board, House, wait_any
from actors.errors import BulkheadError, EmbeddingUnavailable
from actors.generation_builder.ahead import Ahead, NewRows
from actors.generation_builder.desk import LOOK_EVERY_S
from actors.generation_builder.giving_way import GivingWay
from actors.generation_builder.seat import Seat, hard_limit, keep_below
from actors.generation_builder.succession import ALL_TRIED, NEW_VECTORS
from actors.mailbox import deadline_after
from actors.messages.base import Done
from actors.messages.builder_work import EmbeddedBatch, EmbedPending, EmbedRows, PeekPending, PeekRows, PendingKeys
from actors.messages.cache_manager import GetVectors, PutVectors, Vectors
from actors.messages.index import EmbeddingIdentity, GenerationRef, Skip
from actors.notices import BuilderNotice, EmbeddingNotice, SearchActivity
from actors.settings import EmbeddingSettings, GenerationBuilderSettings
from actors.worker import WorkerDied, WorkerSpec

CALL_S = 120.0
CACHE_S = 5.0
RETRY_S_MIN, RETRY_S_MAX = 1.0, 60.0
# A provider may ask for more patience than we have by ourselves, within reason; one that asks for none gets some.
TOLD_S_MIN, TOLD_S_MAX = 0.1, 600.0
# A share of the build time that a publication of new vectors may cost: a build of 10 s is worth 100 s of embedding.
PUBLISH_FACTOR = 10.0
RATE_WEIGHT = 0.2
# How many texts are looked up in the cache at a time: after a restart a list is skimmed, not read text by text.
WINDOW = 256
REFUSALS_SHOWN = 16
# How long the worker stays when nothing is left: to start one takes as long as to embed some dozens of texts.
LINGER_S = 10.0


class EmbedBehind:
    """Embed what the generation lacks that is to have vectors next, again and again."""

    def __init__(
        self,
        house: House,
        *,
        spec: WorkerSpec,
        limits: GenerationBuilderSettings,
        embedding: EmbeddingSettings,
        board: Board[BuilderNotice],
        searching: Board[SearchActivity],
        wish: Callable[[str], None],
        wish_delta: Callable[[], None],
    ) -> None:
        self._house = house
        self._spec = spec
        self._limits = limits
        self._board = board
        self._wish = wish
        self._wish_delta = wish_delta
        self._giving_way = GivingWay(searching, limits, embedding)
        self._ahead = Ahead(house)
        self._rested = True  # since the last call: an endpoint may be another model by now
        self._fresh: dict[str, int] = {}  # vectors that the generation or delta of a list does not have yet
        self._places: dict[str, _Place] = {}  # by the folder of the list
        self._failures = 0  # in a row
        self._refused: dict[bytes, Skip] = {}  # of the lists in hand
        self._generation = 0  # whose they are
        self._published_at = time.monotonic()
        self._began = time.monotonic()  # of what the next rate is measured over

    async def run(self) -> None:
        """Work through one list after the other; a list is dropped when there is a newer one."""
        while True:
            if not self._has_work():
                self._rest()
                await self._wait_news()
                continue
            try:
                await self._with_worker()
            except* (BulkheadError, WorkerDied) as group:
                self._failures += 1
                pause_s = _pause_s(self._failures)
                self._post(state="waiting", error=str(group.exceptions[0]), retry_at=_wall_us_in(pause_s))
                await trio.sleep(pause_s)

    def hint(self) -> None:
        """Say that the truth has moved."""
        self._ahead.hint()

    def refused(self) -> list[bytes]:
        """Return the hashes of the texts that the model did not take."""
        return list(self._refused)

    # ------------------------------------------------------------ what to do

    def _has_work(self) -> bool:
        return self._ahead.due(self._board.notice) or self._target() is not None

    async def _wait_news(self) -> None:
        """Wait until something may have changed that work follows from. Call it right after the look."""
        with trio.move_on_after(LOOK_EVERY_S):
            await wait_any(self._board.change, self._ahead.next_hint)

    def _target(self) -> "_Target | None":
        """Return whose list is to be worked through; None when there is nothing to do."""
        notice = self._board.notice
        target = notice.successor if notice.successor is not None else notice.serving
        if notice.paused or notice.no_room or target is None or target.identity is None:
            return None
        if target.identity != notice.identity or target.vectors_have >= target.vectors_want:
            return None
        folders = [folder for folder in (target.delta_path, target.path) if folder is not None]
        left = (folder for folder in folders if self._places.get(folder, _Place()).offset is not None)
        folder = next(left, None)
        return None if folder is None else _Target(target, folder, delta=folder == target.delta_path)

    def _still(self, target: "_Target") -> bool:
        current = self._target()
        return current is not None and current.folder == target.folder

    def _rest(self) -> None:
        """Show that there is nothing to do; what is put off is still pending, and what was refused stays refused."""
        notice = self._board.notice
        self._rested = True
        self._post(state=_resting(notice), eta_s=None, retry_at=None)
        if not notice.paused and not notice.no_room:
            self._post(pending=0)
            if notice.serving is not None:
                self._forget_refused(notice.serving)

    def _start_list(self, target: "_Target") -> "_Place":
        """Return where to go on in a list; places in lists that are gone are forgotten."""
        self._forget_refused(target.ref)
        notice = self._board.notice
        folders = {
            folder
            for ref in (notice.serving, notice.successor)
            if ref is not None
            for folder in (ref.path, ref.delta_path)
        }
        self._places = {folder: place for folder, place in self._places.items() if folder in folders}
        self._fresh = {folder: count for folder, count in self._fresh.items() if folder in folders}
        return self._places.setdefault(target.folder, _Place())

    def _forget_refused(self, ref: GenerationRef) -> None:
        """With another generation every text is tried again."""
        if ref.generation != self._generation:
            self._generation, self._refused = ref.generation, {}
            self._post(failed=0, refusals=())

    def _post(self, **changes: object) -> None:
        notice = self._board.notice
        embedding = msgspec.structs.replace(notice.embedding, **changes)
        if embedding != notice.embedding:
            self._board.post(msgspec.structs.replace(notice, embedding=embedding))

    # ------------------------------------------------------------ with a worker

    async def _with_worker(self) -> None:
        """Embed what is new, work through a list, and through those that follow it, with one worker."""
        async with trio.open_nursery() as nursery:
            worker = Seat(self._house, self._spec, nursery)
            await worker.fill()
            nursery.start_soon(keep_below, worker, hard_limit(self._limits.embed_rss_bytes_max))
            while self._has_work():
                self._began = time.monotonic()
                if not self._failures:
                    self._post(state="running", error=None, retry_at=None)
                await self._embed_new(worker)
                target = self._target()
                if target is not None:
                    await self._work_through(worker, target)
                await self._linger()
            nursery.cancel_scope.cancel("nothing left to embed")

    async def _linger(self) -> None:
        """Keep the worker for a while when there is nothing to do."""
        with trio.move_on_after(LINGER_S):
            while not self._has_work():
                self._rest()
                await self._wait_news()

    async def _embed_new(self, worker: Seat) -> None:
        """Embed what was accepted a moment ago, if anything was, before what has waited longer."""
        serving = self._board.notice.serving
        if serving is None or not self._ahead.due(self._board.notice):
            return
        try:
            for page in await self._ahead.pages(serving.covers):
                await self._embed_page(worker, serving, page)
        except EmbeddingUnavailable as error:
            # The lists have it, and wait for the provider; here it is only left alone.
            self._ahead.rest(_pause_s(self._failures + 1, told_ms=error.retry_after_ms))

    async def _embed_page(self, worker: Seat, serving: GenerationRef, page: NewRows) -> None:
        identity = serving.identity
        assert identity is not None, "nothing is due without a model"
        peek = PeekRows(corpus=page.corpus, rows=page.rows)
        keys = (await worker.call(peek, PendingKeys, deadline_ns=deadline_after(CALL_S))).keys
        passed = await self._known(identity.key, keys) | self._refused.keys()
        left = [key for key in keys if key not in passed]
        while left:
            await self._giving_way.wait(identity)
            count = self._giving_way.texts_at_once(identity)
            taken, left = left[:count], left[count:]
            message = EmbedRows(path=serving.path, corpus=page.corpus, rows=page.rows, keys=taken)
            await self._embed(worker, identity, message, taken)

    async def _work_through(self, worker: Seat, target: "_Target") -> None:
        place = self._start_list(target)
        self._published_at = time.monotonic()
        while place.offset is not None and self._still(target):
            await self._embed_new(worker)
            try:
                await self._window(worker, target, place)
            except EmbeddingUnavailable as error:
                await self._wait_for_provider(error)
            await self._replace_in_time(worker)
            late = time.monotonic() - self._published_at > self._publish_every_s()
            if self._fresh.get(target.folder) and not target.delta and late:
                self._publish(target, NEW_VECTORS)
        if self._fresh.get(target.folder) and (place.offset is None or target.delta):
            self._publish(target, NEW_VECTORS)
        elif place.offset is None and self._board.notice.successor is not None:
            self._publish(target, ALL_TRIED)  # what is missing is what the provider does not take

    async def _wait_for_provider(self, error: EmbeddingUnavailable) -> None:
        """Leave a provider alone for as long as it asked for, or for longer and longer."""
        self._failures += 1
        pause_s = _pause_s(self._failures, told_ms=error.retry_after_ms)
        self._post(state="waiting", error=error.message, retry_at=_wall_us_in(pause_s))
        await trio.sleep(pause_s)
        self._began = time.monotonic()

    async def _replace_in_time(self, worker: Seat) -> None:
        """Replace a worker that has grown too large; what it embedded is in the cache."""
        size, limit = worker.rss_bytes, self._limits.embed_rss_bytes_max
        if size > limit:
            cause = f"{size} bytes resident, limit is {limit} (generation_builder.embed_rss_bytes_max)"
            await worker.replace(cause, pending_s=CALL_S)

    def _publish_every_s(self) -> float:
        return max(self._limits.vectors_publish_ms, PUBLISH_FACTOR * self._board.notice.build_ms) / 1000

    def _note_fresh(self, target: "_Target", count: int) -> None:
        self._fresh[target.folder] = self._fresh.get(target.folder, 0) + count

    def _publish(self, target: "_Target", reason: str) -> None:
        self._fresh.pop(target.folder, None)
        self._published_at = time.monotonic()
        if target.delta:
            self._wish_delta()
        else:
            self._wish(reason)

    # ------------------------------------------------------------ a piece of the list

    async def _window(self, worker: Seat, target: "_Target", place: "_Place") -> None:
        """Look up the next texts in the cache, and embed those that it does not have, a few at a time.

        `place` moves on with every call, so whatever is raised, nothing is done twice.
        """
        identity = target.identity
        assert place.offset is not None
        peek = PeekPending(path=target.folder, offset=place.offset, texts_max=WINDOW)
        window = await worker.call(peek, PendingKeys, deadline_ns=deadline_after(CALL_S))
        place.total = window.total
        self._show_progress(place)
        known = await self._known(identity.key, window.keys)
        self._note_fresh(target, len(known))
        # The delta after this one lists the same texts again; they are tried again with the next generation.
        known |= self._refused.keys() & set(window.keys)
        left = window.keys
        while any(key not in known for key in left):
            if not self._still(target):
                return
            await self._giving_way.wait(identity)
            taken = _up_to(left, known, self._giving_way.texts_at_once(identity))
            await self._embed_listed(worker, target, place, taken, known)
            left = left[len(taken) :]
            if self._ahead.due(self._board.notice):
                return  # after a call, so that a list gets on whatever comes
        place.move(window.next, len(left))
        self._show_progress(place)

    async def _embed_listed(
        self,
        worker: Seat,
        target: "_Target",
        place: "_Place",
        taken: list[bytes],
        known: set[bytes],
    ) -> None:
        assert place.offset is not None
        message = EmbedPending(
            path=target.folder, offset=place.offset, texts_max=len(taken), skip=[key for key in taken if key in known]
        )
        wanted = [key for key in taken if key not in known]
        batch = await self._embed(worker, target.identity, message, wanted)
        self._note_fresh(target, len(batch.keys))
        place.move(batch.next, len(taken))
        self._show_progress(place)

    async def _embed(
        self, worker: Seat, identity: EmbeddingIdentity, message: EmbedPending | EmbedRows, wanted: list[bytes]
    ) -> EmbeddedBatch:
        """Make a call that embeds these texts, keep their vectors, and note which were refused."""
        began, anew, self._rested = time.monotonic(), self._rested, False
        message = msgspec.structs.replace(message, anew=anew)
        batch = await worker.call(message, EmbeddedBatch, deadline_ns=deadline_after(CALL_S))
        self._giving_way.measured(len(batch.keys), time.monotonic() - began)
        if batch.foreign is not None:
            if isinstance(message, EmbedPending):  # else the list finds it out, and waits
                self._post(foreign=batch.foreign)
            raise EmbeddingUnavailable(batch.foreign)
        await self._keep(identity, batch)
        self._failures = 0
        given = {*batch.keys}
        for key in given & self._refused.keys():
            del self._refused[key]
        self._refused.update(zip([key for key in wanted if key not in given], batch.failed, strict=True))
        self._count(batch)
        return batch

    async def _known(self, identity: str, keys: list[bytes]) -> set[bytes]:
        if not keys:
            return set()
        message = GetVectors(identity=identity, keys=keys)
        vectors = await self._house.ask("cache_manager", message, Vectors, deadline_ns=deadline_after(CACHE_S))
        return {keys[index] for index in vectors.found}

    async def _keep(self, identity: EmbeddingIdentity, batch: EmbeddedBatch) -> None:
        if batch.keys:
            message = PutVectors(identity=identity.key, keys=batch.keys, dimensions=batch.dimensions, blob=batch.blob)
            await self._house.ask("cache_manager", message, Done, deadline_ns=deadline_after(CACHE_S))

    # ------------------------------------------------------------ what is shown

    def _count(self, batch: EmbeddedBatch) -> None:
        """Show what came of a call. The rate is over all the time, pauses for searches included: so is what is left."""
        notice = self._board.notice.embedding
        now = time.monotonic()
        seconds, self._began = now - self._began, now
        self._post(
            state="running",
            embedded=notice.embedded + len(batch.keys),
            failed=len(self._refused),
            texts_per_s=_smooth(notice, len(batch.keys), seconds),
            error=batch.failed[0].detail if batch.failed else None,
            refused=batch.failed[-1] if batch.failed else notice.refused,
            refusals=tuple(self._refused.values())[-REFUSALS_SHOWN:],
            foreign=None,
            retry_at=None,
        )

    def _show_progress(self, place: "_Place") -> None:
        rate = self._board.notice.embedding.texts_per_s
        pending = max(0, place.total - place.passed)
        self._post(pending=pending, eta_s=round(pending / rate) if rate > 0 else None)


def _resting(notice: BuilderNotice) -> str:
    if notice.identity is None:
        return "off"
    return "paused" if notice.no_room else "idle"


class _Target:
    """A list to work through: that of a generation, or of the delta over it."""

    def __init__(self, ref: GenerationRef, folder: str, *, delta: bool) -> None:
        assert ref.identity is not None, "no vectors are wanted without a model"
        self.ref = ref
        self.identity = ref.identity
        self.folder = folder
        self.delta = delta


class _Place:
    """Where in a list the work goes on; `offset` is None when it is through."""

    def __init__(self) -> None:
        self.offset: int | None = 0
        self.passed = 0
        self.total = 0

    def move(self, offset: int | None, texts: int) -> None:
        self.offset = offset
        self.passed += texts


def _up_to(keys: list[bytes], known: set[bytes], unknown_max: int) -> list[bytes]:
    """Return the first keys, as many as hold `unknown_max` that are not known."""
    count = 0
    for index, key in enumerate(keys):
        count += key not in known
        if count == unknown_max:
            return keys[: index + 1]
    return keys


def _pause_s(failures: int, *, told_ms: int | None = None) -> float:
    if told_ms is None:
        return min(RETRY_S_MAX, RETRY_S_MIN * 2.0 ** (failures - 1))
    # Who says "at once" again and again is asked more and more seldom all the same.
    least_s = min(RETRY_S_MAX, TOLD_S_MIN * 2.0 ** min(failures - 1, 16))
    return min(TOLD_S_MAX, max(told_ms / 1000, least_s))


def _smooth(notice: EmbeddingNotice, texts: int, seconds: float) -> float:
    rate = texts / seconds if seconds > 0 else 0.0
    before = notice.texts_per_s
    return round(rate if not before else before + RATE_WEIGHT * (rate - before), 2)


def _wall_us_in(seconds: float) -> int:
    return time.time_ns() // 1000 + round(seconds * 1e6)
