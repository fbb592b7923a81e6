"""A room with faults around it: the child's loop runs it as it would run the room itself."""

from typing import Any

import msgspec

from actors.child import CallContext, Room
from actors.messages.base import Message
from chaos.faults.call_faults import CallFaults


class FaultyRoom:
    """Whatever the loop asks of the room is the room's answer; faults happen before and after `open` and `handle`."""

    def __init__(self, room: Room, faults: CallFaults) -> None:
        self._room = room
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._room, name)

    def open(self, lane: str) -> dict[str, int | float | str | bool | None]:
        """Open the lane."""
        self._faults.meet("open", lane, None, after=False)
        info = self._room.open(lane)
        self._faults.meet("open", lane, None, after=True)
        return info

    def handle(self, message: Message, call: CallContext) -> msgspec.Struct:
        """Do a call."""
        lane = self._room.lanes[type(message)]
        self._faults.meet("handle", lane, message, after=False)
        answer = self._room.handle(message, call)
        self._faults.meet("handle", lane, message, after=True)
        return answer
