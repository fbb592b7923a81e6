"""How much two lists agree."""

import pytest

from actors.searcher.comparing import Hit, Pairing, overlap, rank_correlation


def hits(letters: str) -> list[Hit]:
    return [("events", letter, 0) for letter in letters]


@pytest.mark.parametrize(
    ("earlier", "later", "share"),
    [("", "", 1), ("abcd", "abcd", 1), ("abcd", "dcba", 1), ("abcd", "abxy", 0.5), ("a", "", 0)],
)
def test_the_overlap_is_the_common_share_of_the_longer_list(earlier: str, later: str, share: float) -> None:
    assert overlap(hits(earlier), hits(later)) == overlap(hits(later), hits(earlier)) == share


@pytest.mark.parametrize(
    ("earlier", "later", "coefficient"),
    [
        ("abcd", "abcd", 1),
        ("abcd", "dcba", -1),
        ("axbyc", "abc", 1),
        ("abc", "acb", 0.5),
        ("ab", "xy", None),
        ("a", "a", None),
    ],
)
def test_the_rank_correlation_is_that_of_the_common_hits(earlier: str, later: str, coefficient: float | None) -> None:
    found = rank_correlation(hits(earlier), hits(later))
    assert found == (None if coefficient is None else pytest.approx(coefficient))


def test_only_the_first_ten_count_for_the_overlap() -> None:
    pairing = Pairing(1, 2)
    pairing.add(hits("abcdefghijkl"), hits("abcdefghijxy"), earlier_ms=1, later_ms=2, with_vectors=True)
    assert pairing.result().overlap == 1


def test_a_comparison_is_made_of_means_and_medians() -> None:
    pairing = Pairing(1, 2)
    pairing.add(hits("ab"), hits("ab"), earlier_ms=10, later_ms=20, with_vectors=True)
    pairing.add(hits("ab"), hits("xy"), earlier_ms=30, later_ms=60, with_vectors=False)
    found = pairing.result()
    assert (found.earlier, found.later, found.queries, found.with_vectors) == (1, 2, 2, 1)
    assert (found.overlap, found.rank_correlation) == (0.5, 1)
    assert (found.earlier_ms, found.later_ms) == (20, 40)


def test_nothing_asked_is_nothing_known() -> None:
    found = Pairing(1, 2).result()
    assert found.queries == 0 and found.overlap is None and found.rank_correlation is None and found.later_ms is None
