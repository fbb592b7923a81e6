"""The parent's handle of a worker process: start it, call it, interrupt it, kill it, notice its death.

`Worker.run` owns the process for its whole life, as a task in the nursery of the actor that uses it: when the
task is cancelled the process is killed; when the process dies every pending call fails at once and the task
raises `WorkerDied`, which ends the incarnation (the searcher, which has two workers, catches it instead).

The daemon's watchdog calls `watch` every tick: past its deadline a call is interrupted, past the grace after
that the process is killed. A process that is silent while it has nothing to do is killed as well. Before it is killed
it is asked where it hangs: the stacks of its threads come with `WorkerDied` (a stopped process does not answer).

Children are started with `subprocess.Popen` from the main thread: a parent-death signal belongs to the thread
that forked, and trio's own helper forks in a worker thread that retires after ten seconds.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import trio

from actors.errors import BulkheadError, from_info
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
    to_parent_decoder,
)
from actors.messages.base import Message

Answer = TypeVar("Answer", bound=msgspec.Struct)
OnReport = Callable[[Report], None]

ROOT = Path(__file__).resolve().parent.parent
READ_BYTES = 1 << 20
STDERR_LINES_KEPT = 200
REAP_S = 2.0
REAP_POLL_S = 0.001
# Between the request for the stacks of a process and its SIGKILL, at least.
DUMP_NS = 40_000_000
STDERR_S = 0.2
# After the end of its stdin a child waits 2 s for its lanes; one that has not left by then is killed.
LEAVE_S = 3.0

log = logging.getLogger("bulkhead.worker")


class WorkerDied(Exception):
    """A worker process is gone: how it ended, and what it said last."""

    def __init__(
        self, worker: str, pid: int, cause: str, *, code: int = 0, detail: str = "", culprit: bytes | None = None
    ) -> None:
        super().__init__(f"worker {worker} (pid {pid}): {cause}")
        self.worker = worker
        self.pid = pid
        self.cause = cause
        self.code = code  # the code of the operating error that made it leave, else 0
        self.detail = detail  # its traceback, or the last lines of its stderr
        self.culprit = culprit  # the body of the call that is known to have caused it


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How to start a worker, and when to lose patience with it. Times in milliseconds."""

    name: str
    module: str
    settings: msgspec.Raw
    launcher: str | None = None  # a module that is given `module` as its argument and runs it (fault injection)
    start_ms: int = 10_000
    beat_ms: int = 250
    silence_ms: int = 1000
    busy_silence_ms: int | None = None  # the same while it has calls; None: their deadlines must do
    interrupt_grace_ms: int = 500
    nice: int = 0
    idle_class: bool = False
    oom_score_adj: int = 0
    understudy: bool = False  # have the process of the next incarnation wait beside this one


class _Pending:
    """A call that has been sent: its deadline, its slot, and whether it has been interrupted."""

    __slots__ = ("body", "deadline_ns", "done", "error", "interrupted_ns", "on_report", "raw")

    def __init__(self, body: bytes, deadline_ns: int, on_report: OnReport | None) -> None:
        self.body = body
        self.deadline_ns = deadline_ns
        self.on_report = on_report
        self.interrupted_ns = 0
        self.done = trio.Event()
        self.raw: msgspec.Raw | None = None
        self.error: Exception | None = None


class WorkerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A worker process as seen from the daemon."""

    name: str
    pid: int
    ready: bool
    pending: int
    rss_bytes: int
    silent_ms: float
    calls: int
    interrupts: int


class Worker:
    """One worker process."""

    def __init__(self, spec: WorkerSpec, *, epoch: int, process: "subprocess.Popen[bytes] | None" = None) -> None:
        """Describe a worker; `process` is one that was started ahead and waits for its Setup frame."""
        self.spec = spec
        self.epoch = epoch
        self.pid = 0
        self.rss_bytes = 0
        # Patience may change over a life: a worker that imports LanceDB is late with its beats, a warm one is not.
        self.silence_ms = spec.silence_ms
        self.busy_silence_ms = spec.busy_silence_ms
        self.info: dict[str, int | float | str | bool | None] = {}
        self._process = process
        self._pending: dict[int, _Pending] = {}
        self._outbox: deque[bytes] = deque()
        self._posted = trio.Event()
        self._ready = trio.Event()
        self._died: WorkerDied | None = None
        self._retiring = False  # no calls any more; its end is no death
        self._leaving = False  # what is in the outbox is still sent, then stdin is closed
        self._drained = trio.Event()
        self._gone = trio.Event()
        self._crash: Crash | None = None
        self._kill_cause: str | None = None
        self._condemned: tuple[int, str] | None = None  # since when (ns) and why; SIGKILL follows with a later tick
        self._culprit: bytes | None = None
        self._stderr_read = trio.Event()
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES_KEPT)
        self._silent_ms = 0.0
        self._seq = 0
        self._interrupts = 0

    # ------------------------------------------------------------ life

    async def run(self, *, task_status: trio.TaskStatus["Worker"] = trio.TASK_STATUS_IGNORED) -> None:
        """Start the process, report it started once it is ready, and look after it until it is dead.

        Raises WorkerDied when the process ends by itself, is killed by `kill`, or is not ready in time. Returns
        when it was retired.
        """
        process = self._process or spawn(self.spec)
        self._process, self.pid = process, process.pid
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        try:
            async with (
                trio.lowlevel.FdStream(_detach(process.stdin)) as stdin,
                trio.lowlevel.FdStream(_detach(process.stdout)) as stdout,
                trio.lowlevel.FdStream(_detach(process.stderr)) as stderr,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(self._write, stdin)
                nursery.start_soon(self._drain_stderr, stderr)
                nursery.start_soon(self._announce, task_status)
                self._post(self._setup())
                await self._read(stdout)
                # Who waits is told before the process is reaped: the kernel takes its time to free a large one.
                self._fail_pending(self._death("its pipe closed"))
                with trio.move_on_after(STDERR_S):
                    await self._stderr_read.wait()
                nursery.cancel_scope.cancel("the worker is gone")
        finally:
            await self._bury(process)
        # The loop above only ends without an exception when the pipe was closed at the other end.
        assert self._died is not None
        if not self._retiring:
            raise self._died

    async def retire(self, *, pending_s: float = 10.0, leave_s: float = LEAVE_S) -> None:
        """End the process politely and wait until it is gone; `run` then returns, so nobody counts a death.

        New calls are refused with WorkerDied from now on, as after a death. Calls under way get `pending_s` to be
        answered; those that are not fail with WorkerDied when the process is gone. It is asked to leave by the end of
        its stdin, and killed when it has not left `leave_s` later. Only for a worker that is ready; a caller that is
        cancelled meanwhile leaves it killed.
        """
        self._retiring = True
        try:
            with trio.move_on_after(pending_s):
                while self._pending:
                    self._drained = trio.Event()
                    await self._drained.wait()
            self._leaving = True
            self._posted.set()
            with trio.move_on_after(leave_s):
                await self._gone.wait()
        finally:
            if not self._gone.is_set():
                self.kill("retired, but did not leave")
        with trio.move_on_after(REAP_S):
            await self._gone.wait()

    def _setup(self) -> Setup:
        spec = self.spec
        return Setup(spec.name, self.epoch, spec.settings, spec.beat_ms, spec.nice, spec.idle_class, spec.oom_score_adj)

    async def _announce(self, task_status: trio.TaskStatus["Worker"]) -> None:
        with trio.move_on_after(self.spec.start_ms / 1000):
            await self._ready.wait()
            task_status.started(self)
            return
        self.kill(f"not ready within {self.spec.start_ms} ms")

    def kill(self, cause: str) -> None:
        """SIGKILL the process; everything else follows from its death."""
        if self._kill_cause is None:
            self._kill_cause = cause
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def _bury(self, process: subprocess.Popen[bytes]) -> None:
        """Make sure that the process is dead and reaped, and fail what is still pending."""
        if process.poll() is None:
            process.kill()
        with trio.move_on_after(REAP_S, shield=True):
            while process.poll() is None:  # noqa: ASYNC110 - the kernel has no event that every platform shares
                await trio.sleep(REAP_POLL_S)
        status = process.returncode  # None: in an uninterruptible system call; the kernel reaps it when it can
        self._fail_pending(self._death(_describe_end(status)))
        self._gone.set()

    def _death(self, end: str) -> WorkerDied:
        """Return what is known of the death; `end` counts when neither we nor the process itself gave a reason."""
        cause = end
        reason = self._kill_cause or (self._condemned[1] if self._condemned is not None else None)
        if reason is not None:
            cause = f"killed: {reason}"
        elif self._crash is not None:
            cause = f"crashed: {self._crash.error}"
        return WorkerDied(
            self.spec.name,
            self.pid,
            cause,
            code=self._crash.code if self._crash else 0,
            detail=self._crash.traceback if self._crash else "\n".join(self._stderr),
            culprit=self._culprit,
        )

    def _fail_pending(self, death: WorkerDied) -> None:
        self._died = death
        pending, self._pending = self._pending, {}
        for call in pending.values():
            call.error = death
            call.done.set()
        self._drained.set()

    # ------------------------------------------------------------ calls

    async def call(
        self,
        message: Message,
        answer: type[Answer],
        *,
        deadline_ns: int,
        body: bytes | None = None,
        on_report: OnReport | None = None,
    ) -> Answer:
        """Send a call and wait for its answer. The watchdog sees to it that this ends soon after the deadline.

        `body` is the encoded message when the caller has it already. Raises the operating error that the worker
        answered with, or WorkerDied. When the caller is cancelled the call is interrupted, its answer dropped.
        """
        if self._died is not None:
            raise self._died
        if self._retiring:
            raise WorkerDied(self.spec.name, self.pid, "is being retired")
        self._seq += 1
        seq = self._seq
        body = body if body is not None else msgspec.msgpack.encode(message)
        pending = self._pending[seq] = _Pending(body, deadline_ns, on_report)
        self._post(Call(seq, deadline_ns, msgspec.Raw(body)))
        try:
            await pending.done.wait()
        except trio.Cancelled:
            self._interrupt(seq, pending)
            raise
        if pending.error is not None:
            raise pending.error
        assert pending.raw is not None
        return msgspec.msgpack.decode(pending.raw, type=answer)

    def watch(self, now_ns: int, elapsed_ms: float) -> str | None:
        """Interrupt what is past its deadline, condemn what did not react, and return why if that was now.

        `elapsed_ms` is the time since the last tick as the loop lived it, so that a loop that was itself late
        does not take its own absence for the worker's silence. A condemned process is asked for the stacks of its
        threads at once and killed with the next tick.
        """
        if self._died is not None or self._kill_cause is not None or not self._ready.is_set():
            return None
        if self._condemned is not None:
            since_ns, reason = self._condemned
            if now_ns - since_ns >= DUMP_NS:
                self.kill(reason)
            return None
        self._silent_ms += elapsed_ms
        cause = self._overdue(now_ns) or self._too_silent()
        if cause is not None:
            self._condemned = now_ns, cause
            self._signal(signal.SIGUSR2)
        return cause

    def _overdue(self, now_ns: int) -> str | None:
        grace_ns = self.spec.interrupt_grace_ms * 1_000_000
        for seq, call in self._pending.items():
            if now_ns >= call.deadline_ns and not call.interrupted_ns:
                self._interrupt(seq, call)
            elif call.interrupted_ns and now_ns - max(call.interrupted_ns, call.deadline_ns) > grace_ns:
                # A call whose caller left early was interrupted early; that alone is no reason to kill.
                self._culprit = call.body
                return f"call still running {self.spec.interrupt_grace_ms} ms after its deadline"
        return None

    def _too_silent(self) -> str | None:
        patience_ms = self.busy_silence_ms if self._pending else self.silence_ms
        if patience_ms is not None and self._silent_ms > patience_ms:
            return f"silent for {self._silent_ms:.0f} ms"
        return None

    @property
    def silent_ms(self) -> float:
        """Return for how long nothing has come from the process, not even a beat, as the loop lived it."""
        return self._silent_ms

    def _interrupt(self, seq: int, call: _Pending) -> None:
        if not call.interrupted_ns:
            call.interrupted_ns = time.monotonic_ns()
            self._interrupts += 1
            self._post(Interrupt(seq))

    # ------------------------------------------------------------ pipe

    def _post(self, frame: Frame) -> None:
        self._outbox.append(encode_frame(frame))
        self._posted.set()

    async def _write(self, stdin: trio.lowlevel.FdStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError):  # the reader sees the end of the process
            while True:
                while self._outbox:
                    await stdin.send_all(self._outbox.popleft())
                if self._leaving:
                    await stdin.aclose()
                    return
                self._posted = trio.Event()
                await self._posted.wait()

    async def _read(self, stdout: trio.lowlevel.FdStream) -> None:
        splitter = FrameSplitter()
        while data := await stdout.receive_some(READ_BYTES):
            self._silent_ms = 0.0
            for body in splitter.feed(data):
                self._receive(to_parent_decoder.decode(body))

    def _receive(self, frame: Ready | Reply | Failure | Crash | Report | Beat) -> None:
        match frame:
            case Reply():
                self._finish(frame.seq, raw=frame.answer)
            case Failure():
                self._finish(frame.seq, error=from_info(frame.error))
            case Beat():
                self.rss_bytes = frame.rss_bytes
            case Report():
                pending = self._pending.get(frame.seq)
                if pending is not None and pending.on_report is not None:
                    pending.on_report(frame)
            case Ready():
                self.info = frame.info
                self._ready.set()
            case Crash():
                self._crash = frame
                guilty = self._pending.get(frame.seq) if frame.seq is not None else None
                self._culprit = None if guilty is None else guilty.body

    def _finish(self, seq: int, *, raw: msgspec.Raw | None = None, error: BulkheadError | None = None) -> None:
        pending = self._pending.pop(seq, None)
        if pending is not None:
            # The Raw points into the read buffer's copy of this frame, which is its own bytes object: safe to keep.
            pending.raw, pending.error = raw, error
            pending.done.set()
            if not self._pending:
                self._drained.set()

    async def _drain_stderr(self, stderr: trio.lowlevel.FdStream) -> None:
        tail = b""
        while data := await stderr.receive_some(READ_BYTES):
            *lines, tail = (tail + data[-65536:]).split(b"\n")
            self._stderr.extend(line.decode("utf-8", "replace")[:1000] for line in lines if line.strip())
        self._stderr_read.set()

    def statistics(self) -> WorkerStatistics:
        """Return what is known of the process."""
        return WorkerStatistics(
            name=self.spec.name,
            pid=self.pid,
            ready=self._ready.is_set() and self._died is None,
            pending=len(self._pending),
            rss_bytes=self.rss_bytes,
            silent_ms=round(self._silent_ms, 1),
            calls=self._seq,
            interrupts=self._interrupts,
        )


def spawn(spec: WorkerSpec) -> "subprocess.Popen[bytes]":
    """Start the process of a worker. Call this on the main thread (see the top of this file)."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", *filter(None, (spec.launcher, spec.module))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT), "BULKHEAD_PARENT_PID": str(os.getpid())},
        start_new_session=True,
    )


def _describe_end(status: int | None) -> str:
    if status is None:
        return "does not die"
    if status < 0:
        return f"ended by signal {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _detach(pipe: object) -> int:
    """Take the descriptor out of a Popen pipe, so that only the trio stream closes it."""
    fd: int = os.dup(pipe.fileno())  # type: ignore[attr-defined]
    pipe.close()  # type: ignore[attr-defined]
    return fd
