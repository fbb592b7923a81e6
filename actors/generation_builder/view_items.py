"""What became of the items of a view: which are complete, which miss a vector, which have changed since.

Counts what the manifests say, and takes from it what is no longer what the truth holds: units that have changed since,
notes that differ from what was read of them. Only those are looked up in the tables, so that a count costs next to
nothing while nothing has changed. A view is immutable, so the numbers of one count are all of one moment.

Runs in the builder's worker. Raises GenerationSuspect when the view cannot be read, which includes that it is gone.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from actors import generation as generations
from actors.generation import Manifest, Mask, SourceNotes, document_path
from actors.generation_builder import earlier, skips, store
from actors.generation_builder.changes import Key, Place, changes
from actors.generation_builder.item_counter import Tally, items_of
from actors.generation_builder.scan import Scan
from actors.messages.base import Corpus
from actors.messages.builder_work import CountedItems, CountedView, CountInView, FindInView
from actors.messages.generation_builder import ItemState
from actors.messages.index import GenerationRef, Items, Skip

UNREAD = (skips.UNREADABLE, skips.OFFLINE)
EMPTY = "empty"
BARE = "nothing_to_embed"
REFUSED = "refused"
NO_MODEL = "no_model"
UNKNOWN = "not_found"

IsIt = Callable[[str, str, str | None], bool]


class ViewItems:
    """A view (None: there is none) beside the last scan of the sources."""

    def __init__(self, view: GenerationRef | None, scan: Scan) -> None:
        self._view = view
        self._scan = scan
        self._base = None if view is None else Path(view.path)
        self._delta = None if view is None or view.delta_path is None else Path(view.delta_path)
        self._mask = Mask() if self._delta is None else generations.read_mask(self._delta)
        self._notes: list[SourceNotes] = [] if view is None else earlier.read_notes(view)
        self._changes = changes(scan, self._notes)

    # ------------------------------------------------------------ all of them

    def count(self, message: CountInView) -> CountedView:
        """Count the items that are current, and of notes those that are not."""
        return CountedView(
            corpora={
                "events": self._count("events", (), message.refused),
                "units": self._count("units", message.changed_units, message.refused),
                "documents": self._count_notes(message.refused),
            }
        )

    def _count(self, corpus: Corpus, stale: Collection[str], refused: list[bytes]) -> CountedItems:
        current = self._held(corpus).minus(items_of(self._tally(corpus, stale).values()))
        return CountedItems(current=current, refused=self._count_refused(corpus, set(stale), refused))

    def _count_notes(self, refused: list[bytes]) -> CountedItems:
        stale = self._changes.masked
        current = self._held("documents").minus(items_of(self._tally_notes(stale).values()))
        places = [_place(source, note.relative) for source in self._notes for note in source.notes]
        without_rows = sum(place not in stale for place in places) - current.items
        unread = self._unread()
        failed = Counter(skip.reason for skip in _left_out(self._scan))
        failed.update(unread.values())
        failed.update(self._without_rows(max(0, without_rows)))
        failed[skips.MORE] += sum(_more(skip) for skip in self._scan.skipped.list())
        return CountedItems(
            current=current,
            refused=self._count_refused("documents", stale, refused),
            changed=len(self._changes.notes) - len(unread),
            failed={reason: count for reason, count in sorted(failed.items()) if count},
        )

    def _held(self, corpus: Corpus) -> Items:
        return Items() if self._view is None else self._view.items.get(corpus, Items())

    def _count_refused(self, corpus: Corpus, stale: Collection[str | Place], refused: list[bytes]) -> int:
        if self._view is None or self._view.identity is None or not refused:
            return 0
        documents = corpus == "documents"
        masked: set[str | Place] = {*self._mask.documents} if documents else {*self._mask.units}
        keys: set[str | Place] = set()
        for folder, hidden in self._folders(masked):
            for tenant, row_id, path in store.read_keys_of(folder, corpus, refused):
                key = (tenant, path or "") if documents else row_id
                if key not in hidden and key not in stale:
                    keys.add(key)
        return len(keys)

    def _folders(self, masked: Collection[str | Place]) -> Iterable[tuple[Path, Collection[str | Place]]]:
        """Yield the folders of the view, each with what of it does not count."""
        if self._base is not None:
            yield self._base, masked
        if self._delta is not None:
            yield self._delta, ()

    # ------------------------------------------------------------ rows

    def _tally(self, corpus: Corpus, keys: Collection[str]) -> dict[str, Tally]:
        """Return those of these events or units that the view holds."""
        found: dict[str, Tally] = {}
        masked = set(self._mask.units) if corpus == "units" else set[str]()
        if self._base is not None:
            found = store.tally_items(
                self._base, corpus, [key for key in keys if key not in masked], vectors=self._has_vectors
            )
        if self._delta is not None:
            found |= store.tally_items(self._delta, corpus, list(keys), vectors=self._has_vectors)
        return found

    def _tally_notes(self, places: Collection[Place]) -> dict[Place, Tally]:
        found: dict[Place, Tally] = {}
        if self._base is not None:
            unmasked = set(places) - set(self._mask.documents)
            found = store.tally_notes(self._base, unmasked, vectors=self._has_vectors)
        if self._delta is not None:
            found |= store.tally_notes(self._delta, set(places), vectors=self._has_vectors)
        return found

    @property
    def _has_vectors(self) -> bool:
        return self._view is not None and self._view.identity is not None

    # ------------------------------------------------------------ notes that are not there

    def _unread(self) -> dict[Key, str]:
        """Return the notes that could not be read when the view was made, and why."""
        manifest = self._manifest()
        held = {} if manifest is None else {skip.path: skip.reason for skip in manifest.held if skip.reason in UNREAD}
        if not held:
            return {}
        paths = {
            (root.source.source_id, note.relative): f"{root.source.path.rstrip('/')}/{note.relative}"
            for root in self._scan.roots
            for note in root.notes
        }
        return {key: held[paths[key]] for key in self._changes.notes if paths.get(key) in held}

    def _without_rows(self, count: int) -> Counter[str]:
        """Return why so many notes that were read have no rows: no text, or none to speak of."""
        manifest = self._manifest()
        if manifest is None or not count:
            return Counter()
        found = Counter[str]()
        known = {skip.path: skip.reason for skip in manifest.skipped}
        for root in self._scan.roots:
            for note in root.notes:
                reason = known.get(f"{root.source.path.rstrip('/')}/{note.relative}")
                key = root.source.source_id, note.relative
                if reason is not None and key not in self._changes.notes and found.total() < count:
                    found[reason] += 1
        found[EMPTY] += count - found.total()
        return found

    def _manifest(self) -> Manifest | None:
        folder = self._delta or self._base
        return None if folder is None else generations.read_manifest(folder)

    # ------------------------------------------------------------ one of them

    def find(self, message: FindInView) -> ItemState:
        """Return the state of one item that is not newer than the view."""
        if message.corpus == "documents":
            return self._find_note(message)
        tally = self._tally(message.corpus, [message.key]).get(message.key)
        if tally is None:
            return ItemState(words="searchable", meaning="pending", reason=None)
        return self._by_meaning(tally, message, lambda tenant, row_id, path: row_id == message.key)

    def _find_note(self, message: FindInView) -> ItemState:
        place = message.tenant, message.key
        known = {_place(source, note.relative) for source in self._notes for note in source.notes}
        skip = next((skip for skip in self._named_skips() if self._is_at(skip, place)), None)
        if place in self._changes.masked and place in self._scanned():
            if skip is not None and skip.reason in UNREAD:
                return ItemState(words="failed", meaning="failed", reason=skip.reason)
            return ItemState(words="pending", meaning="pending")
        tally = None if place in self._changes.masked else self._tally_notes({place}).get(place)
        if tally is not None:
            return self._by_meaning(tally, message, lambda tenant, row_id, path: (tenant, path) == place)
        reason = skip.reason if skip is not None else EMPTY if place in known else UNKNOWN
        return ItemState(words="failed", meaning="failed", reason=reason)

    def _by_meaning(self, tally: Tally, message: FindInView, is_it: IsIt) -> ItemState:
        if not tally.embeddable:
            return ItemState(words="searchable", meaning="failed", reason=BARE)
        if not self._has_vectors:
            return ItemState(words="searchable", meaning="pending")
        if tally.complete:
            return ItemState(words="searchable", meaning="searchable")
        for folder, _ in self._folders(()):
            if any(is_it(*key) for key in store.read_keys_of(folder, message.corpus, message.refused)):
                return ItemState(words="searchable", meaning="failed", reason=REFUSED)
        return ItemState(words="searchable", meaning="pending")

    def _scanned(self) -> set[Place]:
        return {
            (root.source.tenant, document_path(root.source.name, note.relative))
            for root in self._scan.roots
            for note in root.notes
        }

    def _named_skips(self) -> list[Skip]:
        manifest = self._manifest()
        known = [] if manifest is None else [*manifest.held, *manifest.skipped]
        return [*_left_out(self._scan), *known]

    def _is_at(self, skip: Skip, place: Place) -> bool:
        return any(
            (root.source.tenant, document_path(root.source.name, skip.path[len(prefix) :])) == place
            for root in self._scan.roots
            if skip.path.startswith(prefix := f"{root.source.path.rstrip('/')}/")
        )


def _place(source: SourceNotes, relative: str) -> Place:
    return source.tenant, document_path(source.name, relative)


def _left_out(scan: Scan) -> list[Skip]:
    """Return the files that the walk left out by name."""
    return [skip for skip in scan.skipped.list() if skip.reason not in (skips.ROUTINE, skips.MORE)]


def _more(skip: Skip) -> int:
    return int(skip.detail.split()[0]) if skip.reason == skips.MORE else 0
