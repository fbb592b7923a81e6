"""What the demo shows: headlines, sentences, hits, a line of progress. Colours on a terminal only.

Output is UTF-8 whatever the locale says, and at most WIDTH columns wide, in which a Chinese character takes two.
"""

import io
import shutil
import sys
import time
from typing import Any

from wcwidth import wcswidth, wcwidth

WIDTH = min(100, shutil.get_terminal_size((100, 24)).columns)
WORD_MAX = 20
QUIET_S = 10.0  # without a terminal, how often progress is said

_BOLD, _DIM, _GREEN, _RED, _YELLOW = "1", "2", "32", "31", "33"


def prepare() -> None:
    """Make stdout take any text, line by line, under any locale and into any pipe."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace", line_buffering=True)


def say(text: str = "", *, colour: str = "") -> None:
    """Print one line."""
    print(_coloured(cut(text, WIDTH), colour))


def headline(text: str) -> None:
    """Open an act."""
    say()
    say(text, colour=_BOLD)


def detail(text: str) -> None:
    """Print a line that the eye may skip."""
    say(text, colour=_DIM)


def good(text: str) -> None:
    """Print something that went as promised."""
    say(text, colour=_GREEN)


def bad(text: str) -> None:
    """Print something that did not. In full: a reason must not be cut off."""
    print(_coloured(text, _RED))


def struck(text: str) -> None:
    """Print what was just done to the daemon."""
    say(f"  >>> {text}", colour=_YELLOW)


def show_answer(answer: dict[str, Any], *, hits: int = 2) -> None:
    """Print the first hits of a memory.search reply, and what the reply says about its own completeness."""
    for hit in answer["hits"][:hits]:
        say(f"    {hit['score']:.2f}  {hit['citation']}")
        for line in _lines(" ".join(hit["snippet"].split()), WIDTH - 10, at_most=2):
            detail(f"          {line}")
    if not answer["hits"]:
        say("    nothing")
    detail(f"    [{quality(answer)}]")


def quality(answer: dict[str, Any]) -> str:
    """Return in a few words how an answer was made and what it lacks."""
    generation = answer["generation"]
    missing = ", ".join(entry["code"] for entry in answer["degraded"])
    return (
        f"{answer['mode']}, generation {'none' if generation is None else generation}, {answer['took_ms']:.0f} ms"
        + (f", without: {missing}" if missing else "")
        + (", low confidence" if answer["low_confidence"] else "")
    )


class Progress:
    """A line that is overwritten on a terminal, and said now and then elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._said_at = time.monotonic()

    def show(self, text: str) -> None:
        """Show how far it is."""
        if self._terminal:
            print("\r\x1b[K  " + cut(text, WIDTH - 2), end="", flush=True)
        elif time.monotonic() - self._said_at >= QUIET_S:
            self._said_at = time.monotonic()
            say(f"  {text}")

    def end(self) -> None:
        """Take the line away."""
        if self._terminal:
            print("\r\x1b[K", end="", flush=True)


def cut(text: str, columns: int) -> str:
    """Return the text, or as much of it as fits with an ellipsis."""
    if wcswidth(text) <= columns:
        return text
    return _fitting(text, columns - 1) + "…"


def _lines(text: str, columns: int, *, at_most: int) -> list[str]:
    lines: list[str] = []
    while text and len(lines) < at_most - 1:
        piece = _fitting(text, columns)
        words, space, part = piece.rpartition(" ")
        # Not inside a word, unless it is as long as a line of Chinese.
        if space and len(piece) < len(text) and len(part) < WORD_MAX:
            piece = words
        lines.append(piece)
        text = text[len(piece) :].lstrip()
    return [*lines, cut(text, columns)] if text else lines


def _fitting(text: str, columns: int) -> str:
    used = 0
    for position, character in enumerate(text):
        used += max(0, wcwidth(character))
        if used > columns:
            return text[:position]
    return text


def _coloured(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if code and sys.stdout.isatty() else text
