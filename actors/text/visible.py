"""Show what hides in a text: control characters, invisible ones, and those that turn the direction of writing.

The truth keeps every character; this is for text on its way to an agent, a prompt or a terminal, where a hidden
instruction or a reversed line would be read by one and not seen by the other. A character is shown as `⟨U+202E⟩`.
Tabs and line breaks stay, and so do joiners between letters that are not ASCII: Persian and emoji need them.
"""

import re

# C0 without tab, line feed and carriage return; DEL and C1; soft hyphen; zero-width; line and paragraph separators;
# embeddings, overrides and isolates of direction; invisible operators; byte order marks; interlinear; tag characters.
_HIDDEN = re.compile(
    "[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
_JOINERS = "\u200c\u200d"
_MARKS_OF_SCRIPTS = "\u061c\u200e\u200f"


def visible(text: str) -> str:
    """Return the text with its hidden characters shown."""
    if text.isascii() and text.isprintable():
        return text
    return _HIDDEN.sub(_show, text)


def _show(match: re.Match[str]) -> str:
    character = match[0]
    if character in _JOINERS or character in _MARKS_OF_SCRIPTS:
        start = match.start()
        before, after = match.string[max(0, start - 1) : start], match.string[match.end() : match.end() + 1]
        if _is_letter(before) and (character in _MARKS_OF_SCRIPTS or _is_letter(after)):
            return character
    return f"⟨U+{ord(character):04X}⟩"


def _is_letter(neighbour: str) -> bool:
    """Say whether a neighbour is of a script (or an emoji) in which joiners and marks have a meaning."""
    return bool(neighbour) and not neighbour.isascii() and not _HIDDEN.match(neighbour)
