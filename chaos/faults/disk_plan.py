"""What happens to the next read, write or sync: counts, delays and failures, by kind of call and class of file.

Decides only; disk.py carries it out. Thread-safe: the lanes of a worker read and write at the same time.
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from chaos.faults.kinds import DiskCount, DiskDelay, DiskFail, DiskFault, FileClass, Operation, kind_of

# The result codes of SQLite that a fault may answer with (its public ABI).
CODES = {
    "FULL": 13,
    "IOERR_READ": 10 | (1 << 8),
    "IOERR_WRITE": 10 | (3 << 8),
    "IOERR_FSYNC": 10 | (4 << 8),
    "IOERR_TRUNCATE": 10 | (6 << 8),
}

Record = Callable[[str, str], None]


class Verdict(NamedTuple):
    """What to do with a call: wait so long first, then fail with this code (0: do it)."""

    delay_s: float = 0.0
    code: int = 0
    partial: bool = False


class _Armed:
    """A fault with its counters: calls that were for it, and how often it happened."""

    def __init__(self, fault: DiskFail | DiskDelay | DiskCount) -> None:
        self.fault = fault
        self.seen = 0
        self.fired = 0

    def happens(self) -> bool:
        """Count a call and say whether it is one that is hurt."""
        self.seen += 1
        if isinstance(self.fault, DiskCount):
            return False
        nth = self.fault.nth if isinstance(self.fault, DiskFail) else 1
        if self.seen < nth or (self.fault.times is not None and self.fired >= self.fault.times):
            return False
        self.fired += 1
        return True


class DiskPlan:
    """The faults of the disk of one worker."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._lock = threading.Lock()
        self._armed: list[_Armed] = []
        self.counts: Counter[str] = Counter()

    def add(self, fault: DiskFail | DiskDelay | DiskCount) -> None:
        """Have a fault from the next call on."""
        with self._lock:
            self._armed.append(_Armed(fault))

    def clear(self) -> None:
        """Forget every fault; the counts stay."""
        with self._lock:
            self._armed.clear()

    def decide(self, operation: Operation, file_class: FileClass, path: str) -> Verdict:
        """Count a call and say what happens to it."""
        delay_s, code, partial, hits = 0.0, 0, False, list[str]()
        with self._lock:
            self.counts[f"{file_class}.{operation}"] += 1
            for armed in self._armed:
                fault = armed.fault
                if not _concerns(fault, operation, file_class, path) or not armed.happens():
                    continue
                hits.append(kind_of(fault))
                if isinstance(fault, DiskDelay):
                    delay_s += fault.seconds
                elif isinstance(fault, DiskFail) and not code:
                    code, partial = CODES[fault.error], fault.partial
        for hit in hits:
            self._record(hit, f"{operation} of {path}")
        return Verdict(delay_s, code, partial)

    def state(self) -> dict[str, object]:
        """Return the counts and what is armed."""
        with self._lock:
            armed = [{"fault": kind_of(a.fault), "seen": a.seen, "fired": a.fired} for a in self._armed]
            return {"counts": dict(self.counts), "armed": armed}


def _concerns(fault: DiskFail | DiskDelay | DiskCount, operation: Operation, file_class: FileClass, path: str) -> bool:
    if not isinstance(fault, DiskCount) and fault.operation != operation:
        return False
    return _of_file(fault, file_class, path)


def _of_file(fault: DiskFault, file_class: FileClass, path: str) -> bool:
    return fault.file in (None, file_class) and (fault.name is None or fault.name in path)
