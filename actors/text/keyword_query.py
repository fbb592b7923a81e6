"""How the analyser's terms are handed to the two full-text engines: FTS5 in SQLite and LanceDB.

Both tokenizers are told to cut at the space between two terms and nowhere else. For FTS5 that is `ascii`, not
`unicode61`: it takes every character above 127 for a part of a token and changes none, whatever Unicode tables the
SQLite of the machine has, and only the ASCII signs have to be named. The quotes are missing from that list because
no term holds one.
"""

from collections.abc import Iterable

from actors.text.clean import clean

FTS5_TOKENIZE = "ascii tokenchars '!#$%&()*+,-./:;<=>?@[\\]^_`{|}~'"
"""The value of FTS5's `tokenize` option: `USING fts5(terms, tokenize = "…")`. Holds no double quote."""

LANCE_TOKENIZE: dict[str, str | int | bool] = {
    "base_tokenizer": "whitespace",
    "max_token_length": 4096,
    "lower_case": False,
    "stem": False,
    "remove_stop_words": False,
    "ascii_folding": False,
}
"""The tokenizer's part of the arguments of LanceDB's full-text index. Longer tokens would be dropped silently."""


def fts5_match(terms: Iterable[str]) -> str | None:
    """Return an FTS5 expression that finds any of the terms, whatever is in them; None when there are none."""
    quoted = ['"' + clean(term).replace('"', '""') + '"' for term in terms if term]
    return " OR ".join(quoted) or None
