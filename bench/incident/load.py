"""The clients of one system, in a process of their own: one appends, one writes approvals, one searches.

Each works at a pace of its own. The same code drives both systems; only the `Memory` behind it differs.
`python -m bench.incident.load SPEC` reads commands on stdin, a line of JSON each, and answers each with a line:
`Start`, `Recovered`, `Stop`. Leaves at the end of stdin.
"""

import math
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from bench.incident.memory import BulkheadSpec, Memory, Refused, Spec
from bench.incident.results import OK, PACE_S, Op
from chaos import process

Answer = TypeVar("Answer")

SWITCH_S = 0.001  # how soon a thread gives way to another that waits: three clients share this process


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Set all clients to work."""


class Recovered(msgspec.Struct, frozen=True, kw_only=True, tag="recovered"):
    """Say whether every client has succeeded with something that it began after `since`."""

    since: float


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Let each finish what it does; answer with all operations since the start."""


Command = Start | Recovered | Stop


class Load:
    """The handle of the process, for the harness."""

    def __init__(self, spec: Spec) -> None:
        self._process = process.start("bench.incident.load", msgspec.json.encode(spec).decode())
        self.pid = self._process.pid

    def start(self) -> None:
        """Begin."""
        self._ask(Start(), bool)

    def recovered(self, since: float) -> bool:
        """Say whether everything has worked again since then."""
        return self._ask(Recovered(since=since), bool)

    def stop(self) -> list[Op]:
        """End, and return what happened."""
        return self._ask(Stop(), list[Op])

    def close(self) -> None:
        """End the process."""
        process.leave(self._process)

    def _ask(self, command: Command, kind: type[Answer]) -> Answer:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(command) + b"\n")
        self._process.stdin.flush()
        told = self._process.stdout.readline()
        if not told:
            raise RuntimeError(f"the clients did not answer {command!r}: their process has ended, see its stderr")
        return msgspec.json.decode(told, type=kind)


class Client:
    """One kind of work at its pace: an operation each turn; turns that come while it still waits are missed."""

    def __init__(self, kind: str, act: Callable[[int], tuple[str, ...] | None]) -> None:
        self.kind = kind
        self.ops: list[Op] = []
        self._act = act
        self._number = 0
        self._stopping = threading.Event()
        self._left = False  # at the end of its work, not by an exception
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin with no operations."""
        self.ops = []
        self._left = False
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name=self.kind, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end; `join` waits for it."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for the end of its last operation, which has a deadline of its own."""
        assert self._thread is not None
        self._thread.join()
        assert self._left, f"the {self.kind} client died, see above"

    def recovered(self, since: float) -> bool:
        """Say whether it has succeeded with something begun since then."""
        return any(op.outcome == OK and op.at >= since for op in reversed(self.ops[-2:]))

    def _run(self) -> None:
        pace_s, due = PACE_S[self.kind], time.monotonic()
        while not self._stopping.is_set():
            self.ops.append(self._once())
            due += pace_s * max(1, math.ceil((time.monotonic() - due) / pace_s))
            self._stopping.wait(max(0.0, due - time.monotonic()))
        self._left = True

    def _once(self) -> Op:
        self._number += 1
        outcome, incomplete = OK, None
        began = time.monotonic()
        try:
            incomplete = self._act(self._number)
        except Refused as error:
            outcome = error.outcome
        took = time.monotonic() - began
        return Op(kind=self.kind, at=began, seconds=round(took, 6), outcome=outcome, incomplete=incomplete or ())


def open_memory(spec: Spec) -> Memory:
    """Connect to a system."""
    if isinstance(spec, BulkheadSpec):
        from bench.incident.bulkhead import BulkheadMemory

        return BulkheadMemory(spec.data)
    from bench.incident.single_file import MonolithMemory

    return MonolithMemory(spec.database, spec.endpoint_port)


def serve(spec: Spec) -> None:
    """Obey the commands on stdin until it ends."""
    sys.setswitchinterval(SWITCH_S)
    memories = [open_memory(spec) for _ in PACE_S]
    acts = (memories[0].append, memories[1].approve, memories[2].search)
    clients = [Client(kind, act) for kind, act in zip(PACE_S, acts, strict=True)]
    commands = msgspec.json.Decoder(Command)
    for line in sys.stdin.buffer:
        print(msgspec.json.encode(answer(commands.decode(line), clients)).decode(), flush=True)
    for memory in memories:
        memory.close()


def answer(command: Command, clients: list[Client]) -> object:
    """Obey one command."""
    match command:
        case Start():
            for client in clients:
                client.start()
            return True
        case Recovered():
            return all(client.recovered(command.since) for client in clients)
        case Stop():
            for client in clients:
                client.stop()
            for client in clients:
                client.join()
            return [op for client in clients for op in client.ops]


if __name__ == "__main__":
    serve(msgspec.json.decode(sys.argv[1], type=Spec))
