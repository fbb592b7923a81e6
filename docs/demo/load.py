"""A client that never stops: it appends events and searches, in two threads over two bridges, while things are killed.

The appending thread is what a careful program looks like: every event has a `request_id`; after an error that may be
retried, the same event is sent again with the same `request_id`. What was acknowledged is written down here, and is
later compared with what the daemon has.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bridge import Bridge, Refused

SESSION = "during-the-rebuild"
APPEND_PAUSE_S = 0.03
SEARCH_PAUSE_S = 0.06
RETRY_PAUSE_S = 0.05
QUESTIONS = (
    "why could the gateways not connect in March",
    "E_SIG_MISMATCH",
    "芝麻不能吃什么",
    "analytics_he replication slot",
    "妈妈几号到阿姆斯特丹",
)
SENTENCES = (
    "House {house}: {degrees} °C at the upper node, screens open, mark {mark}.",
    "{house} 号棚夜里最低 {degrees} 度，没有报警，记号 {mark}。",
    "Spool of box {house} is empty again after the rebuild test, mark {mark}.",
    "孙工问 {house} 号棚的 EC，答 {degrees}，记号 {mark}。",
    "Priya wants the log of gateway {house} from this minute, mark {mark}.",
)


@dataclass
class Second:
    """What happened in one second, as the two clients saw it."""

    appends: int = 0
    searches: int = 0
    errors: int = 0
    append_ms_max: float = 0.0
    search_ms_max: float = 0.0
    generations: set[object] = field(default_factory=set)
    degraded: Counter[str] = field(default_factory=Counter)


@dataclass
class Acknowledged:
    """An event that the daemon said it has on the disk."""

    event_id: str
    seq: int
    content: str
    mark: str


class Load:
    """The two threads. `acknowledged` and the totals may be read once `stop` has returned."""

    def __init__(self, open_bridge: Callable[[], Bridge]) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.retried = 0  # requests that were sent again with the same request_id
        self.deduplicated = 0  # … and turned out to have been stored the first time
        self.searches = 0
        self.asked_fresh = 0  # searches for the event that had been acknowledged last
        self.found_fresh = 0
        self.missed: list[str] = []
        self.failure: BaseException | None = None
        self._open_bridge = open_bridge
        self._second = Second()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        works = (self._append, self._search)
        self._threads = [threading.Thread(target=self._guard, args=(work,), daemon=True) for work in works]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let both finish the request that they have in hand, and end. May be called more than once."""
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def take_second(self) -> Second:
        """Return what happened since the last call."""
        with self._lock:
            second, self._second = self._second, Second()
        return second

    def _guard(self, work: Callable[[Bridge], None]) -> None:
        bridge = self._open_bridge()
        try:
            work(bridge)
        except Exception as error:
            self.failure = error
        finally:
            bridge.close()

    # ------------------------------------------------------------ appending

    def _append(self, bridge: Bridge) -> None:
        number = 0
        while not self._stopping.is_set():
            number += 1
            event = self._event(number)
            result = self._append_until_acknowledged(bridge, event)
            self.acknowledged.append(
                Acknowledged(result["event_id"], result["seq"], str(event["content"]), mark(number))
            )
            self._stopping.wait(APPEND_PAUSE_S)

    def _event(self, number: int) -> dict[str, object]:
        sentence = SENTENCES[number % len(SENTENCES)]
        content = sentence.format(house=number % 30 + 1, degrees=9 + number % 130 / 10, mark=mark(number))
        return {"session_id": SESSION, "actor": "user", "content": content, "request_id": f"load-{number}"}

    def _append_until_acknowledged(self, bridge: Bridge, event: dict[str, object]) -> Any:
        again = False
        while True:
            started = time.monotonic()
            try:
                result = bridge.call("event.append", **event)
            except Refused as error:
                self._count_error()
                if not error.retryable:
                    raise
                again = True
                self.retried += 1
                time.sleep(RETRY_PAUSE_S)
                continue
            self.deduplicated += again and result["deduplicated"]
            with self._lock:
                self._second.appends += 1
                self._second.append_ms_max = max(self._second.append_ms_max, _ms_since(started))
            return result

    # ------------------------------------------------------------ searching

    def _search(self, bridge: Bridge) -> None:
        number = 0
        while not self._stopping.is_set():
            number += 1
            if number % 2 and self.acknowledged:
                self._search_fresh(bridge, self.acknowledged[-1])
            else:
                self._ask(bridge, QUESTIONS[number // 2 % len(QUESTIONS)])
            self._stopping.wait(SEARCH_PAUSE_S)

    def _search_fresh(self, bridge: Bridge, last: Acknowledged) -> None:
        answer = self._ask(bridge, last.mark)
        if answer is None:
            return
        self.asked_fresh += 1
        if any(hit["id"] == last.event_id for hit in answer["hits"]):
            self.found_fresh += 1
        else:
            self.missed.append(f"{last.mark} (degraded: {[entry['code'] for entry in answer['degraded']]})")

    def _ask(self, bridge: Bridge, query: str) -> dict[str, Any] | None:
        started = time.monotonic()
        try:
            answer: dict[str, Any] = bridge.call("memory.search", query=query, limit=5)
        except Refused as error:
            self._count_error()
            if not error.retryable:
                raise
            time.sleep(RETRY_PAUSE_S)
            return None
        self.searches += 1
        with self._lock:
            self._second.searches += 1
            self._second.search_ms_max = max(self._second.search_ms_max, _ms_since(started))
            self._second.generations.add(answer["generation"])
            self._second.degraded.update(entry["code"] for entry in answer["degraded"])
        return answer

    def _count_error(self) -> None:
        with self._lock:
            self._second.errors += 1


def mark(number: int) -> str:
    """Return a word that only the event of this number holds."""
    return f"MK-{number * 7919 % 1_000_003:06d}"


def _ms_since(started: float) -> float:
    return (time.monotonic() - started) * 1000
