"""Which roots are to be walked now: the trio side of the process that watches the sources (watcher.py).

The process is there while there are sources. It is asked again and again what has changed; the answer makes roots due
(rounds.py) and is shown on the board. When it dies it is started again after a growing pause, and meanwhile every root
is polled; that is no death of the actor.
"""

from collections.abc import Callable
from time import monotonic

import msgspec
import trio

from actors.actor import Board, House
from actors.errors import BulkheadError
from actors.generation_builder.rounds import Periods, Rounds
from actors.generation_builder.seat import Seat
from actors.mailbox import deadline_after
from actors.messages.builder_work import RootWatch, RootWatches, ScanResult, WatchSources
from actors.messages.core_writer import SourceRoot
from actors.notices import BuilderNotice, SourceNotice
from actors.settings import GenerationBuilderSettings
from actors.worker import WorkerDied, WorkerSpec

WAIT_S = 2.0  # a call waits so long for news; also how long a new source may wait for its watch
GRACE_S = 10.0
HEALTHY_S = 60.0  # a process that lived for so long is no repetition of the one before
RETRY_S_MIN, RETRY_S_MAX = 1.0, 300.0


class SourceWatch:
    """What one incarnation of the builder knows about when to look at which root."""

    def __init__(
        self,
        house: House,
        *,
        spec: WorkerSpec,
        limits: GenerationBuilderSettings,
        board: Board[BuilderNotice],
        hint: Callable[[], None],
    ) -> None:
        self._house = house
        self._spec = spec
        self._board = board
        self._hint = hint
        self._rounds = Rounds(Periods(limits.scan_every_ms / 1000, limits.reconcile_every_ms / 1000))
        self._sources: list[SourceRoot] = []
        self._given = trio.Event()
        self._failures = 0
        self._scanned: ScanResult | None = None
        self._scanned_at = 0.0
        self._scan_every_s = limits.scan_every_ms / 1000

    # ------------------------------------------------------------ what to walk

    def due(self, sources: list[SourceRoot]) -> list[str]:
        """Return the roots that are to be walked now. A scan of them follows, between `begin` and `end`."""
        if sources != self._sources:
            self._sources = sources
            self._given.set()
        return self._rounds.due(sources, monotonic())

    def is_waiting(self) -> bool:
        """Say whether it is time for a scan that walks nothing: to ask how walks that take long are getting on, and to
        try files again that could not be read.
        """
        now = monotonic()
        return self._rounds.is_waiting(now) or (bool(self._sources) and now >= self._scanned_at + self._scan_every_s)

    def walk_all(self) -> None:
        """Have every root walked by the next scan."""
        self._rounds.changed(source.source_id for source in self._sources)

    def begin(self, due: list[str]) -> None:
        """Note that a scan of these begins: what changes from now on is for the next one."""
        self._rounds.begin(due)

    def failed(self, due: list[str]) -> None:
        """Note that it brought nothing."""
        self._rounds.changed(due)

    def end(self, due: list[str], result: ScanResult) -> None:
        """Note what it brought, and show it."""
        took_s = {name: took_ms / 1000 for name, took_ms in result.walk_ms_of.items()}
        self._rounds.end(self._sources, due, monotonic(), unfinished=result.unfinished, took_s=took_s)
        self._scanned, self._scanned_at = result, monotonic()
        self._show()

    # ------------------------------------------------------------ the process

    async def run(self) -> None:
        """Keep the process while there are sources."""
        while True:
            if not self._sources:
                self._given = trio.Event()
                await self._given.wait()
            try:
                await self._with_worker()
            except* (BulkheadError, WorkerDied) as group:
                self._failures += 1
                pause_s = min(RETRY_S_MAX, RETRY_S_MIN * 2.0 ** (self._failures - 1))
                self._house.log.warning("source watcher lost", extra={"error": str(group.exceptions[0])})
                self._poll(f"the process that watches was lost, the next one is started in {pause_s:g} s")
                await trio.sleep(pause_s)

    async def _with_worker(self) -> None:
        async with trio.open_nursery() as nursery:
            seat = Seat(self._house, self._spec, nursery)
            await seat.fill()
            seen: list[RootWatch] = []
            began = monotonic()
            while self._sources:
                message = WatchSources(sources=self._sources, seen=seen, wait_ms=int(WAIT_S * 1000))
                answer = await seat.call(message, RootWatches, deadline_ns=deadline_after(WAIT_S + GRACE_S))
                if answer.watches != seen:
                    seen = answer.watches
                    self._take(seen)
                if monotonic() > began + HEALTHY_S:
                    self._failures = 0
            nursery.cancel_scope.cancel("there are no sources")

    def _take(self, watches: list[RootWatch]) -> None:
        changed = self._rounds.told(watches)
        self._show()
        if changed:
            self._hint()

    def _poll(self, reason: str) -> None:
        """Take every root for one that nobody watches. The next process tells of each anew, so each is walked then."""
        self._rounds.told([RootWatch(source_id=source.source_id, reason=reason) for source in self._sources])
        self._show()

    def _show(self) -> None:
        watches = {watch.source_id: watch for watch in self._rounds.watches}
        notices = tuple(_notice(source, watches.get(source.source_id), self._scanned) for source in self._sources)
        if notices != self._board.notice.sources:
            self._board.post(msgspec.structs.replace(self._board.notice, sources=notices))


def _notice(source: SourceRoot, watch: RootWatch | None, scanned: ScanResult | None) -> SourceNotice:
    """Return what is shown of a root."""
    if watch is None:
        watch = RootWatch(source_id=source.source_id, reason="its watch is being set up")
    return SourceNotice(
        source_id=source.source_id,
        path=source.path,
        watching=watch.mode,
        reason=watch.reason,
        files=None if scanned is None else scanned.files_of.get(source.source_id),
        held=None if scanned is None else scanned.held_roots.get(source.source_id),
        unfinished=scanned is not None and source.source_id in scanned.unfinished,
    )
