"""One word of an alphabet: folded (case, accents) and cut to its English stem.

The stem is a key for comparison and never shown. Words of other languages are cut the same way on both sides, which
does no harm. Stop words are returned as they are, so that they can be told from the stem of another word.
"""

import re
import unicodedata
from functools import lru_cache
from typing import Protocol, cast

from actors.text.stopwords import STOP_WORDS

WORDS_CACHED = 1 << 15
WORD_CHARS_MAX = 40

_ACCENT = re.compile("(?<=[a-z\u03b1-\u03c9])[\u0300-\u036f]+")
# Letters that carry their stroke inside, which no decomposition takes off.
_STROKED = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "ħ": "h", "ı": "i", "æ": "ae", "œ": "oe", "þ": "th"})


class _Stemmer(Protocol):
    def stemWord(self, word: str) -> str: ...  # noqa: N802 (the library's name)


def fold(text: str) -> str:
    """Return the text in lower case, compatibility forms replaced, Latin and Greek letters without their accents."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return unicodedata.normalize("NFKC", _ACCENT.sub("", decomposed).translate(_STROKED))


@lru_cache(WORDS_CACHED)
def stem(word: str) -> str:
    """Return the English stem of a folded word; stop words and very long words are their own."""
    if word in STOP_WORDS or len(word) > WORD_CHARS_MAX:
        return word
    return _stemmer_class()().stemWord(word)


@lru_cache(1)
def _stemmer_class() -> type[_Stemmer]:
    """Import the stemmer when the first word needs it: the package loads thirty languages, in 25 ms.

    A stemmer keeps the word it works on in itself, and two lanes of a worker may analyse at once, so `stem` takes a
    new one each time (half a microsecond). The pure Python one, also where the C package is installed: one algorithm.
    """
    from snowballstemmer.english_stemmer import EnglishStemmer

    return cast(type[_Stemmer], EnglishStemmer)
