"""The piece of a text that shows best why it was found.

Works on positions of plain strings, not by analysing again, so that a megabyte takes milliseconds: the text is
folded character by character (same length, so positions stay), each term is searched in it, and the window with the
heaviest set of different terms wins. A stem is searched as the beginning of a word, which is right often enough to
choose a window by.
"""

from collections.abc import Iterator, Sequence

from actors.text.variants import SIMPLIFIED
from actors.text.words import fold

ELLIPSIS = "…"
OCCURRENCES_MAX = 1000
# How far an edge may move to the end of a word or line, as a share of the window.
_EDGE_SHARE = 8
_WEIGHT_MAX = 12


class _CharacterFold(dict[int, str]):
    """A translation table that folds one character at a time and keeps the length, filled as characters turn up."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        folded = fold(character).translate(SIMPLIFIED) if not 0xD800 <= code <= 0xDFFF else character
        self[code] = folded if len(folded) == 1 else character
        return self[code]


_FOLD = _CharacterFold()


def snippet(text: str, terms: Sequence[str], chars_max: int) -> str:
    """Return at most `chars_max` characters of the text around the best match, with an ellipsis where it is cut."""
    if len(text) <= chars_max:
        return text
    width = chars_max - 2 * len(ELLIPSIS)
    if width <= 0:
        return text[: max(0, chars_max)]
    first, last = _best_span(text, terms, width)
    start, end = _window(text, first, last, width)
    body = text[start:end].strip()
    return (ELLIPSIS if start > 0 else "") + body + (ELLIPSIS if end < len(text) else "")


def _best_span(text: str, terms: Sequence[str], width: int) -> tuple[int, int]:
    """Return where the first and the last match of the heaviest window begin and end; (0, 0) without a match."""
    needles = list(dict.fromkeys(_needle(term) for term in terms if term))
    folded = text.lower() if text.isascii() else text.translate(_FOLD)
    matches = sorted(
        (position, index) for index, needle in enumerate(needles) for position in _positions(text, folded, needle)
    )
    best, best_weight = (0, 0), 0
    counts = [0] * len(needles)
    weight = left = 0
    for position, index in matches:
        end = position + len(needles[index])
        counts[index] += 1
        weight += _weight(needles[index]) if counts[index] == 1 else 0
        while matches[left][0] < end - width and matches[left][0] < position:
            gone = matches[left][1]
            counts[gone] -= 1
            weight -= _weight(needles[gone]) if counts[gone] == 0 else 0
            left += 1
        if weight > best_weight:
            best, best_weight = (matches[left][0], end), weight
    return best


def _needle(term: str) -> str:
    """Return what to search for: the English stem of "studies" and "study" is "studi", so the i is left out."""
    return term[:-1] if len(term) > 3 and term[-1] == "i" and term.isascii() and term.isalpha() else term


def _weight(needle: str) -> int:
    """Return what a match counts for; longer terms are rarer."""
    return min(len(needle), _WEIGHT_MAX)


def _positions(text: str, folded: str, needle: str) -> Iterator[int]:
    """Yield where the needle begins a word (or stands anywhere, when it is not of an alphabet), the first ones."""
    plain = needle[0].isascii() and needle[0].isalnum()
    found = 0
    position = folded.find(needle)
    while position >= 0 and found < OCCURRENCES_MAX:
        if not plain or _is_word(text, position, position + len(needle)):
            found += 1
            yield position
        position = folded.find(needle, position + len(needle))


def _is_word(text: str, start: int, end: int) -> bool:
    """Say whether a word begins at `start`; a needle of one or two letters must also be all of it."""
    before = text[start - 1] if start else " "
    inside = before.isascii() and before.isalnum() and not (before.islower() and text[start].isupper())
    if inside and before.isalpha() == text[start].isalpha():
        return False
    return end - start > 2 or end == len(text) or not (text[end].isascii() and text[end].isalnum())


def _window(text: str, first: int, last: int, width: int) -> tuple[int, int]:
    """Return the bounds of a window of at most `width` around a span, more of it after than before, cut at spaces."""
    spare = width - (last - first)
    start = max(0, min(first - spare // 3, len(text) - width))
    end = min(len(text), start + width)
    edge = width // _EDGE_SHARE
    if start > 0:
        start = _after_space(text, start, min(start + edge, first))
    if end < len(text):
        end = _before_space(text, max(end - edge, last, start), end)
    return start, end


def _after_space(text: str, start: int, limit: int) -> int:
    """Move the left edge to the beginning of a line, else of a word, when there is one before `limit`."""
    line = text.rfind("\n", start - 1, limit)
    if line >= 0:
        return line + 1
    return next((at + 1 for at in range(start - 1, limit) if text[at].isspace()), start)


def _before_space(text: str, limit: int, end: int) -> int:
    """Move the right edge to the end of a word when there is one after `limit`."""
    return next((at for at in range(end, limit, -1) if text[at].isspace()), end)
