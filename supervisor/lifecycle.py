"""The life of an actor as a table, and the arithmetic of restarts. Pure: no clock, no randomness, no trio.

    NEW -> STARTING -> READY <-> DEGRADED -> DRAINING -> STOPPED
               |          |          |
               +----------+-> WEDGED +-> FAILED -> BACKOFF -> STARTING
                                             \\-> BROKEN -> STARTING (half-open probe)
                                             \\-> QUARANTINED (truth is damaged: only a command leads out)

Every change of state in the program goes through `advance`, so an impossible one is an assertion, not a state.
`tests/unit/supervisor/test_lifecycle.py` walks the whole product of states and events.
"""

import enum
from collections import deque


class State(enum.StrEnum):
    """Where an actor is in its life."""

    NEW = "new"
    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"
    BACKOFF = "backoff"
    WEDGED = "wedged"
    BROKEN = "broken"
    QUARANTINED = "quarantined"


class Event(enum.StrEnum):
    """What can happen to an actor."""

    START = "start"  # an incarnation begins
    STARTED = "started"  # it says that it can serve
    LIMIT = "limit"  # it works with a limitation
    RECOVER = "recover"  # the limitation is gone
    OVERDUE = "overdue"  # the watchdog lost patience; its worker is being killed
    FAIL = "fail"  # the incarnation ended by itself
    WAIT = "wait"  # a restart is planned
    EXHAUST = "exhaust"  # the restart budget is spent
    CORRUPT = "corrupt"  # its truth failed verification
    DRAIN = "drain"  # the daemon is going down
    STOP = "stop"  # it has ended


S, E = State, Event
_ALIVE = (S.STARTING, S.READY, S.DEGRADED)

TRANSITIONS: dict[tuple[State, Event], State] = {
    (S.NEW, E.START): S.STARTING,
    (S.NEW, E.STOP): S.STOPPED,
    (S.STARTING, E.STARTED): S.READY,
    (S.READY, E.LIMIT): S.DEGRADED,
    (S.DEGRADED, E.LIMIT): S.DEGRADED,
    (S.DEGRADED, E.RECOVER): S.READY,
    (S.READY, E.RECOVER): S.READY,
    **{(state, E.OVERDUE): S.WEDGED for state in _ALIVE},
    **{(state, E.FAIL): S.FAILED for state in (*_ALIVE, S.WEDGED)},
    (S.FAILED, E.WAIT): S.BACKOFF,
    (S.FAILED, E.EXHAUST): S.BROKEN,
    (S.FAILED, E.CORRUPT): S.QUARANTINED,
    (S.BACKOFF, E.START): S.STARTING,
    (S.BROKEN, E.START): S.STARTING,
    (S.QUARANTINED, E.START): S.STARTING,
    **{(state, E.DRAIN): S.DRAINING for state in (*_ALIVE, S.WEDGED)},
    (S.DRAINING, E.FAIL): S.STOPPED,
    (S.DRAINING, E.OVERDUE): S.DRAINING,
    (S.DRAINING, E.STARTED): S.DRAINING,
    (S.DRAINING, E.LIMIT): S.DRAINING,
    (S.DRAINING, E.RECOVER): S.DRAINING,
    **{
        (state, E.STOP): S.STOPPED
        for state in (S.DRAINING, S.FAILED, S.BACKOFF, S.BROKEN, S.QUARANTINED, *_ALIVE, S.WEDGED)
    },
}
SERVING = frozenset({State.READY, State.DEGRADED})


def advance(state: State, event: Event) -> State:
    """Return the state after the event; an event that cannot happen in a state is a bug of the supervisor."""
    assert (state, event) in TRANSITIONS, f"event {event!r} cannot happen in state {state!r}"
    return TRANSITIONS[state, event]


class RestartBudget:
    """How many restarts an actor may have inside a sliding window, and how long to wait before the next.

    `now` is in seconds of any monotonic clock. A healthy run of at least `healthy_s` with one real success
    forgets the failures before it, and the first restart after it is immediate.
    """

    def __init__(
        self,
        *,
        restarts_max: int,
        window_s: float,
        backoff_s_min: float,
        backoff_s_max: float,
        healthy_s: float = 60.0,
    ) -> None:
        assert restarts_max >= 1 and 0 < backoff_s_min <= backoff_s_max
        self.restarts_max = restarts_max
        self.window_s = window_s
        self.backoff_s_min = backoff_s_min
        self.backoff_s_max = backoff_s_max
        self.healthy_s = healthy_s
        self.failures = 0  # in a row, without a healthy run between them
        self._instants: deque[float] = deque()

    def record_failure(self, now: float, *, ready_for_s: float, succeeded: bool) -> bool:
        """Count a failure; say whether the budget allows another restart."""
        if ready_for_s >= self.healthy_s and succeeded:
            self.failures = 0
            self._instants.clear()
        self.failures += 1
        self._instants.append(now)
        while self._instants and self._instants[0] <= now - self.window_s:
            self._instants.popleft()
        return len(self._instants) <= self.restarts_max

    def backoff_s(self, uniform: float, *, after_healthy_run: bool) -> float:
        """Return the wait before the next start: doubling, jittered over [d/2, d] by `uniform` in [0, 1)."""
        assert self.failures >= 1 and 0 <= uniform < 1
        if after_healthy_run and self.failures == 1:
            return 0.0
        longest = min(self.backoff_s_max, self.backoff_s_min * 2.0 ** min(self.failures - 1, 32))
        return longest * (0.5 + 0.5 * uniform)
