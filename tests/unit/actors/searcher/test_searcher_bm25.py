"""The keyword score over several tables, and which rows a delta hides. (Held against LanceDB in the tests of views.)"""

import numpy as np
import pytest

from actors.generation import Mask
from actors.searcher.bm25 import Frequencies, scores, total
from actors.searcher.masking import Hidden, Masking


def of(rows: int, length: int, *rows_with: int) -> Frequencies:
    return Frequencies(rows=rows, length=length, rows_with=rows_with)


def test_tables_are_added_up_and_what_is_masked_is_taken_away() -> None:
    parts = [(1, of(100, 1000, 7, 0)), (1, of(10, 150, 2, 1)), (-1, of(9, 90, 3, 0))]
    assert total(parts) == of(101, 1060, 6, 1)
    assert total([(1, of(1, 5, 1)), (-1, of(2, 9, 2))]) == of(0, 0, 0), "never less than nothing"


def test_the_score_is_that_of_bm25() -> None:
    # One row of mean length that holds a term once: the tf part is 2.2 / 2.2.
    (score,) = scores(np.array([[1]]), np.array([10]), of(100, 1000, 9))
    assert score == pytest.approx(np.log(1 + 91.5 / 9.5))


def test_rarer_more_often_and_shorter_score_higher() -> None:
    rare, common = scores(np.array([[1, 0], [0, 1]]), np.array([10, 10]), of(100, 1000, 2, 50))
    assert rare > common
    once, twice = scores(np.array([[1], [2]]), np.array([10, 10]), of(100, 1000, 2))
    assert twice > once
    short, long = scores(np.array([[1], [1]]), np.array([5, 20]), of(100, 1000, 2))
    assert short > long


def test_counts_that_lag_behind_give_finite_scores() -> None:
    for frequencies in (of(0, 0, 0), of(1, 3, 5), of(0, 0, 9)):
        found = scores(np.array([[1]]), np.array([3]), frequencies)
        assert np.isfinite(found).all() and (found > 0).all()
    assert scores(np.zeros((0, 2), dtype=np.int64), np.zeros(0, dtype=np.int64), of(1, 1, 1, 1)).shape == (0,)


def test_units_are_hidden_by_id_and_notes_by_tenant_and_path() -> None:
    mask = Mask(units=("u1", "u2"), documents=(("a", "notes/x.md"), ("b", "notes/y.md"), ("a", "notes/z.md")))
    masking = Masking(mask, {"units": 5, "documents": 9})
    assert masking.hidden("units", "whoever") == Hidden("id", frozenset({"u1", "u2"}), 5)
    assert masking.hidden("documents", "a") == Hidden("path", {"notes/x.md", "notes/z.md"}, 9)
    assert masking.hidden("documents", "c") is None
    assert masking.hidden("events", "a") is None
    assert Masking(Mask(), {}).hidden("units", "a") is None
