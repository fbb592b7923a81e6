"""When a search is given to the second worker as well."""

import pytest

from actors.searcher.hedging import (
    HEDGE_S_MAX,
    HEDGE_S_MIN,
    HEDGE_SHARE,
    HEDGES_SAVED_MAX,
    SAMPLES_KEPT,
    SAMPLES_MIN,
    HedgeBudget,
    Pace,
    hedge_delay_s,
)


@pytest.mark.parametrize(
    ("usual_s", "delay_s"),
    [(None, HEDGE_S_MAX), (0.0, HEDGE_S_MIN), (0.01, HEDGE_S_MIN), (0.05, 0.1), (0.1, 0.2), (3.0, HEDGE_S_MAX)],
)
def test_the_delay_is_twice_the_usual_time_within_bounds(usual_s: float | None, delay_s: float) -> None:
    assert hedge_delay_s(usual_s) == pytest.approx(delay_s)


def test_the_pace_is_patient_as_long_as_it_knows_little() -> None:
    pace = Pace()
    for _ in range(SAMPLES_MIN - 1):
        pace.note(0.001)
    assert pace.hedge_delay_s() == HEDGE_S_MAX
    pace.note(0.001)
    assert pace.hedge_delay_s() == HEDGE_S_MIN


def test_a_few_slow_searches_move_the_delay_and_one_does_not() -> None:
    pace = Pace()
    for _ in range(SAMPLES_KEPT):
        pace.note(0.03)
    pace.note(10.0)
    assert pace.hedge_delay_s() == pytest.approx(0.06)
    for _ in range(6):
        pace.note(0.1)
    assert pace.hedge_delay_s() == pytest.approx(0.2)


def test_the_wait_for_a_turn_grows_with_the_line_and_shrinks_with_the_seats() -> None:
    pace = Pace()
    assert pace.wait_s(100, 2) == 0.0, "nothing is known yet"
    for _ in range(SAMPLES_MIN):
        pace.note(0.02)
    assert pace.wait_s(0, 2) == 0.0
    assert pace.wait_s(10, 2) == pytest.approx(0.1)
    assert pace.wait_s(10, 5) == pytest.approx(0.04)


def test_hedges_are_a_share_of_the_searches_after_the_saved_ones() -> None:
    budget = HedgeBudget()
    hedges = 0
    for _ in range(1000):
        budget.save()
        hedges += budget.spend()
    assert hedges <= HEDGES_SAVED_MAX + HEDGE_SHARE * 1000
    assert hedges >= HEDGE_SHARE * 1000


def test_quiet_times_do_not_save_hedges_without_end() -> None:
    budget = HedgeBudget()
    for _ in range(10_000):
        budget.save()
    spent = sum(budget.spend() for _ in range(1000))
    assert spent == HEDGES_SAVED_MAX
