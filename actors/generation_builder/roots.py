"""The last walk of each root, each root walked in a thread of its own and at its own pace.

A root whose file system does not answer *hangs*: it is held as it was, shown, and looked at again when the call that
hangs has returned. One whose walk takes long is as it was until the walk is done; the first walk of a root that takes
long holds it. Neither keeps a scan waiting for longer than it can bear, nor the walks of the other roots.

A walk that misses notes that the one before it had is made again until nothing more is missing: a note that was moved
while its folders were walked may have been seen in neither place, and would be gone for a moment.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from actors.generation import SourceState
from actors.generation_builder import skips
from actors.generation_builder.scan import Scan, ScanLimits, Walked, combine, held_whole, walk_root
from actors.messages.core_writer import SourceRoot
from actors.messages.index import Skip

LOOK_EVERY_S = 0.05
WALKS_MAX = 5  # in a row, while notes go on to be missing


class Roots:
    """The walks of one process. `scan` may be called by several threads."""

    def __init__(self, limits: ScanLimits, *, hang_s: float) -> None:
        self._limits = limits
        self._hang_s = hang_s
        self._changed = threading.Condition()
        self._roots: dict[str, _Root] = {}

    def scan(
        self,
        sources: Sequence[SourceRoot],
        known: Mapping[str, SourceState],
        *,
        only: Collection[str] | None = None,
        patience_s: float = float("inf"),
        check: Callable[[], None] = lambda: None,
    ) -> Scan:
        """Walk the roots (`only` those, and those that were never walked), and return what is known of all.

        Waits at most `patience_s` for walks that get on, and not at all for a root that hangs; `unfinished` names those
        that were not waited for. `known` is what the generation before held of them. `check` may raise to stop waiting.
        """
        with self._changed:
            roots = self._keep(sources)
            for root in roots:
                if only is None or root.source.source_id in only or not root.walks_wanted:
                    root.want_walk()
            until = time.monotonic() + patience_s
            while any(root.gets_on(self._hang_s) for root in roots) and (now := time.monotonic()) < until:
                check()
                self._changed.wait(LOOK_EVERY_S)
                for root in roots:
                    root.watch(min(time.monotonic() - now, 2 * LOOK_EVERY_S))
            walks = [self._outcome(root) for root in roots]
            unfinished = tuple(root.source.source_id for root in roots if root.busy)
            took_s = {root.source.source_id: root.took_s for root in roots}
        return combine(walks, self._limits, known)._replace(unfinished=unfinished, took_s=took_s)

    def _keep(self, sources: Sequence[SourceRoot]) -> "list[_Root]":
        """Forget the roots that are gone or are not what they were, and take in the new ones."""
        wanted = {source.source_id: source for source in sources}
        for name, root in list(self._roots.items()):
            if wanted.get(name) != root.source:
                root.abandoned = True
                del self._roots[name]
        for name, source in wanted.items():
            if name not in self._roots:
                self._roots[name] = _Root(source, self._limits, self._changed)
        return [self._roots[source.source_id] for source in sources]

    def _outcome(self, root: "_Root") -> Walked:
        if root.failure is not None:
            raise root.failure
        path = root.source.path
        if root.hangs(self._hang_s):
            detail = f"its file system has not answered for {self._hang_s:g} s; its notes stay in the index"
            return held_whole(root.source, Skip(path=path, reason=skips.HANGS, detail=detail))
        if root.last is None:
            detail = "is being walked for the first time; what was indexed of it before stays"
            return held_whole(root.source, Skip(path=path, reason=skips.WALKING, detail=detail))
        return root.last


class _Root:
    """One root. Every member is guarded by the condition, but for `_stirs`, which its thread alone writes."""

    def __init__(self, source: SourceRoot, limits: ScanLimits, changed: threading.Condition) -> None:
        self.source = source
        self.last: Walked | None = None
        self.failure: Exception | None = None
        self.took_s = 0.0
        self.walks_wanted = 0
        self.busy = False  # a thread walks it
        self.abandoned = False
        self._limits = limits
        self._changed = changed
        self._stirs = 0  # how often a call to its file system has returned
        self._stirs_seen = 0
        self._silent_s = 0.0

    def want_walk(self) -> None:
        """Have it walked from the start, after the walk that is under way if there is one."""
        self.walks_wanted += 1
        if not self.busy:
            self.busy = True
            self._silent_s = 0.0
            threading.Thread(target=self._run, name=f"walk-{self.source.source_id}", daemon=True).start()

    def hangs(self, hang_s: float) -> bool:
        """Say whether a call to its file system has not returned for so long."""
        return self.busy and self._silent_s >= hang_s

    def watch(self, elapsed_s: float) -> None:
        """Count its silence. Only time that a scan waited through counts: on a starved machine nobody gets on."""
        if self._stirs != self._stirs_seen:
            self._stirs_seen, self._silent_s = self._stirs, 0.0
        else:
            self._silent_s += elapsed_s

    def gets_on(self, hang_s: float) -> bool:
        """Say whether its walk will end in finite time, as far as can be told."""
        return self.busy and not self.hangs(hang_s)

    def _run(self) -> None:
        try:
            while not self._walk():
                pass
        except _Abandoned:
            pass
        except Exception as error:  # a bug: raised again by whoever asks for the outcome
            with self._changed:
                self.failure, self.busy = error, False
                self._changed.notify_all()

    def _walk(self) -> bool:
        """Make one walk that counts; say whether no later one is wanted."""
        with self._changed:
            number, before, began = self.walks_wanted, self.last, time.monotonic()
        found = walk_root(self.source, self._limits, self._stir)
        for _ in range(WALKS_MAX - 1):
            if before is None or not _misses(found, before):
                break
            before, found = found, walk_root(self.source, self._limits, self._stir)
        with self._changed:
            self.last, self.took_s = found, time.monotonic() - began
            self.busy = self.walks_wanted > number
            self._changed.notify_all()
            return not self.busy

    def _stir(self) -> None:
        if self.abandoned:
            raise _Abandoned
        self._stirs += 1


class _Abandoned(Exception):
    """The root was removed while it was walked."""


def _misses(found: Walked, before: Walked) -> bool:
    """Say whether notes are missing that were there before."""
    if not before.notes:
        return False
    present = {note.relative for note in found.notes}
    return any(note.relative not in present for note in before.notes)
