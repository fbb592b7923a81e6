"""Which terms the self-test looks for: some of every table, and a Chinese, Japanese or Korean one if there is any.

Chosen while rows are staged, from what the analyser made of them; asked of the finished index. Pure.
"""

import re
from typing import NamedTuple

from actors.generation_builder.rows import TableRow

_UNSPACED_PAIR = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{2}")


class Probe(NamedTuple):
    """This term must find this row."""

    id: str
    part: int
    term: str


class Probes:
    """Collects probes of one corpus: rows 1, 2, 4, 8 … and the first that holds a pair of unspaced characters."""

    def __init__(self) -> None:
        self._seen = 0
        self._spread: list[Probe] = []
        self._unspaced: Probe | None = None

    def offer(self, row: TableRow) -> None:
        """Look at the next row that was staged."""
        self._seen += 1
        if self._seen & (self._seen - 1) == 0:
            terms = row.terms.split()
            if terms:
                # The longest term is the most likely to break: by a length limit, or by a tokenizer that cuts it.
                self._spread.append(Probe(row.id, row.part, max(terms, key=len)))
        if self._unspaced is None and not row.terms.isascii():
            pair = next((term for term in row.terms.split() if _UNSPACED_PAIR.fullmatch(term)), None)
            if pair is not None:
                self._unspaced = Probe(row.id, row.part, pair)

    def list(self) -> list[Probe]:
        """Return what to look for."""
        return self._spread if self._unspaced is None else [*self._spread, self._unspaced]
