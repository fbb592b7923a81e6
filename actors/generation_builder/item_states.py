"""From what was counted to what is told: accepted, searchable, pending, failed, by words and by meaning. Pure.

By words an event or a unit is searchable once it is acknowledged: the keyword search of the truth finds what no view
has yet. A note is when it is in a view as it is now. By meaning an item is searchable when all of its text that can
have a vector has one in the view that serves; what failed is tried again with the next generation, or never will
(`nothing_to_embed`, `no_model`).
"""

from actors.generation_builder.view_items import BARE, NO_MODEL, REFUSED
from actors.messages.builder_work import CountedItems, CountedView
from actors.messages.core_writer import UnitChanges
from actors.messages.generation_builder import CorpusItems, ItemCounts, StateCounts
from actors.messages.index import GenerationRef


def item_counts(
    view: GenerationRef | None, counted: CountedView, *, events: int, units: int, model: bool, at: int
) -> ItemCounts:
    """Put the counts of a view and of what is newer than it together.

    `events` and `units` are how many the truth has that the view has not, or not as they are now; `model` says whether
    there is one that could make vectors.
    """
    corpora = counted.corpora
    documents = corpora["documents"]
    return ItemCounts(
        at=at,
        view=None if view is None else view.view,
        corpora={
            "events": _of_truth(view, corpora["events"], events, model=model),
            "units": _of_truth(view, corpora["units"], units, model=model),
            "documents": CorpusItems(
                accepted=documents.current.items + documents.changed + sum(documents.failed.values()),
                words=_states(documents.current.items, documents.changed, documents.failed),
                meaning=_by_meaning(view, documents, documents.changed, model=model),
            ),
        },
    )


def changed_last(pages: list[UnitChanges]) -> tuple[list[str], int]:
    """Return the ids of all units that changed, and how many are active. What came twice counts as it is last."""
    active: dict[str, bool] = {}
    for page in pages:
        active.update(dict.fromkeys(page.active, True))
        active.update(dict.fromkeys(page.gone, False))
    return list(active), sum(active.values())


def _of_truth(view: GenerationRef | None, counted: CountedItems, newer: int, *, model: bool) -> CorpusItems:
    accepted = counted.current.items + newer
    return CorpusItems(
        accepted=accepted,
        words=StateCounts(searchable=accepted),
        meaning=_by_meaning(view, counted, newer, model=model),
    )


def _by_meaning(view: GenerationRef | None, counted: CountedItems, newer: int, *, model: bool) -> StateCounts:
    held = counted.current
    failed = dict(counted.failed)
    if view is None or view.identity is None:
        if model:
            return _states(0, held.items + newer, failed)
        return _states(0, 0, {**failed, NO_MODEL: held.items + newer})
    failed |= {BARE: held.bare, REFUSED: counted.refused}
    pending = held.items - held.complete - held.bare - counted.refused + newer
    return _states(held.complete, pending, failed)


def _states(searchable: int, pending: int, failed: dict[str, int]) -> StateCounts:
    reasons = {reason: count for reason, count in failed.items() if count}
    return StateCounts(searchable=searchable, pending=pending, failed=sum(reasons.values()), reasons=reasons)
