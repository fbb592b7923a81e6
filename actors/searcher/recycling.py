"""When a search worker has served long enough. Pure.

LanceDB's memory grows and is not given back (reliability.md §4.8), so a worker is replaced before it hurts: politely
while it is only large or old, at once when it is far beyond its limit. What it would have to answer politely may be
what made it so large.
"""

from typing import Literal

from actors.settings import SearcherSettings

KILL_FACTOR = 1.5
# A new worker that is too large already would be so again: replacing it at once gains nothing.
LARGE_AGE_S_MIN = 600.0

Verdict = Literal["keep", "retire", "kill"]


def judge(limits: SearcherSettings, *, rss_bytes: int, age_s: float) -> Verdict:
    """Say what to do with a worker of this size and age."""
    if rss_bytes > KILL_FACTOR * limits.rss_bytes_max:
        return "kill"
    large = rss_bytes > limits.rss_bytes_max and age_s > LARGE_AGE_S_MIN
    return "retire" if large or age_s > limits.recycle_after_s else "keep"
