"""From text to index terms: one analyser for the keyword index of the truth (FTS5) and of the generations (LanceDB).

The same function runs over what is stored and over what is asked, in every process, so a term means the same before
and after indexing. A term never holds whitespace or control characters and both tokenizers leave it whole; the
text that is indexed is the terms with one space between them.

* Chinese, Japanese, Korean and other unspaced writing: every character and every pair of neighbours. A word of one
  character is found by the first, longer ones by their pairs, without a dictionary that would have to know them.
* Alphabets: folded, stemmed (English), compounds whole and in parts (`compounds.py`).
* Weak terms (stop words, signs that stand alone such as `*` or `->`) are indexed once a text, however often they
  occur, and asked for only by a query that consists of nothing else. So "who are you" and `NOT` find something,
  which costs no recall elsewhere: measured on chats, indexing them once is 0.4 points better than not at all.
* A text of nothing but punctuation is indexed as it stands.

Pure, and linear in the length of the text.
"""

import re
import unicodedata
from collections.abc import Iterable
from operator import add

from actors.text.clean import clean
from actors.text.compounds import TERM_CHARS_MAX, compound_terms
from actors.text.scripts import CONTROLS, INVISIBLE, UNSPACED_RUN
from actors.text.stopwords import STOP_WORDS
from actors.text.variants import SIMPLIFIED

# Raise this when the terms of any text change: every index has to be made again. A test holds terms that must stay.
ANALYSER_VERSION = 1
QUERY_TERMS_MAX = 64

_CHUNK = re.compile(rf"[^\s{CONTROLS}]+")
# A run of signs with no letter before or after it. (What stands before is tested second: that is faster.)
_SIGNS = re.compile(r"[-*^|<>=+~$#@&%\\/](?<![-\w*^|<>=+~$#@&%\\/].)[-*^|<>=+~$#@&%\\/]*+(?!\w)")
# 5月8日 is said 5月8号.
_DATE_UNITS = "年月日号"
_NUMBER_AT_END = re.compile(r"\d+\Z")
_NOT_IN_TERMS = str.maketrans("", "", "\"'\ufffd")


def analyse(text: str) -> list[str]:
    """Return the index terms of a text: the strong ones in order, with repetition, then the weak ones once each."""
    strong, weak = _analyse(text)
    return [*strong, *weak]


def analyse_query(text: str) -> list[str]:
    """Return the terms to ask for, unique, in order; the weak ones only when there is nothing else.

    Of more than QUERY_TERMS_MAX the longest are kept: they are the rarest, and pairs go before single characters.
    """
    strong, weak = _analyse(text)
    terms = list(dict.fromkeys(strong)) or weak
    if len(terms) > QUERY_TERMS_MAX:
        kept = set(sorted(terms, key=len, reverse=True)[:QUERY_TERMS_MAX])
        terms = [term for term in terms if term in kept]
    return terms


def index_text(terms: Iterable[str]) -> str:
    """Return what is handed to the tokenizer of an index: the terms with one space between them."""
    return " ".join(terms)


def _analyse(text: str) -> tuple[list[str], list[str]]:
    """Return the strong terms, and the weak ones without repetition."""
    terms: list[str] = []
    if text.isascii():
        _add_spaced(text, terms)
    else:
        text = INVISIBLE.sub("", unicodedata.normalize("NFKC", clean(text)))
        _add_mixed(text, terms)
    strong = [term for term in terms if term not in STOP_WORDS]
    weak = [*(term for term in terms if term in STOP_WORDS), *_lone_signs(text)]
    if not strong and not weak:
        weak = _as_it_stands(text)
    return strong, list(dict.fromkeys(weak))


def _add_spaced(text: str, terms: list[str]) -> None:
    for chunk in _CHUNK.findall(text):
        terms += compound_terms(chunk)


def _add_mixed(text: str, terms: list[str]) -> None:
    """Add the terms of a text in which spaced and unspaced writing alternate."""
    pieces = UNSPACED_RUN.split(text)
    _add_spaced(pieces[0], terms)
    for before, run, after in zip(pieces[0::2], pieces[1::2], pieces[2::2], strict=False):
        _add_run(before, run.translate(SIMPLIFIED), terms)
        _add_spaced(after, terms)


def _add_run(before: str, run: str, terms: list[str]) -> None:
    """Add the terms of a run of unspaced writing: characters, pairs, and the number that a date unit belongs to."""
    if run[0] in _DATE_UNITS and (number := _NUMBER_AT_END.search(before[-4:])):
        terms.append(number[0].lstrip("0") + run[0].replace("号", "日"))
    terms += run
    terms += map(add, run, run[1:])


def _lone_signs(text: str) -> list[str]:
    """Return operators and the like; a dash alone is punctuation."""
    return [signs[:TERM_CHARS_MAX] for signs in _SIGNS.findall(text) if signs.strip("-")]


def _as_it_stands(text: str) -> list[str]:
    """Return the chunks of a text that has no word, number or sign in it, so that "???" is found by "???"."""
    chunks = [chunk.translate(_NOT_IN_TERMS)[:TERM_CHARS_MAX] for chunk in _CHUNK.findall(text)]
    return [chunk for chunk in chunks if chunk]
