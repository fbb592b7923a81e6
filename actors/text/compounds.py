"""What stands between two spaces, as terms: words, and whatever people glue together with signs.

`auth_middleware.py`, `user_id`, `camelCase`, `--flag`, `C++`, `R&D`, `#1234`, `2026.4.10`, `Downloads/transcripts`,
`a:b`, an e-mail address, a URL: each is a term as a whole, for the person who knows it exactly, and in parts down
to the words, for the one who remembers a piece. The levels are chunk (no whitespace inside), compound
(`src/auth_middleware.py`), segment (`auth_middleware.py`), name (`auth_middleware`), piece (`auth`).

Every loop here is linear in the chunk, which may be a megabyte of base64 or of minified JSON.
"""

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise

from actors.text.scripts import MARKS
from actors.text.words import fold, stem

TERM_CHARS_MAX = 128
CHUNKS_CACHED = 1 << 15
# Longer chunks are rarely seen twice; leaving them out bounds the cache in bytes.
CHUNK_CHARS_CACHED = 48

_LETTER = rf"[\w{MARKS}]"
_GLUE = r"[-.+&#@=%:/\\?~$']"
# An option's dashes or a sigil, words glued by signs, and the plus or hash of C++ and C#. The lengths are bounded
# and the classes disjoint, so that no input makes the expression go back over what it has read.
_COMPOUND = re.compile(rf"(?:--?|[#@$.~/\\]{{1,3}})?{_LETTER}+(?:{_GLUE}{{1,3}}{_LETTER}+)*(?:\+\+|[#+])?")
_BETWEEN_SEGMENTS = re.compile(r"[&@=%:/\\?~$#]+")
_BETWEEN_NAMES = re.compile(r"[-.+']+")
_PIECE = re.compile(r"\d+|[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_PIECE_NOT_ASCII = re.compile(r"\d+|[^\d_]+")
# What is left of `Caroline's` and `we'll` is the word; `don't` becomes `dont`, as some people type it.
_ENDING = re.compile(r"(?<=\w)'(?:s|ll|d|ve|re|m)\b", re.IGNORECASE)
_NOT = re.compile(r"(?<=n)'(?=t\b)", re.IGNORECASE)
_SAME = str.maketrans({"’": "'", "\u2044": "/"})
_DATE_OF_TIME = re.compile(r"\d{4}-\d\d-\d\d(?=T\d)")
_GROUPED_DIGITS = re.compile(r"(?<![\d,])\d{1,3}(?:,\d{3})+(?![\d,])")


def compound_terms(chunk: str) -> tuple[str, ...]:
    """Return the terms of a text without whitespace; wholes come before their parts, each once a compound."""
    return _expand(chunk) if len(chunk) > CHUNK_CHARS_CACHED else _expand_cached(chunk)


def _expand(chunk: str) -> tuple[str, ...]:
    if chunk.isascii() and chunk.isalpha() and (chunk.islower() or chunk.istitle()):
        return (stem(chunk.lower()),)
    return tuple(_terms(chunk))


_expand_cached = lru_cache(CHUNKS_CACHED)(_expand)


def _terms(chunk: str) -> list[str]:
    terms: list[str] = []
    if "," in chunk:
        terms += [digits.replace(",", "") for digits in _GROUPED_DIGITS.findall(chunk)]
    if not chunk.isascii():
        chunk = chunk.translate(_SAME)
        terms += [sign for sign in chunk if unicodedata.category(sign)[0] == "S" and _is_searched_for(sign)]
    if "'" in chunk:
        chunk = _NOT.sub("", _ENDING.sub("", chunk))
    if "T" in chunk:
        terms += _DATE_OF_TIME.findall(chunk)
    for compound in _COMPOUND.findall(chunk):
        terms += dict.fromkeys(_compound(compound))
    return terms


def _is_searched_for(sign: str) -> bool:
    """Leave out ASCII, pieces of frames and bars (terminal output, tables), and what stands for a broken character."""
    return sign > "\x7f" and not "\u2500" <= sign <= "\u259f" and sign != "\ufffd"


def _compound(compound: str) -> list[str]:
    segments = [segment for segment in _BETWEEN_SEGMENTS.split(compound) if segment.strip("-.+'_")]
    terms = []
    whole = compound.strip("/\\~'")
    if not whole.isalnum():
        terms += _whole(whole)
    if "://" in whole:
        terms += _whole(whole.partition("://")[2])
    for segment in segments:
        names = [name for name in _BETWEEN_NAMES.split(segment) if name.strip("_")]
        if len(segments) > 1 and len(names) > 1:
            terms += _whole(segment.strip("-.+'"))
        for name in names:
            terms += _name(name)
    return terms


def _whole(text: str) -> list[str]:
    """Return the folded text as one term; one that is too long has only parts."""
    return [fold(text.replace("'", ""))] if len(text) <= TERM_CHARS_MAX and text.strip("_") else []


def _name(name: str) -> list[str]:
    """Return the terms of letters, digits and underscores: as a whole, then its pieces, words by their stem."""
    if len(name) > TERM_CHARS_MAX:
        return [fold(name[start : start + TERM_CHARS_MAX]) for start in range(0, len(name), TERM_CHARS_MAX)]
    folded = fold(name)
    if folded.isdigit():
        # A date may be written with zeros in front of its numbers, and asked for without.
        return [folded, folded.lstrip("0") or "0"]
    pieces = _PIECE.findall(name) if name.isascii() else _PIECE_NOT_ASCII.findall(folded)
    if len(pieces) == 1 and len(pieces[0]) == len(folded):
        return [stem(folded)]
    # "YouTube" must also find "youtube", which is a plain word and thus stemmed.
    wholes = [folded, stem(folded)] if folded.isalpha() else [folded]
    return [*wholes, *_pairs(folded), *(stem(piece.lower()) for piece in pieces)]


def _pairs(folded: str) -> list[str]:
    """Return neighbours in a name of three words or more: a piece of an identifier is often remembered as two."""
    words = folded.strip("_").split("_")
    return [f"{one}_{two}" for one, two in pairwise(words) if one and two] if len(words) > 2 else []
