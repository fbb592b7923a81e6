"""When a search is given to the second worker as well. Pure: numbers in, numbers out.

A worker that hangs is noticed first by those who wait for it, so who waits for longer than searches take asks the other
worker too and keeps the first answer. Twice the 95th percentile means that few do so in vain. They would all do so on
a machine that is overloaded, and make it worse: hence the budget, a share of the searches.
"""

from collections import deque

SAMPLES_KEPT = 64
SAMPLES_MIN = 8
PATIENCE = 2.0  # × the 95th percentile
HEDGE_S_MIN, HEDGE_S_MAX = 0.04, 0.25
HEDGE_SHARE = 0.1
HEDGES_SAVED_MAX = 8.0


class Pace:
    """How long the workers took for their latest searches, in seconds."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=SAMPLES_KEPT)

    def note(self, seconds: float) -> None:
        """Add a search that was answered, also one whose asker had left by then."""
        self._samples.append(seconds)

    def hedge_delay_s(self) -> float:
        """Return how long to wait for one worker before the other is asked as well."""
        return hedge_delay_s(self._percentile(0.95))

    def wait_s(self, ahead: int, seats: int) -> float:
        """Estimate how long a search waits for its turn when `ahead` others come first; 0 as long as nothing is known.

        Both are the median's, so half of the estimates are too low: who is in doubt waits.
        """
        return (self._percentile(0.5) or 0.0) * (ahead // seats)

    def _percentile(self, share: float) -> float | None:
        if len(self._samples) < SAMPLES_MIN:
            return None
        return sorted(self._samples)[int(len(self._samples) * share)]


def hedge_delay_s(usual_s: float | None) -> float:
    """Return the delay for a 95th percentile (None: unknown, and then it is worth being patient)."""
    if usual_s is None:
        return HEDGE_S_MAX
    return min(HEDGE_S_MAX, max(HEDGE_S_MIN, PATIENCE * usual_s))


class HedgeBudget:
    """A token bucket: every search saves a share of a hedge, and a few are saved at most."""

    def __init__(self) -> None:
        self._saved = HEDGES_SAVED_MAX

    def save(self) -> None:
        """Count one search."""
        self._saved = min(HEDGES_SAVED_MAX, self._saved + HEDGE_SHARE)

    def spend(self) -> bool:
        """Take one hedge, or say that there is none to take."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
