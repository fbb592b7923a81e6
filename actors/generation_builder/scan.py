"""Which notes the source roots hold: names, sizes and times; contents are not read.

Promises: the order and the digest depend on the tree alone. Hidden entries, `.gitignore`d ones, `node_modules` and
virtual environments are passed over. A symlink that stays inside its root is followed, each file and folder once;
one that leads out is reported. Nothing that cannot be read is taken for deleted: a root that is gone, closed or all
at once empty, and a folder that cannot be listed, are *held*, which means that the build keeps the rows it had.

The walk is a loop, not a recursion, holds one folder open at a time and never reads a note, so ten thousand files
cost about as much as `ls -lR`.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from actors.generation import FORMAT, SourceState
from actors.generation_builder import ignore, skips
from actors.generation_builder.skips import SkipList
from actors.messages.core_writer import SourceRoot
from actors.messages.index import Skip
from actors.settings import GenerationBuilderSettings
from actors.text import ANALYSER_VERSION

SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__"})
VENV_MARK = "pyvenv.cfg"
# A root that had this many notes and has none is held, even when other files are left in it. With fewer, somebody
# may well have deleted them; a folder with nothing at all in it looks like one that is not mounted.
EMPTIED_FILES_MIN = 5


class ScanLimits(NamedTuple):
    """What counts as a note, and how it will be cut (which is part of the digest: other limits, other rows)."""

    suffixes: tuple[str, ...]
    file_bytes_max: int
    files_max: int
    chunk_tokens: int
    chunk_tokens_max: int


def scan_limits(settings: GenerationBuilderSettings) -> ScanLimits:
    """Return the part of the settings that a scan depends on."""
    return ScanLimits(
        settings.suffixes,
        settings.file_bytes_max,
        settings.files_max,
        settings.chunk_tokens,
        settings.chunk_tokens_max,
    )


class Note(NamedTuple):
    """A file to index: its place below the root, and what tells whether it changed."""

    relative: str
    size: int
    mtime_ns: int
    inode: int
    mode: int


class RootScan(NamedTuple):
    """What was found under a root. `held` are places below it ("" is all of it) whose rows are to be kept."""

    source: SourceRoot
    notes: list[Note]
    held: list[str]
    state: SourceState


class Scan(NamedTuple):
    """The roots in the order in which they were given, and what was left out and why.

    `unfinished` are the ids of roots whose walk goes on, or hangs: what is told of them here is from before. `took_s`
    says how long the last walk of a root took.
    """

    roots: list[RootScan]
    digest: str
    skipped: SkipList
    held: list[Skip]
    unfinished: tuple[str, ...] = ()
    took_s: Mapping[str, float] = MappingProxyType({})


class Walked(NamedTuple):
    """What a walk found under a root; `hold` is why it could not be walked, and then nothing was found.

    `folders` are those that were listed, by their place below the root ("" is the root): what has to be watched.
    """

    source: SourceRoot
    notes: list[Note]
    unreadable: list[tuple[str, str, str]]  # (relative, reason, detail)
    bare: bool  # nothing at all lies in the root
    folders: list[str]
    skipped: SkipList
    digest: str
    hold: Skip | None = None


def scan_sources(
    sources: Sequence[SourceRoot],
    limits: ScanLimits,
    known: Mapping[str, SourceState],
    check: Callable[[], None] = lambda: None,
) -> Scan:
    """Walk the roots one after the other. `known` is what the generation before held of them, by source_id.

    `check` is called at every step and may raise to stop.
    """
    return combine([walk_root(source, limits, check) for source in sources], limits, known)


def walk_root(source: SourceRoot, limits: ScanLimits, check: Callable[[], None] = lambda: None) -> Walked:
    """Walk one root, reading no note. `check` is called at every step and may raise to stop."""
    walk = _Walk(source, limits, check)
    hold = walk.run()
    if hold is not None:
        return held_whole(source, hold)
    walk.notes.sort()
    digest = _root_digest(walk.notes, walk.unreadable)
    return Walked(source, walk.notes, walk.unreadable, walk.bare, walk.folders, walk.skipped, digest)


def held_whole(source: SourceRoot, hold: Skip) -> Walked:
    """Return what stands for a root that cannot be walked."""
    return Walked(source, [], [], False, [], SkipList(), "", hold)


def combine(walks: Sequence[Walked], limits: ScanLimits, known: Mapping[str, SourceState]) -> Scan:
    """Make a scan of the last walk of each root. `known` is what the generation before held of them, by source_id."""
    skipped, held = SkipList(), SkipList()
    roots: list[RootScan] = []
    room = limits.files_max
    for walk in walks:
        skipped.take_in(walk.skipped)
        if len(walk.notes) > room:
            walk = _cut(walk, room, limits, skipped)  # noqa: PLW2901 - what follows must not see the rest
        roots.append(_close(walk, known.get(walk.source.source_id), held))
        room -= len(walk.notes)
    return Scan(roots, _digest(roots, limits), skipped, held.list())


def _cut(walk: Walked, room: int, limits: ScanLimits, skipped: SkipList) -> Walked:
    """Leave out the notes that the roots before this one left no room for."""
    for note in walk.notes[room:]:
        _add_too_many(skipped, absolute(walk.source, note.relative), limits)
    notes = walk.notes[:room]
    return walk._replace(notes=notes, digest=_root_digest(notes, walk.unreadable))


def _add_too_many(skipped: SkipList, path: str, limits: ScanLimits) -> None:
    limit = f"limit {limits.files_max} (config: generation_builder.files_max)"
    skipped.add(path, skips.TOO_MANY, f"the sources hold more notes than that, {limit}")


def _close(walk: Walked, known: SourceState | None, held: SkipList) -> RootScan:
    """Decide what becomes of a root after its walk."""
    source, hold = walk.source, walk.hold
    if hold is None and not walk.notes and not walk.unreadable and known is not None:
        hold = _hold_if_emptied(walk, known)
    if hold is not None:
        held.add(hold.path, hold.reason, hold.detail)
        digest = known.digest if known is not None else f"held {hold.reason}"
        return RootScan(source, [], [""], _state(source, known.files if known is not None else 0, digest))
    for relative, reason, detail in walk.unreadable:
        held.add(absolute(source, relative), reason, detail)
    unreadable = sorted(relative for relative, _, _ in walk.unreadable)
    return RootScan(source, walk.notes, unreadable, _state(source, len(walk.notes), walk.digest))


def _hold_if_emptied(walk: Walked, known: SourceState) -> Skip | None:
    if known.files == 0 or not (walk.bare or known.files >= EMPTIED_FILES_MIN):
        return None
    detail = f"had {known.files} notes and has none; they stay in the index until the source is removed"
    return Skip(path=walk.source.path, reason=skips.EMPTIED, detail=detail)


def _state(source: SourceRoot, files: int, digest: str) -> SourceState:
    return SourceState(
        source_id=source.source_id,
        path=source.path,
        name=source.name,
        tenant=source.tenant,
        files=files,
        digest=digest,
    )


def _root_digest(notes: Sequence[Note], unreadable: Collection[tuple[str, str, str]]) -> str:
    hasher = hashlib.sha256()
    for note in notes:
        facts = f"\0{note.size}\0{note.mtime_ns}\0{note.inode}\0{note.mode}\n"
        hasher.update(os.fsencode(note.relative) + facts.encode())
    for relative in sorted(relative for relative, _, _ in unreadable):
        hasher.update(b"\0" + os.fsencode(relative) + b"\n")
    return hasher.hexdigest()


def _digest(roots: Sequence[RootScan], limits: ScanLimits) -> str:
    """Return what changes when the documents of a generation built now would be others."""
    facts = [msgspec.structs.astuple(root.state) for root in roots]
    return hashlib.sha256(msgspec.json.encode((FORMAT, ANALYSER_VERSION, limits, facts))).hexdigest()


def absolute(source: SourceRoot, relative: str) -> str:
    """Return the path of a place below a root."""
    return f"{_with_slash(source.path)}{relative}" if relative else source.path


class _Walk:
    """The walk of one root."""

    def __init__(self, source: SourceRoot, limits: ScanLimits, check: Callable[[], None]) -> None:
        self.source = source
        self.notes: list[Note] = []
        self.unreadable: list[tuple[str, str, str]] = []
        self.bare = False
        self.folders: list[str] = []
        self.skipped = SkipList()
        self._limits = limits
        self._check = check
        self._real_root = _with_slash(os.path.realpath(source.path))
        self._folders: list[tuple[str, ignore.Rules | None]] = []
        self._links: list[tuple[str, ignore.Rules | None]] = []
        self._seen: set[tuple[int, int]] = set()

    def run(self) -> Skip | None:
        """Walk everything; return why the root cannot be walked, if so."""
        refused = self._enter_root()
        if refused is not None:
            return refused
        self._drain()
        # Real places first, so that what can be reached both ways is known by its real path.
        while self._links:
            links, self._links = sorted(self._links, reverse=True), []
            while links:
                self._follow(*links.pop())
                self._drain()
        return None

    def _absolute(self, relative: str) -> str:
        return absolute(self.source, relative)

    def _enter_root(self) -> Skip | None:
        path = self.source.path
        try:
            status = Path(path).stat()
            if not stat.S_ISDIR(status.st_mode):
                return Skip(path=path, reason=skips.NOT_A_FOLDER, detail="is not a folder any more")
            with os.scandir(path) as entries:
                self.bare = next(entries, None) is None
        except (FileNotFoundError, NotADirectoryError):
            return Skip(path=path, reason=skips.VANISHED, detail="is not there; its notes stay in the index")
        except OSError as error:
            return Skip(path=path, reason=skips.UNREADABLE, detail=f"{error.strerror}; its notes stay in the index")
        self._seen.add((status.st_dev, status.st_ino))
        self._folders.append(("", None))
        return None

    def _drain(self) -> None:
        while self._folders:
            self._check()
            self._folder(*self._folders.pop())

    def _folder(self, relative: str, rules: ignore.Rules | None) -> None:
        try:
            with os.scandir(self._absolute(relative)) as iterator:
                entries = sorted(iterator, key=lambda entry: entry.name)
            names = {entry.name for entry in entries}
            if ignore.FILE_NAME in names:
                rules = ignore.add_rules(rules, relative, self._read_rules(relative))
        except FileNotFoundError:
            return  # deleted since it was listed
        except OSError as error:
            self._cannot_read(relative, error)
            return
        if VENV_MARK in names and relative:
            self._count("virtual environments")
            return
        self.folders.append(relative)
        for entry in entries:
            self._check()
            self._entry(entry, f"{relative}/{entry.name}" if relative else entry.name, rules)

    def _read_rules(self, relative: str) -> bytes:
        path = self._absolute(f"{relative}/{ignore.FILE_NAME}" if relative else ignore.FILE_NAME)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                return b""  # git does not follow a symlink here either
            raise
        try:
            return os.read(fd, ignore.FILE_BYTES_MAX) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        finally:
            os.close(fd)

    def _entry(self, entry: "os.DirEntry[str]", relative: str, rules: ignore.Rules | None) -> None:
        if entry.name.startswith("."):
            self._count("hidden")
            return
        try:
            if entry.is_symlink():
                self._links.append((relative, rules))
            elif entry.is_dir(follow_symlinks=False):
                self._subfolder(entry, relative, rules)
            elif self._is_note(relative) and not self._is_ignored(relative, rules, folder=False):
                self._note(relative, entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            return
        except OSError as error:
            self._cannot_read(relative, error)

    def _subfolder(self, entry: "os.DirEntry[str]", relative: str, rules: ignore.Rules | None) -> None:
        if entry.name in SKIPPED_FOLDERS:
            self._count(entry.name)
        elif not self._is_ignored(relative, rules, folder=True) and self._has_name(relative):
            status = entry.stat(follow_symlinks=False)
            if self._first_visit(status):
                self._folders.append((relative, rules))

    def _note(self, relative: str, status: os.stat_result) -> None:
        path = self._absolute(relative)
        if not stat.S_ISREG(status.st_mode):
            self.skipped.add(path, skips.NOT_A_FILE, "is not a regular file")
        elif status.st_size > self._limits.file_bytes_max:
            limit = f"limit {self._limits.file_bytes_max} (config: generation_builder.file_bytes_max)"
            self.skipped.add(path, skips.TOO_LARGE, f"{status.st_size} bytes, {limit}")
        elif len(self.notes) >= self._limits.files_max:
            _add_too_many(self.skipped, path, self._limits)
        elif self._has_name(relative):
            self._seen.add((status.st_dev, status.st_ino))
            mode = stat.S_IMODE(status.st_mode)
            self.notes.append(Note(relative, status.st_size, status.st_mtime_ns, status.st_ino, mode))

    def _follow(self, relative: str, rules: ignore.Rules | None) -> None:
        """Index what a symlink leads to, when it stays in the root and is not known by another path."""
        path = self._absolute(relative)
        wanted = self._is_note(relative)
        try:
            real = os.path.realpath(path, strict=True)
            status = Path(real).stat()
        except OSError as error:
            loop = error.errno == errno.ELOOP
            if loop or wanted:
                self.skipped.add(path, skips.LINK_LOOP if loop else skips.LINK_DANGLING, str(error.strerror))
            return
        folder = stat.S_ISDIR(status.st_mode)
        if not (folder or wanted) or self._is_ignored(relative, rules, folder=folder):
            return
        if not _with_slash(real).startswith(self._real_root):
            self.skipped.add(path, skips.LINK_OUTSIDE, f"leads to {skips.printable(real)}, outside of the source")
        elif not self._first_visit(status, remember=folder):
            self._count("symlinks to what is indexed already")
        elif folder:
            if self._has_name(relative):
                self._folders.append((relative, rules))
        else:
            self._note(relative, status)

    def _first_visit(self, status: os.stat_result, *, remember: bool = True) -> bool:
        key = (status.st_dev, status.st_ino)
        if key in self._seen:
            return False
        if remember:
            self._seen.add(key)
        return True

    def _is_note(self, relative: str) -> bool:
        return relative.lower().endswith(self._limits.suffixes)

    def _is_ignored(self, relative: str, rules: ignore.Rules | None, *, folder: bool) -> bool:
        ignored = ignore.is_ignored(rules, relative, folder=folder)
        if ignored:
            self._count("ignored by .gitignore")
        return ignored

    def _has_name(self, relative: str) -> bool:
        """Refuse a name that cannot be written down: neither a client nor the index could hold it."""
        if skips.printable(relative) == relative:
            return True
        self.skipped.add(self._absolute(relative), skips.BAD_NAME, "its name is not UTF-8")
        return False

    def _cannot_read(self, relative: str, error: OSError) -> None:
        reason = skips.OFFLINE if is_offline(error) else skips.UNREADABLE
        self.unreadable.append((relative, reason, str(error.strerror)))

    def _count(self, what: str) -> None:
        self.skipped.count(self.source.path, what)


def _with_slash(path: str) -> str:
    return path if path.endswith("/") else f"{path}/"


def is_offline(error: OSError) -> bool:
    """Say whether the error is that of a file whose content a sync service keeps elsewhere."""
    return error.errno in (errno.EAGAIN, errno.ETIMEDOUT, errno.ENODATA, errno.ENETDOWN, errno.ENETUNREACH)
