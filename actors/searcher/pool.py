"""The lives of the two search workers: one active, one warm spare, each looked after for itself.

LanceDB takes seconds to import and can take its process down, so there is always a second process with the same view
open. A new view is opened by the spare first; queries move over when it is ready, and the other worker follows. A
worker that is too large or too old is replaced while the other one serves.

Patience: a worker that imports LanceDB on a loaded machine is late with its beats for seconds; one that is warm never
is, whatever it searches, so a silent one is stopped or stuck and is killed whether it has calls or not. One that beats
and does not get ahead with opening a generation is given time by the size of it.
"""

import math
from collections.abc import Callable

import trio

from actors.actor import House
from actors.errors import BulkheadError, GenerationSuspect
from actors.mailbox import deadline_after
from actors.messages.base import Done
from actors.messages.index import GenerationRef, view_name
from actors.messages.searcher import DropGeneration, LoadGeneration, WarmUp
from actors.searcher.pair import Pair, Slot
from actors.searcher.recycling import judge
from actors.settings import SearcherSettings
from actors.worker import Worker, WorkerDied, WorkerSpec

# Verifying means reading every byte: 0.5 to 1 GB/s here, and a loaded machine with a slow disk must come through.
LOAD_S_MIN, LOAD_BYTES_PER_S = 30.0, 20_000_000
WARM_S = 60.0
DROP_S = 30.0
RESTART_S_MIN, RESTART_S_MAX = 0.05, 10.0
RETRY_LOAD_S = 2.0
SPARE_WAITS_S = 15.0
TRUTH_FIRST_S = 2.0
REPEAT_FIRST_S = 0.5
RECYCLE_LOOK_S = 1.0
HEALTHY_S = 60.0


class Pool:
    """Keeps both workers alive and equipped with the view that is wanted."""

    def __init__(
        self,
        house: House,
        spec: WorkerSpec,
        pair: Pair,
        *,
        limits: SearcherSettings,
        suspect: Callable[[int, str], None],
    ) -> None:
        self._house = house
        self._spec = spec
        self._pair = pair
        self._limits = limits
        self._suspect = suspect
        self._wanted: GenerationRef | None = None
        self._wanted_changed = trio.Event()
        self.recycled = 0
        self.last_error: str | None = None

    async def run(self) -> None:
        """Look after both slots, for ever."""
        await self._house.wait_for_truth("transcript_appender", "core_writer", seconds=TRUTH_FIRST_S)
        async with trio.open_nursery() as nursery:
            for slot in self._pair:
                nursery.start_soon(self._keep, slot)

    def want(self, generation: GenerationRef | None) -> None:
        """Have both workers open this view."""
        self._wanted = generation
        if generation is not None and not self._pair.active.serves(generation.view):
            self._pair.prefer(generation.view)
        self._wake()

    async def prepare(self, generation: GenerationRef, *, anew: bool = False) -> bool:
        """Have the spare (or whoever lives) open a view that is not wanted yet; False when nobody can.

        `anew`: it is verified even where it is open. Raises GenerationSuspect, and WorkerDied when a worker dies over
        it.
        """
        for slot in self._pair.living():
            if slot.worker is not None:
                await self._load(slot, slot.worker, generation, anew=anew)
                return True
        return False

    def held(self) -> set[int]:
        """Return the views that a worker may have open."""
        return {view for slot in self._pair for view in slot.held}

    async def drop(self, view: int) -> bool:
        """Close a view everywhere; say whether that is done, so that its files may go.

        A worker first opens what is wanted: when that shares the generation with this view, it must not be verified
        and opened all over again.
        """
        done = True
        for slot in self._pair:
            if slot.worker is None or view not in slot.held:
                continue
            opening = self._wanted is not None and not slot.serves(self._wanted.view)
            done = not opening and await self._drop(slot, slot.worker, view) and done
        return done

    async def _drop(self, slot: Slot, worker: Worker, view: int) -> bool:
        slot.loaded.discard(view)  # first: should it be wanted again meanwhile, it is opened after this
        slot.held.discard(view)
        try:
            await worker.call(DropGeneration(view=view), Done, deadline_ns=deadline_after(DROP_S))
        except WorkerDied:
            return True  # a dead worker holds nothing open
        except BulkheadError as error:
            extra = {"generation": view_name(view), "error": error.message}
            self._house.log.warning("generation not closed", extra=extra)
            if slot.worker is worker:
                slot.held.add(view)
            return False
        return True

    def distrust(self, view: int) -> None:
        """Take a view that could not be read out of service until it has been verified and opened again."""
        for slot in self._pair:
            slot.loaded.discard(view)
        self._wake()

    def _wake(self) -> None:
        self._wanted_changed.set()
        self._wanted_changed = trio.Event()
        self._pair.changed()

    # ------------------------------------------------------------ one slot

    async def _keep(self, slot: Slot) -> None:
        while True:
            await self._wait_turn(slot)
            slot.coming, slot.settled = True, trio.Event()
            try:
                async with trio.open_nursery() as nursery:
                    await self._live(slot, nursery)
            except* WorkerDied as group:
                self._note_death(slot, group)
            finally:
                slot.coming = False
                slot.settled.set()
                slot.release()
                self._pair.changed()

    async def _wait_turn(self, slot: Slot) -> None:
        """Wait for the moment to start a worker.

        Two LanceDB imports side by side would make both late: the first one to be ready serves. The first restart is
        immediate; then the pauses double.
        """
        failures = slot.failures + slot.oversized
        if failures > 1:
            await trio.sleep(min(RESTART_S_MAX, RESTART_S_MIN * math.pow(2, min(failures, 16))))
        other = self._pair.other(slot)
        if slot.failures and self._serves_wanted(other):
            # The queries that were under way are being repeated over there; the CPU is theirs first.
            await trio.sleep(REPEAT_FIRST_S)
        if other.coming and not self._serves_wanted(other):
            with trio.move_on_after(SPARE_WAITS_S):
                await other.settled.wait()

    async def _live(self, slot: Slot, nursery: trio.Nursery) -> None:
        """Start a worker and look after it until it dies or has been replaced."""
        worker = await self._house.start_worker(self._spec, nursery)
        slot.employ(worker)
        self._pair.changed()
        nursery.start_soon(self._recycle, slot, worker, nursery.cancel_scope)
        if self._serves_wanted(self._pair.other(slot)):
            await self._warm_up(slot, worker, gently=True)
        else:
            nursery.start_soon(self._warm_up, slot, worker)
        await self._equip(slot, worker)

    def _note_death(self, slot: Slot, group: ExceptionGroup[WorkerDied]) -> None:
        slot.failures += 1
        self.last_error = str(_last_leaf(group))  # the worker's own task ends last and knows most
        self._house.log.warning("search worker died", extra={"error": self.last_error})

    def _serves_wanted(self, slot: Slot) -> bool:
        return self._wanted is not None and slot.serves(self._wanted.view)

    async def _warm_up(self, slot: Slot, worker: Worker, gently: bool = False) -> None:
        try:
            await worker.call(WarmUp(gently=gently), Done, deadline_ns=deadline_after(WARM_S))
            worker.silence_ms = worker.busy_silence_ms = self._limits.silence_ms
        except BulkheadError as error:
            self._house.log.warning("search worker not warm", extra={"error": error.message})
        slot.settled.set()

    async def _equip(self, slot: Slot, worker: Worker) -> None:
        """Open what is wanted, now and whenever it changes."""
        while True:
            wanted, changed = self._wanted, self._wanted_changed
            if wanted is not None and wanted.view not in slot.loaded:
                await self._try_to_load(slot, worker, wanted)
                if wanted.view not in slot.loaded:
                    with trio.move_on_after(RETRY_LOAD_S):
                        await changed.wait()
                    continue
            await changed.wait()

    async def _try_to_load(self, slot: Slot, worker: Worker, wanted: GenerationRef) -> None:
        try:
            await self._load(slot, worker, wanted)
            slot.failures = 0
        except GenerationSuspect as error:
            self._suspect(wanted.view, error.message)
        except BulkheadError as error:
            self.last_error = error.message
            self._house.log.warning("generation not loaded", extra={"error": error.message})

    async def _load(self, slot: Slot, worker: Worker, wanted: GenerationRef, *, anew: bool = False) -> None:
        seconds = LOAD_S_MIN + wanted.bytes / LOAD_BYTES_PER_S
        slot.held.add(wanted.view)  # first: what comes of it may be lost, and then it must be closed all the same
        message = LoadGeneration(generation=wanted, anew=anew)
        await worker.call(message, Done, deadline_ns=deadline_after(seconds))
        if slot.worker is worker:  # it may have died and been replaced while the answer was on its way
            slot.loaded.add(wanted.view)
            self._pair.changed()

    # ------------------------------------------------------------ recycling

    async def _recycle(self, slot: Slot, worker: Worker, life: trio.CancelScope) -> None:
        """Replace the worker when it is too large or too old: politely when the other one can serve meanwhile."""
        while True:
            await trio.sleep(RECYCLE_LOOK_S)
            age_s = trio.current_time() - slot.since
            if age_s > HEALTHY_S:
                slot.oversized = 0
            verdict = judge(self._limits, rss_bytes=worker.rss_bytes, age_s=age_s)
            if verdict == "kill":
                slot.oversized += 1
                self.recycled += 1
                worker.kill(
                    f"has {worker.rss_bytes} bytes of memory, more than 1.5 times the limit of "
                    f"{self._limits.rss_bytes_max} (config: searcher.rss_bytes_max)"
                )
                return
            if verdict == "retire" and self._may_retire(slot):
                await self._retire(slot, worker)
                life.cancel("the worker was replaced")
                return

    def _may_retire(self, slot: Slot) -> bool:
        """Say whether the other worker can take over; since it must serve, both never leave at once."""
        other = self._pair.other(slot)
        return self._serves_wanted(slot) and self._serves_wanted(other) and other.trusted

    async def _retire(self, slot: Slot, worker: Worker) -> None:
        self._house.log.info("search worker replaced", extra={"pid": worker.pid})
        self.recycled += 1
        self._pair.promote(self._pair.other(slot))
        slot.release()
        self._pair.changed()
        await worker.retire()


def _last_leaf(group: ExceptionGroup[WorkerDied]) -> WorkerDied:
    last = group.exceptions[-1]
    return _last_leaf(last) if isinstance(last, ExceptionGroup) else last
