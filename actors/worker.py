"""The parent's handle of a worker process: start it, call it, interrupt it, kill it, notice its death.

`Worker.run` owns the process for its whole life, as a task in the nursery of the actor that uses it: when the
task is cancelled the process is killed; when the process dies every pending call fails at once and the task
raises `WorkerDied`, which ends the incarnation (the searcher, which has two workers, catches it instead).

The daemon's watchdog calls `watch` every tick: past its deadline a call is interrupted, past the grace after
that the process is killed. A process that is silent while it has nothing to do is killed as well.

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
from actors.messages import Message

Answer = TypeVar("Answer", bound=msgspec.Struct)
OnReport = Callable[[Report], None]

ROOT = Path(__file__).resolve().parent.parent
READ_BYTES = 1 << 20
STDERR_LINES_KEPT = 40
REAP_S = 2.0
REAP_POLL_S = 0.001

log = logging.getLogger("bulkhead.worker")


class WorkerDied(Exception):
    """A worker process is gone: how it ended, and what it said last."""

    def __init__(self, worker: str, pid: int, cause: str, *, code: int = 0, detail: str = "") -> None:
        super().__init__(f"worker {worker} (pid {pid}): {cause}")
        self.worker = worker
        self.pid = pid
        self.cause = cause
        self.code = code  # the code of the operating error that kept it from starting, else 0
        self.detail = detail


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How to start a worker, and when to lose patience with it. Times in milliseconds."""

    name: str
    module: str
    settings: msgspec.Raw
    launcher: str | None = None  # a module that is given `module` as its argument and runs it (fault injection)
    start_ms: int = 10_000
    beat_ms: int = 250
    silence_ms: int = 1000
    interrupt_grace_ms: int = 500
    nice: int = 0
    idle_class: bool = False
    oom_score_adj: int = 0


class _Pending:
    """A call that has been sent: its deadline, its slot, and whether it has been interrupted."""

    __slots__ = ("deadline_ns", "done", "error", "interrupted_ns", "on_report", "raw")

    def __init__(self, deadline_ns: int, on_report: OnReport | None) -> None:
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

    def __init__(self, spec: WorkerSpec, *, epoch: int) -> None:
        self.spec = spec
        self.epoch = epoch
        self.pid = 0
        self.rss_bytes = 0
        self.info: dict[str, int | float | str | bool | None] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: dict[int, _Pending] = {}
        self._outbox: deque[bytes] = deque()
        self._posted = trio.Event()
        self._ready = trio.Event()
        self._died: WorkerDied | None = None
        self._crash: Crash | None = None
        self._kill_cause: str | None = None
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES_KEPT)
        self._silent_ms = 0.0
        self._seq = 0
        self._interrupts = 0

    # ------------------------------------------------------------ life

    async def run(self, *, task_status: trio.TaskStatus["Worker"] = trio.TASK_STATUS_IGNORED) -> None:
        """Start the process, report it started once it is ready, and look after it until it is dead.

        Raises WorkerDied when the process ends by itself, is killed by `kill`, or is not ready in time.
        """
        process = self._spawn()
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
                self._fail_pending(WorkerDied(self.spec.name, self.pid, self._kill_cause or "its pipe closed"))
                nursery.cancel_scope.cancel("the worker is gone")
        finally:
            await self._bury(process)
        # The loop above only ends without an exception when the pipe was closed at the other end.
        assert self._died is not None
        raise self._died

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", *filter(None, (self.spec.launcher, self.spec.module))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(ROOT), "BULKHEAD_PARENT_PID": str(os.getpid())},
            start_new_session=True,
        )

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
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)

    async def _bury(self, process: subprocess.Popen[bytes]) -> None:
        """Make sure that the process is dead and reaped, and fail what is still pending."""
        if process.poll() is None:
            process.kill()
        with trio.move_on_after(REAP_S, shield=True):
            while process.poll() is None:  # noqa: ASYNC110 - the kernel has no event that every platform shares
                await trio.sleep(REAP_POLL_S)
        status = process.returncode  # None: in an uninterruptible system call; the kernel reaps it when it can
        self._fail_pending(
            WorkerDied(
                self.spec.name,
                process.pid,
                self._describe_end(status),
                code=self._crash.code if self._crash else 0,
                detail=self._crash.traceback if self._crash else "\n".join(self._stderr),
            )
        )

    def _fail_pending(self, death: WorkerDied) -> None:
        self._died = death
        pending, self._pending = self._pending, {}
        for call in pending.values():
            call.error = death
            call.done.set()

    def _describe_end(self, status: int | None) -> str:
        if self._kill_cause is not None:
            return f"killed: {self._kill_cause}"
        if self._crash is not None:
            return f"crashed: {self._crash.error}"
        if status is None:
            return "does not die"
        if status < 0:
            return f"ended by signal {signal.Signals(-status).name}"
        return f"ended with status {status}"

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
        self._seq += 1
        seq = self._seq
        pending = self._pending[seq] = _Pending(deadline_ns, on_report)
        raw = msgspec.Raw(body if body is not None else msgspec.msgpack.encode(message))
        self._post(Call(seq, deadline_ns, raw))
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
        """Interrupt what is past its deadline, kill what did not react, and return the cause of a kill.

        `elapsed_ms` is the time since the last tick as the loop lived it, so that a loop that was itself late
        does not take its own absence for the worker's silence.
        """
        if self._died is not None or self._kill_cause is not None or not self._ready.is_set():
            return None
        self._silent_ms += elapsed_ms
        grace_ns = self.spec.interrupt_grace_ms * 1_000_000
        for seq, call in self._pending.items():
            if now_ns >= call.deadline_ns and not call.interrupted_ns:
                self._interrupt(seq, call)
            elif call.interrupted_ns and now_ns - max(call.interrupted_ns, call.deadline_ns) > grace_ns:
                # A call whose caller left early was interrupted early; that alone is no reason to kill.
                self.kill(f"call still running {self.spec.interrupt_grace_ms} ms after its deadline")
                return self._kill_cause
        if not self._pending and self._silent_ms > self.spec.silence_ms:
            self.kill(f"silent for {self._silent_ms:.0f} ms")
        return self._kill_cause

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

    def _finish(self, seq: int, *, raw: msgspec.Raw | None = None, error: BulkheadError | None = None) -> None:
        pending = self._pending.pop(seq, None)
        if pending is not None:
            # The Raw points into the read buffer's copy of this frame, which is its own bytes object: safe to keep.
            pending.raw, pending.error = raw, error
            pending.done.set()

    async def _drain_stderr(self, stderr: trio.lowlevel.FdStream) -> None:
        tail = b""
        while data := await stderr.receive_some(READ_BYTES):
            *lines, tail = (tail + data[-65536:]).split(b"\n")
            self._stderr.extend(line.decode("utf-8", "replace")[:1000] for line in lines if line.strip())

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


def _detach(pipe: object) -> int:
    """Take the descriptor out of a Popen pipe, so that only the trio stream closes it."""
    fd: int = os.dup(pipe.fileno())  # type: ignore[attr-defined]
    pipe.close()  # type: ignore[attr-defined]
    return fd
