"""A room for test_child_pools.py: its calls wait for each other, so they must run at the same time to end at all."""

import threading
import time
from collections.abc import Mapping

import msgspec

from actors.child import CallContext, serve
from actors.errors import Interrupted
from actors.frames import Setup
from actors.messages.base import Message, Row


class Meet(Message, frozen=True, kw_only=True):
    """Wait until `count` calls are here."""

    answer = Row
    count: int


class Linger(Message, frozen=True, kw_only=True):
    """Wait until interrupted."""

    answer = Row


class Alone(Message, frozen=True, kw_only=True):
    """Return the most calls of this kind that were ever under way at once."""

    answer = Row


class PooledRoom:
    work: object = Meet | Linger | Alone
    lanes: Mapping[type[Message], str] = {Meet: "many", Linger: "many", Alone: "one"}
    pools: Mapping[str, int] = {"many": 3}

    def __init__(self, setup: Setup) -> None:
        self._condition = threading.Condition()
        self._here = 0
        self._opened: list[str] = []
        self._alone, self._most = 0, 0

    def open(self, lane: str) -> dict[str, int | float | str | bool | None]:
        self._opened.append(lane)
        return {f"threads_{lane}": self._opened.count(lane)}

    def handle(self, message: Message, call: CallContext) -> msgspec.Struct:
        match message:
            case Meet():
                with self._condition:
                    self._here += 1
                    self._condition.notify_all()
                    self._condition.wait_for(lambda: self._here >= message.count or call.expired(), timeout=30)
                    self._here -= call.expired()
                call.check()
            case Linger():
                call.progress("here", 0, 0)
                while not call.interrupted:
                    time.sleep(0.001)
                raise Interrupted(f"call {call.seq} was interrupted")
            case _:
                self._alone += 1
                self._most = max(self._most, self._alone)
                time.sleep(0.01)
                self._alone -= 1
        return Row(row=str(self._most).encode())

    def interrupt(self, lane: str) -> None:
        with self._condition:
            self._condition.notify_all()

    def idle(self, lane: str) -> bool:
        return False

    def close(self, lane: str) -> None:
        pass


if __name__ == "__main__":
    serve(PooledRoom)
