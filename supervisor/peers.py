"""Who is at the other end of a unix socket, and whether it is still there. What the system cannot tell is None."""

import select
import socket
import struct
import sys

import msgspec
import trio

CREDENTIALS = struct.Struct("iII")


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """The process that connected. `pid` is 0 when it lives in a namespace that we do not see into."""

    pid: int
    uid: int


def peer_of(connected: trio.socket.SocketType) -> Peer | None:
    """Return the process at the other end, or None where the system cannot tell."""
    if sys.platform != "linux":
        return None
    pid, uid, _ = CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return Peer(pid=pid, uid=uid)


class HangUp:
    """Tells a client that closed its connection from one that only has nothing more to say.

    A read returns the same end of file for both. Linux reports POLLHUP only when neither side can be written to any
    more, which on a unix socket means that the peer closed it or died. Elsewhere, and on pipes, nothing is noticed
    before an answer cannot be written.
    """

    def __init__(self, stream: object) -> None:
        self._poll: select.poll | None = None
        if sys.platform == "linux" and isinstance(stream, trio.SocketStream):
            self._poll = select.poll()
            self._poll.register(stream.socket.fileno(), 0)  # POLLHUP and POLLERR are always reported

    def happened(self) -> bool:
        """Say whether the client is gone for certain. Never waits."""
        return self._poll is not None and bool(self._poll.poll(0))
