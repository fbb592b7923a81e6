"""The launcher: `python -m chaos.faults.worker actors.<room>.worker` runs a room's worker with faults within reach.

The module runs as `__main__`, exactly as `python -m` would run it; only `serve` is wrapped, so that the room that it
makes is a `FaultyRoom`. Without a fault the only differences are a thread (the door) and a folder in the data
directory. The shim of the disk is loaded only when `<worker>.start.json` asks for a fault of the disk.

Imports no trio: the worker's side must stay what it is in production.
"""

import os
import runpy
import sys
from pathlib import Path
from typing import NoReturn, cast

import msgspec

from actors import child
from actors.child import Room, RoomFactory
from actors.frames import Setup
from actors.settings import RoomSetup
from chaos.faults import mutations, places
from chaos.faults.call_faults import CallFaults
from chaos.faults.disk import Disk, Unavailable
from chaos.faults.disk_plan import DiskPlan
from chaos.faults.door import Door
from chaos.faults.kinds import (
    AnyFault,
    AtStart,
    CallFault,
    Clear,
    Command,
    Descriptors,
    DiskCount,
    DiskDelay,
    DiskFail,
    DiskFault,
    DiskVolatile,
    FileSize,
    Inject,
    Junk,
    Mutation,
    kind_of,
)
from chaos.faults.ledger import Ledger
from chaos.faults.limits import Limits
from chaos.faults.room import FaultyRoom


class Faults:
    """Everything that can be wrong with this process."""

    def __init__(self, data: Path, worker: str) -> None:
        self._worker = worker
        self._ledger = Ledger(data, worker)
        self._limits = Limits()
        self._disk: Disk | None = None
        self._plan = DiskPlan(self._ledger.record)
        self.calls = CallFaults(self._ledger)

    def start(self, faults: list[AnyFault]) -> None:
        """Have these faults before the room opens anything."""
        if any(isinstance(fault, DiskFault) for fault in faults):
            try:
                self._disk = Disk(self._plan)
            except Unavailable as error:
                self._ledger.record("disk_unavailable", str(error))
        for fault in faults:
            if isinstance(fault, Mutation):
                self._ledger.record(kind_of(fault), fault.name)
                mutations.apply(fault.name, self._worker)
            elif self._disk is not None or not isinstance(fault, DiskFault):
                self.inject(fault)

    def obey(self, command: Command) -> dict[str, object]:
        """Do a command that came through the door."""
        match command:
            case Inject():
                self.inject(command.fault)
            case Clear():
                self.clear()
        return self.state()

    def inject(self, fault: AnyFault) -> None:
        """Have a fault from now on. Raises ValueError when it can't be had."""
        match fault:
            case CallFault():
                self.calls.add(fault)
            case DiskFault():
                self._inject_disk(fault)
            case Descriptors() | FileSize():
                self._ledger.record(kind_of(fault))
                self._limits.lower(fault)
            case Junk():
                self._ledger.record(kind_of(fault))
                os.write(1, fault.text.encode())
            case Mutation():
                raise ValueError(f"mutation {fault.name!r} refused: it must be there from the start (at_start)")

    def _inject_disk(self, fault: DiskCount | DiskFail | DiskDelay | DiskVolatile) -> None:
        if self._disk is None:
            raise ValueError(
                f"fault {kind_of(fault)!r} refused: this worker runs without the faulty disk; "
                "start it with any fault of the disk (at_start), such as 'disk_count'"
            )
        if isinstance(fault, DiskVolatile):
            self._ledger.record(kind_of(fault))
            self._disk.make_volatile(fault)
        else:
            self._plan.add(fault)

    def clear(self) -> None:
        """Forget what can be forgotten: a volatile disk and a mutation stay for the life of the process."""
        self.calls.clear()
        self._plan.clear()
        self._limits.restore()

    def state(self) -> dict[str, object]:
        """Return what is armed and counted."""
        disk = None if self._disk is None else self._disk.state()
        return {"worker": self._worker, "pid": os.getpid(), "calls": self.calls.state(), "disk": disk}


def hurt(factory: RoomFactory) -> RoomFactory:
    """Return a factory whose rooms have faults around them."""

    def make(setup: Setup) -> Room:
        settings = msgspec.msgpack.decode(setup.settings, type=RoomSetup)
        data = Path(settings.index_directory).parent
        faults = Faults(data, setup.actor)
        Door(data, setup.actor, faults.obey)
        faults.start(take_start_faults(data, setup.actor))
        return cast(Room, FaultyRoom(factory(setup), faults.calls))

    return make


def take_start_faults(data: Path, worker: str) -> list[AnyFault]:
    """Return the faults that this incarnation must have from its start, and count it against their `starts`."""
    path = places.start_file(data, worker)
    try:
        given = msgspec.json.decode(path.read_bytes(), type=AtStart)
    except FileNotFoundError:
        return []
    if given.starts is not None:
        left = msgspec.structs.replace(given, starts=given.starts - 1)
        if left.starts:
            path.write_bytes(msgspec.json.encode(left))
        else:
            path.unlink(missing_ok=True)
    return given.faults


def main() -> None:
    """Run the module that the command line names."""
    module = sys.argv.pop(1)
    serve = child.serve

    def serve_hurt(room_factory: RoomFactory) -> NoReturn:
        serve(hurt(room_factory))

    child.serve = serve_hurt
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
