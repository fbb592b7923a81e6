"""How many rows hold each term: counted in pieces, written, looked up."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors import term_counts
from actors.term_counts import TermCounter, TermCounts, counts_path, masked_counts_path, occurrences

term = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=3)
row = st.lists(st.one_of(term, st.sampled_from(["a", "b", "身份", "\U0001f600"])), max_size=6)


def write(path: Path, pieces: list[list[list[str]]]) -> TermCounts:
    counter = TermCounter(path.parent)
    for piece in pieces:
        counter.add(pa.array([" ".join(terms) for terms in piece], pa.string()))
    counter.write(path)
    return TermCounts(path)


@pytest.mark.parametrize("small", [False, True])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.lists(row, max_size=8), max_size=6))
def test_every_term_has_the_number_of_rows_that_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool, pieces: list[list[list[str]]]
) -> None:
    """Small limits: more terms than fit into memory, in several files and blocks."""
    with monkeypatch.context() as limits:
        for name in ("COMPACT_TERMS", "RUN_TERMS_MAX", "MERGE_STEP", "BATCH_TERMS") if small else ():
            limits.setattr(term_counts, name, 3)
        counts = write(tmp_path / "T.arrow", pieces)
    rows = [terms for piece in pieces for terms in piece]
    expected = Counter(term for terms in rows for term in set(terms))
    assert (counts.rows, counts.length) == (len(rows), sum(map(len, rows)))
    assert {term: counts.rows_with(term) for term in expected} == expected
    for absent in ("", "\x00", "zzzz", "\U0010ffff" * 4, "身"):
        assert counts.rows_with(absent) == expected[absent]
    assert [path.name for path in tmp_path.iterdir()] == ["T.arrow"], "the scratch files are gone"


def test_a_piece_of_a_longer_column_counts_alone(tmp_path: Path) -> None:
    counter = TermCounter(tmp_path)
    counter.add(pa.array(["x y", "a b a", "", "b c", "x"]).slice(1, 3))
    counter.write(tmp_path / "T.arrow")
    counts = TermCounts(tmp_path / "T.arrow")
    assert (counts.rows, counts.length) == (3, 5)
    assert [counts.rows_with(term) for term in "abcx"] == [1, 2, 1, 0]


def test_occurrences_are_counted_row_by_row() -> None:
    column = pa.chunked_array([["a b a", ""], [], ["c", "身份 a"]], pa.string())
    held, lengths = occurrences(column, ["a", "身份", "absent"])
    assert held.tolist() == [[2, 0, 0], [0, 0, 0], [0, 0, 0], [1, 1, 0]]
    assert lengths.tolist() == [3, 0, 1, 2]
    held, lengths = occurrences(pa.chunked_array([], pa.string()), ["a"])
    assert held.shape == (0, 1) and lengths.tolist() == []


@pytest.mark.parametrize("content", [b"", b"ARROW1\0\0", b"\0" * 4096])
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "T.arrow").write_bytes(content)
    with pytest.raises((OSError, ValueError)):
        TermCounts(tmp_path / "T.arrow")


def test_an_arrow_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    table = pa.table({"term": ["a"], "count": [1]})
    with pa.OSFile(str(tmp_path / "T.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(ValueError, match=r"T\.arrow holds no term counts"):
        TermCounts(tmp_path / "T.arrow")


def test_files_are_named_by_corpus(tmp_path: Path) -> None:
    assert counts_path(tmp_path, "units").name == "TERMS-units.arrow"
    assert masked_counts_path(tmp_path, "units").name == "MASKED-TERMS-units.arrow"
