"""How late this process itself is, so that a busy test machine is not taken for a slow daemon."""

import time
from bisect import bisect_left
from collections import deque

import trio

BEAT_S = 0.01
KEPT = 60_000
NOTED_S = 0.002


class LagMeter:
    """Sleeps for 10 ms again and again and notes when it woke up late. Small delays are not kept."""

    def __init__(self) -> None:
        self._at: deque[float] = deque(maxlen=KEPT)
        self._late: deque[float] = deque(maxlen=KEPT)
        self.worst_s = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            due = time.monotonic() + BEAT_S
            await trio.sleep(BEAT_S)
            now = time.monotonic()
            if now - due > NOTED_S:
                self.note(now, now - due)

    def note(self, at: float, late_s: float) -> None:
        """Note that this process woke up at a time, so much later than it should have."""
        self._at.append(at)
        self._late.append(late_s)
        self.worst_s = max(self.worst_s, late_s)

    def worst(self, begin: float, end: float) -> float:
        """Return the longest delay that touched a stretch of time, in seconds, one that is going on included."""
        at = list(self._at)
        first = bisect_left(at, begin)
        late = list(self._late)
        # A delay is noted at its end, so the first one after `end` may have begun inside.
        touched = [late[i] for i in range(first, len(at)) if at[i] - late[i] <= end]
        return max(touched, default=0.0)
