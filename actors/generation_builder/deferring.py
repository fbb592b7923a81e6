"""Which notes a build leaves to a later one, so that large notes never delay small ones. Pure.

A delta is due a second or two after a change, so it reads a bounded amount of notes: the small ones, newest first, as
long as they fit. The others wait for a full generation, which is due at once, is made in a process of its own and reads
everything; deltas go on meanwhile. A first generation leaves out what is large, for the same reason.
"""

from collections.abc import Iterable

from actors.generation import NoteState
from actors.generation_builder.changes import Key

Notes = Iterable[tuple[Key, NoteState]]


def too_large(notes: Notes, bytes_max: int) -> set[Key]:
    """Return the notes that are larger than this."""
    return {key for key, state in notes if state.size > bytes_max}


def beyond(notes: Notes, *, note_bytes_max: int, bytes_max: int) -> set[Key]:
    """Return those notes that are too large, or that do not fit into `bytes_max` beside newer and smaller ones."""
    deferred: set[Key] = set()
    room = bytes_max
    for key, state in sorted(notes, key=lambda note: (-note[1].mtime_ns, note[0])):
        if state.size > min(room, note_bytes_max):
            deferred.add(key)
        else:
            room -= state.size
    return deferred
