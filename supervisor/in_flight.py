"""The requests of one client that are under way: bounded in number and in bytes, each found under its id.

The bound is what keeps one client from filling the daemon's memory and the mailboxes: beyond it nothing more is read
from that client. A cancelled request gives its place back at once, whatever became of its message.
"""

import trio

from supervisor.rpc import Id


class Place:
    """One request's share of the bound, and the scope that cancels it."""

    __slots__ = ("request_id", "scope", "size")

    def __init__(self, request_id: Id | None, size: int) -> None:
        self.request_id = request_id
        self.size = size
        self.scope = trio.CancelScope()


class InFlight:
    """Places for requests."""

    def __init__(self, *, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._places: dict[int, Place] = {}
        self._by_id: dict[Id, Place] = {}
        self._bytes = 0
        self._left = trio.Event()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._by_id

    def has_room(self, size: int) -> bool:
        """Say whether a request of that many bytes may begin; a single one always may."""
        return not self._places or (len(self._places) < self._count_max and self._bytes + size <= self._bytes_max)

    def enter(self, request_id: Id | None, size: int) -> Place:
        """Give a request its place."""
        place = Place(request_id, size)
        self._places[id(place)] = place
        self._bytes += size
        if request_id is not None:
            assert request_id not in self._by_id
            self._by_id[request_id] = place
        return place

    def answered(self, place: Place) -> None:
        """Let the id be used again: the answer is made, and a cancellation that comes now is too late."""
        if place.request_id is not None and self._by_id.get(place.request_id) is place:
            del self._by_id[place.request_id]

    def leave(self, place: Place) -> None:
        """Give the place back."""
        self.answered(place)
        del self._places[id(place)]
        self._bytes -= place.size
        assert self._bytes >= 0
        self._left.set()
        self._left = trio.Event()

    def cancel(self, request_id: Id, reason: str) -> None:
        """Cancel a request and free its id; one that is not under way is none of our business."""
        place = self._by_id.pop(request_id, None)
        if place is not None:
            place.scope.cancel(reason)

    async def wait_left(self) -> None:
        """Wait until a request has given its place back."""
        await self._left.wait()
