"""When a search worker has served long enough."""

import pytest

from actors.searcher.recycling import LARGE_AGE_S_MIN, Verdict, judge
from actors.settings import SearcherSettings

LIMITS = SearcherSettings(rss_bytes_max=1000, recycle_after_s=3600)
OLD_S = LARGE_AGE_S_MIN + 1


@pytest.mark.parametrize(
    ("rss_bytes", "age_s", "verdict"),
    [
        (0, 0, "keep"),
        (1000, OLD_S, "keep"),
        (1001, OLD_S, "retire"),
        (1001, 10, "keep"),  # its successor would be as large at once
        (1500, OLD_S, "retire"),
        (1501, 0, "kill"),
        (1501, OLD_S, "kill"),
        (10, 3600, "keep"),
        (10, 3601, "retire"),
    ],
)
def test_size_and_age_decide(rss_bytes: int, age_s: float, verdict: Verdict) -> None:
    assert judge(LIMITS, rss_bytes=rss_bytes, age_s=age_s) == verdict
