"""Reading the notes of a scan into rows, file by file; what cannot be read is held, what is no text is skipped.

Promises: a file that is too long for memory is read in pieces; a symlink that has come to lead out of its source
since the scan is not followed; an unreadable file is never taken for a deleted one, and a file system that does not
answer makes all notes of its root unreadable for this time (patience.py).
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import BinaryIO, NamedTuple

from actors.generation import document_path
from actors.generation_builder import skips
from actors.generation_builder.changes import Key
from actors.generation_builder.chunk import ChunkLimits, chunk_markdown
from actors.generation_builder.patience import PATIENCE_S, Patience
from actors.generation_builder.rows import TableRow, document_rows
from actors.generation_builder.scan import Note, RootScan, Scan, absolute, is_offline
from actors.generation_builder.skips import SkipList
from actors.messages.core_writer import SourceRoot
from actors.notes import NotText, Segment, encoding_of, open_note, segments
from actors.redaction import USUAL, LineRedactor, Redactor


class Place(NamedTuple):
    """A root, folder or file as the rows of a generation name it: of this tenant, this path or what is below it."""

    tenant: str
    path: str

    def holds(self, tenant: str, path: str) -> bool:
        """Say whether a row with this tenant and path belongs to the place."""
        return tenant == self.tenant and (path == self.path or path.startswith(_below(self.path)))


def in_places(places: Collection[Place], tenant: str, path: str) -> bool:
    """Say whether a row with this tenant and path belongs to one of the places. As fast as the path is short."""
    end = len(path)
    while end > 0:
        if Place(tenant, path[:end]) in places or Place(tenant, path[: end + 1]) in places:
            return True
        end = path.rfind("/", 0, end)
    return False


class DocumentReader:
    """The notes of a scan (`only` these, if given), in its order, each read once.

    Those that are `deferred` are not read: what was indexed of them before is kept, until another build reads them.
    """

    def __init__(
        self,
        scan: Scan,
        limits: ChunkLimits,
        only: Collection[Key] | None = None,
        *,
        deferred: Collection[Key] = (),
        patience: Patience | None = None,
        redactor: Redactor = USUAL,
    ) -> None:
        self.skipped = SkipList()
        self.held = SkipList()
        self.places = [_place(root.source, relative) for root in scan.roots for relative in root.held]
        self.unread: set[Key] = set()
        self.files_done = 0
        self.held.extend(scan.held)
        self._limits = limits
        self._redactor = redactor
        self._patience = Patience(PATIENCE_S) if patience is None else patience
        chosen: list[tuple[RootScan, Note]] = []
        for root in scan.roots:
            for note in root.notes:
                key = (root.source.source_id, note.relative)
                if key in deferred:
                    self._defer(root.source, note)
                elif only is None or key in only:
                    chosen.append((root, note))
        self.deferred = len(deferred)
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
        path = absolute(root.source, note.relative)
        try:
            file = self._patience.open(root.source.source_id, lambda: _open_inside(root.source, path))
            with file:
                encoding = encoding_of(file, check)
                chunks = chunk_markdown(self._redacted(segments(file, encoding)), self._limits)
                yield from document_rows(root.source, note.relative, note.mtime_ns // 1000, chunks)
        except LeadsOutside:
            self.skipped.add(path, skips.LINK_OUTSIDE, "leads out of the source since it was found")
        except NotText as refused:
            self.skipped.add(path, refused.reason, refused.detail)
        except UnicodeDecodeError:
            self.skipped.add(path, skips.CHANGED, "was written while it was read; the next scan sees it")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            self.skipped.add(path, skips.VANISHED, "was there when the source was scanned")
        except OSError as error:
            self._hold(root.source, note.relative, path, error)

    def _redacted(self, lines: Iterable[Segment]) -> Iterator[Segment]:
        """Yield the lines without their secrets: the note keeps them, a generation never has them."""
        redactor = LineRedactor(self._redactor)
        return (segment._replace(text=redactor.line(segment.text)) for segment in lines)

    def _hold(self, source: SourceRoot, relative: str, path: str, error: OSError) -> None:
        reason = skips.OFFLINE if is_offline(error) else skips.UNREADABLE
        self.held.add(path, reason, f"{error.strerror}; what was indexed of it before is kept")
        self._keep(source, relative)

    def _defer(self, source: SourceRoot, note: Note) -> None:
        detail = f"{note.size} bytes; read by the next full generation, what was indexed of it before is kept"
        self.held.add(absolute(source, note.relative), skips.DEFERRED, detail)
        self._keep(source, note.relative)

    def _keep(self, source: SourceRoot, relative: str) -> None:
        """Keep the rows that the view before has of a note, and have it read as soon as it can be."""
        self.unread.add((source.source_id, relative))
        self.places.append(_place(source, relative))


class LeadsOutside(Exception):
    """A note has become a way out of its source."""


def _open_inside(source: SourceRoot, path: str) -> BinaryIO:
    real = os.path.realpath(path)
    if not real.startswith(_below(os.path.realpath(source.path))):
        raise LeadsOutside
    return open_note(real)


def _place(source: SourceRoot, relative: str) -> Place:
    return Place(source.tenant, document_path(source.name, relative) if relative else source.name)


def _below(path: str) -> str:
    return path if path.endswith("/") else f"{path}/"
