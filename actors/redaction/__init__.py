"""What is never kept: secrets by their shape, `<private>` blocks, and what this memory itself handed out.

Pure: no I/O, no clock. `Redactor` works on texts, JSON values and whole messages; each pass over a text takes time in
proportion to its length, whatever the text is, because no pattern here can try a stretch of it twice: an attempt that
fails has looked at no more than the shortest secret of its shape, and one that succeeds takes all it has looked at.

    shapes.py      what secrets look like
    blocks.py      blocks between markers
    redactor.py    texts, values and messages without them, and how many of each kind there were
    lines.py       the same line by line
    recall.py      what is handed out, of what was written before
"""

from actors.redaction.blocks import RECALL_BEGIN, RECALL_END, defuse
from actors.redaction.lines import LineRedactor
from actors.redaction.recall import recall_json, recall_text
from actors.redaction.redactor import USUAL, Counts, Redactor
from actors.redaction.shapes import KINDS

__all__ = [
    "KINDS",
    "RECALL_BEGIN",
    "RECALL_END",
    "USUAL",
    "Counts",
    "LineRedactor",
    "Redactor",
    "defuse",
    "recall_json",
    "recall_text",
]
