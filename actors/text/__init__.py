"""Text as the keyword indexes see it. One analyser for FTS5 (the truth) and LanceDB (the generations).

Pure: no I/O, no clock, no randomness. `analyse` what is stored and `analyse_query` what is asked; store
`index_text(terms)` in a column that is indexed with `FTS5_TOKENIZE` or `LANCE_TOKENIZE`. A change of what `analyse`
returns needs new indexes, so `ANALYSER_VERSION` is kept with them and raised with it.

    clean.py          text that is safe to encode and to hand to C
    scripts.py        character classes
    variants.py       traditional Chinese to simplified
    stopwords.py  words.py  compounds.py  analyser.py    from characters to terms, in this order
    dates.py          the date of an event as terms
    keyword_query.py  terms to FTS5 and LanceDB
    code_like.py      is the question about code
    snippet.py        the piece to show
    visible.py        hidden characters shown
    length.py         length in tokens
"""

from actors.text.analyser import ANALYSER_VERSION, QUERY_TERMS_MAX, analyse, analyse_query, index_text
from actors.text.clean import clean
from actors.text.code_like import is_code_like
from actors.text.dates import date_terms
from actors.text.keyword_query import FTS5_TOKENIZE, LANCE_TOKENIZE, fts5_match
from actors.text.length import estimate_tokens
from actors.text.scripts import is_mostly_unspaced
from actors.text.snippet import snippet
from actors.text.visible import visible

__all__ = [
    "ANALYSER_VERSION",
    "FTS5_TOKENIZE",
    "LANCE_TOKENIZE",
    "QUERY_TERMS_MAX",
    "analyse",
    "analyse_query",
    "clean",
    "date_terms",
    "estimate_tokens",
    "fts5_match",
    "index_text",
    "is_code_like",
    "is_mostly_unspaced",
    "snippet",
    "visible",
]
