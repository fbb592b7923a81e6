"""In which order the texts that have no vector yet are to be embedded. Pure.

Newest first, and fairly: events, units and notes take turns, and so do notes among each other, so that one huge file
does not make a thousand small ones wait. Embedding may take hours; what is asked for is mostly what is recent.
"""

from collections.abc import Iterator
from typing import NamedTuple

from actors.messages.base import Corpus


class Missing(NamedTuple):
    """A row without a vector: the how-manieth piece of its note, its time, and where it was staged."""

    ordinal: int
    ts: int
    piece: int
    row: int


def embedding_order(missing: dict[Corpus, list[Missing]]) -> Iterator[tuple[Corpus, Missing]]:
    """Yield the rows in the order in which they are to be embedded. Events and units come newest first already."""
    queues: list[tuple[Corpus, Iterator[Missing]]] = []
    for corpus, rows in missing.items():
        queues.append((corpus, iter(sorted(rows, key=_first_pieces_first) if corpus == "documents" else rows)))
    while queues:
        left = []
        for corpus, queue in queues:
            row = next(queue, None)
            if row is not None:
                yield corpus, row
                left.append((corpus, queue))
        queues = left


def _first_pieces_first(row: Missing) -> tuple[int, int, int, int]:
    return (row.ordinal, -row.ts, row.piece, row.row)
