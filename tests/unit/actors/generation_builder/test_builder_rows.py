"""From the truth to rows, the order of embedding, the choice of probes, the vectors at hand: without a worker."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import BuildFailed, DiskFull
from actors.generation_builder.chunk import Chunk, ChunkLimits
from actors.generation_builder.faults import ERROR_CHARS_MAX, build_error, is_full, storage_errors
from actors.generation_builder.pending import Missing, embedding_order
from actors.generation_builder.probes import Probes
from actors.generation_builder.rows import (
    EventRow,
    TableRow,
    decode_events,
    decode_units,
    document_rows,
    event_rows,
    unit_rows,
)
from actors.generation_builder.staging import PIECE_BYTES, PIECE_ROWS, Stage, in_pieces
from actors.generation_builder.vectors import VectorBook, matrix, sound
from actors.messages.base import Corpus
from actors.text import analyse, date_terms
from tests.unit.actors.generation_builder.builder_kit import EVENTS, UNITS, sha, source

LIMITS = ChunkLimits(20, 40)


def chunk(text: str, *headings: str, line: int = 1) -> Chunk:
    return Chunk(text, headings, line, line)


def notes(*chunks: Chunk, relative: str = "a/note.md", root: str = "/root") -> list[TableRow]:
    return [*document_rows(source(Path(root)), relative, 7, chunks)]


def test_a_page_becomes_rows_whatever_else_is_in_it() -> None:
    (first, *_) = decode_events(msgspec.msgpack.encode(EVENTS))
    (row,) = event_rows(first, LIMITS)
    assert (row.id, row.seq, row.ts, row.part) == ("e1", 1, EVENTS[0]["ts"], 0)
    assert row.terms.split() == [*analyse(str(EVENTS[0]["content"])), *date_terms(row.ts)]
    (first_unit, *_) = decode_units(msgspec.msgpack.encode(UNITS))
    (row,) = unit_rows(first_unit, LIMITS)
    assert (row.id, row.version, row.seq, row.type, row.scope) == ("u1", 1, 1, "profile", "user")
    facts = msgspec.structs.replace(first_unit, facts={"city": "上海", "years": 7}, tags=["likes-tea"])
    assert {"上海", "likes-tea"} <= set(next(unit_rows(facts, LIMITS)).terms.split())


def test_every_part_of_a_long_event_carries_its_date() -> None:
    long = EventRow(event_id="e", seq=1, ts=0, content="many words " * 100, session_id="s", actor="user")
    rows = [*event_rows(long, LIMITS)]
    assert len(rows) > 5 and [row.part for row in rows] == [*range(len(rows))]
    assert {row.id for row in rows} == {"e"} and all("1970-01-01" in row.terms.split() for row in rows)


def test_the_id_of_a_chunk_is_its_place_and_text() -> None:
    before = notes(chunk("one", "A"), chunk("two", "A"), chunk("one", "B"))
    after = notes(chunk("new", "A"), chunk("one", "A", line=9), chunk("two", "C"), chunk("one", "B"))
    ids = [row.id for row in before]
    assert len(set(ids)) == 3, "the same text twice in a note is two chunks"
    assert [row.id for row in after[1:]] == ids, "they stay when something is added, moved, or a heading renamed"
    assert not set(ids) & {row.id for row in notes(chunk("one"), relative="b.md")}
    assert not set(ids) & {row.id for row in notes(chunk("one"), root="/other/root")}


def test_headings_and_path_are_searchable_and_the_headings_are_embedded() -> None:
    (row,) = notes(chunk("text", "Outer", "Inner heading"), relative="linux/ls_command.md")
    assert row.heading == "Outer > Inner heading" and row.path == "notes/linux/ls_command.md"
    assert row.hash == sha("Outer > Inner heading\ntext")
    assert {"linux", "ls_command", "outer", "inner", "text"} <= set(row.terms.split())
    assert ">" not in row.terms.split() and "md" not in row.terms.split()
    (row,) = notes(chunk("text"))
    assert row.heading is None and row.hash == sha("text")


def test_pages_that_are_none_are_refused() -> None:
    for page in (b"", b"\xc1", msgspec.msgpack.encode([{"event_id": "e"}]), msgspec.msgpack.encode({})):
        with pytest.raises(BuildFailed):
            decode_events(page)
        with pytest.raises(BuildFailed):
            decode_units(page)


# ---------------------------------------------------------------- staging


def row(number: int, text: str = "text") -> TableRow:
    return TableRow(id=f"id{number}", ts=number, tenant="default", tags=[], text=text, terms="a b", hash=sha(text))


@pytest.mark.parametrize(("corpus", "newest_first"), [("events", True), ("units", True), ("documents", False)])
def test_rows_come_back_in_the_order_of_the_table(tmp_path: Path, corpus: Corpus, newest_first: bool) -> None:
    stage = Stage(tmp_path / "stage", corpus)
    rows = [row(number) for number in range(2 * PIECE_ROWS + 10)]
    for piece in in_pieces(rows):
        stage.append(piece)
    stage.close()
    ids = [id_ for _, batch in stage.pieces() for id_ in batch.column("id").to_pylist()]
    expected = [row.id for row in rows]
    assert ids == (expected[::-1] if newest_first else expected)
    assert stage.rows == len(rows)


def test_a_piece_is_bounded_in_rows_and_bytes() -> None:
    assert [len(piece) for piece in in_pieces(row(number) for number in range(2500))] == [1000, 1000, 500]
    large = "x" * (PIECE_BYTES // 2)
    assert [len(piece) for piece in in_pieces(row(number, large) for number in range(5))] == [2, 2, 1]
    assert list(in_pieces([])) == []


# ---------------------------------------------------------------- the order of embedding


def test_the_corpora_take_turns_and_notes_take_turns_among_each_other() -> None:
    events = [Missing(0, ts, 0, ts) for ts in (30, 20, 10)]
    big, small = [Missing(n, 5, 0, n) for n in range(3)], Missing(0, 9, 1, 0)
    order = list(embedding_order({"events": events, "units": [], "documents": [*big, small]}))
    assert [missing for corpus, missing in order if corpus == "events"] == events
    assert [missing for corpus, missing in order if corpus == "documents"] == [small, *big]
    assert [corpus for corpus, _ in order[:4]] == ["events", "documents"] * 2


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=30))
def test_nothing_is_forgotten_or_listed_twice(notes: list[tuple[int, int]]) -> None:
    missing = [Missing(ordinal, ts, 0, number) for number, (ordinal, ts) in enumerate(notes)]
    order = [found for _, found in embedding_order({"events": missing, "documents": missing})]
    assert sorted(order) == sorted(missing * 2)


# ---------------------------------------------------------------- probes


def test_probes_are_spread_and_hold_a_chinese_one() -> None:
    probes = Probes()
    for number in range(1, 101):
        text = "数据库备份" if number == 77 else f"word{number}"
        probes.offer(msgspec.structs.replace(row(number), terms=" ".join(analyse(text))))
    found = probes.list()
    assert [probe.id for probe in found] == ["id1", "id2", "id4", "id8", "id16", "id32", "id64", "id77"]
    assert found[-1].term == "数据" and found[0].term == "word1"


def test_a_row_without_terms_is_no_probe() -> None:
    probes = Probes()
    probes.offer(msgspec.structs.replace(row(1), terms=""))
    assert probes.list() == []


# ---------------------------------------------------------------- vectors


def test_vectors_are_given_back_by_hash(tmp_path: Path) -> None:
    book = VectorBook(tmp_path / "v", 3, normalised=True)
    keys = [bytes([number]) * 32 for number in range(4)]
    book.add(keys[:2], np.array([[1, 0, 0], [0, 1, 0]], dtype=np.float32))
    book.add(keys[1:3], np.array([[0, 0, 1], [0.6, 0.8, 0]], dtype=np.float32))
    vectors, present = book.gather([keys[2], keys[3], keys[1], keys[1]])
    assert present.tolist() == [True, False, True, True]
    assert vectors.tolist() == [pytest.approx([0.6, 0.8, 0]), [0, 0, 0], [0, 1, 0], [0, 1, 0]], "the first stays"
    assert keys[0] in book and keys[3] not in book and len(book) == 3
    assert book.gather([])[0].shape == (0, 3)
    book.close()


def test_soundness_is_finite_and_of_the_promised_length() -> None:
    vectors = np.array([[1, 0], [np.nan, 0], [np.inf, 0], [0, 0], [3, 4], [1.0005, 0]], dtype=np.float32)
    assert sound(vectors, normalised=True).tolist() == [True, False, False, False, False, True]
    assert sound(vectors, normalised=False).tolist() == [True, False, False, False, True, True]
    with pytest.raises(ValueError, match="take 16"):
        matrix(b"123", 2, 2)


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(28, "No space left on device"), True),
        (OSError(122, "Disk quota exceeded"), True),
        (OSError(27, "File too large"), True),
        (RuntimeError("lance error: LanceError(IO): No space left on device (os error 28), path"), True),
        (RuntimeError("lance error: something (os error 2)"), False),
        (ValueError("os error 288"), False),
        (OSError(13, "Permission denied"), False),
    ],
)
def test_a_full_disk_is_told_from_other_errors(error: Exception, full: bool) -> None:
    assert is_full(error) is full
    assert isinstance(build_error("writing", error), DiskFull if full else BuildFailed)


def test_errors_are_short_and_bugs_are_not_caught() -> None:
    with pytest.raises(BuildFailed) as failed, storage_errors("writing table events"):
        raise RuntimeError("line\nline " * 1000)
    assert failed.value.message.startswith("writing table events: RuntimeError: line line")
    assert len(failed.value.message) < ERROR_CHARS_MAX + 100 and "\n" not in failed.value.message
    with pytest.raises(KeyError), storage_errors("writing"):
        raise KeyError("a bug")
