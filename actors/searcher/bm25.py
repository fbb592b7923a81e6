"""The keyword score of LanceDB, computed again with the frequencies of several tables together. Pure.

LanceDB weighs a term by how rare it is in the table that is asked, and a row by its length against the mean of that
table. In a delta of a hundred rows every term is rare or common by chance, so its scores are not comparable with
those of its generation. With the frequencies of both (and without the rows that are masked) every row scores what it
would in one table that holds them all. The tests hold this formula against the scores of LanceDB itself.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

K1 = 1.2
B = 0.75


class Frequencies(msgspec.Struct, frozen=True, kw_only=True):
    """What BM25 needs to know of a table: its rows, the terms in all of them, and the rows that hold each asked one."""

    rows: int
    length: int
    rows_with: tuple[int, ...]


def total(parts: Sequence[tuple[int, Frequencies]]) -> Frequencies:
    """Return the frequencies of tables together: each counts +1 or, when its rows are gone from the others, -1."""
    return Frequencies(
        rows=max(0, sum(sign * part.rows for sign, part in parts)),
        length=max(0, sum(sign * part.length for sign, part in parts)),
        rows_with=tuple(
            max(0, sum(sign * count for (sign, _), count in zip(parts, counts, strict=True)))
            for counts in zip(*(part.rows_with for _, part in parts), strict=True)
        ),
    )


def scores(held: "NDArray[np.int64]", lengths: "NDArray[np.int64]", of: Frequencies) -> "NDArray[np.float64]":
    """Return the score of each row. `held` has a row for each and a column for each asked term: how often it holds it.

    `lengths` is how many terms each row has.
    """
    import numpy as np

    rows_with = np.array(of.rows_with, dtype=np.float64)
    # A row that is searched is counted; were the counts to lag behind, the logarithm must stay one of more than 1.
    rarity = np.log(1 + (np.maximum(of.rows, rows_with) - rows_with + 0.5) / (rows_with + 0.5))
    mean = of.length / of.rows if of.rows and of.length else 1.0
    norms = K1 * (1 - B + B * lengths / mean)
    weighed: NDArray[np.float64] = (K1 + 1) * held / (held + norms[:, None]) @ rarity
    return weighed
