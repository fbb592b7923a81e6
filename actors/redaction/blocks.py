"""Blocks between markers that are never kept: what the owner calls private, and what this memory handed out itself.

Markers may be written in any case and may hold spaces and attributes. Blocks nest; one that is never closed goes on to
the end of the text, as the other guess would keep what was meant to be left out.
"""

import re

# What recalled text stands between when it is handed to an agent. See docs/PROTOCOL.md: hosts that put memories into a
# prompt use the same markers, so that the conversation does not come back as new knowledge.
RECALL_BEGIN = "<bulkhead-memory>"
RECALL_END = "</bulkhead-memory>"
_MARKERS = {
    "private": re.compile(r"<(/?)[ \t]{0,4}+private(?:[ \t\r\n][^<>]{0,256}+)?>", re.IGNORECASE),
    "recall": re.compile(r"<(/?)[ \t]{0,4}+bulkhead-memory(?:[ \t\r\n][^<>]{0,256}+)?>", re.IGNORECASE),
}
BLOCKS = tuple(_MARKERS)


def find_blocks(text: str, kind: str) -> list[tuple[int, int]]:
    """Return where the outermost blocks of a kind begin and end, markers included."""
    found: list[tuple[int, int]] = []
    depth = start = 0
    for marker in _MARKERS[kind].finditer(text):
        if not marker[1]:
            start = marker.start() if depth == 0 else start
            depth += 1
        elif depth > 0:
            depth -= 1
            if depth == 0:
                found.append((start, marker.end()))
    return [*found, (start, len(text))] if depth else found


def defuse(text: str) -> str:
    """Return the text with the markers of recalled text in another spelling: what is handed out can't end its block."""
    if "bulkhead-memory" not in text.lower():
        return text
    return _MARKERS["recall"].sub(lambda marker: f"⟨{marker[1]}bulkhead-memory⟩", text)
