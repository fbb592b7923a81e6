"""ULIDs: 26 characters that sort by the time at which they were made. Pure: clock and randomness come from the caller.

Crockford's base 32 of 48 bits of milliseconds and 80 random bits. Within one `UlidMaker` they ascend strictly.
"""

RANDOM_BYTES = 10
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RANDOM_BITS = RANDOM_BYTES * 8
_TIME_MAX = 2**48 - 1


class UlidMaker:
    """Makes ids that ascend strictly, even within one millisecond and when the clock goes back."""

    def __init__(self) -> None:
        self._last = 0

    def make(self, ts_us: int, random: bytes) -> str:
        """Return the next id for a time in µs since the epoch, from RANDOM_BYTES random bytes."""
        assert len(random) == RANDOM_BYTES
        time_ms = min(max(ts_us // 1000, 0), _TIME_MAX)
        value = time_ms << _RANDOM_BITS | int.from_bytes(random, "big")
        self._last = max(value, self._last + 1)
        return _encode(self._last)


def _encode(value: int) -> str:
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))
