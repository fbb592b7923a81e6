"""How far the truth is ahead of the index, and whether the index is still there: looked at on hints and on a beat.

A hint may be lost, and a note changes without any; so there is a look every second, and roots that nobody watches are
walked by the clock. Reads only: what is due because of
what was seen is decided by deltas.py and rebuilding.py, which are woken after each look.
"""

import time
from collections.abc import Callable

import trio

from actors.errors import BulkheadError, GenerationSuspect
from actors.gaps import decode_gaps
from actors.generation_builder.desk import LOOK_EVERY_S, SHORT_S, Desk
from actors.generation_builder.publishing import Publisher
from actors.generation_builder.watching import SourceWatch
from actors.generation_builder.wishes import Wishes
from actors.mailbox import deadline_after
from actors.messages.base import Done, Statistics
from actors.messages.builder_work import ProbeIndex, ScanResult, ScanSources
from actors.messages.core_writer import CoreStatus, ListSources, SourceRoot, SourceRoots
from actors.messages.index import Covers
from actors.messages.transcript_appender import TranscriptStatus
from actors.worker import WorkerSpec


class Lookout:
    """Looks, again and again, and calls `moved` when the truth has moved, for a hint that tells so may be lost.

    `watch`, a task of its own, says which source roots are to be walked.
    """

    def __init__(
        self, desk: Desk, wishes: Wishes, publisher: Publisher, *, watcher: WorkerSpec, moved: Callable[[], None]
    ) -> None:
        self.watch = SourceWatch(desk.house, spec=watcher, limits=desk.limits, board=desk.board, hint=self.hint)
        self._desk = desk
        self._wishes = wishes
        self._publisher = publisher
        self._moved = moved
        self._hints = trio.Event()
        self._looking = trio.Lock()  # of two looks the later one tells the later truth
        self._rescan = False  # what is told of the last scan is out of date, though no root has changed

    def hint(self) -> None:
        """Look soon: somebody saw the truth move."""
        self._hints.set()

    def scan_again(self) -> None:
        """Report anew with the next look, though no root has changed: a build says what it could not read."""
        self._rescan = True

    def walk_all(self) -> None:
        """Walk all roots with the next look, whenever they were last walked."""
        self.watch.walk_all()

    async def run(self) -> None:
        """Look for ever."""
        while True:
            try:
                await self.look()
            except GenerationSuspect as error:
                await self._publisher.fall_back(error)
            except BulkheadError as error:
                # An actor that is asked is away for the moment; the next beat looks again.
                self._desk.house.log.debug("truth not looked at", extra={"error": error.message})
            self._wishes.wake()
            self._hints = trio.Event()
            with trio.move_on_after(LOOK_EVERY_S):
                await self._hints.wait()
                await trio.sleep(self._desk.limits.settle_ms / 1000)

    async def look(self) -> Covers:
        """Look once and return how far the truth is. Raises GenerationSuspect when what serves is not there."""
        async with self._looking:
            return await self._look()

    async def _look(self) -> Covers:
        deadline_ns = deadline_after(SHORT_S)
        house, truth = self._desk.house, self._desk.truth
        transcript = await house.ask("transcript_appender", TranscriptStatus(), Statistics, deadline_ns=deadline_ns)
        core = await house.ask("core_writer", CoreStatus(), Statistics, deadline_ns=deadline_ns)
        known = await house.ask("core_writer", ListSources(tenant=None), SourceRoots, deadline_ns=deadline_ns)
        event_seq, core_seq = int(transcript.values["seq"] or 0), int(core.values["core_seq"] or 0)
        digest = truth.latest.sources_digest
        due = self.watch.due(known.sources)
        if due or known.sources != truth.sources or not digest or self._rescan or self.watch.is_waiting():
            digest = await self._scan(known.sources, due)
        latest = Covers(event_seq=event_seq, core_seq=core_seq, sources_digest=digest)
        if latest != truth.latest:
            truth.latest, truth.moved_at = latest, time.monotonic()
            self._wishes.moved(latest)
            self._moved()
        gaps = decode_gaps(str(transcript.values.get("gaps") or ""))
        self._desk.post(event_seq=event_seq, core_seq=core_seq, event_gaps=gaps)
        await self._probe()
        return latest

    async def _probe(self) -> None:
        serving = self._desk.notice.serving
        if serving is None or self._publisher.lock.locked():
            return
        try:
            probe = ProbeIndex(generation=serving.generation, delta=serving.delta)
            await self._desk.work(probe, Done, seconds=SHORT_S)
        except GenerationSuspect:
            if serving == self._desk.notice.serving:  # else it was replaced while it was looked at
                raise

    async def _scan(self, sources: list[SourceRoot], due: list[str]) -> str:
        self._rescan = False
        self.watch.begin(due)
        try:
            result = await self._desk.work(ScanSources(sources=sources, only=due), ScanResult)
        except BulkheadError:
            self.watch.failed(due)
            raise
        self._desk.truth.sources = sources
        self.watch.end(due, result)
        self._desk.post(files=result.files, skipped=tuple(result.skipped), held=tuple(result.held))
        return result.digest
