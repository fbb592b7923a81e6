"""Cutting notes and long texts: nothing is lost, nothing is twice, no chunk is too long, line numbers are exact."""

import io
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.generation_builder.chunk import Chunk, ChunkLimits, chunk_markdown, cut_text, heading_path
from actors.notes import Segment, segments
from actors.text import estimate_tokens

LIMITS = ChunkLimits(200, 400)
SMALL = ChunkLimits(8, 16)


def chunks_of(text: str, limits: ChunkLimits = LIMITS) -> list[Chunk]:
    return list(chunk_markdown(segments(io.BytesIO(text.encode()), "utf-8"), limits))


lines = st.one_of(
    st.sampled_from(
        ["", "  ", "# one", "## two", "### three", "#", "---", "===", "```", "~~~", "```py", "- item", "# a #"]
    ),
    st.sampled_from(
        ["key: value", "...", "A sentence. Another one! 第三句。第四句？", "中文" * 20, "word " * 30, "x" * 90]
    ),
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\n\r"), max_size=40),
)
notes = st.lists(lines, max_size=40).map("\n".join)


def joined_by_line(chunks: list[Chunk], text: str) -> Iterator[tuple[Chunk, list[str]]]:
    """Pair every chunk with the lines of the file that it says it is made of."""
    all_lines = text.split("\n")
    for chunk in chunks:
        yield chunk, all_lines[chunk.from_line - 1 : chunk.to_line]


@given(notes)
@settings(max_examples=400, deadline=None)
def test_every_line_that_is_not_blank_is_in_exactly_one_chunk_and_in_order(text: str) -> None:
    chunks = chunks_of(text, ChunkLimits(40, 10_000))
    covered = [number for chunk in chunks for number in range(chunk.from_line, chunk.to_line + 1)]
    assert covered == sorted(set(covered)), "no line is in two chunks, and order is kept"
    missing = set(range(1, text.count("\n") + 2)) - set(covered)
    all_lines = text.split("\n")
    assert all(not all_lines[number - 1].strip() for number in missing)
    for chunk, own in joined_by_line(chunks, text):
        # Exact lines: the chunk is the file's text; only blank lines inside lose their spaces.
        assert chunk.text.split("\n") == [line if line.strip() else "" for line in own]
        assert own[0].strip() and own[-1].strip()


@given(notes)
@settings(max_examples=400, deadline=None)
def test_no_chunk_is_longer_than_the_limit_and_no_character_is_lost(text: str) -> None:
    chunks = chunks_of(text, SMALL)
    assert all(estimate_tokens(chunk.text) <= SMALL.tokens_max for chunk in chunks)
    kept = "".join(chunk.text for chunk in chunks).replace("\n", "")
    assert "".join(kept.split()) == "".join(text.split())
    assert [chunk.from_line for chunk in chunks] == sorted(chunk.from_line for chunk in chunks)


@given(st.lists(lines, max_size=30).map("\n".join), st.integers(1, 30), st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_an_event_is_cut_without_loss(text: str, tokens: int, factor: int) -> None:
    limits = ChunkLimits(tokens, tokens * factor + 1)
    pieces = cut_text(text, limits)
    assert pieces and "".join("".join(pieces).split()) == "".join(text.split())
    # One character may be more than a token, so the smallest limits cannot be kept below it.
    assert all(estimate_tokens(piece) <= max(limits.tokens_max, 2) for piece in pieces if piece.strip())


def test_a_short_event_is_one_piece_as_it_is() -> None:
    assert cut_text("  two\n\nparagraphs \n", LIMITS) == ["  two\n\nparagraphs \n"]
    assert cut_text("", LIMITS) == [""]


def test_headings_cut_and_name_what_is_below_them() -> None:
    text = "intro\n\n# A\n\n## B\nb1\n\nb2\n## C #\nc\n\nTitle\n=====\nd\n\nSub\n---\ne\n"
    found = [(chunk.headings, chunk.from_line, chunk.to_line) for chunk in chunks_of(text)]
    assert found == [
        ((), 1, 1),
        (("A", "B"), 3, 8),
        (("A", "C"), 9, 10),
        (("Title",), 12, 14),
        (("Title", "Sub"), 16, 18),
    ]


def test_a_heading_is_not_lost_at_the_end_or_without_text() -> None:
    assert [chunk.text for chunk in chunks_of("# A\ntext\n\n# B\n\n## C")] == ["# A\ntext", "# B\n\n## C"]
    assert [chunk.headings for chunk in chunks_of("#\n\n# \ntext")] == [()]


@given(st.integers(1, 60))
def test_a_heading_cuts_after_a_paragraph_of_any_length(lines: int) -> None:
    chunks = chunks_of("# A\n" + "some words in a line\n" * lines + "# B\nend\n", ChunkLimits(20, 40))
    assert (chunks[-1].text, chunks[-1].headings) == ("# B\nend", ("B",))
    assert {chunk.headings for chunk in chunks[:-1]} == {("A",)}


def test_a_code_block_is_not_cut_at_its_comments() -> None:
    text = "# A\n```sh\n# not a heading\n\nls\n```\n~~~\n## nor this\n```\n~~~\n# B\nend\n"
    assert [chunk.from_line for chunk in chunks_of(text)] == [1, 11]
    assert [chunk.headings for chunk in chunks_of(text)] == [("A",), ("B",)]


def test_a_code_block_that_never_closes_hides_no_line() -> None:
    text = "```\n" + "\n".join(f"# line {number} of the code" for number in range(300))
    chunks = chunks_of(text)
    assert len(chunks) > 1 and chunks[-1].to_line == 301
    assert all(chunk.headings == () for chunk in chunks)


def test_front_matter_is_text_and_its_comments_are_no_headings() -> None:
    chunks = chunks_of("---\ntitle: x\n\n# a comment\n---\n# A\nbody\n")
    assert [(chunk.headings, chunk.from_line, chunk.to_line) for chunk in chunks] == [((), 1, 5), (("A",), 6, 7)]


def test_a_rule_in_the_first_line_is_not_front_matter() -> None:
    assert [chunk.headings for chunk in chunks_of("---\n\n# A\nbody\n")] == [(), ("A",)]
    assert [chunk.headings for chunk in chunks_of("---\n---\n# A\nbody\n")] == [(), ("A",)]


@pytest.mark.parametrize("above", ["- item", "1. item", "> quote", "| a | b |", "two\nlines"])
def test_a_rule_below_something_else_than_a_title_is_no_heading(above: str) -> None:
    assert [chunk.headings for chunk in chunks_of(f"{above}\n---\ntext\n")] == [()]


def test_windows_line_ends_are_not_text() -> None:
    chunks = chunks_of("# A\r\n\r\nfirst\r\nsecond\r\n")
    assert [(chunk.text, chunk.headings, chunk.to_line) for chunk in chunks] == [("# A\n\nfirst\nsecond", ("A",), 4)]


def test_paragraphs_are_packed_to_about_the_target() -> None:
    paragraph = "This is a sentence of some words. " * 6
    chunks = chunks_of("\n\n".join([paragraph] * 40))
    sizes = [estimate_tokens(chunk.text) for chunk in chunks]
    assert max(sizes) <= 210 and min(sizes[:-1]) >= 140


def test_a_paragraph_somewhat_over_the_target_stays_whole() -> None:
    paragraph = "This is a sentence of some words.\n" * 40
    assert 200 < estimate_tokens(paragraph) < 400
    assert len(chunks_of(f"short\n\n{paragraph}")) == 1, "a few words before it do not stand alone"


def test_a_long_paragraph_is_cut_between_lines_and_a_long_line_after_sentences() -> None:
    chunks = chunks_of("\n".join(f"line {number} of a long paragraph" for number in range(200)))
    assert all(chunk.text.startswith("line ") and chunk.text.endswith("paragraph") for chunk in chunks)
    chunks = chunks_of("这是第一句话，说的是备份。" * 200)
    assert len(chunks) > 5 and all(chunk.text.endswith("。") for chunk in chunks)
    assert {(chunk.from_line, chunk.to_line) for chunk in chunks} == {(1, 1)}


def test_a_word_is_not_torn_where_the_file_is_read_in_pieces() -> None:
    words = [f"word{number}" for number in range(20_000)]
    found = [word for chunk in chunks_of(" ".join(words)) for word in chunk.text.split()]
    assert found == words


def test_an_accent_is_not_parted_from_its_letter() -> None:
    chunks = chunks_of("e\u0301" * 4000)
    assert all(not chunk.text.startswith("\u0301") for chunk in chunks)


def test_a_needle_anywhere_in_a_long_line_is_in_a_chunk() -> None:
    """R4: content behind the first 6,000 characters was not found."""
    size = 1_000_000
    text = list("x" * size)
    for tenth in range(10):
        place = tenth * size // 10
        text[place : place + 14] = f" needle-of-{tenth}. "
    chunks = chunks_of("".join(text))
    for tenth in range(10):
        assert any(f"needle-of-{tenth}." in chunk.text for chunk in chunks), tenth
    assert all(estimate_tokens(chunk.text) <= 400 for chunk in chunks)


def test_the_work_grows_with_the_size_and_not_faster() -> None:
    """A cutter with quadratic parts takes minutes here and is ended by the timeout of the suite."""
    line = "字" * 1_000_000
    assert "".join(chunk.text for chunk in chunks_of(line)) == line
    assert [chunk.headings for chunk in chunks_of("# " + " " * 1_000_000 + "x\n# y")][-1] == ("y",)
    assert len(chunks_of("`" * 1_000_000)) > 1000


def test_memory_is_one_chunk_however_long_the_stream() -> None:
    def endless() -> Iterator[Segment]:
        for number in range(1, 200_000):
            yield Segment(number, "a line without any blank line after it", ends=True)

    largest = 0
    for chunk in chunk_markdown(endless(), LIMITS):
        largest = max(largest, len(chunk.text))
    assert largest < 4000


def test_the_inner_headings_are_kept_when_the_path_is_long() -> None:
    assert heading_path(()) is None
    assert heading_path(("A", "B")) == "A > B"
    assert heading_path(("o" * 80, "m" * 80, "i" * 80)) == "i" * 80
    assert heading_path(("o" * 80, "m" * 70, "i" * 80)) == "m" * 70 + " > " + "i" * 80
