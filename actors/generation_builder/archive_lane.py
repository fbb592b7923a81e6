"""The lane of the builder's worker that writes and reads archives: one is under way at a time."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from actors.child import CallContext
from actors.errors import BuildFailed, BulkheadError
from actors.messages.archives import AddToArchive, ArchiveWork, BeginArchive, SealArchive, VerifyArchive
from actors.messages.base import Done

if TYPE_CHECKING:
    from actors.generation_builder.archive_file import ArchiveWriter


class ArchiveLane:
    """Archives in a folder. Whatever goes wrong, the one under way is dropped, and the next attempt begins anew."""

    def __init__(self, folder: Path, identity: str) -> None:
        self._folder = folder
        self._identity = identity
        self._writer: ArchiveWriter | None = None

    def handle(self, message: ArchiveWork, call: CallContext) -> msgspec.Struct:
        """Do one step."""
        from actors.generation_builder import archive_file

        if isinstance(message, VerifyArchive):
            archive_file.verify(self._folder, message.archive, call.check)
            return Done()
        try:
            match message:
                case BeginArchive():
                    self._drop()
                    self._writer = archive_file.ArchiveWriter(self._folder, message.number, self._identity)
                case AddToArchive():
                    self._under_way().add(message.rows)
                case SealArchive():
                    sealed = self._under_way().seal(call.check)
                    self._writer = None
                    return sealed
        except BulkheadError:
            self._drop()
            raise
        return Done()

    def close(self) -> None:
        """Drop what is under way."""
        self._drop()

    def _under_way(self) -> "ArchiveWriter":
        if self._writer is None:
            raise BuildFailed("archiving refused: no archive is under way in this process")
        return self._writer

    def _drop(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.drop()
