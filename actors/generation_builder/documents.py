"""Reading the notes of a scan into rows, file by file; what cannot be read is held, what is no text is skipped.

Promises: a file that is too long for memory is read in pieces; a symlink that has come to lead out of its source
since the scan is not followed; an unreadable file is never taken for a deleted one.
"""

import os
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from actors.generation import document_path
from actors.generation_builder import skips
from actors.generation_builder.changes import Key
from actors.generation_builder.chunk import ChunkLimits, chunk_markdown
from actors.generation_builder.rows import TableRow, document_rows
from actors.generation_builder.scan import Note, RootScan, Scan, is_offline
from actors.generation_builder.skips import SkipList
from actors.messages import SourceRoot
from actors.notes import NotText, encoding_of, open_note, segments


class Place(NamedTuple):
    """A root, folder or file as the rows of a generation name it: of this tenant, this path or what is below it."""

    tenant: str
    path: str

    def holds(self, tenant: str, path: str) -> bool:
        """Say whether a row with this tenant and path belongs to the place."""
        return tenant == self.tenant and (path == self.path or path.startswith(_below(self.path)))


class DocumentReader:
    """The notes of a scan (`only` these, if given), in its order, each read once."""

    def __init__(self, scan: Scan, limits: ChunkLimits, only: Collection[Key] | None = None) -> None:
        self.skipped = SkipList()
        self.held = SkipList()
        self.places = [_place(root.source, relative) for root in scan.roots for relative in root.held]
        self.unread: set[Key] = set()
        self.files_done = 0
        self.held.extend(scan.held)
        self._limits = limits
        chosen = [
            (root, note)
            for root in scan.roots
            for note in root.notes
            if only is None or (root.source.source_id, note.relative) in only
        ]
        self.files = len(chosen)
        self._notes = iter(chosen)

    def next_file(self, check: Callable[[], None]) -> Iterator[TableRow] | None:
        """Return the rows of the next note, to be exhausted before the next call; None after the last."""
        following = next(self._notes, None)
        if following is None:
            return None
        self.files_done += 1
        return self._rows(*following, check)

    def _rows(self, root: RootScan, note: Note, check: Callable[[], None]) -> Iterator[TableRow]:
        path = os.path.join(root.source.path, note.relative)  # noqa: PTH118 - as the scan writes it
        try:
            real = os.path.realpath(path)
            if not real.startswith(_below(os.path.realpath(root.source.path))):
                self.skipped.add(path, skips.LINK_OUTSIDE, "leads out of the source since it was found")
                return
            file = open_note(real)
            with file:
                encoding = encoding_of(file, check)
                chunks = chunk_markdown(segments(file, encoding), self._limits)
                yield from document_rows(root.source, note.relative, note.mtime_ns // 1000, chunks)
        except NotText as refused:
            self.skipped.add(path, refused.reason, refused.detail)
        except UnicodeDecodeError:
            self.skipped.add(path, skips.CHANGED, "was written while it was read; the next scan sees it")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            self.skipped.add(path, skips.VANISHED, "was there when the source was scanned")
        except OSError as error:
            self._hold(root.source, note.relative, path, error)

    def _hold(self, source: SourceRoot, relative: str, path: str, error: OSError) -> None:
        reason = skips.OFFLINE if is_offline(error) else skips.UNREADABLE
        self.held.add(path, reason, f"{error.strerror}; what was indexed of it before is kept")
        self.unread.add((source.source_id, relative))
        self.places.append(_place(source, relative))


def _place(source: SourceRoot, relative: str) -> Place:
    return Place(source.tenant, document_path(source.name, relative) if relative else source.name)


def _below(path: str) -> str:
    return path if path.endswith("/") else f"{path}/"
