"""Giving way: within a session by nice, between sessions by their groups, and back again."""

import subprocess
import sys

import pytest

from actors.priority import AUTOGROUP, GENTLE_NICE, giving_way, group_nice

NICE = 7


def test_who_gives_way_has_its_share_of_the_cpu_back_afterwards() -> None:
    before = group_nice()
    with giving_way():
        meanwhile = group_nice()
        assert (meanwhile is None) == (before is None)
        assert meanwhile is None or meanwhile >= GENTLE_NICE
    assert group_nice() == before


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="sessions are not scheduled in groups here")
def test_a_lower_priority_counts_against_other_sessions_too() -> None:
    code = (
        "import os; from actors.priority import group_nice, lower;"
        f"lower(nice={NICE}, idle_class=False, oom_score_adj=0); print(os.nice(0), group_nice())"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, start_new_session=True
    ).stdout
    assert shown == f"{NICE} {NICE}\n"
