"""When an endpoint is not asked."""

from collections.abc import Callable

import pytest

from actors.embedding.breaker import Breaker, State


def breaker_in(state: State) -> Breaker:
    """Make a breaker that is in a state at time 100; an open one opens for 1 s, a probe has 10 s."""
    breaker = Breaker(failures_to_open=2, pause_s=1, pause_s_max=3, probe_s=10)
    if state is not State.CLOSED:
        breaker.unavailable(99.0)
        breaker.unavailable(100.0 if state is State.OPEN else 99.0)
    if state is State.HALF_OPEN:
        assert breaker.may_ask(100.0)
    assert breaker.state is state
    return breaker


@pytest.mark.parametrize(
    ("state", "event", "after"),
    [
        (State.CLOSED, lambda b: b.reached(), State.CLOSED),
        (State.CLOSED, lambda b: b.unavailable(100), State.CLOSED),
        (State.CLOSED, lambda b: b.no_word(100), State.CLOSED),
        (State.CLOSED, lambda b: b.may_ask(100), State.CLOSED),
        (State.OPEN, lambda b: b.reached(), State.CLOSED),
        (State.OPEN, lambda b: b.unavailable(100), State.OPEN),
        (State.OPEN, lambda b: b.no_word(100), State.OPEN),
        (State.OPEN, lambda b: b.may_ask(100.9), State.OPEN),
        (State.OPEN, lambda b: b.may_ask(101), State.HALF_OPEN),
        (State.HALF_OPEN, lambda b: b.reached(), State.CLOSED),
        (State.HALF_OPEN, lambda b: b.unavailable(100), State.OPEN),
        (State.HALF_OPEN, lambda b: b.no_word(100), State.HALF_OPEN),
        (State.HALF_OPEN, lambda b: b.may_ask(101), State.HALF_OPEN),
    ],
)
def test_every_state_has_an_answer_to_every_event(
    state: State, event: Callable[[Breaker], object], after: State
) -> None:
    breaker = breaker_in(state)
    event(breaker)
    assert breaker.state is after


def test_only_failures_in_a_row_open_it() -> None:
    breaker = Breaker(failures_to_open=2)
    for _ in range(10):
        breaker.unavailable(0)
        breaker.reached()
    assert breaker.may_ask(0)


def test_an_open_one_refuses_until_the_pause_is_over_and_then_lets_one_through() -> None:
    breaker = breaker_in(State.OPEN)
    assert not breaker.may_ask(100.5)
    assert breaker.retry_after_ms(100.5) == 500
    assert breaker.may_ask(101.0)
    assert not breaker.may_ask(101.0)


def test_a_probe_that_never_reports_back_is_replaced() -> None:
    breaker = breaker_in(State.HALF_OPEN)
    assert not breaker.may_ask(109.9)
    assert breaker.may_ask(110.0)


def test_a_probe_whose_caller_left_is_replaced_at_once() -> None:
    breaker = breaker_in(State.HALF_OPEN)
    breaker.no_word(100.2)
    assert breaker.may_ask(100.2)


def test_the_pause_doubles_up_to_its_limit_and_starts_again_small() -> None:
    breaker = breaker_in(State.HALF_OPEN)
    now, pauses = 100.0, []
    for _ in range(4):
        breaker.unavailable(now)
        pauses.append(breaker.retry_after_ms(now))
        now += pauses[-1] / 1000
        assert breaker.may_ask(now)
    assert pauses == [2000, 3000, 3000, 3000]
    breaker.reached()
    breaker.unavailable(now)
    breaker.unavailable(now)
    assert breaker.retry_after_ms(now) == 1000


def test_those_who_asked_before_it_opened_do_not_move_the_pause() -> None:
    breaker = breaker_in(State.OPEN)
    breaker.unavailable(100.9)
    assert breaker.may_ask(101.0)
