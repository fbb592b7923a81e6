"""The worker process: reads calls from its pipe, does them on lanes, answers, beats, and leaves at EOF.

A room's `worker.py` gives a `Room` to `serve()`. A lane is one thread with one queue; what shares a lane never
runs at the same time, so a store needs no locks. A SQLite room has the lanes `write` and `read`, with a connection
each. A room whose store may be read by several threads at once (LanceDB) gives such a lane more of them: `pools`.

Promises of this loop, whatever the room does:
* fd 1 belongs to nobody: the protocol pipe is moved away first, and fd 1 points at stderr, so that a native
  library that prints cannot break a frame.
* EOF on the pipe ends the process, whatever its lanes are doing; on Linux the death of the parent does too.
* an operating error is answered; anything else is a bug: it is reported as a `Crash` frame and the process exits.
  `StoreLost` is both: its call is answered and the process exits all the same.
* calls whose deadline has passed are refused without work.

No trio in here: a SQLite worker must start in a tenth of a second and stay small.
"""

import ctypes
import faulthandler
import os
import queue
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec

from actors import priority
from actors.errors import BulkheadError, DeadlineExceeded, Interrupted
from actors.frames import (
    Beat,
    Call,
    Crash,
    Failure,
    Frame,
    FrameSplitter,
    Interrupt,
    Ready,
    Reply,
    Report,
    Setup,
    encode_frame,
    to_child_decoder,
)
from actors.messages.base import Message

IDLE_POLL_S = 0.25
EXIT_EOF = 0
EXIT_CRASH = 70
_PR_SET_PDEATHSIG = 1


class CallContext:
    """What a room may know about the call it is doing: its deadline, and how to report progress."""

    def __init__(self, seq: int, deadline_ns: int, child: "_Child") -> None:
        self.seq = seq
        self.deadline_ns = deadline_ns
        self._child = child
        self.interrupted = False

    def expired(self) -> bool:
        """Say whether the deadline has passed or the parent asked to stop."""
        return self.interrupted or time.monotonic_ns() >= self.deadline_ns

    def check(self) -> None:
        """Raise Interrupted when the work should stop; call this between steps and before COMMIT."""
        if self.expired():
            raise Interrupted("stopped at its deadline; nothing was changed", outcome="not_executed")

    def progress(self, stage: str, done: int, total: int) -> None:
        """Tell the parent how far this call is."""
        self._child.send(Report(self.seq, stage, done, total))


class StoreLost(Exception):
    """The store can't be trusted any longer in this process: `error` is answered, then the process leaves.

    An I/O error or damage of a database is the world's fault, so its caller gets an operating error; but no later
    call may use the same connection (after a failed fsync the pages count as written), so it is a crash as well.
    """

    def __init__(self, error: BulkheadError) -> None:
        super().__init__(error.message)
        self.error = error


class Room(Protocol):
    """What a room's worker module provides. All methods run on lane threads except `interrupt`.

    A room may also have `pools: Mapping[str, int]`, lane name → number of threads that share the lane's queue (1 where
    nothing is said). `open`, `idle` and `close` are then called on each of them.
    """

    work: object  # the union of message types that it takes
    lanes: Mapping[type[Message], str]

    def open(self, lane: str) -> dict[str, int | float | str | bool | None]:
        """Open what the lane needs (its connection); return facts for the log. Raise to fail the start."""
        ...

    def handle(self, message: Message, call: CallContext) -> msgspec.Struct:
        """Do one call and return its answer."""
        ...

    def interrupt(self, lane: str) -> None:
        """Make the running call of the lane stop soon. Called from the reader thread."""
        ...

    def idle(self, lane: str) -> bool:
        """Do a short slice of background work when the lane has nothing else; True when there is more."""
        ...

    def close(self, lane: str) -> None:
        """Close what `open` opened."""
        ...


class _Lane:
    """One thread and its queue, which a pool shares. Calls begin in the order of arrival; idle slices fill the gaps."""

    def __init__(self, name: str, calls: "queue.SimpleQueue[Call | None]", room: Room, child: "_Child") -> None:
        self.name = name
        self.queue = calls
        self.current: CallContext | None = None
        self._guilty: int | None = None  # the call that ended in a bug
        self.opened = threading.Event()
        self.info: dict[str, int | float | str | bool | None] = {}
        self._room = room
        self._child = child
        self.thread = threading.Thread(target=self._run, name=f"lane-{name}", daemon=True)

    def _run(self) -> None:
        try:
            self.info = self._room.open(self.name)
            self.opened.set()
            while (call := self._next()) is not None:
                self._do(call)
            self._room.close(self.name)
        except BaseException as error:
            self._child.crash(error, self._guilty)

    def _next(self) -> Call | None:
        """Return the next call, working through idle slices while there is none."""
        while True:
            more = True
            while more and self.queue.empty():
                more = self._room.idle(self.name)
            try:
                return self.queue.get(timeout=IDLE_POLL_S)
            except queue.Empty:
                continue

    def _do(self, call: Call) -> None:
        context = CallContext(call.seq, call.deadline_ns, self._child)
        self.current = context
        lost: StoreLost | None = None
        try:
            if context.expired():
                raise DeadlineExceeded("the deadline passed while the call waited for its turn")
            message = self._child.decoder.decode(call.message)
            answer = self._room.handle(message, context)
            frame: Frame = Reply(call.seq, msgspec.Raw(msgspec.msgpack.encode(answer)))
        except BulkheadError as error:
            frame = Failure(call.seq, error.info())
        except StoreLost as error:
            frame = Failure(call.seq, error.error.info())
            lost = error
        except BaseException:
            self._guilty = call.seq
            raise
        finally:
            # Invariant: `current` is cleared before the answer leaves, so a late Interrupt never hits the next call.
            self.current = None
        self._child.send(frame)
        if lost is not None:
            raise lost


class _Child:
    """The process: the pipe, the lanes, the heart beat."""

    def __init__(self, room_factory: "RoomFactory", fd_in: int, fd_out: int) -> None:
        self._factory = room_factory
        self._fd_in = fd_in
        self._fd_out = fd_out
        self._write_lock = threading.Lock()
        self._lanes: list[_Lane] = []
        self._queues: dict[str, queue.SimpleQueue[Call | None]] = {}
        self._room: Room | None = None
        self.decoder: msgspec.msgpack.Decoder[Message]

    def run(self) -> NoReturn:
        splitter = FrameSplitter()
        while data := os.read(self._fd_in, 1 << 20):
            for body in splitter.feed(data):
                self._dispatch(to_child_decoder.decode(body))
        self._leave()

    def _dispatch(self, frame: Setup | Call | Interrupt) -> None:
        if isinstance(frame, Setup):
            # The reader must stay free for EOF, so the store is opened on the lanes and awaited elsewhere.
            threading.Thread(target=self._start, args=(frame,), name="start", daemon=True).start()
        elif isinstance(frame, Call):
            assert self._room is not None, "a call arrived before the worker said it was ready"
            self._queues[self._lane_of(frame)].put(frame)
        else:
            self._interrupt(frame.seq)

    def _lane_of(self, call: Call) -> str:
        assert self._room is not None
        tag = msgspec.msgpack.decode(call.message, type=_Tagged).tag
        return self._by_tag[tag]

    def _start(self, setup: Setup) -> None:
        try:
            priority.lower(nice=setup.nice, idle_class=setup.idle_class, oom_score_adj=setup.oom_score_adj)
            room = self._factory(setup)
            self.decoder = msgspec.msgpack.Decoder(room.work)
            self._by_tag = {cls.__name__: lane for cls, lane in room.lanes.items()}
            info: dict[str, int | float | str | bool | None] = {}
            # One lane after the other: the first may create or migrate the file that the second reads.
            for name in dict.fromkeys(room.lanes.values()):
                calls = self._queues[name] = queue.SimpleQueue()
                for _ in range(_threads(room, name)):
                    lane = _Lane(name, calls, room, self)
                    self._lanes.append(lane)
                    lane.thread.start()
                    lane.opened.wait()
                    info.update(lane.info)
            self._room = room
            threading.Thread(target=self._beat, args=(setup.beat_ms / 1000,), name="beat", daemon=True).start()
            self.send(Ready(os.getpid(), info))
        except BaseException as error:
            self.crash(error, None)

    def _beat(self, period_s: float) -> None:
        while True:
            self.send(Beat(_rss_bytes()))
            time.sleep(period_s)

    def _interrupt(self, seq: int) -> None:
        for lane in self._lanes:
            current = lane.current
            if current is not None and current.seq == seq:
                current.interrupted = True
                assert self._room is not None
                self._room.interrupt(lane.name)

    def send(self, frame: Frame) -> None:
        """Write one whole frame; any thread may call this. A parent that is gone ends the process."""
        data = encode_frame(frame)
        with self._write_lock:
            view = memoryview(data)
            while view:
                try:
                    view = view[os.write(self._fd_out, view) :]
                except BrokenPipeError:
                    os._exit(EXIT_EOF)

    def crash(self, error: BaseException, seq: int | None) -> NoReturn:
        """Report a bug or the loss of the store and leave; the supervisor starts another incarnation."""
        text = "".join(traceback.format_exception(error))
        sys.stderr.write(text)
        sys.stderr.flush()
        code = _code_of(error)
        try:
            self.send(Crash(f"{type(error).__name__}: {error}", text[-8000:], code, seq))
        finally:
            os._exit(EXIT_CRASH)

    def _leave(self) -> NoReturn:
        """End the process at EOF: close the lanes that are idle, and do not wait for one that is not."""
        for lane in self._lanes:
            lane.queue.put(None)
        give_up = time.monotonic() + 2
        for lane in self._lanes:
            lane.thread.join(max(0.0, give_up - time.monotonic()))
        os._exit(EXIT_EOF)


def _code_of(error: BaseException) -> int:
    """Return the code of the operating error that ends the process, 0 when it is a bug of ours."""
    if isinstance(error, StoreLost):
        error = error.error
    return error.info().code if isinstance(error, BulkheadError) else 0


def _threads(room: Room, lane: str) -> int:
    """Return how many threads serve a lane; a room that says nothing about it needs no locks and gets one."""
    pools: Mapping[str, int] = getattr(room, "pools", {})
    return max(1, pools.get(lane, 1))


class _Tagged(msgspec.Struct):
    """Just the tag of a message, to find its lane without decoding the rest."""

    tag: str = msgspec.field(name="$")


class RoomFactory(Protocol):
    """Makes the room from its setup; the settings are decoded by the room, which knows their type."""

    def __call__(self, setup: Setup) -> Room: ...


def serve(room_factory: RoomFactory) -> NoReturn:
    """Run a worker process on its stdin and stdout until EOF."""
    fd_in, fd_out = _take_pipes()
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C in the terminal is the daemon's to handle
    _show_stacks_when_asked()
    sys.setswitchinterval(0.0005)
    _Child(room_factory, fd_in, fd_out).run()


def _show_stacks_when_asked() -> None:
    """Write the stacks of all threads to stderr on SIGUSR2 (who hangs is asked before it is killed) and on a fault.

    Both work from C, so a thread that holds the interpreter lock does not stand in the way.
    """
    faulthandler.enable(all_threads=True)
    faulthandler.register(signal.SIGUSR2, all_threads=True)


def _take_pipes() -> tuple[int, int]:
    """Move the protocol away from fd 0 and 1; leave the null device and stderr in their place."""
    fd_in, fd_out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return fd_in, fd_out


def _die_with_parent() -> None:
    """Ask Linux to kill this process when the thread that started it dies; elsewhere EOF does it."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    expected = os.environ.get("BULKHEAD_PARENT_PID")
    if expected is not None and os.getppid() != int(expected):
        os._exit(EXIT_EOF)  # the parent died before the request was in force


def _rss_bytes() -> int:
    """Return the resident size of this process in bytes (0 where it cannot be told cheaply)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
