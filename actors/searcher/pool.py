"""The two search workers: one active, one warm spare, each looked after for itself.

LanceDB takes seconds to import and can take its process down, so there is always a second process with the same
generation open. A query whose worker dies goes to the other one at once. A new generation is opened by the spare
first; queries move over when it is ready, and the other worker follows.
"""

import math
from collections.abc import Callable

import trio

from actors.actor import House
from actors.errors import BulkheadError, GenerationSuspect
from actors.mailbox import deadline_after
from actors.messages import Done, DropGeneration, GenerationRef, LoadGeneration, WarmUp
from actors.worker import Worker, WorkerDied, WorkerSpec

LOAD_S = 300.0
WARM_S = 120.0
DROP_S = 30.0
RESTART_S_MIN, RESTART_S_MAX = 0.05, 30.0
RETRY_LOAD_S = 2.0
SPARE_WAITS_S = 15.0
TRUTH_FIRST_S = 2.0
REPEAT_FIRST_S = 0.5
# Every so many queries one goes to the spare, so that its caches are warm on the day it is needed.
SPARE_EVERY = 16


class Slot:
    """One of the two places for a worker, over all its lives."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.loaded: set[int] = set()
        self.failures = 0
        self.equipped = trio.Event()  # it had everything once; the spare starts after that

    def serves(self, generation: int) -> bool:
        """Say whether its worker has a generation open."""
        return self.worker is not None and generation in self.loaded


class Pool:
    """Keeps both workers alive and equipped with the generation that is wanted."""

    def __init__(
        self,
        house: House,
        spec: WorkerSpec,
        *,
        changed: Callable[[], None],
        suspect: Callable[[int, str], None],
    ) -> None:
        self._house = house
        self._spec = spec
        self._changed = changed
        self._suspect = suspect
        self._slots = [Slot(), Slot()]  # the active one first
        self._wanted: GenerationRef | None = None
        self._wanted_changed = trio.Event()
        self.failovers = 0
        self._picks = 0
        self.last_error: str | None = None

    async def run(self) -> None:
        """Look after both slots, for ever."""
        await self._house.wait_for_truth("transcript_appender", "core_writer", seconds=TRUTH_FIRST_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep, self._slots[0])
            # Two LanceDB imports side by side would make both late; the first one to be ready serves.
            with trio.move_on_after(SPARE_WAITS_S):
                await self._slots[0].equipped.wait()
            nursery.start_soon(self._keep, self._slots[1])

    def pick(self, generation: int) -> Worker | None:
        """Return a worker that has the generation open: the active one, else the spare, which takes its place."""
        self._picks += 1
        spare = self._slots[1]
        if self._picks % SPARE_EVERY == 0 and spare.serves(generation):
            return spare.worker
        for position, slot in enumerate(self._slots):
            if slot.serves(generation):
                if position:
                    self._slots.reverse()
                    self.failovers += 1
                    self._changed()
                return slot.worker
        return None

    def bury(self, worker: Worker) -> None:
        """Stop offering a worker that a caller saw die; its slot notices a moment later by itself."""
        for slot in self._slots:
            if slot.worker is worker:
                slot.worker = None
                slot.loaded.clear()

    def any_worker(self) -> Worker | None:
        """Return a live worker, whatever it has open; the spare first, which has less to do."""
        return next((slot.worker for slot in reversed(self._slots) if slot.worker is not None), None)

    def want(self, generation: GenerationRef | None) -> None:
        """Have both workers open this generation."""
        self._wanted = generation
        self._wanted_changed.set()
        self._wanted_changed = trio.Event()
        if generation is not None and not self._slots[0].serves(generation.generation):
            self._slots.sort(key=lambda slot: not slot.serves(generation.generation))
        self._changed()

    async def prepare(self, generation: GenerationRef) -> bool:
        """Have the spare (or whoever lives) open a generation that is not wanted yet; False when nobody can."""
        for slot in reversed(self._slots):
            if slot.worker is not None:
                await self._load(slot, slot.worker, generation)
                return True
        return False

    async def drop(self, generation: int) -> None:
        """Close a generation everywhere; after this its files may go."""
        for slot in self._slots:
            if slot.worker is not None and generation in slot.loaded:
                slot.loaded.discard(generation)
                try:
                    message = DropGeneration(generation=generation)
                    await slot.worker.call(message, Done, deadline_ns=deadline_after(DROP_S))
                except WorkerDied:
                    pass  # a dead worker holds nothing open

    def distrust(self, generation: int) -> None:
        """Take a generation that could not be read out of service until it has been verified and opened again."""
        for slot in self._slots:
            slot.loaded.discard(generation)
        self._wanted_changed.set()
        self._wanted_changed = trio.Event()
        self._changed()

    def loaded(self, generation: int) -> int:
        """Return how many workers have a generation open."""
        return sum(slot.serves(generation) for slot in self._slots)

    def pids(self) -> tuple[int | None, int | None]:
        """Return the process ids of the active worker and of the spare."""
        first, second = (slot.worker.pid if slot.worker is not None else None for slot in self._slots)
        return first, second

    # ------------------------------------------------------------ one slot

    async def _keep(self, slot: Slot) -> None:
        while True:
            try:
                async with trio.open_nursery() as nursery:
                    slot.worker = await self._house.start_worker(self._spec, nursery)
                    self._changed()
                    if self._another_serves(slot):
                        await self._warm_up(slot, slot.worker, gently=True)
                    else:
                        nursery.start_soon(self._warm_up, slot, slot.worker)
                    await self._equip(slot, slot.worker)
            except* WorkerDied as group:
                self.last_error = str(group.exceptions[0])
            slot.worker = None
            slot.loaded.clear()
            slot.failures += 1
            self._house.log.warning("search worker died", extra={"error": self.last_error})
            self._changed()
            if self._another_serves(slot):
                # The queries that were under way are being repeated over there; the CPU is theirs first.
                await trio.sleep(REPEAT_FIRST_S)
            # Else the first restart is immediate; then the pauses double.
            if slot.failures > 1:
                await trio.sleep(min(RESTART_S_MAX, RESTART_S_MIN * math.pow(2, min(slot.failures, 16))))

    def _another_serves(self, slot: Slot) -> bool:
        wanted = self._wanted
        return wanted is not None and any(other.serves(wanted.generation) for other in self._slots if other is not slot)

    async def _warm_up(self, slot: Slot, worker: Worker, gently: bool = False) -> None:
        try:
            await worker.call(WarmUp(gently=gently), Done, deadline_ns=deadline_after(WARM_S))
        except BulkheadError as error:
            self._house.log.warning("search worker not warm", extra={"error": error.message})
        slot.equipped.set()

    async def _equip(self, slot: Slot, worker: Worker) -> None:
        """Open what is wanted, now and whenever it changes."""
        while True:
            wanted, changed = self._wanted, self._wanted_changed
            if wanted is not None and wanted.generation not in slot.loaded:
                await self._try_to_load(slot, worker, wanted)
                if wanted.generation not in slot.loaded:
                    with trio.move_on_after(RETRY_LOAD_S):
                        await changed.wait()
                    continue
            await changed.wait()

    async def _try_to_load(self, slot: Slot, worker: Worker, wanted: GenerationRef) -> None:
        try:
            await self._load(slot, worker, wanted)
            slot.failures = 0
        except GenerationSuspect as error:
            self._suspect(wanted.generation, error.message)
        except BulkheadError as error:
            self.last_error = error.message
            self._house.log.warning("generation not loaded", extra={"error": error.message})

    async def _load(self, slot: Slot, worker: Worker, wanted: GenerationRef) -> None:
        await worker.call(LoadGeneration(generation=wanted), Done, deadline_ns=deadline_after(LOAD_S))
        if slot.worker is worker:  # it may have died and been replaced while the answer was on its way
            slot.loaded.add(wanted.generation)
            self._changed()
