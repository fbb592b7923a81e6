"""What an earlier view has that a build can use again: its vectors, and the rows and states of notes.

A view is a generation, or one with a delta over it; then what the delta masks of the generation is left out.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from actors import generation as generations
from actors.errors import GenerationSuspect
from actors.generation import Mask, SourceNotes, document_path
from actors.generation_builder import store
from actors.generation_builder.staging import row_schema
from actors.messages.index import GenerationRef

if TYPE_CHECKING:
    import pyarrow as pa

    from actors.generation_builder.vectors import Matrix


def vectors(view: GenerationRef, dimensions: int) -> "Iterator[tuple[list[bytes], Matrix]]":
    """Yield the hashes and vectors of a view, some thousand at a time. Raises GenerationSuspect."""
    for folder in _folders(view):
        yield from store.read_vectors(folder, dimensions)


def documents(view: GenerationRef) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of the notes of a view, without their vectors. Raises GenerationSuspect."""
    import pyarrow as pa

    columns = row_schema().names
    masked = set(_mask(view).documents)
    for batch in store.read_rows(Path(view.path), "documents", columns):
        rows = batch.select(["tenant", "path"]).to_pylist()
        kept = [number for number, row in enumerate(rows) if (row["tenant"], row["path"]) not in masked]
        yield batch.take(pa.array(kept, pa.int64()))
    if view.delta_path is not None:
        yield from store.read_rows(Path(view.delta_path), "documents", columns)


def notes(view: GenerationRef) -> list[SourceNotes]:
    """Return which notes a view holds; nothing when that cannot be read, so that all of them count as new."""
    try:
        return read_notes(view)
    except GenerationSuspect:
        return []


def read_notes(view: GenerationRef) -> list[SourceNotes]:
    """Return which notes a view holds. Raises GenerationSuspect."""
    masked = set(_mask(view).documents)
    known = [_without(source, masked) for source in generations.read_notes(Path(view.path))]
    if view.delta_path is None:
        return known
    return _joined(known, generations.read_notes(Path(view.delta_path)))


def _joined(base: list[SourceNotes], delta: list[SourceNotes]) -> list[SourceNotes]:
    found = {source.source_id: source for source in base}
    for source in delta:
        earlier = found.get(source.source_id)
        kept = earlier.notes if earlier is not None and earlier.path == source.path else []
        found[source.source_id] = msgspec.structs.replace(source, notes=[*kept, *source.notes])
    return list(found.values())


def _without(source: SourceNotes, masked: set[tuple[str, str]]) -> SourceNotes:
    kept = [note for note in source.notes if (source.tenant, document_path(source.name, note.relative)) not in masked]
    return msgspec.structs.replace(source, notes=kept)


def _mask(view: GenerationRef) -> Mask:
    return Mask() if view.delta_path is None else generations.read_mask(Path(view.delta_path))


def _folders(view: GenerationRef) -> list[Path]:
    return [Path(path) for path in (view.delta_path, view.path) if path is not None]
