"""The process that watches the sources for changes: one thread a root, and a call that waits for news.

A process of its own because the library that asks the kernel is native code, and because what it touches are other
people's file systems. When it dies or hangs nothing is lost: roots that nobody watches are polled. Imports neither
LanceDB nor Arrow; opens no note and no database.
"""

import threading
import time
from collections.abc import Mapping

import msgspec

from actors.child import CallContext, serve
from actors.frames import Setup
from actors.generation_builder.root_watch import Budget, RootWatchThread, WatchLimits
from actors.generation_builder.scan import scan_limits
from actors.messages.base import Message
from actors.messages.builder_work import RootWatch, RootWatches, SourceWatcherWork, WatchSources
from actors.messages.core_writer import SourceRoot
from actors.settings import RoomSetup

LANE = "watch"
LOOK_EVERY_S = 0.25


class SourceWatcherRoom:
    """What `actors/child.py` runs: see Room there."""

    work: object = SourceWatcherWork
    lanes: Mapping[type[Message], str] = {WatchSources: LANE}

    def __init__(self, setup: Setup) -> None:
        settings = msgspec.msgpack.decode(setup.settings, type=RoomSetup).generation_builder
        self._scan = scan_limits(settings)
        self._limits = WatchLimits(
            quiet_s=settings.watch_debounce_ms / 1000,
            limit_s=settings.watch_debounce_ms_max / 1000,
            retry_s=settings.scan_every_ms / 1000,
            patience_s=settings.reconcile_every_ms / 1000,
            hang_s=settings.root_hang_ms / 1000,
        )
        self._budget = Budget(settings.watch_folders_max)
        self._news = threading.Condition()
        self._threads: dict[str, RootWatchThread] = {}
        self._looked_at = time.monotonic()

    def open(self, lane: str) -> dict[str, int | float | str | bool | None]:
        """Watch nothing yet: the first call says what."""
        return {}

    def close(self, lane: str) -> None:
        """Ask the threads to end."""
        for thread in self._threads.values():
            thread.stop()

    def idle(self, lane: str) -> bool:
        """Do nothing: the threads do the work."""
        return False

    def interrupt(self, lane: str) -> None:
        """Wake the call that waits, to see that it is not wanted any more."""
        self._tell()

    def handle(self, message: Message, call: CallContext) -> msgspec.Struct:
        """Watch what is to be watched, and wait for news."""
        if not isinstance(message, WatchSources):
            raise TypeError(f"the source watcher does not take {type(message).__name__}")
        self._follow(message.sources)
        until = time.monotonic() + message.wait_ms / 1000
        with self._news:
            while (now := self._states()) == message.seen and time.monotonic() < until and not call.expired():
                self._news.wait(LOOK_EVERY_S)
        return RootWatches(watches=now)

    def _follow(self, sources: list[SourceRoot]) -> None:
        wanted = {source.source_id: source for source in sources}
        for name, thread in list(self._threads.items()):
            if wanted.get(name) != thread.source:
                thread.stop()
                del self._threads[name]
        for name, source in wanted.items():
            if name not in self._threads:
                self._threads[name] = RootWatchThread(source, self._scan, self._limits, self._budget, self._tell)

    def _states(self) -> list[RootWatch]:
        """Return the states. Time that nobody waited through does not count as silence: a process can be starved."""
        now = time.monotonic()
        elapsed_s, self._looked_at = min(now - self._looked_at, 2 * LOOK_EVERY_S), now
        return [thread.look(elapsed_s) for thread in self._threads.values()]

    def _tell(self) -> None:
        with self._news:
            self._news.notify_all()


if __name__ == "__main__":
    serve(SourceWatcherRoom)
