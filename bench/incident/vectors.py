"""The embedding model of the run: the normalised sum of one fixed random vector per distinct word. Deterministic.

Texts that share words are near each other, as with a real model, so that an approximate index has something to find.
Numbers are rounded to nine decimals, as embedding services send them; so both systems hold the same vectors to the bit.
"""

import re
import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEED = 4
ROWS = 4096
DECIMALS = 9
_WORD = re.compile(r"[a-z0-9]+|[^\x00-\x7f]")


class Vectors:
    """A model of so many dimensions. Takes `4096 × dimensions × 4` bytes."""

    def __init__(self, dimensions: int) -> None:
        generator = np.random.Generator(np.random.PCG64(SEED))
        self._table = generator.standard_normal((ROWS, dimensions), dtype=np.float32)

    def of(self, text: str) -> "NDArray[np.float64]":
        """Return the unit vector of a text."""
        rows = sorted({zlib.crc32(word.encode()) % ROWS for word in _WORD.findall(text.lower())}) or [0]
        summed: NDArray[np.float64] = self._table[rows].sum(axis=0, dtype=np.float64)
        return (summed / np.linalg.norm(summed)).round(DECIMALS)
