"""When a lease is over. Pure.

A lease is measured with the monotonic clock, which no change of the wall clock moves, and which all processes of one
boot share. Whoever held a lease when the machine went down is gone, so a lease of another boot is over. Where a boot
can't be told from another, one that would last longer than it was given is of another one.
"""

MS_NS = 1_000_000


def left_ns(*, boot: str, expires_ns: int, lease_ms: int, now_boot: str, now_ns: int) -> int:
    """Return how long a lease still holds, in ns; 0 when it is over."""
    left = expires_ns - now_ns
    return left if boot == now_boot and 0 < left <= lease_ms * MS_NS else 0
