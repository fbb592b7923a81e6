"""Cutting text into chunks: markdown by its structure, anything else by paragraphs. Pure.

A chunk is about `tokens` long and never longer than `tokens_max` (by `actors.text.estimate_tokens`). Cuts are made,
in this order of preference, before headings, between paragraphs (a fenced code block counts as one), between lines,
after sentences, between words, between characters. Nothing is dropped and nothing overlaps: every line that is not
blank is in exactly one chunk, or, when it is longer than a chunk may be, in consecutive ones piece by piece.

Works on a stream and holds about one chunk: time is linear and memory bounded, whatever the size of the file or of
its longest line.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from actors.notes import Segment
from actors.text import estimate_tokens

HEADING_CHARS_MAX = 80
HEADINGS_CHARS_MAX = 160
# A piece of a long line is looked for in this many characters a token: more than any language needs.
WINDOW_CHARS_PER_TOKEN = 8

_HEADING = re.compile(r" {0,3}(#{1,6})(?=[ \t]|\Z)")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*\Z")
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*\Z)|~{3,})")
_NO_TITLE = re.compile(r"\s*(?:[*+>|]|-+|=+|\d+[.)])(?:\s|\Z)")  # a list item, a quote, a table, a rule
_FRONT_MATTER_KEY = re.compile(r"[\w-]+[ \t]*:")
_FRONT_MATTER_END = re.compile(r"(---|\.\.\.)[ \t]*\Z")
_SENTENCE_END = re.compile(r"[.!?…][\"')\]]*(?=\s)|[。！？；…][」』”’）]*")
_SPACE = re.compile(r"\s+")


class ChunkLimits(NamedTuple):
    """How long chunks become: about `tokens`, at most `tokens_max`."""

    tokens: int
    tokens_max: int


class Chunk(NamedTuple):
    """A piece of a note: its text, the headings above it (outermost first), its lines (1-based, inclusive)."""

    text: str
    headings: tuple[str, ...]
    from_line: int
    to_line: int


def chunk_markdown(lines: Iterable[Segment], limits: ChunkLimits) -> Iterator[Chunk]:
    """Cut a note into chunks, in order."""
    packer = _Packer(limits)
    reader = _MarkdownReader(packer)
    for line in lines:
        reader.feed(line)
        yield from packer.take()
    packer.end()
    yield from packer.take()


def cut_text(text: str, limits: ChunkLimits) -> list[str]:
    """Cut a text that is no note (an event, a unit): one piece when short enough, else as a note without headings."""
    if estimate_tokens(text) <= limits.tokens_max:
        return [text]
    packer = _Packer(limits)
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            packer.add(Segment(number, line, ends=True))
        else:
            packer.end_paragraph()
    packer.end()
    return [chunk.text for chunk in packer.take()] or [text]


def heading_path(headings: tuple[str, ...]) -> str | None:
    """Return the headings as one short line, None when there are none. The inner ones matter most and are kept."""
    path = ""
    for heading in reversed(headings):
        longer = f"{heading} > {path}" if path else heading
        if path and len(longer) > HEADINGS_CHARS_MAX:
            break
        path = longer
    return path or None


class _MarkdownReader:
    """Tells headings, code blocks, front matter and paragraphs apart, line by line."""

    def __init__(self, packer: "_Packer") -> None:
        self._packer = packer
        self._within = False  # the last segment did not end its line
        self._fence = ""  # the marker that opened the code block we are in
        self._front_matter = False
        self._opened = False  # line 1 is "---"

    def feed(self, line: Segment) -> None:
        """Take the next segment."""
        continues, self._within = self._within, not line.ends
        if continues:
            self._packer.add(line)
        elif self._front_matter or self._fence:
            self._feed_block(line)
        elif not line.text.strip():
            self._packer.end_paragraph()
        elif match := _HEADING.match(line.text):
            self._packer.end_paragraph()
            self._packer.add_heading(len(match[1]), _title(line.text[match.end() :]), [line])
        elif match := _UNDERLINE.match(line.text):
            self._underline(line, 1 if match[1][0] == "=" else 2)
        else:
            self._packer.add(line)
            self._open_block(line)

    def _open_block(self, line: Segment) -> None:
        if match := _FENCE.match(line.text):
            self._fence = match[1]
        self._front_matter = self._opened and line.number == 2 and _FRONT_MATTER_KEY.match(line.text) is not None

    def _feed_block(self, line: Segment) -> None:
        """Take a line in which "#" is not a heading, and a blank line no end."""
        if line.text.strip():
            self._packer.add(line)
        if self._front_matter and _FRONT_MATTER_END.match(line.text):
            self._front_matter = False
            self._packer.end_paragraph()
        elif self._fence and _closes(self._fence, line.text):
            self._fence = ""
            self._packer.end_paragraph()

    def _underline(self, line: Segment, level: int) -> None:
        """A line of === or --- makes the paragraph of one line above it a heading; else it is text."""
        self._opened = self._opened or (line.number == 1 and level == 2)
        title = self._packer.pop_title(line.number - 1)
        if title is None:
            self._packer.add(line)
        else:
            self._packer.add_heading(level, title.text.strip(), [title, line])


def _title(text: str) -> str:
    """Return what a heading says, without the "#" that may close it."""
    text = text.strip()
    bare = text.rstrip("#")
    return bare.rstrip() if not bare or bare[-1] in " \t" else text


def _closes(fence: str, text: str) -> bool:
    mark = text.strip()
    return len(mark) >= len(fence) and not mark.strip(fence[0])


class _Piece(NamedTuple):
    number: int
    text: str
    tokens: int


class _Packer:
    """Gathers paragraphs into chunks. Its state is one chunk and one paragraph, both within `tokens_max`."""

    def __init__(self, limits: ChunkLimits) -> None:
        self._limits = limits
        self._done: list[Chunk] = []
        self._chunk: list[_Piece] = []
        self._chunk_tokens = 0
        self._paragraph: list[_Piece] = []
        self._paragraph_tokens = 0
        self._long = False  # the paragraph outgrew a chunk and is being cut line by line
        self._tail = ""  # the end of a segment whose line goes on, on line `_tail_number`
        self._tail_number = 0
        self._levels: list[tuple[int, str]] = []
        self._headings: tuple[str, ...] = ()
        self._has_body = False  # the chunk holds more than headings

    def take(self) -> list[Chunk]:
        """Return the chunks that are finished, once."""
        done, self._done = self._done, []
        return done

    def add(self, line: Segment) -> None:
        """Add a segment of the paragraph."""
        pieces = _split_line(self._tail + line.text, self._limits)
        # What remains of a segment belongs together with the next one: a word must not be torn where we read.
        self._tail = pieces.pop() if pieces and not line.ends else ""
        self._tail_number = line.number
        for piece in pieces:
            self._add(_Piece(line.number, piece, _tokens(piece)))

    def end_paragraph(self) -> None:
        """A blank line, or the end of a block: what follows may go into another chunk."""
        self._flush_tail()
        if self._paragraph:
            self._place_block(self._paragraph, self._paragraph_tokens)
        self._paragraph, self._paragraph_tokens, self._long = [], 0, False

    def add_heading(self, level: int, title: str, lines: list[Segment]) -> None:
        """Begin a section: what is in the chunk already, unless it is nothing but headings, ends there."""
        if self._has_body:
            self._close()
        while self._levels and self._levels[-1][0] >= level:
            self._levels.pop()
        if title:
            self._levels.append((level, title[:HEADING_CHARS_MAX]))
        pieces = [
            _Piece(line.number, piece, _tokens(piece))
            for line in lines
            for piece in _split_line(line.text, self._limits)
        ]
        for piece in pieces:
            self._place_line(piece, body=False)
        self._headings = tuple(title for _, title in self._levels)

    def pop_title(self, number: int) -> Segment | None:
        """Take back the paragraph when it is one single line with this number, to make it a heading."""
        alone = not self._long and not self._tail and len(self._paragraph) == 1
        if not alone or self._paragraph[0].number != number or _NO_TITLE.match(self._paragraph[0].text):
            return None
        piece = self._paragraph.pop()
        self._paragraph_tokens = 0
        return Segment(piece.number, piece.text, ends=True)

    def end(self) -> None:
        """Finish the last chunk."""
        self.end_paragraph()
        self._close()

    def _flush_tail(self) -> None:
        if self._tail:
            text, self._tail = self._tail, ""
            self._add(_Piece(self._tail_number, text, _tokens(text)))

    def _add(self, piece: _Piece) -> None:
        if self._long:
            self._place_line(piece)
            return
        cost = _gap(self._paragraph, piece) + piece.tokens
        if self._paragraph_tokens + cost > self._limits.tokens_max:
            gathered, self._paragraph, self._paragraph_tokens = self._paragraph, [], 0
            self._long = True
            for earlier in [*gathered, piece]:
                self._place_line(earlier)
        else:
            self._paragraph.append(piece)
            self._paragraph_tokens += cost

    def _place_block(self, pieces: list[_Piece], tokens: int) -> None:
        """Put a paragraph into the chunk, or into the next one when it would make this one long."""
        together = self._chunk_tokens + _gap(self._chunk, pieces[0]) + tokens
        small = self._chunk_tokens < self._limits.tokens // 2
        if self._chunk and together > (self._limits.tokens_max if small else self._limits.tokens):
            self._close()
        self._extend(pieces, tokens, body=True)

    def _place_line(self, piece: _Piece, *, body: bool = True) -> None:
        together = self._chunk_tokens + _gap(self._chunk, piece) + piece.tokens
        if self._chunk and together > self._limits.tokens:
            self._close()
        self._extend([piece], piece.tokens, body=body)

    def _extend(self, pieces: list[_Piece], tokens: int, *, body: bool) -> None:
        self._chunk_tokens += _gap(self._chunk, pieces[0]) + tokens
        self._chunk += pieces
        self._has_body = self._has_body or body

    def _close(self) -> None:
        if self._chunk:
            first, last = self._chunk[0].number, self._chunk[-1].number
            self._done.append(Chunk(_join(self._chunk), self._headings, first, last))
        self._chunk, self._chunk_tokens, self._has_body = [], 0, False


def _tokens(text: str) -> int:
    # With the newline that joins it to the next piece, so that a chunk is never longer than the sum of its pieces.
    return estimate_tokens(text + "\n")


def _gap(before: list[_Piece], piece: _Piece) -> int:
    """Return the tokens of the blank lines between what is there and the next piece."""
    return max(0, piece.number - before[-1].number - 1) if before else 0


def _join(pieces: list[_Piece]) -> str:
    parts = [pieces[0].text]
    for before, piece in pairwise(pieces):
        parts += ("\n" * (piece.number - before.number), piece.text)
    return "".join(parts)


def _split_line(text: str, limits: ChunkLimits) -> list[str]:
    """Cut a line that is longer than a chunk into pieces of at most `tokens`, which put together are the line."""
    if _tokens(text) <= limits.tokens_max:
        return [text] if text else []
    pieces = []
    start, window = 0, limits.tokens * WINDOW_CHARS_PER_TOKEN
    while start < len(text):
        end = _cut(text[start : start + window], limits.tokens, last=start + window >= len(text))
        pieces.append(text[start : start + end])
        start += end
    return pieces


def _cut(window: str, tokens: int, *, last: bool) -> int:
    """Return where to cut a window so that its first part is at most `tokens` long: at the best place near the end."""
    if last and _tokens(window) <= tokens:
        return len(window)
    end = max(1, bisect_right(range(1, len(window) + 1), tokens, key=lambda size: _tokens(window[:size])))
    for boundary in (_SENTENCE_END, _SPACE):
        ends = [match.end() for match in boundary.finditer(window, end // 2, end)]
        if ends:
            return ends[-1]
    return _between_characters(window, end)


def _between_characters(text: str, end: int) -> int:
    """Move a cut back so that it does not part a character from its accents, variation or joiner."""
    cut = end
    while 1 < cut < len(text) and _joins(text[cut - 1], text[cut]) and end - cut < 16:
        cut -= 1
    return cut


def _joins(before: str, after: str) -> bool:
    return before == "\u200d" or after in "\u200d\ufe0e\ufe0f" or unicodedata.combining(after) != 0
