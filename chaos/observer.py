"""Watches a daemon from outside while it is hurt: changes of state, lives of the process, loop lag, CURRENT.

Polls over a connection of its own and reconnects for ever, so it sees every life of the daemon. What it collects is
judged by `chaos.checker` afterwards; only CURRENT is judged on the spot, as the files may be gone later.
"""

import contextlib
import time
from collections import Counter
from pathlib import Path
from typing import Any

import trio

from actors import generation
from actors.errors import GenerationSuspect
from chaos.client import Client, Disconnected, Hung, RpcError, open_socket
from chaos.timeline import Move, Span

POLL_S = 0.1
STATUS_EVERY = 5
CURRENT_S = 0.25
CALL_S = 2.0
RECONNECT_S = 0.05


class Observer:
    """What was seen from outside."""

    def __init__(self, socket_path: str, data: Path) -> None:
        self._socket_path = socket_path
        self._index = data / "generation_builder"
        self.moves: list[Move] = []
        self.lives: list[Span] = []
        self.gaps = 0  # readings of the ring that did not join the one before: entries were missed
        self.violations: list[str] = []
        self.looks_at_current = 0
        self.lag_counts: dict[int, list[int]] = {}  # the daemon's histogram as it was last read, by life
        self.lag_ms_max = 0.0
        self.rss_bytes_max = 0
        self.suspected: list[float] = []  # when a generation was found damaged: an older one may serve
        self._pid: int | None = None
        self._heard = False  # whether the daemon of this connection has answered
        self._ring: list[Move] = []

    async def run(self) -> None:
        """Watch until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_current)
            while True:
                with contextlib.suppress(OSError, Disconnected, RpcError, Hung):
                    async with open_socket(self._socket_path) as client:
                        await self._follow(client)
                await trio.sleep(RECONNECT_S)

    async def _follow(self, client: Client) -> None:
        """Poll one daemon until its end, which is when the connection ends and not when it answered last."""
        self._heard = False
        try:
            await self._poll(client)
        except (OSError, Disconnected):
            if self._heard:
                self._extend_life()
            raise

    async def _poll(self, client: Client) -> None:
        count = 0
        while True:
            if count % STATUS_EVERY == 0:
                self._note_status(await client.call("system.status", deadline_s=CALL_S))
            count += 1
            await self.look(client)
            await trio.sleep(POLL_S)

    async def look(self, client: Client) -> None:
        """Read the ring of transitions once."""
        metrics = await client.call("system.metrics", deadline_s=CALL_S)
        self._note_ring(time.monotonic(), metrics["transitions"])
        self.lag_counts[len(self.lives)] = metrics["loop_lag"]["counts"]
        self.lag_ms_max = max(self.lag_ms_max, metrics["loop_lag_ms"]["max"])
        if self.lives:
            self._extend_life()

    # ------------------------------------------------------------ lives and numbers

    def _note_status(self, status: dict[str, Any]) -> None:
        self._heard = True
        if status["pid"] != self._pid:
            self._pid = status["pid"]
            self._ring = []
            began = time.monotonic() - status["uptime_s"]
            if self.lives:
                began = max(began, self.lives[-1].end)
            self.lives.append(Span(name=str(self._pid), begin=began, end=time.monotonic()))
        self.rss_bytes_max = max(self.rss_bytes_max, status["rss_bytes"])
        if status["index"].get("suspects") or "suspect" in (status["index"]["last_error"] or ""):
            self.suspected.append(time.monotonic())

    def _extend_life(self) -> None:
        last = self.lives[-1]
        self.lives[-1] = Span(name=last.name, begin=last.begin, end=time.monotonic())

    # ------------------------------------------------------------ transitions

    def _note_ring(self, now: float, entries: list[dict[str, Any]]) -> None:
        """Join a reading of the ring (the last 50 entries, the newest last) to what is known of this life."""
        read = [
            Move(
                at=now - entry["ago_ms"] / 1000,
                life=len(self.lives),
                actor=entry["actor"],
                epoch=entry["epoch"],
                before=entry["before"],
                after=entry["after"],
                cause=entry["cause"],
            )
            for entry in entries
        ]
        fresh = join(self._ring, read)
        if fresh is None:
            self.gaps += 1
            fresh = len(read)
        self._ring = [*self._ring, *read[len(read) - fresh :]][-len(read) :] if read else self._ring
        self.moves += read[len(read) - fresh :]

    def recovered(self) -> Counter[str]:
        """Return per actor how often it came back."""
        return Counter(move.actor for move in self.moves if move.after == "ready" and move.epoch > 1)

    # ------------------------------------------------------------ CURRENT

    async def _watch_current(self) -> None:
        while True:
            wrong = await trio.to_thread.run_sync(look_at_current, self._index)
            if wrong is not None:
                # A flip and a deletion between our two reads look the same; what is wrong for long is wrong.
                await trio.sleep(CURRENT_S)
                again = await trio.to_thread.run_sync(look_at_current, self._index)
                if again == wrong:
                    self.violations.append(f"I9: {wrong}")
            self.looks_at_current += 1
            await trio.sleep(CURRENT_S)


def join(known: list[Move], read: list[Move]) -> int | None:
    """Return how many entries at the end of a reading are new, None when the two readings do not overlap.

    The first reading of a life is joined to nothing: all of it is new.
    """
    if not known:
        return len(read)
    known_keys = [move.key for move in known]
    read_keys = [move.key for move in read]
    for fresh in range(len(read) + 1):
        old = read_keys[: len(read) - fresh]
        if old and known_keys[-len(old) :] == old:
            return fresh
    return None


def look_at_current(index: Path) -> str | None:
    """Say what is wrong with the generation that CURRENT names, None when nothing is, or none is published yet."""
    if not (index / generation.CURRENT).exists():
        return None
    pointer = generation.read_current(index)
    if pointer is None:
        return "CURRENT cannot be read"
    return unsound(index, pointer)


def unsound(index: Path, pointer: generation.Pointer) -> str | None:
    """Say what is wrong with the view that a pointer names, None when nothing is."""
    try:
        generation.verify_shape(generation.generation_path(index, pointer.generation))
        if pointer.delta is not None:
            generation.verify_shape(generation.delta_path(index, pointer.generation, pointer.delta))
    except GenerationSuspect as error:
        return f"CURRENT names a generation that is not sound: {error.message}"
    return None
