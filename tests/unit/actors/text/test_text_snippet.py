"""The piece of a text that is shown for a hit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.text import analyse_query, snippet

FILLER = "Nothing of interest is written in this sentence, and it goes on. " * 40


def test_a_short_text_is_shown_as_it_is() -> None:
    assert snippet("as it is\n", ["is"], 50) == "as it is\n"


@pytest.mark.parametrize(
    ("query", "needle"),
    [
        ("how are studies configured", "She studied how to configure the gateway"),
        ("auth_middleware.py", "look into auth_middleware.py for it"),
        ("user id", "the value of getUserId is wrong"),
        ("用户身份", "这里讨论用户身份的问题"),
        ("记忆", "關於長期記憶的筆記"),
        ("cafe", "We met at the Café Ørsted"),
        ("C++", "and C++ was chosen"),
        ("FULL width", "ｆｕｌｌ　ｗｉｄｔｈ"),
    ],
)
def test_the_window_holds_the_match_wherever_it_is(query: str, needle: str) -> None:
    for position in range(11):
        cut = len(FILLER) * position // 10
        text = f"{FILLER[:cut]}\n{needle}\n{FILLER[cut:]}"
        shown = snippet(text, analyse_query(query), 160)
        assert needle in shown
        assert len(shown) <= 160


def test_the_window_with_most_different_terms_wins() -> None:
    text = "apple " * 100 + FILLER + "an apple and a pear and a plum " + FILLER + "pear " * 100
    assert "apple and a pear and a plum" in snippet(text, ["apple", "pear", "plum"], 120)


def test_a_letter_does_not_match_inside_words() -> None:
    text = FILLER + "written in C today. " + FILLER
    assert "in C today" in snippet(text, ["c"], 100)


def test_cuts_are_marked_and_made_between_words() -> None:
    text = FILLER + "the needle is here " + FILLER
    shown = snippet(text, ["needl"], 120)
    assert shown[0] == shown[-1] == "…"
    assert f" {shown[1:-1]} " in text
    assert not shown[1].isspace() and not shown[-2].isspace()


def test_a_cut_prefers_the_beginning_of_a_line() -> None:
    text = FILLER + "\n# Heading\nThis line has the needle in it. " + FILLER
    assert snippet(text, ["needl"], 120).startswith("…# Heading\n")


def test_without_a_match_the_beginning_is_shown() -> None:
    shown = snippet(FILLER, ["absent"], 80)
    assert shown.startswith("Nothing of interest")
    assert shown.endswith("…")


@pytest.mark.parametrize("chars_max", [-1, 0, 1, 2, 3])
def test_a_tiny_limit_is_kept(chars_max: int) -> None:
    assert len(snippet("some text here", ["text"], chars_max)) <= max(0, chars_max)


def test_a_text_of_a_megabyte_is_searched_in_linear_steps() -> None:
    terms = [*(f"term{number}" for number in range(60)), "a", "aa", "的", "needl"]
    for filler in ("aa", "的", "term1 "):
        text = filler * (1_000_000 // len(filler)) + " the needle " + filler * 10
        assert "needle" in snippet(text, ["needl"], 100)
        assert len(snippet(text, terms, 700)) <= 700


@settings(deadline=None, max_examples=400)
@given(
    st.text(st.characters(codec=None), max_size=200),
    st.lists(st.text(st.characters(codec=None), max_size=5), max_size=5),
    st.integers(0, 60),
)
def test_a_snippet_is_a_piece_of_the_text_within_the_limit(text: str, terms: list[str], chars_max: int) -> None:
    shown = snippet(text, terms, chars_max)
    assert len(shown) <= chars_max or shown == text
    assert len(shown) <= max(chars_max, 0) or len(text) <= chars_max
    assert shown.strip("…") in text or shown.strip("…") == text.strip("…")
