"""A room for test_worker_stacks.py: its calls hang in ways that no interrupt ends."""

import ctypes
import time
from collections.abc import Mapping
from typing import Literal

import msgspec

from actors.child import CallContext, serve
from actors.frames import Setup
from actors.messages.base import Message, Row

HANG_S = 60


class Hang(Message, frozen=True, kw_only=True):
    """Never answer."""

    answer = Row
    how: Literal["sleep", "hold_gil", "raise"]


class StuckRoom:
    work: object = Hang
    lanes: Mapping[type[Message], str] = {Hang: "only"}

    def __init__(self, setup: Setup) -> None:
        pass

    def open(self, lane: str) -> dict[str, int | float | str | bool | None]:
        return {}

    def handle(self, message: Message, call: CallContext) -> msgspec.Struct:
        assert isinstance(message, Hang)
        if message.how == "raise":
            raise RuntimeError("a bug in the room")
        if message.how == "hold_gil":
            ctypes.PyDLL(None).sleep(HANG_S)
        time.sleep(HANG_S)
        return Row(row=b"")

    def interrupt(self, lane: str) -> None:
        pass

    def idle(self, lane: str) -> bool:
        return False

    def close(self, lane: str) -> None:
        pass


if __name__ == "__main__":
    serve(StuckRoom)
