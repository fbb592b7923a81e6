"""Faults of calls: which of them the call at hand meets, and what they do to its lane.

Used by every lane thread of a worker at once. A fault is written down before it does its harm.
"""

import ctypes
import os
import resource
import threading
import time
from pathlib import Path

import msgspec

from actors.messages.base import Message
from chaos.faults.kinds import CallFault, Exit, Hang, Memory, Place, Raise, Slow, kind_of
from chaos.faults.ledger import Ledger

AnyCallFault = Hang | Raise | Exit | Slow | Memory
_FOR_EVER_S = 3600.0
_ALLOCATION_BYTES = 1 << 20


class _Armed:
    """A fault with its counters: calls that were for it, and how often it happened."""

    def __init__(self, fault: AnyCallFault) -> None:
        self.fault = fault
        self.seen = 0
        self.fired = 0

    def happens(self) -> bool:
        """Count a call and say whether it is one that is hurt."""
        self.seen += 1
        spent = self.fault.calls is not None and self.fired >= self.fault.calls
        if spent or self.seen <= self.fault.skip:
            return False
        self.fired += 1
        return True


class CallFaults:
    """The faults of the calls of one worker."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._armed: list[_Armed] = []
        self._released = threading.Event()
        self._limit: tuple[int, int] | None = None

    def add(self, fault: AnyCallFault) -> None:
        """Have a fault from the next call on."""
        if isinstance(fault, Memory) and not fault.allocate:
            self._ledger.record(kind_of(fault), "limit")
            self._limit_memory(fault.headroom)
            return
        with self._lock:
            self._armed.append(_Armed(fault))

    def clear(self) -> None:
        """Forget every fault; lanes that sleep go on (one that holds the GIL can't be told)."""
        with self._lock:
            self._armed.clear()
            released, self._released = self._released, threading.Event()
        released.set()
        if self._limit is not None:
            resource.setrlimit(resource.RLIMIT_AS, self._limit)
            self._limit = None

    def state(self) -> list[dict[str, object]]:
        """Return what is armed."""
        with self._lock:
            return [{"fault": kind_of(a.fault), "seen": a.seen, "fired": a.fired} for a in self._armed]

    def meet(self, where: Place, lane: str, message: Message | None, *, after: bool) -> None:
        """Let happen what is to happen to this call at this point of it."""
        what = type(message).__name__ if message is not None else where
        for fault in self._due(where, lane, message, after):
            self._ledger.record(kind_of(fault), f"{what} on lane {lane}")
            self._do(fault)

    def _due(self, where: Place, lane: str, message: Message | None, after: bool) -> list[AnyCallFault]:
        with self._lock:
            return [
                armed.fault
                for armed in self._armed
                if (armed.fault.where, armed.fault.after) == (where, after)
                and _concerns(armed.fault, lane, message)
                and armed.happens()
            ]

    def _do(self, fault: AnyCallFault) -> None:
        match fault:
            case Hang(hold_gil=True):
                _sleep_holding_gil(_FOR_EVER_S if fault.seconds is None else fault.seconds)
            case Hang():
                self._released.wait(_FOR_EVER_S if fault.seconds is None else fault.seconds)
            case Slow():
                time.sleep(fault.seconds)
            case Raise():
                raise RuntimeError("a fault was injected into this call")
            case Exit():
                if fault.abort:
                    os.abort()
                os._exit(fault.status)
            case Memory():
                self._limit_memory(fault.headroom)
                _allocate_until_refused()

    def _limit_memory(self, headroom: int) -> None:
        before = resource.getrlimit(resource.RLIMIT_AS)
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + headroom, before[1]))
        self._limit = self._limit or before


def _concerns(fault: CallFault, lane: str, message: Message | None) -> bool:
    if fault.lane not in (None, lane) or fault.message not in (None, type(message).__name__):
        return False
    return fault.text is None or fault.text.encode() in msgspec.msgpack.encode(message)


def _sleep_holding_gil(seconds: float) -> None:
    """Stand still with every other thread of the process: a call through PyDLL does not let go of the GIL."""
    ctypes.PyDLL(None).usleep(ctypes.c_uint(int(seconds * 1e6)))


def _allocate_until_refused() -> None:
    taken = []
    while True:
        taken.append(bytearray(_ALLOCATION_BYTES))
