"""What is known of a change of the embedding model, kept beside the generations so that it survives a restart.

Without it a successor would have to be built again, a comparison would be lost, and a model that was rolled back from
would come back by itself. Worth nothing alone: a file that cannot be read is as good as none. Generations are
write-once, so it cannot lie in one of them; a successor is named by its number and trusted only when it verifies.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from actors import generation as generations
from actors.errors import GenerationSuspect
from actors.generation_builder.faults import storage_errors
from actors.messages.builder_work import ModelChange
from actors.messages.index import Comparison, GenerationRef


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file."""

    successor: int | None = None
    declined: str | None = None
    comparison: Comparison | None = None


def keep(index: Path, change: ModelChange) -> None:
    """Keep it, durable on return. Raises DiskFull and BuildFailed."""
    successor = None if change.successor is None else change.successor.generation
    kept = _Kept(successor=successor, declined=change.declined, comparison=change.comparison)
    if kept == _read(index):
        return
    with storage_errors("keeping what is known of a change of the embedding model"):
        generations.replace_file(index / generations.MODEL_CHANGE, msgspec.json.encode(kept) + b"\n")


def recall(index: Path, check: Callable[[], None]) -> ModelChange:
    """Return what was kept last. `check` is called between files and may raise to stop."""
    kept = _read(index)
    successor = None if kept.successor is None else _sound(index, kept.successor, check)
    return ModelChange(successor=successor, declined=kept.declined, comparison=kept.comparison)


def _read(index: Path) -> _Kept:
    try:
        return msgspec.json.decode((index / generations.MODEL_CHANGE).read_bytes(), type=_Kept)
    except (OSError, msgspec.DecodeError):
        return _Kept()


def _sound(index: Path, number: int, check: Callable[[], None]) -> GenerationRef | None:
    """Return a generation whose every byte is what was sealed: it lends its vectors, and later it serves."""
    folder = generations.generation_path(index, number)
    try:
        return generations.reference(folder, generations.verify(folder, check))
    except GenerationSuspect:
        return None
