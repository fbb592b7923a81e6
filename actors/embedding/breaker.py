"""When not to ask an endpoint that is not there. Pure: the caller says what time it is.

Only *unavailable* counts: no connection, or an answer that the service is down. A slow answer, a rate limit and a
text that is refused all show that somebody is there. Nothing but times is kept: an error is never told twice.

    CLOSED     ask. After `failures_to_open` times unavailable in a row: OPEN.
    OPEN       do not ask, until the pause is over: then HALF_OPEN.
    HALF_OPEN  one caller probes. There: CLOSED. Unavailable: OPEN, and the pause doubles. No word at all: next probe.
"""

from enum import Enum


class State(Enum):
    """Whether to ask."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """The state for one endpoint. `now` are seconds of a clock that only goes forward."""

    def __init__(
        self, *, failures_to_open: int = 3, pause_s: float = 1.0, pause_s_max: float = 30.0, probe_s: float = 10.0
    ) -> None:
        self.state = State.CLOSED
        self._failures_to_open = failures_to_open
        self._pause_s_min = pause_s
        self._pause_s_max = pause_s_max
        self._probe_s = probe_s
        self._failures = 0
        self._pause_s = pause_s
        # OPEN: when the pause is over. HALF_OPEN: when the probe is given up for lost.
        self._until = 0.0

    def may_ask(self, now: float) -> bool:
        """Say whether to ask now. True in HALF_OPEN makes the caller the one who probes."""
        if self.state is State.CLOSED:
            return True
        if now < self._until:
            return False
        self.state = State.HALF_OPEN
        self._until = now + self._probe_s
        return True

    def retry_after_ms(self, now: float) -> int:
        """Return how long until asking makes sense again."""
        return 0 if self.state is State.CLOSED else max(0, round((self._until - now) * 1000))

    def reached(self) -> None:
        """Note that the endpoint answered, whatever it said."""
        self.state = State.CLOSED
        self._failures = 0
        self._pause_s = self._pause_s_min

    def unavailable(self, now: float) -> None:
        """Note that the endpoint was not there."""
        self._failures += 1
        if self.state is State.HALF_OPEN:
            self._pause_s = min(self._pause_s * 2, self._pause_s_max)
        elif self.state is State.OPEN or self._failures < self._failures_to_open:
            return  # the caller had asked before the breaker opened, or it is too early to open
        self.state = State.OPEN
        self._until = now + self._pause_s

    def no_word(self, now: float) -> None:
        """Note that the caller left before there was an answer: that says nothing, but the next one may probe."""
        if self.state is State.HALF_OPEN:
            self._until = now
