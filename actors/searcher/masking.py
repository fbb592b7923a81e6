"""Which rows of a generation a delta takes the place of, in the form in which a query needs it. Pure.

Made once, when a view is opened. A query looks at the name of each hit, so a mask of any size costs it nothing.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple

from actors.generation import Mask
from actors.messages.base import Corpus


class Hidden(NamedTuple):
    """Rows of one corpus that must not be answered: those whose `column` is one of `names`, at most `rows_max`."""

    column: str
    names: Collection[str]
    rows_max: int


class Masking:
    """What a delta masks. `rows` is how many rows of its generation that are, by corpus."""

    def __init__(self, mask: Mask, rows: Mapping[str, int]) -> None:
        self._rows = rows
        self._units = frozenset(mask.units)
        paths: defaultdict[str, set[str]] = defaultdict(set)
        for tenant, path in mask.documents:
            paths[tenant].add(path)
        self._documents = dict(paths)

    def hidden(self, corpus: Corpus, tenant: str) -> Hidden | None:
        """Return what to leave out of the hits of a tenant, None when that is nothing. Events are never masked."""
        column, names = ("id", self._units) if corpus == "units" else ("path", self._documents.get(tenant, frozenset()))
        if corpus == "events" or not names:
            return None
        return Hidden(column, names, self._rows.get(corpus, 0))
