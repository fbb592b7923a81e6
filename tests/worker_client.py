"""A worker process spoken to over its pipes, without trio: what the tests of the rooms' workers use."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TypeVar, cast

import msgspec

from actors.errors import from_info
from actors.frames import (
    Call,
    Crash,
    Failure,
    Frame,
    FrameSplitter,
    Interrupt,
    Ready,
    Reply,
    Setup,
    encode_frame,
    to_parent_decoder,
)
from actors.messages.base import Message
from actors.settings import RoomSetup

ROOT = Path(__file__).resolve().parent.parent
Answer = TypeVar("Answer", bound=msgspec.Struct)


class WorkerClient:
    """Start `python -m MODULE` as a worker, wait until it is ready, make calls one at a time."""

    def __init__(self, module: str, settings: RoomSetup, *, epoch: int = 1) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), "BULKHEAD_PARENT_PID": str(os.getpid())},
        )
        self._splitter = FrameSplitter()
        self._frames: list[Frame] = []
        self._seq = 0
        raw = msgspec.Raw(msgspec.msgpack.encode(settings))
        self.send(Setup(module, epoch, raw, 200, 0, False, 0))
        self.ready = cast(Ready, self.receive(Ready))

    def send(self, frame: Frame) -> None:
        """Write one frame."""
        assert self.process.stdin is not None
        self.process.stdin.write(encode_frame(frame))
        self.process.stdin.flush()

    def receive(self, *kinds: type[Frame]) -> Frame:
        """Return the next frame of one of the kinds; other frames (beats, reports) are passed over."""
        assert self.process.stdout is not None
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if isinstance(frame, kinds):
                    return frame
                if isinstance(frame, Crash):
                    raise AssertionError(f"worker crashed: {frame.error}\n{frame.traceback}")
                assert isinstance(frame, Frame)
            data = os.read(self.process.stdout.fileno(), 1 << 20)
            if not data:
                raise EOFError(f"worker left with status {self.process.wait()}")
            self._frames += [to_parent_decoder.decode(body) for body in self._splitter.feed(data)]

    def begin(self, message: Message, *, seconds: float = 60) -> int:
        """Send a call and return its number."""
        self._seq += 1
        deadline_ns = time.monotonic_ns() + int(seconds * 1e9)
        self.send(Call(self._seq, deadline_ns, msgspec.Raw(msgspec.msgpack.encode(message))))
        return self._seq

    def finish(self, seq: int, answer: type[Answer]) -> Answer:
        """Wait for the answer of a call; raise its error."""
        while True:
            frame = self.receive(Reply, Failure)
            if isinstance(frame, Failure) and frame.seq == seq:
                raise from_info(frame.error)
            if isinstance(frame, Reply) and frame.seq == seq:
                return msgspec.msgpack.decode(frame.answer, type=answer)

    def call(self, message: Message, answer: type[Answer], *, seconds: float = 60) -> Answer:
        """Make a call and return its answer."""
        return self.finish(self.begin(message, seconds=seconds), answer)

    def interrupt(self, seq: int) -> None:
        """Ask the worker to stop a call."""
        self.send(Interrupt(seq))

    def close(self) -> int:
        """Close the pipe and return the exit status; a worker that stays is killed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            return self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()

    def kill(self) -> None:
        """SIGKILL the worker."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> "WorkerClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
