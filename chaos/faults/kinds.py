"""The faults, as data. What a scenario sends is decoded into one of these, so a misspelled fault is refused.

Pure: no I/O, no clock. Times are in seconds, sizes in bytes. Three families:

* of a call (`CallFault`): happen on the lane, before or after the room does the call, or while the room opens;
* of the disk (`DiskFault`): happen inside SQLite's own reads, writes and syncs (disk.py);
* of the process: at once when they are injected (`Junk`, `Descriptors`, `FileSize`, `Memory` with allocate=false), or
  for its whole life (`Mutation`, only with `at_start`).
"""

from typing import Literal

import msgspec

Place = Literal["open", "handle"]
Operation = Literal["read", "write", "sync", "truncate"]
FileClass = Literal["db", "wal", "journal"]
DiskError = Literal["IOERR_READ", "IOERR_WRITE", "IOERR_FSYNC", "IOERR_TRUNCATE", "FULL"]
MutationName = Literal["synchronous_off", "dedupe_off", "fence_off", "early_acknowledgement", "tenant_off"]


class Fault(msgspec.Struct, frozen=True, kw_only=True, tag_field="fault", forbid_unknown_fields=True):
    """The root of the faults; `fault` is the tag of each."""


class CallFault(Fault, frozen=True, kw_only=True):
    """A fault of a call: which calls it is for, and how often.

    `lane`, `message` (the name of a message type) and `text` (somewhere in the encoded message) narrow it down; after
    `skip` such calls it happens `calls` times (None: every time until it is cleared). `after` lets the room do the
    call first, so that something is committed and nobody is told.
    """

    where: Place = "handle"
    lane: str | None = None
    message: str | None = None
    text: str | None = None
    skip: int = 0
    calls: int | None = 1
    after: bool = False


class Hang(CallFault, frozen=True, kw_only=True, tag="hang"):
    """The lane sleeps and ignores interrupts; None: for ever. With where="open" the worker never says that it is ready.

    With `hold_gil` every thread of the process stands still, the heart beat too.
    """

    seconds: float | None = None
    hold_gil: bool = False


class Raise(CallFault, frozen=True, kw_only=True, tag="raise"):
    """A bug: RuntimeError."""


class Exit(CallFault, frozen=True, kw_only=True, tag="exit"):
    """The process ends in the middle of the call, with a status or by SIGABRT."""

    abort: bool = False
    status: int = 3


class Slow(CallFault, frozen=True, kw_only=True, tag="slow"):
    """Each call takes so much longer."""

    seconds: float = 1.0
    calls: int | None = None


class Memory(CallFault, frozen=True, kw_only=True, tag="memory"):
    """Memory runs out: the address space is limited to what is in use and `headroom`.

    With `allocate` a call takes memory until MemoryError; without, the limit holds from now on and the room runs into
    it by itself.
    """

    headroom: int = 16 * 1024 * 1024
    allocate: bool = True


class Descriptors(Fault, frozen=True, kw_only=True, tag="descriptors"):
    """File descriptors run out: no more than `headroom` beyond the highest in use."""

    headroom: int = 0


class FileSize(Fault, frozen=True, kw_only=True, tag="file_size"):
    """No file may grow beyond `limit` bytes (RLIMIT_FSIZE; a write beyond it fails with EFBIG)."""

    limit: int


class Junk(Fault, frozen=True, kw_only=True, tag="junk"):
    """A library prints to fd 1."""

    text: str = "junk from a native library\n"


class DiskFault(Fault, frozen=True, kw_only=True):
    """A fault of the disk: of which files. `name` is a part of the path of the database.

    Needs the shim, which is there when the worker was started with any disk fault (`at_start`).
    """

    file: FileClass | None = None
    name: str | None = None


class DiskCount(DiskFault, frozen=True, kw_only=True, tag="disk_count"):
    """Only count the calls (and load the shim)."""


class DiskFail(DiskFault, frozen=True, kw_only=True, tag="disk_fail"):
    """The `nth` call of a kind from now on fails, and those after it until it has failed `times` times (None: always).

    `partial` lets the blocks of a write reach the file that fit before the next block boundary, as a full disk does.
    """

    operation: Operation
    error: DiskError
    nth: int = 1
    times: int | None = 1
    partial: bool = False


class DiskDelay(DiskFault, frozen=True, kw_only=True, tag="disk_delay"):
    """Each call of a kind takes so much longer."""

    operation: Operation = "sync"
    seconds: float = 2.0
    times: int | None = None


class DiskVolatile(DiskFault, frozen=True, kw_only=True, tag="disk_volatile"):
    """Writes stay in this process until the file is synced: a SIGKILL loses what a power cut would lose.

    Each block that is written reaches the file at once with probability `leak`, as real disks reorder.
    """

    leak: float = 0.0
    seed: int = 0


class Mutation(Fault, frozen=True, kw_only=True, tag="mutation"):
    """One promise is switched off for the life of the process: the suite must notice."""

    name: MutationName


AnyFault = (
    Hang
    | Raise
    | Exit
    | Slow
    | Memory
    | Descriptors
    | FileSize
    | Junk
    | DiskCount
    | DiskFail
    | DiskDelay
    | DiskVolatile
    | Mutation
)


class Inject(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", tag="inject", forbid_unknown_fields=True):
    """Have this fault from now on."""

    fault: AnyFault


class Clear(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", tag="clear", forbid_unknown_fields=True):
    """Forget every fault that can be taken back; what hangs goes on."""


class Status(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", tag="status", forbid_unknown_fields=True):
    """Say what has been injected and counted."""


Command = Inject | Clear | Status


class AtStart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker must have before its room opens anything. `starts`: for so many incarnations (None: for all)."""

    faults: list[AnyFault]
    starts: int | None = None


class Fired(msgspec.Struct, frozen=True, kw_only=True):
    """A fault really happened: when (CLOCK_MONOTONIC seconds), in which process, which one, at what."""

    at: float
    worker: str
    pid: int
    fault: str
    detail: str = ""


def kind_of(fault: AnyFault) -> str:
    """Return the name of a fault as scenarios write it."""
    tag = type(fault).__struct_config__.tag
    assert isinstance(tag, str)
    return tag
