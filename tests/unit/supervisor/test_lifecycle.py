"""The life of an actor: the whole product of states and events, and the arithmetic of restarts."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.lifecycle import TRANSITIONS, Event, RestartBudget, State, advance


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_an_event_either_has_a_row_or_is_refused(state: State, event: Event) -> None:
    if (state, event) in TRANSITIONS:
        assert advance(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(AssertionError, match="cannot happen"):
            advance(state, event)


def test_every_state_can_be_reached_and_every_one_but_stopped_can_be_left() -> None:
    reached = {State.NEW, *TRANSITIONS.values()}
    left = {state for state, _ in TRANSITIONS}
    assert reached == set(State)
    assert left == set(State) - {State.STOPPED}


def test_every_state_but_new_leads_to_stopped_by_stop() -> None:
    for state in set(State) - {State.STOPPED}:
        assert TRANSITIONS[state, Event.STOP] is State.STOPPED


def test_only_a_failure_leads_to_rest_and_only_a_start_leads_out() -> None:
    for resting in (State.BACKOFF, State.BROKEN, State.QUARANTINED):
        assert {state for (state, _), after in TRANSITIONS.items() if after is resting} == {State.FAILED}
        assert {event for (state, event) in TRANSITIONS if state is resting} == {Event.START, Event.STOP}


def budget(restarts_max: int = 3) -> RestartBudget:
    return RestartBudget(restarts_max=restarts_max, window_s=60.0, backoff_s_min=0.05, backoff_s_max=5.0)


def test_the_budget_is_spent_by_failures_inside_the_window_only() -> None:
    spent = budget()
    assert [spent.record_failure(now, ready_for_s=0.0, succeeded=False) for now in (0.0, 1.0, 2.0, 3.0)] == [
        True,
        True,
        True,
        False,
    ]
    slow = budget()
    assert all(slow.record_failure(now * 30.0, ready_for_s=0.0, succeeded=False) for now in range(50))


def test_a_healthy_run_forgets_and_makes_the_first_restart_immediate() -> None:
    kept = budget()
    for now in (0.0, 1.0, 2.0):
        kept.record_failure(now, ready_for_s=0.0, succeeded=False)
    assert kept.record_failure(100.0, ready_for_s=90.0, succeeded=True)
    assert kept.failures == 1
    assert kept.backoff_s(0.5, after_healthy_run=True) == 0.0


def test_a_long_run_without_a_success_forgets_nothing() -> None:
    kept = budget()
    for now in (0.0, 1.0, 2.0):
        kept.record_failure(now, ready_for_s=0.0, succeeded=False)
    kept.record_failure(50.0, ready_for_s=90.0, succeeded=False)
    assert kept.failures == 4


@given(st.integers(1, 200), st.floats(0.0, 1.0, exclude_max=True))
def test_backoff_stays_between_half_and_the_whole_of_a_doubling_time(failures: int, uniform: float) -> None:
    counted = budget()
    counted.failures = failures
    longest = min(5.0, 0.05 * 2.0 ** min(failures - 1, 32))
    assert longest / 2 <= counted.backoff_s(uniform, after_healthy_run=False) <= longest
