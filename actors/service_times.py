"""How long each kind of message takes, to refuse at once what cannot be done in the time that is left. Pure."""

from collections import deque

SAMPLES_KEPT = 32
SAMPLES_MIN = 16
# Every so many refusals one goes through: what was slow once must be able to show that it is fast again.
PROBE_EVERY = 8


class ServiceTimes:
    """The recent service times per kind of message, in ns."""

    def __init__(self) -> None:
        self._samples: dict[type, deque[int]] = {}
        self._medians: dict[type, int] = {}
        self._refusals = 0

    def note(self, kind: type, nanoseconds: int) -> None:
        """Add one observation."""
        samples = self._samples.setdefault(kind, deque(maxlen=SAMPLES_KEPT))
        samples.append(nanoseconds)
        self._medians.pop(kind, None)

    def median_ns(self, kind: type) -> int:
        """Return the median, or 0 as long as too little is known."""
        samples = self._samples.get(kind, ())
        if len(samples) < SAMPLES_MIN:
            return 0
        if kind not in self._medians:
            self._medians[kind] = sorted(samples)[len(samples) // 2]
        return self._medians[kind]

    def suffices(self, kind: type, remaining_ns: int) -> bool:
        """Say whether a message with this much time left is worth beginning."""
        if remaining_ns >= self.median_ns(kind):
            return True
        self._refusals += 1
        return self._refusals % PROBE_EVERY == 0
