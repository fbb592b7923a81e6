"""One queue of a mailbox, with turns: each client's mail keeps its order, and no client's flood delays another's.

Pure data. What was in hand at a death comes back to the front and is taken before anything else.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar


class FromClient(Protocol):
    """What a tray must know of an item: whose it is (0: the house itself)."""

    @property
    def client(self) -> int:
        """Return the number of the client's connection."""
        ...


Item = TypeVar("Item", bound=FromClient)


class Tray(Generic[Item]):
    """Items in order per client, taken round robin over the clients."""

    def __init__(self) -> None:
        self._returned: deque[Item] = deque()
        self._queues: OrderedDict[int, deque[Item]] = OrderedDict()  # the next client's first; none is empty
        self._count = 0

    def __len__(self) -> int:
        """Return how many items wait."""
        return self._count

    def __iter__(self) -> Iterator[Item]:
        """Iterate over everything that waits, in no particular order between clients."""
        yield from self._returned
        for queue in self._queues.values():
            yield from queue

    def put(self, item: Item) -> None:
        """Add an item behind those of its client."""
        self._queues.setdefault(item.client, deque()).append(item)
        self._count += 1

    def put_back(self, item: Item) -> None:
        """Return an item that had been taken; it is the next to be taken."""
        self._returned.appendleft(item)
        self._count += 1

    def peek(self) -> Item | None:
        """Return the next item without taking it."""
        if self._returned:
            return self._returned[0]
        queue = next(iter(self._queues.values()), None)
        return queue[0] if queue else None

    def pop(self) -> Item | None:
        """Take the next item; the turn goes to the next client."""
        if self._returned:
            self._count -= 1
            return self._returned.popleft()
        for client, queue in self._queues.items():
            item = queue.popleft()
            self._count -= 1
            if queue:
                self._queues.move_to_end(client)
            else:
                del self._queues[client]
            return item
        return None

    def remove(self, item: Item) -> bool:
        """Take an item out of turn; False when it is not there."""
        if item in self._returned:
            self._returned.remove(item)
        else:
            queue = self._queues.get(item.client)
            if queue is None or item not in queue:
                return False
            queue.remove(item)
            if not queue:
                del self._queues[item.client]
        self._count -= 1
        return True

    def of_greediest(self, client: int) -> Iterable[Item]:
        """Return what the client that has the most here has waiting; this one, unless another has at least two more."""
        own = self._queues.get(client, ())
        fullest = max(self._queues.values(), key=len, default=own)
        return fullest if len(fullest) >= len(own) + 2 else own

    def last_of_greedier(self, client: int) -> Item | None:
        """Return the newest item of the client that has the most here, if it has at least two more than this one."""
        own = len(self._queues.get(client, ()))
        fullest = max(self._queues.values(), key=len, default=None)
        return fullest[-1] if fullest is not None and len(fullest) >= own + 2 else None
