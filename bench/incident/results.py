"""What a run has seen: operations, windows, rebuilds, memory and disk. Data; written and read as JSON. Pure.

Times are seconds of CLOCK_MONOTONIC, which all processes of a machine share.
"""

import msgspec

from bench.incident.work import Sizes

OK = "ok"
LOCKED, LATE, REPLAYED = "locked", "late", "replayed"
IDLE, REBUILD = "idle", "rebuild"
BULKHEAD, MONOLITH = "Bulkhead", "one SQLite file"
# What each client does, and how often: seconds from one operation to the next.
PACE_S = {"append": 0.05, "approval": 0.2, "search": 0.25}
WRITES = ("append", "approval")


class Op(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt: when it began, how long it took, what came of it.

    `outcome` is "ok", "locked" (the busy timeout passed), "late" (the search deadline passed), "replayed" (an old
    error was answered again) or another error's name. `incomplete` is what a search said it lacked.
    """

    kind: str
    at: float
    seconds: float
    outcome: str = OK
    incomplete: tuple[str, ...] = ()

    @property
    def end(self) -> float:
        """Return when it was over."""
        return self.at + self.seconds


class Rebuild(msgspec.Struct, frozen=True, kw_only=True):
    """A full rebuild: from the request until the new index serves; the publication is its last part."""

    begin: float
    end: float
    publish_s: float | None = None


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of load on one system. What counts is from `begin` to `end`; there are operations before and after."""

    system: str
    phase: str
    begin: float
    end: float
    ops: list[Op]
    rebuilds: list[Rebuild] = []

    @property
    def counted(self) -> list[Op]:
        """Return the operations that began while it was measured."""
        return [op for op in self.ops if self.begin <= op.at < self.end]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a system took; the resident memory is the sum over its processes, shared pages counted in each."""

    rss_bytes: int = 0
    disk_bytes: int = 0


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    sizes: Sizes
    windows: list[Window]
    usage: dict[str, Usage]
    first_index_s: dict[str, float]  # from nothing, embedding included

    @property
    def systems(self) -> list[str]:
        """Return who took part."""
        return list(self.usage)

    def of(self, system: str, phase: str) -> list[Window]:
        """Return the windows of a system in a phase, in order."""
        return [window for window in self.windows if (window.system, window.phase) == (system, phase)]
