"""Cleaning, dates, length and the test for code: the small pure functions."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.text import analyse, analyse_query, clean, date_terms, estimate_tokens, is_code_like


@pytest.mark.parametrize(
    ("dirty", "cleaned"),
    [
        ("plain", "plain"),
        ("a\0b", "ab"),
        ("a\ud800b", "a\ufffdb"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("\ud83e\udd80", "🦀"),
        ("用户🦀", "用户🦀"),
        ("", ""),
    ],
)
def test_text_is_cleaned(dirty: str, cleaned: str) -> None:
    assert clean(dirty) == cleaned


@settings(max_examples=200)
@given(st.text(st.characters(codec=None)))
def test_cleaned_text_is_utf8_without_nul_and_stays_clean(text: str) -> None:
    cleaned = clean(text)
    assert b"\0" not in cleaned.encode()
    assert clean(cleaned) == cleaned


def micros(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> int:
    return int(datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp()) * 1_000_000


@pytest.mark.parametrize(
    "question",
    ["8 May, 2023", "May 8", "2023-05-08", "2023-05", "2023年5月8日", "5月8日", "5月8号", "what happened in 2023?"],
)
def test_the_date_of_an_event_is_found_as_people_write_it(question: str) -> None:
    terms = set(date_terms(micros(2023, 5, 8, 13, 56)))
    wanted = set(analyse_query(question)) - {"年", "月", "日", "号", "happen", "05", "08", "5", "8"}
    assert wanted
    assert wanted <= terms


def test_full_and_short_names_of_the_month_are_terms() -> None:
    terms = date_terms(micros(2024, 8, 31))
    assert {*analyse("August"), *analyse("Aug 31, 2024"), "31日", "8月", "2024年"} <= set(terms)


def test_the_date_is_the_one_of_utc() -> None:
    assert "2023-12-31" in date_terms(micros(2023, 12, 31, 23, 59))
    assert "2024-01-01" in date_terms(micros(2023, 12, 31, 23, 59) + 60_000_000)
    assert "1969-12-31" in date_terms(-1)


@pytest.mark.parametrize("ts", [2**63 - 1, -(2**63), 10**18])
def test_a_time_outside_the_calendar_has_no_date(ts: int) -> None:
    assert date_terms(ts) == []


def test_date_terms_are_terms_of_the_analyser() -> None:
    for term in date_terms(micros(2023, 9, 5)):
        assert term in analyse(term)


@pytest.mark.parametrize(
    "query",
    [
        "what is user_id",
        "open auth_middleware.py",
        "pytest --lf option",
        "what does -v do",
        "src/actors/text",
        "/etc/passwd permissions",
        "~/notes",
        "issue 11315",
        "#42",
        "error 404",
        "where is monkeypatchContext used",
        "ValueError in the log",
        "__init__ order",
        "怎么用 user_id 查询",
        "C:\\Users",
    ],
)
def test_questions_about_code_are_recognised(query: str) -> None:
    assert is_code_like(query)


@pytest.mark.parametrize(
    "query",
    [
        "When did Caroline go to the support group?",
        "what's my sister's name",
        "well-known places in Paris.",
        "3 of 12",
        "怎么看硬盘还剩多少空间",
        "Error",
        "I said: no - never!",
        "",
    ],
)
def test_plain_questions_are_not(query: str) -> None:
    assert not is_code_like(query)


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("a", 1), ("x" * 42, 10), ("记忆系统测试", 4), ("x" * 42 + "记忆系统测试", 14)]
)
def test_tokens_are_estimated_by_script(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens
