"""An embedding model made of arithmetic: the normalised sum of one fixed random vector per distinct word.

Texts that share words are near each other, as with a real model, so that an approximate index has something to find.
Each name is a model of its own: the vectors of two have nothing to do with each other, so a comparison across them
shows in the hits. Numbers are rounded to nine decimals, as embedding services send them; so whoever asks holds the
same vectors to the bit.
"""

import re
import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MODEL = "deterministic"
ROWS = 4096
DECIMALS = 9
_SEEDS = {MODEL: 4}  # what was measured was measured with it
_WORD = re.compile(r"[a-z0-9]+|[^\x00-\x7f]")


class Vectors:
    """A model of so many dimensions. Takes `4096 × dimensions × 4` bytes."""

    def __init__(self, dimensions: int, model: str = MODEL) -> None:
        seed = _SEEDS.get(model, zlib.crc32(model.encode()))
        generator = np.random.Generator(np.random.PCG64(seed))
        self._table = generator.standard_normal((ROWS, dimensions), dtype=np.float32)

    def of(self, text: str) -> "NDArray[np.float64]":
        """Return the unit vector of a text."""
        rows = sorted({zlib.crc32(word.encode()) % ROWS for word in _WORD.findall(text.lower())}) or [0]
        summed: NDArray[np.float64] = self._table[rows].sum(axis=0, dtype=np.float64)
        return (summed / np.linalg.norm(summed)).round(DECIMALS)
