"""Reading lines of a note that lies under a registered root, and nothing else.

Owns no state. Promises: a path that leads out of the roots (by `..`, by a symlink, by an absolute name) is answered
like a path that does not exist, in the same words, so that nothing can be learned about the rest of the disk; a file
of any size is read in blocks and only the lines asked for are kept. It is not an index: line numbers are those of the
file as it is now, which may have changed since a search cited them.
"""

import codecs
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from actors.errors import InvalidParams, NotFound
from actors.messages.core_writer import SourceRoot
from actors.messages.searcher import ReadLines
from actors.notes import NotText, encoding_of
from actors.redaction import USUAL, Counts, Redactor, defuse
from actors.text import visible

BLOCK_BYTES = 1 << 20
PATH_CHARS_MAX = 4096


class DocumentLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one read may return, and which files count as notes (by the end of their name, lower case)."""

    lines_max: int
    bytes_max: int
    suffixes: tuple[str, ...]


class DocumentLines(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, as the client reads it.

    `text` is whole lines, except that a single line longer than the byte limit is cut. `truncated` says that a limit
    kept back a part of what was asked for; `next_from_line` is where to go on, None at the end of the file.
    """

    path: str
    from_line: int
    to_line: int
    total_lines: int
    text: str
    truncated: bool
    next_from_line: int | None


def read_lines(
    request: ReadLines, limits: DocumentLimits, check: Callable[[], None], redactor: Redactor = USUAL
) -> bytes:
    """Return the lines as JSON text (a DocumentLines).

    `check` is called after every block and raises when the work should stop. Raises InvalidParams for a path that
    no file can have, NotFound for one that is not a readable note under the roots.
    """
    first = max(1, request.from_line)
    wanted = limits.lines_max if request.lines is None else min(max(1, request.lines), limits.lines_max)
    capped = request.lines is None or request.lines > limits.lines_max
    page = _Page(first, wanted, limits.bytes_max)
    try:
        with _open_note(request.path, request.sources, limits.suffixes) as file:
            for block in _blocks(file, check):
                page.feed(block)
    except OSError as error:
        # An online-only placeholder or a failing disk: the file is there, and now is not the time.
        raise NotFound(f"document could not be read: {error.strerror}", hint="try again later") from error
    page.end()
    last = first + len(page.lines) - 1
    more = last < page.total
    answer = DocumentLines(
        path=request.path,
        from_line=first,
        to_line=last,
        total_lines=page.total,
        text=defuse(visible(redactor.text(page.text(), Counts(), lines=True))),
        truncated=page.cut or (more and (page.full or (capped and len(page.lines) == wanted))),
        next_from_line=last + 1 if more and page.lines else None,
    )
    return msgspec.json.encode(answer)


def _open_note(path: str, sources: Sequence[SourceRoot], suffixes: tuple[str, ...]) -> BinaryIO:
    """Open the note that `path` names, for reading, or refuse without saying why."""
    if not path or "\0" in path or len(path) > PATH_CHARS_MAX:
        raise InvalidParams(f"read refused: path of {len(path)} characters, valid are 1 to {PATH_CHARS_MAX}, no NUL")
    for root, candidate in _candidates(path, sources):
        real = Path(os.path.realpath(candidate))
        # The name decides whether it is a note, as in the scan; the resolved path decides where it lies.
        if candidate.name.lower().endswith(suffixes) and real.is_relative_to(root):
            file = _open_regular(real)
            if file is not None:
                return file
    raise NotFound(
        f"document {path!r} is not a readable note under the registered sources", hint="`source.list` names the roots"
    )


def _candidates(path: str, sources: Sequence[SourceRoot]) -> Iterator[tuple[Path, Path]]:
    """Yield (resolved root, file) for every reading of `path`: absolute, `<root name>/…`, relative to a root."""
    asked = Path(path)
    roots = [(Path(os.path.realpath(source.path)), source.name) for source in sources]
    if not asked.is_absolute():
        yield from ((root, root / path.removeprefix(f"{name}/")) for root, name in roots if path.startswith(f"{name}/"))
    yield from ((root, root / asked) for root, _ in roots)  # an absolute path stays itself


def _open_regular(real: Path) -> BinaryIO | None:
    """Open a resolved path if it is a regular file.

    O_NOFOLLOW: a symlink put there since it was resolved is refused. O_NONBLOCK: a FIFO must not hang the lane.
    """
    try:
        fd = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return os.fdopen(fd, "rb")
    os.close(fd)
    return None


def _blocks(file: BinaryIO, check: Callable[[], None]) -> Iterator[bytes]:
    """Yield the file in blocks of UTF-8 without a byte order mark, whatever its encoding is.

    The encoding is found as the builder finds it. What is not text at all is read as UTF-8 with replacements: nobody
    indexed it, but who asks for a file of notes by name may see what is in it.
    """
    try:
        encoding = encoding_of(file, check)
    except NotText:
        encoding = "utf-8"
    if encoding not in ("utf-8", "utf-8-sig"):
        yield from _recoded(file, codecs.getincrementaldecoder(encoding)("replace"), check)
        return
    if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
        file.seek(0)
    while block := file.read(BLOCK_BYTES):
        yield block
        check()


def _recoded(file: BinaryIO, decoder: codecs.IncrementalDecoder, check: Callable[[], None]) -> Iterator[bytes]:
    while block := file.read(BLOCK_BYTES):
        if text := decoder.decode(block):
            yield text.encode("utf-8", "replace")
        check()


class _Page:
    """Collects lines `first` to `first + wanted - 1` from blocks, at most `bytes_max` of them, and counts the rest."""

    def __init__(self, first: int, wanted: int, bytes_max: int) -> None:
        self.lines: list[bytes] = []
        self.total = 0  # complete lines so far
        self.full = False  # the byte limit ended the page before `wanted` lines
        self.cut = False  # the first line alone exceeds the byte limit
        self._first = first
        self._wanted = wanted
        self._room = bytes_max
        self._open = bytearray()  # the unfinished line, no more of it than could ever be returned
        self._pending = False

    def feed(self, block: bytes) -> None:
        start = 0
        while not self._done():
            end = block.find(b"\n", start)
            if end < 0:
                break
            self._extend(block[start:end])
            self._finish()
            start = end + 1
        if self._done():
            self.total += block.count(b"\n", start)
            self._pending = not block.endswith(b"\n")
        else:
            self._extend(block[start:])
            self._pending = start < len(block) or (self._pending and start == 0)

    def end(self) -> None:
        """Count the last line when no newline ends it."""
        if not self._pending:
            return
        if self._done():
            self.total += 1
        else:
            self._finish()

    def text(self) -> str:
        return b"\n".join(self.lines).decode("utf-8", errors="replace")

    def _done(self) -> bool:
        return self.full or len(self.lines) == self._wanted

    def _extend(self, piece: bytes) -> None:
        if self.total + 1 >= self._first:
            self._open += piece[: max(0, self._room + 1 - len(self._open))]

    def _finish(self) -> None:
        self.total += 1
        line = bytes(self._open).removesuffix(b"\r")
        self._open.clear()
        if self.total < self._first:
            return
        if len(line) > self._room:
            if self.lines:
                self.full = True
                return
            line, self.cut = _cut(line, self._room), True
        self.lines.append(line)
        self._room -= len(line) + 1
        self.full = self.cut or (self._room < 0 and len(self.lines) < self._wanted)


def _cut(line: bytes, size: int) -> bytes:
    """Return at most `size` bytes of a line, without half a character at the end."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(line[:size]).encode()


def resolve_folder(path: str) -> str:
    """Return the folder that an absolute path leads to, links followed; raises InvalidParams when it cannot be read."""
    if not Path(path).is_absolute() or "\0" in path or len(path) > PATH_CHARS_MAX:
        raise InvalidParams(f"source.add refused: path is {path[:PATH_CHARS_MAX]!r}, it must be absolute")
    resolved = Path(os.path.realpath(path))
    if not resolved.is_dir():
        raise InvalidParams(f"source.add refused: {path!r} is no folder on this machine")
    if not os.access(resolved, os.R_OK | os.X_OK):
        raise InvalidParams(f"source.add refused: folder {path!r} may not be read by this user")
    return str(resolved)
