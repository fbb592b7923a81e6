"""Which notes a delta has to hold: those that differ from what its generation read, and what is to be masked. Pure.

A note is known by its root and its place below it, and has changed when its size, times, inode or mode have. A root
that came, went or was renamed is many notes that did. What lies in a held place is unchanged: it cannot be looked at.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from actors.generation import NoteState, SourceNotes, document_path
from actors.generation_builder.scan import Note, RootScan, Scan

Place = tuple[str, str]  # tenant, document_path()
Key = tuple[str, str]  # source_id, relative


class Changes(NamedTuple):
    """What differs: notes to be held by the delta, and the places of the generation that it masks.

    Every note of `notes` is in `masked` too, new ones included: masking what is not there does no harm, and the rows
    of a root that was held when the generation was built are not all known.
    """

    notes: dict[Key, NoteState]
    masked: set[Place]


def changes(scan: Scan, held: Iterable[SourceNotes]) -> Changes:
    """Compare the notes of a scan with those that a generation holds."""
    found = Changes({}, set())
    roots = {root.source.source_id: root for root in scan.roots}
    known: dict[str, dict[str, NoteState]] = {}
    for source in held:
        root = roots.get(source.source_id)
        if root is None or not _is_same(root, source):
            found.masked.update((source.tenant, document_path(source.name, note.relative)) for note in source.notes)
            continue
        known[source.source_id] = {note.relative: note for note in source.notes}
        present = {note.relative for note in root.notes}
        found.masked.update(
            _place(root, note.relative)
            for note in source.notes
            if note.relative not in present and not is_held(note.relative, root.held)
        )
    for root in scan.roots:
        _compare(root, known.get(root.source.source_id, {}), found)
    return found


def notes_of(scan: Scan, before: Iterable[SourceNotes], unread: Collection[Key]) -> list[SourceNotes]:
    """Return what a generation built from a scan holds.

    Of held places it holds what the one before did; notes that could not be read (`unread`) do not count, so that they
    are read as soon as they can be.
    """
    known = {source.source_id: source for source in before}
    return [_notes_of(root, known.get(root.source.source_id), unread) for root in scan.roots]


def is_held(relative: str, held: Iterable[str]) -> bool:
    """Say whether a note lies in one of the held places of its root ("" is all of it)."""
    return any(place in ("", relative) or relative.startswith(f"{place}/") for place in held)


def state_of(note: Note) -> NoteState:
    """Return what tells whether a note changes."""
    return NoteState(note.relative, note.size, note.mtime_ns, note.inode, note.mode)


def _notes_of(root: RootScan, before: SourceNotes | None, unread: Collection[Key]) -> SourceNotes:
    source = root.source
    notes = [state_of(note) for note in root.notes if (source.source_id, note.relative) not in unread]
    if before is not None and _is_same(root, before):
        read = {note.relative for note in root.notes}
        notes += [note for note in before.notes if note.relative not in read and is_held(note.relative, root.held)]
    return SourceNotes(
        source_id=source.source_id, path=source.path, name=source.name, tenant=source.tenant, notes=notes
    )


def _compare(root: RootScan, known: Mapping[str, NoteState], found: Changes) -> None:
    for note in root.notes:
        state = state_of(note)
        if known.get(note.relative) != state:
            found.notes[root.source.source_id, note.relative] = state
            found.masked.add(_place(root, note.relative))


def _is_same(root: RootScan, source: SourceNotes) -> bool:
    """Say whether a root is still what it was: moved or renamed, its notes are others."""
    now = root.source
    return (now.path, now.name, now.tenant) == (source.path, source.name, source.tenant)


def _place(root: RootScan, relative: str) -> Place:
    return root.source.tenant, document_path(root.source.name, relative)
