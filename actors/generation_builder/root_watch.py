"""The watch over one root: a thread that asks the kernel for changes, and says why it cannot.

The folders to watch are those that the scan lists: no hidden ones, nothing ignored, no `node_modules`. A library that
watches recursively would spend the watches of the user, which editors need as well, on what nobody indexes, and would
follow links out of the root. When folders come or go the watch is made anew.

What is told is *that* a root changed, never what: the next scan finds out. So a lost event costs nothing as long as
another one follows, and after every new watch there is one scan, for what happened before it was in force.

A root that is gone, closed, remote or too large is polled, with the reason, and tried again. A root that hangs keeps
this thread, and nothing else: whoever asks for its state finds that the thread has fallen silent.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import psutil
from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError

from actors.generation_builder.scan import ScanLimits, absolute, walk_root
from actors.generation_builder.watch_mode import Debounce, Mount, kind_of, matters, moves_folders, why_not_watched
from actors.messages.builder_work import RootWatch
from actors.messages.core_writer import SourceRoot

# The library polls its own list of changes so often, and tells what it has when nothing was added between two looks.
STEP_MS = 200
TIMEOUT_S = 1.0
LOOK_EVERY_S = 5.0  # is the root still the folder that is watched
ARM_TRIES = 5  # while folders come and go


class WatchLimits(NamedTuple):
    """When a burst of changes is over (Debounce), and how long to wait before what failed is tried again.

    `patience_s` where the system or the size of the root is the reason, which do not pass by themselves.
    """

    quiet_s: float
    limit_s: float
    retry_s: float
    patience_s: float
    hang_s: float  # a root that is silent for so long does not answer


class Budget:
    """How many folders may be watched, over all roots."""

    def __init__(self, folders_max: int) -> None:
        self.folders_max = folders_max
        self._lock = threading.Lock()
        self._taken: dict[str, int] = {}

    def left(self, root: str) -> int:
        """Return how many a root may watch, those that it watches already included."""
        with self._lock:
            return self.folders_max - sum(count for name, count in self._taken.items() if name != root)

    def take(self, root: str, folders: int) -> None:
        """Note how many a root watches."""
        with self._lock:
            self._taken[root] = folders


class _Polled(Exception):
    """The root cannot be watched now; the text says why, `passes` whether that may be over soon."""

    def __init__(self, reason: str, *, passes: bool = False) -> None:
        super().__init__(reason)
        self.passes = passes


class _Armed(NamedTuple):
    """A watch in force: over these folders, of the root that is this device and inode."""

    notify: RustNotify
    folders: frozenset[str]
    identity: tuple[int, int]


class RootWatchThread:
    """One root. `told` is called whenever its state has changed."""

    def __init__(
        self, source: SourceRoot, scan: ScanLimits, limits: WatchLimits, budget: Budget, told: Callable[[], None]
    ) -> None:
        self.source = source
        self._state = RootWatch(source_id=source.source_id, reason="its watch is being set up")
        self._stirs = 0  # how often a call to its file system, or a wait, has returned
        self._stirs_seen = 0
        self._silent_s = 0.0
        self._hangs = 0  # how often it fell silent
        self._scan = scan._replace(files_max=0)  # folders are enough: notes are not even remembered
        self._limits = limits
        self._timeout_s = min(TIMEOUT_S, limits.hang_s / 3)  # a thread that only waits must not seem to hang
        self._budget = budget
        self._told = told
        self._stop = threading.Event()
        self._debounce = Debounce(limits.quiet_s, limits.limit_s)
        self._thread = threading.Thread(target=self._run, name=f"watch-{source.source_id}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Have the watch end soon; a thread that hangs ends when it can."""
        self._stop.set()

    def look(self, elapsed_s: float) -> RootWatch:
        """Return the state, after so long since the last look. Called by one thread, again and again."""
        if self._stirs != self._stirs_seen:
            self._stirs_seen, self._silent_s = self._stirs, 0.0
        else:
            before, self._silent_s = self._silent_s, self._silent_s + elapsed_s
            self._hangs += before < self._limits.hang_s <= self._silent_s
        # A root that falls silent has changed: it is to be looked at, and by somebody else.
        state = msgspec.structs.replace(self._state, changes=self._state.changes + self._hangs)
        if self._silent_s < self._limits.hang_s:
            return state
        reason = f"its file system has not answered for {self._limits.hang_s:g} s"
        return msgspec.structs.replace(state, mode="polling", reason=reason)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                armed = self._arm()
                self._say("events", None, changed=True)
                self._watch(armed)
            except _Polled as polled:
                self._say("polling", str(polled), changed=self._state.mode == "events")
                self._rest(self._limits.retry_s if polled.passes else self._limits.patience_s)
        self._budget.take(self.source.source_id, 0)

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0 and not self._stop.wait(min(left_s, self._timeout_s)):
            self._stirs += 1

    def _say(self, mode: str, reason: str | None, *, changed: bool = False) -> None:
        assert mode in ("events", "polling")
        before = self._state
        changes = before.changes + changed
        self._state = RootWatch(
            source_id=before.source_id,
            mode="events" if mode == "events" else "polling",
            reason=reason,
            changes=changes,
        )
        if self._state != before:
            self._told()

    # ------------------------------------------------------------ setting up

    def _arm(self) -> _Armed:
        """Watch the folders that there are; raise _Polled when that cannot be."""
        for _ in range(ARM_TRIES):
            folders = self._folders()
            try:
                identity = self._identity()
                notify = RustNotify(sorted(folders), False, False, 0, sys.platform == "darwin", True)
            except FileNotFoundError:
                continue  # a folder has gone since it was listed
            except (OSError, WatchfilesRustInternalError) as error:
                self._budget.take(self.source.source_id, 0)
                raise _Polled(f"the system refuses to watch it: {_first_line(error)}") from error
            # A folder that came in between is not watched, and nothing would tell of it.
            if self._folders() == folders:
                return _Armed(notify, folders, identity)
            notify.close()
        raise _Polled("its folders change too fast to be watched", passes=True)

    def _folders(self) -> frozenset[str]:
        self._require_watchable(1)
        walked = walk_root(self.source, self._scan, self._check)
        if walked.hold is not None:
            raise _Polled(f"{walked.hold.reason}: {walked.hold.detail}", passes=True)
        self._require_watchable(len(walked.folders))
        return frozenset(absolute(self.source, relative) for relative in walked.folders)

    def _require_watchable(self, folders: int) -> None:
        kind = kind_of(os.path.realpath(self.source.path), _mounts())
        name, budget = self.source.source_id, self._budget
        reason = why_not_watched(kind, folders, folders_left=budget.left(name), folders_max=budget.folders_max)
        budget.take(name, 0 if reason else folders)
        if reason is not None:
            raise _Polled(reason)

    def _check(self) -> None:
        self._stirs += 1
        if self._stop.is_set():
            raise _Polled("is not a source any more")

    def _identity(self) -> tuple[int, int]:
        status = os.stat(self.source.path)  # noqa: PTH116 - what is told apart is a number, not a path
        return status.st_dev, status.st_ino

    # ------------------------------------------------------------ watching

    def _watch(self, armed: _Armed) -> None:
        """Tell of changes until the watch has to be made anew."""
        look_at = time.monotonic() + LOOK_EVERY_S
        stale = False
        with armed.notify:
            while not self._stop.is_set():
                paths = self._next_paths(armed)
                self._stirs += 1
                now = time.monotonic()
                if paths is None or any(self._matters(path, armed) for path in paths):
                    self._debounce.note(now)
                stale = stale or paths is None or any(self._moves_folders(path, armed) for path in paths)
                if now >= look_at:
                    look_at = now + LOOK_EVERY_S
                    if not self._is_same(armed):
                        return  # setting it up anew tells of a change, or why there is no watch
                    if time.monotonic() - now > self._limits.hang_s:
                        return  # it hung, and nobody knows what was told meanwhile
                if self._debounce.take(now):
                    if stale:
                        return
                    self._say("events", None, changed=True)

    def _next_paths(self, armed: _Armed) -> list[str] | None:
        """Return where something happened within the next second; None when the watch is not to be trusted any more."""
        until_due_ms = (self._debounce.due_at() - time.monotonic()) * 1000
        timeout_ms = int(min(max(until_due_ms, STEP_MS), self._timeout_s * 1000))
        try:
            found = armed.notify.watch(STEP_MS, STEP_MS, timeout_ms, self._stop)
        except WatchfilesRustInternalError:
            return None
        return [path for _, path in found] if isinstance(found, set) else []

    def _matters(self, path: str, armed: _Armed) -> bool:
        return matters(path, self._scan.suffixes, armed.folders) or _may_be_folder(path)

    def _moves_folders(self, path: str, armed: _Armed) -> bool:
        return moves_folders(path, armed.folders) or (_may_be_folder(path) and not path.endswith(self._scan.suffixes))

    def _is_same(self, armed: _Armed) -> bool:
        try:
            return self._identity() == armed.identity
        except OSError:
            return False


def _may_be_folder(path: str) -> bool:
    """Say whether there is a folder or a link at this path, which may be one to be watched."""
    if os.path.basename(path).startswith("."):  # noqa: PTH119
        return False
    return os.path.islink(path) or os.path.isdir(path)  # noqa: PTH112, PTH114


def _mounts() -> list[Mount]:
    return [Mount(each.mountpoint, each.fstype) for each in psutil.disk_partitions(all=True)]


def _first_line(error: Exception) -> str:
    """Return what a library says, without the folder at which it happened to say so."""
    return str(error).split(" about [")[0].split("\n")[0]
