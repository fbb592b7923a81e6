"""Which generation serves, who reads which, and when files may go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.searcher.leases import Leases


def test_nothing_serves_at_first() -> None:
    leases = Leases()
    assert leases.serving is None
    assert leases.acquire() is None
    assert leases.leased() == [] and leases.retired() == []


def test_a_swap_leaves_old_readers_where_they_began() -> None:
    leases = Leases()
    leases.swap(1)
    assert leases.acquire() == 1
    assert leases.swap(2) == 1
    assert leases.acquire() == 2
    assert leases.leased() == [1, 2] and leases.retired() == []
    leases.release(1)
    assert leases.leased() == [2] and leases.retired() == [1]


def test_serving_nothing_retires_what_served() -> None:
    leases = Leases()
    leases.swap(7)
    leases.swap(None)
    assert leases.retired() == [7]
    leases.forget(7)
    assert leases.retired() == []


def test_a_rollback_brings_a_retired_generation_back() -> None:
    leases = Leases()
    leases.swap(1)
    leases.swap(2)
    leases.swap(1)
    assert leases.serving == 1 and leases.leased() == [1] and leases.retired() == [2]


def test_giving_back_what_nobody_has_is_our_mistake() -> None:
    leases = Leases()
    leases.swap(1)
    with pytest.raises(AssertionError, match="nobody reads"):
        leases.release(1)
    with pytest.raises(AssertionError, match="nobody reads"):
        leases.release(2)


def test_a_generation_in_use_is_not_forgotten() -> None:
    leases = Leases()
    leases.swap(1)
    with pytest.raises(AssertionError, match="still in use"):
        leases.forget(1)
    leases.acquire()
    leases.swap(2)
    with pytest.raises(AssertionError, match="still in use"):
        leases.forget(1)


step = st.one_of(
    st.tuples(st.just("acquire"), st.none()),
    st.tuples(st.just("release"), st.integers(0, 20)),
    st.tuples(st.just("swap"), st.one_of(st.none(), st.integers(1, 5))),
    st.tuples(st.just("forget"), st.integers(0, 5)),
)


@given(st.lists(step, max_size=60))
def test_files_go_only_when_nobody_needs_them(steps: list[tuple[str, int | None]]) -> None:
    """Against a model that is a plain list of the leases held."""
    leases, held, serving = Leases(), list[int](), None
    seen: set[int] = set()
    for what, number in steps:
        if what == "acquire":
            got = leases.acquire()
            assert got == serving
            held += [] if got is None else [got]
        elif what == "release" and held:
            leases.release(held.pop((number or 0) % len(held)))
        elif what == "swap":
            assert leases.swap(number) == serving
            serving = number
            seen |= set() if number is None else {number}
        elif what == "forget" and leases.retired():
            gone = leases.retired()[(number or 0) % len(leases.retired())]
            leases.forget(gone)
            seen.discard(gone)
        needed = {*held} | ({serving} if serving is not None else set())
        assert leases.leased() == sorted(needed)
        assert leases.retired() == sorted(seen - needed)
        assert all(leases.readers(n) == held.count(n) for n in range(1, 6))
