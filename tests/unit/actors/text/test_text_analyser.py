"""The terms of a text: what each kind of writing is cut into, and what a query asks for."""

import sys
import threading
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.text import QUERY_TERMS_MAX, analyse, analyse_query, index_text
from actors.text.stopwords import STOP_WORDS
from actors.text.variants import SIMPLIFIED
from actors.text.words import fold, stem

# Fault case Q1, and the shapes that people search for in notes about programs.
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
    '"unbalanced',
    "a:b",
    "R&D",
    "Message: {0}, StackTrace: {1}",
    "cats OR dogs",
    "NOT",
    "NEAR(",
    "*",
    "^x",
    "->",
    "auth_middleware.py",
    "camelCase",
    "#1234",
    "joe.doe+x@mail.example.com",
    "https://example.com/a/b?q=1#frag",
    "who are you",
    "???",
    "👍🏽",
]


@pytest.mark.parametrize("literal", LITERALS)
def test_a_literal_shares_every_term_it_asks_for_with_a_text_that_holds_it(literal: str) -> None:
    text = literal if literal == "???" else f"yesterday we wrote ( {literal} ) on the board"
    asked = analyse_query(literal)
    assert asked
    assert set(asked) <= set(analyse(text))


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("auth_middleware.py", ["auth_middleware.py", "auth_middleware", "auth", "middlewar", "py"]),
        ("src/auth/user.py", ["src/auth/user.py", "src", "auth", "user.py", "user", "py"]),
        ("test_raise_exception", ["test_raise_exception", "test_raise", "raise_exception", "test", "rais", "except"]),
        ("camelCase", ["camelcase", "camelcas", "camel", "case"]),
        ("HTTPServer", ["httpserver", "http", "server"]),
        ("--fast-run", ["--fast-run", "fast", "run"]),
        ("-v", ["-v", "v"]),
        ("C++", ["c++", "c"]),
        ("C#", ["c#", "c"]),
        ("R&D", ["r&d", "r", "d"]),
        ("#1234", ["#1234", "1234"]),
        ("POL-358", ["pol-358", "pol", "358"]),
        ("2026.4.10", ["2026.4.10", "2026", "4", "10"]),
        ("2023-05-08T10:15:00Z", ["2023-05-08", "2023-05-08t10:15:00z"]),
        ("10,000", ["10000", "10"]),
        ("https://example.com/b", ["https://example.com/b", "example.com/b", "example.com", "exampl"]),
        ("joe.doe@example.com", ["joe.doe@example.com", "joe.doe", "joe", "doe", "example.com"]),
        ("~/.bashrc", [".bashrc", "bashrc"]),
        ("Caroline's studies", ["carolin", "studi"]),
        ("naïve Straße Ørsted", ["naiv", "strass", "orst"]),
        ("ｆｕｌｌ　ｗｉｄｔｈ", ["full", "width"]),
        ("rock'n'roll O’Brien", ["rocknroll", "rock", "roll", "obrien", "brien"]),
        ("utf8", ["utf8", "utf", "8"]),
        ("hello 👍🏽!", ["hello", "👍"]),
        ("ко́шка мышь", ["мышь"]),
        ("हिन्दी", ["हिन्दी"]),
    ],
)
def test_compounds_are_terms_whole_and_in_parts(text: str, terms: list[str]) -> None:
    found = analyse(text)
    assert [term for term in terms if term not in found] == []


def test_words_keep_their_order_and_their_repetition() -> None:
    assert analyse("Running dogs run, dog!") == ["run", "dog", "run", "dog"]


def test_a_plain_word_finds_the_same_word_in_camel_case() -> None:
    assert set(analyse_query("youtube")) <= set(analyse("YouTube"))


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("用", "用户身份"),
        ("身份", "我的用户身份"),
        ("用户身", "用户身份"),
        ("用户身份", "查看用户身份。"),
        ("记忆", "長期記憶"),
        ("長期記憶", "长期记忆"),
        ("カタカナ", "ｶﾀｶﾅで書く"),
        ("ひらがな", "これはひらがなです"),
        ("한국어", "나는 한국어를 배운다"),
        ("静默", "系统静默重启"),
        ("ไทย", "ภาษาไทย"),
        ("5月8日", "我们2023年05月08日见面"),
        ("ID", "用户ID不存在"),
        ("配置.yaml", "打开配置.yaml文件"),
    ],
)
def test_unspaced_writing_is_found_by_any_piece_of_it(query: str, text: str) -> None:
    assert set(analyse_query(query)) <= set(analyse(text))


def test_both_ways_to_say_a_day_in_chinese_share_a_term() -> None:
    assert "8日" in analyse("5月8号") and "8日" in analyse("5月8日")


def test_unspaced_writing_is_every_character_and_every_pair() -> None:
    assert sorted(analyse("记忆库")) == sorted(["记", "忆", "库", "记忆", "忆库"])


def test_folding_to_simplified_is_done_in_one_step() -> None:
    assert all(unicodedata.category(chr(code)) == "Lo" for code in SIMPLIFIED)
    assert all(ord(simplified) not in SIMPLIFIED for simplified in SIMPLIFIED.values())


def test_weak_terms_are_indexed_once() -> None:
    terms = analyse("the cat and the dog and the bird => the end =>")
    assert [terms.count(term) for term in ("the", "and", "=>", "cat")] == [1, 1, 1, 1]


def test_a_query_leaves_weak_terms_out_unless_there_is_nothing_else() -> None:
    assert analyse_query("What is the name of my cat?") == ["name", "cat"]
    assert analyse_query("who are you") == ["who", "are", "you"]
    assert analyse_query("NOT") == ["not"]
    assert analyse_query("*") == ["*"]
    assert analyse_query("a * b") == ["b"]


def test_may_is_a_month() -> None:
    assert analyse_query("8 May, 2023") == ["8", "may", "2023"]


def test_a_text_without_any_word_is_indexed_as_it_stands() -> None:
    assert analyse("???") == analyse_query("???") == ["???"]
    assert analyse(" \"' ") == []


@pytest.mark.parametrize("nothing", ["", " ", "\n\t", "\0", "\u200b", "\ud800", "\ufeff", '"', "\x7f"])
def test_nothing_to_index_is_no_term(nothing: str) -> None:
    assert analyse(nothing) == []
    assert analyse_query(nothing) == []


def test_invisible_characters_do_not_split_a_word() -> None:
    assert analyse("mid\u00addle war\u2060e \ufeffstart") == analyse("middle ware start")


def test_two_halves_of_a_surrogate_pair_are_one_character() -> None:
    assert analyse("\ud83e\udd80") == ["🦀"]


def test_a_long_query_keeps_its_longest_terms_in_order() -> None:
    query = " ".join(f"x{number}" for number in range(200)) + " auth_middleware.py"
    terms = analyse_query(query)
    assert len(terms) == QUERY_TERMS_MAX
    assert "auth_middleware.py" in terms
    everything = list(dict.fromkeys(analyse(query)))
    assert terms == sorted(terms, key=everything.index)


def test_an_overlong_token_is_found_by_its_slices() -> None:
    key = "A1b2" * 100
    assert set(analyse_query(key)) <= set(analyse(f"token={key};"))
    assert max(map(len, analyse(key))) <= 128


def test_a_text_of_a_megabyte_without_a_space_is_cut_in_linear_steps() -> None:
    # Each of these made an expression with nested repetition take minutes; the test's own time limit is the check.
    for unit in ("/", "-", "a-", "#", "1,", "111,", "'", "_", "{", "a.", "=>", "$", "x1", "::", "é'"):
        analyse(unit * (200_000 // len(unit)))


TERMS_THAT_MUST_STAY = {
    "generation": "generat",
    "generational": "generat",
    "memories": "memori",
    "studies": "studi",
    "relational": "relat",
    "happily": "happili",
    "running": "run",
    "configuration": "configur",
    "embedding": "embed",
    "documented": "document",
    "bananas": "banana",
    "skiing": "ski",
    "sky": "sky",
    "news": "news",
    "dying": "die",
}


def test_stems_are_those_that_existing_indexes_hold() -> None:
    """A new version of the stemmer must not change terms behind our back: see ANALYSER_VERSION."""
    assert {word: stem(word) for word in TERMS_THAT_MUST_STAY} == TERMS_THAT_MUST_STAY


def test_stop_words_are_folded_and_their_own_stem() -> None:
    assert all(fold(word) == stem(word) == word for word in STOP_WORDS)


def test_threads_do_not_disturb_each_other() -> None:
    """Two lanes of a worker analyse at once; a stemmer that they shared would mix their words."""
    words = [[f"{letter}{middle}ationally" for middle in "aeioulmnr" * 60] for letter in "gjkz"]
    alone = [[stem.__wrapped__(word) for word in some] for some in words]
    together: dict[int, list[str]] = {}
    start = threading.Barrier(len(words))

    def run(number: int) -> None:
        start.wait()
        together[number] = [stem.__wrapped__(word) for word in words[number]]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(words))]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert [together[number] for number in range(len(words))] == alone


@settings(deadline=None, max_examples=300)
@given(st.text(st.characters(codec=None), max_size=60))
def test_terms_of_any_text_hold_no_space_no_control_and_no_quote(text: str) -> None:
    terms = analyse(text)
    assert index_text(terms).split() == terms
    for term in terms:
        assert not any(unicodedata.category(character) in ("Cc", "Cs", "Zs", "Zl", "Zp") for character in term)
        assert not set(term) & set("\"'")
        assert len(term.encode()) < 4096


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=40))
def test_any_text_is_found_by_itself(text: str) -> None:
    assert set(analyse_query(text)) <= set(analyse(text))
    assert bool(analyse_query(text)) == bool(analyse(text))


@settings(deadline=None, max_examples=200)
@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_case_and_composition_do_not_matter(text: str) -> None:
    composed = unicodedata.normalize("NFC", text)
    assert analyse(unicodedata.normalize("NFD", text)) == analyse(composed)
