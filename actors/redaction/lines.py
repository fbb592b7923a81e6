"""Redaction of a text that comes line by line, as the notes of a source do: the number of lines stays what it was."""

import re

from actors.redaction.redactor import Counts, Redactor
from actors.redaction.shapes import MARK

_BEGIN = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,12}+ ){0,4}?PRIVATE KEY(?: BLOCK)?-----")
_END = re.compile(r"-----END [A-Z0-9 ]{1,60}+-----")
_OF_A_KEY = re.compile(r"[\s>|\"'+]{0,64}+(?:[A-Za-z0-9+/=\\]{0,1024}+|[A-Za-z-]{1,40}: .{0,256})\s{0,64}\Z")
_BLOCK = re.compile(r"<(/?)[ \t]{0,4}+private(?:[ \t][^<>]{0,256}+)?>", re.IGNORECASE)


class LineRedactor:
    """Redacts the lines of one text, in order. Knows whether a key or a private block is still open."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._key = False
        self._depth = 0

    def line(self, text: str) -> str:
        """Return a line (or a piece of a long one) as it may be kept; empty within a block."""
        if self._key and "private-key" in self._redactor.kinds:
            end = _END.search(text)
            if end is not None:
                self._key, text = False, text[end.end() :]
            elif _OF_A_KEY.match(text):
                return ""
            else:
                self._key = False
        if "private" in self._redactor.kinds:
            text = self._outside(text)
        text = self._redactor.text(text, Counts(), lines=True)
        begin = _BEGIN.search(text)
        if begin is None or begin.end() < len(text.rstrip()) or "private-key" not in self._redactor.kinds:
            return text
        self._key = True
        return f"{text[: begin.start()]}{MARK} private-key]"

    def _outside(self, text: str) -> str:
        """Return what stands outside of private blocks; one that this line opens leaves a mark."""
        pieces: list[str] = []
        end = 0
        for marker in _BLOCK.finditer(text):
            if self._depth == 0:
                pieces.append(text[end : marker.start()] if not marker[1] else text[end : marker.end()])
            opened_here = self._depth == 0 and not marker[1]
            self._depth = max(0, self._depth + (-1 if marker[1] else 1))
            if opened_here:
                pieces.append(f"{MARK} private]")
            end = marker.end()
        if self._depth == 0:
            pieces.append(text[end:])
        return "".join(pieces)
