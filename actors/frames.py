"""The language of the pipe between an actor and its worker process.

A frame is a 4-byte big-endian length and that many bytes of msgpack: one of the tagged structs below. Payloads
(messages and answers) are nested as raw msgpack, so the side that only relays them does not decode them.
Pure: no I/O, no clock.
"""

import struct

import msgspec

from actors.errors import ErrorInfo

FRAME_BYTES_MAX = 256 * 1024 * 1024
_HEADER = struct.Struct(">I")


class Frame(msgspec.Struct, frozen=True, tag=True, tag_field="f", array_like=True):
    """The root of the frames."""


class Setup(Frame, frozen=True, tag="s", tag_field="f", array_like=True):
    """Parent to child, first and once: who you are and your part of the configuration (msgpack)."""

    actor: str
    epoch: int
    settings: msgspec.Raw
    beat_ms: int
    nice: int
    idle_class: bool
    oom_score_adj: int


class Ready(Frame, frozen=True, tag="r", tag_field="f", array_like=True):
    """Child to parent: the store is open. `info` are facts for logs and status."""

    pid: int
    info: dict[str, int | float | str | bool | None]


class Call(Frame, frozen=True, tag="c", tag_field="f", array_like=True):
    """Parent to child: do this before `deadline_ns` (CLOCK_MONOTONIC, the same clock in every process)."""

    seq: int
    deadline_ns: int
    message: msgspec.Raw


class Interrupt(Frame, frozen=True, tag="i", tag_field="f", array_like=True):
    """Parent to child: the deadline of this call has passed; stop it and roll back."""

    seq: int


class Reply(Frame, frozen=True, tag="a", tag_field="f", array_like=True):
    """Child to parent: the answer of call `seq`."""

    seq: int
    answer: msgspec.Raw


class Failure(Frame, frozen=True, tag="e", tag_field="f", array_like=True):
    """Child to parent: call `seq` ended in an operating error."""

    seq: int
    error: ErrorInfo


class Crash(Frame, frozen=True, tag="x", tag_field="f", array_like=True):
    """Child to parent, last: a bug, or (with `code`) an operating error that kept the store from opening."""

    error: str
    traceback: str
    code: int = 0
    seq: int | None = None


class Report(Frame, frozen=True, tag="p", tag_field="f", array_like=True):
    """Child to parent: how far call `seq` is."""

    seq: int
    stage: str
    done: int
    total: int


class Beat(Frame, frozen=True, tag="b", tag_field="f", array_like=True):
    """Child to parent, every `beat_ms`: the process runs and holds no lock on itself."""

    rss_bytes: int


ToChild = Setup | Call | Interrupt
ToParent = Ready | Reply | Failure | Crash | Report | Beat

to_child_decoder = msgspec.msgpack.Decoder(ToChild)
to_parent_decoder = msgspec.msgpack.Decoder(ToParent)
_encoder = msgspec.msgpack.Encoder()


def encode_frame(frame: Frame) -> bytes:
    """Return the bytes of a frame, header included."""
    body = _encoder.encode(frame)
    if len(body) > FRAME_BYTES_MAX:
        raise ValueError(f"frame of {len(body)} bytes, the limit is {FRAME_BYTES_MAX}")
    return _HEADER.pack(len(body)) + body


class FrameSplitter:
    """Cut a byte stream into the bodies of frames. Feed it any pieces; it keeps the unfinished tail."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return the frame bodies that are now complete."""
        self._buffer += data
        bodies = []
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer, start)
            if length > FRAME_BYTES_MAX:
                raise ValueError(f"frame of {length} bytes, the limit is {FRAME_BYTES_MAX}")
            end = start + _HEADER.size + length
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[start + _HEADER.size : end]))
            start = end
        del self._buffer[:start]
        return bodies
