"""Counting over seqs that no event has."""

from hypothesis import given
from hypothesis import strategies as st

from actors.gaps import count_between, decode_gaps, encode_gaps

RANGES = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 10)), max_size=5)


def disjoint(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    gaps: list[tuple[int, int]] = []
    start = 0
    for skip, length in pairs:
        gaps.append((start + skip, start + skip + length))
        start += skip + length + 1
    return gaps


@given(RANGES, st.integers(0, 300), st.integers(0, 300))
def test_it_counts_what_one_would_count(pairs: list[tuple[int, int]], after: int, until: int) -> None:
    gaps = disjoint(pairs)
    missing = {seq for first, last in gaps for seq in range(first, last + 1)}
    assert count_between(after, until, gaps) == len(set(range(after + 1, until + 1)) - missing)


@given(RANGES)
def test_gaps_travel_as_text(pairs: list[tuple[int, int]]) -> None:
    gaps = disjoint(pairs)
    assert decode_gaps(encode_gaps(gaps)) == tuple(gaps)


def test_no_gap_is_no_text() -> None:
    assert encode_gaps([]) == ""
    assert decode_gaps("") == ()
    assert count_between(5, 3, ()) == 0
