"""The terms in the real engines: every term stays one token, every expression is accepted, every literal is found."""

import sqlite3
import string
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.text import FTS5_TOKENIZE, LANCE_TOKENIZE, analyse, analyse_query, fts5_match, index_text

LITERALS = [
    "POL-358",
    "ask-codex",
    "don't",
    "Downloads/transcripts",
    "2026.4.10",
    "snake_case",
    "--flag",
    "C++",
    "C#",
    "F#",
    '"unbalanced',
    "a:b",
    "R&D",
    "Message: {0}, StackTrace: {1}",
    "bats OR hogs",
    "NOT",
    "NEAR(",
    "*",
    "^x",
    "用户身份",
    "静默",
    "カタカナ",
    "한국어",
    "🦀",
    "𠮷野家",
    "auth_middleware.py",
]
NASTY_TERMS = [
    *(f"a{sign}b" for sign in string.punctuation if sign not in "\"'"),
    *(sign for sign in string.punctuation if sign not in "\"'"),
    "👍",
    "🫨",
    "𠮷",
    "用户",
    "é",
    "हिन्दी",
    "\U0010fffd",
    "\ue000",
    "“",
    "。",
    "−",
    "a" * 128,
]


def make_index() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute(f'CREATE VIRTUAL TABLE text USING fts5(terms, tokenize = "{FTS5_TOKENIZE}")')
    connection.execute("CREATE VIRTUAL TABLE vocabulary USING fts5vocab(text, row)")
    return connection


@pytest.fixture
def index() -> Iterator[sqlite3.Connection]:
    connection = make_index()
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def shared_index() -> Iterator[sqlite3.Connection]:
    """For properties that leave the index as it was; hypothesis runs one test many times."""
    connection = make_index()
    yield connection
    connection.close()


def tokens(connection: sqlite3.Connection, text: str) -> set[str]:
    connection.execute("DELETE FROM text")
    connection.execute("INSERT INTO text (terms) VALUES (?)", (text,))
    return {term for (term,) in connection.execute("SELECT term FROM vocabulary")}


def search(connection: sqlite3.Connection, query: str) -> list[int]:
    expression = fts5_match(analyse_query(query))
    if expression is None:
        return []
    rows = connection.execute("SELECT rowid FROM text WHERE text MATCH ? ORDER BY rank", (expression,))
    return [rowid for (rowid,) in rows]


def test_fts5_keeps_every_nasty_term_as_one_token(index: sqlite3.Connection) -> None:
    assert tokens(index, index_text(NASTY_TERMS)) == set(NASTY_TERMS)


def test_fts5_keeps_every_character_that_a_term_may_hold(index: sqlite3.Connection) -> None:
    """All emoji and every 13th character of Unicode, newer ones than this SQLite knows among them."""
    characters = [*range(0x1F000, 0x1FB00), *range(0, sys.maxunicode, 13)]
    terms = {term for character in characters for term in analyse(f"{chr(character)} x{chr(character)}x")}
    assert len(terms) > 15_000
    assert tokens(index, index_text(terms)) == terms


@settings(deadline=None, max_examples=300)
@given(st.text(st.characters(codec=None), max_size=40))
def test_fts5_keeps_the_terms_of_any_text(shared_index: sqlite3.Connection, text: str) -> None:
    terms = analyse(text)
    assert tokens(shared_index, index_text(terms)) == set(terms)


@settings(deadline=None, max_examples=500)
@given(st.text(st.characters(codec=None), max_size=40) | st.text('"*^-(){}:+,ANDORTE \0', max_size=20))
def test_fts5_accepts_any_query(shared_index: sqlite3.Connection, query: str) -> None:
    search(shared_index, query)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.text(st.characters(codec=None), max_size=12), max_size=8))
def test_fts5_accepts_any_terms(shared_index: sqlite3.Connection, terms: list[str]) -> None:
    expression = fts5_match(terms)
    assert (expression is None) == (not any(terms))
    if expression is not None:
        shared_index.execute("SELECT count(*) FROM text WHERE text MATCH ?", (expression,)).fetchone()


def test_fts5_accepts_a_thousand_terms(index: sqlite3.Connection) -> None:
    index.execute("INSERT INTO text (terms) VALUES ('t999')")
    expression = fts5_match([f"t{number}" for number in range(1000)])
    assert index.execute("SELECT count(*) FROM text WHERE text MATCH ?", (expression,)).fetchone() == (1,)


def test_no_terms_are_no_expression() -> None:
    assert fts5_match([]) is None
    assert fts5_match([""]) is None


def test_fts5_finds_each_literal_and_ranks_it_first(index: sqlite3.Connection) -> None:
    texts = [index_text(analyse(f"once we said {literal} there")) for literal in LITERALS]
    index.executemany("INSERT INTO text (terms) VALUES (?)", [(text,) for text in texts])
    found = {literal: search(index, literal)[:1] for literal in LITERALS}
    assert found == {literal: [number] for number, literal in enumerate(LITERALS, 1)}


def test_lancedb_finds_each_literal_and_keeps_every_term(tmp_path: Path) -> None:
    import lancedb
    import pyarrow as pa
    from lancedb.index import FTS
    from lancedb.query import MatchQuery

    texts = [[*analyse(f"said {literal}"), f"row{number}"] for number, literal in enumerate(LITERALS)]
    rows = [index_text(terms) for terms in texts] + [f"row{len(texts)} {term}" for term in NASTY_TERMS]
    table = lancedb.connect(tmp_path).create_table("events", pa.table({"number": range(len(rows)), "terms": rows}))
    table.create_index("terms", config=FTS(with_position=False, **LANCE_TOKENIZE))

    def found(terms: list[str]) -> list[int]:
        query = table.search(MatchQuery(index_text(terms), "terms"), query_type="fts")
        return [row["number"] for row in query.select(["number", "_score"]).limit(len(rows)).to_list()]

    missed = [literal for number, literal in enumerate(LITERALS) if number not in found(analyse_query(literal))]
    assert missed == []
    lost = [term for number, term in enumerate(NASTY_TERMS, len(texts)) if number not in found([term])]
    assert lost == []
