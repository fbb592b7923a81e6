"""What a generation is on disk: names, manifest, pointer, verification. The only module that knows its paths.

    <index>/CURRENT                 {"generation": 42, "delta": null}, replaced atomically, fsynced with its folder
    <index>/MODEL-CHANGE.json       what is known of a change of the embedding model, replaced atomically
    <index>/gen-000042/             LanceDB tables + MANIFEST.json + PENDING.msgpack + NOTES.msgpack; write-once
    <index>/gen-000042-d0007/       a delta over it: the same tables with what changed since, + MASK.msgpack; write-once
    <index>/gen-000043.tmp/         being built; worthless after a crash
    <index>/gen-000041.gone.tmp/    being deleted; worthless too
    <index>/scratch.tmp/            where LanceDB puts what does not fit into memory, during a build
    <index>/LOCK                    flock held by the one process that builds

A reader's *view* is a generation, or a generation and one delta over it: the rows of both, without those of the
generation that the delta's mask names. Used by the builder (writes), the searcher's workers (read) and nobody else.
LanceDB is not imported here, so the embedding worker, which only needs `PENDING`, stays small. A generation is trusted
only after `verify()`: LanceDB itself fsyncs nothing, checks no data file, and silently opens an older version when its
newest manifest is gone.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

import msgspec

from actors.errors import GenerationSuspect
from actors.messages.index import Covers, EmbeddingIdentity, GenerationRef, Items, Skip

MANIFEST = "MANIFEST.json"
PENDING = "PENDING.msgpack"
MASK = "MASK.msgpack"
NOTES = "NOTES.msgpack"
CURRENT = "CURRENT"
MODEL_CHANGE = "MODEL-CHANGE.json"
LOCK = "LOCK"
TEMPORARY = ".tmp"
FORMAT = 2
POINTER_BYTES_MAX = 4096  # we write 40; a file that is larger is not ours, however large it is
PENDING_RECORD_BYTES_MAX = 64 * 1024 * 1024
_NAME = re.compile(r"^gen-(\d{6,})$")
_ANY_NAME = re.compile(r"^gen-(\d{6,})(?:[-.].*)?$")
_DELTA_NAME = re.compile(r"^gen-(\d{6,})-d(\d{4,})$")

# The columns of every table (`events`, `units`, `documents`), so that one reader serves all three. (id, part) is
# unique in a table. Rows lie newest first (events, units) or in the order of path and line (documents), so the same
# truth gives the same rows in the same order, and equal scores are answered in the same order too. A table without
# rows exists, but has no index.
#   id          string   event_id, unit_id, or the document chunk's stable id (of root, path and text)
#   part        int32    piece number of a long event or unit, else 0
#   version     int64    unit version, else 0
#   seq         int64    event seq, unit core_seq, else 0
#   ts          int64    µs UTC: event ts, unit updated_at, file mtime
#   tenant, scope, session_id, actor, kind, type, path, heading   string, nullable where it does not apply
#               path is `document_path()`; heading is the headings above the chunk, joined with " > "
#   from_line, to_line   int32, nullable: 1-based, inclusive, documents only; a line ends at "\n"
#   tags        list<string>
#   text        string   what a person reads (the chunk)
#   terms       string   output of the analyser, indexed with LanceDB's whitespace tokenizer
#   hash        binary   32 bytes: sha256 of `embedded_text()`
#   vector      fixed_size_list<float32>[dimensions], null while it is not embedded; absent without an embedder
STRING_COLUMNS = ("tenant", "scope", "session_id", "actor", "kind", "type", "path", "heading")


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a generation: path relative to it, size in bytes, sha256 in hex."""

    path: str
    bytes: int
    sha256: str


class SourceState(msgspec.Struct, frozen=True, kw_only=True):
    """A root as a generation holds it: how many notes, and the digest of their names, sizes and times."""

    source_id: str
    path: str
    name: str
    tenant: str
    files: int
    digest: str


class Masked(msgspec.Struct, frozen=True, kw_only=True):
    """How much of its generation a delta masks: rows and items by corpus, rows that have or could have a vector."""

    rows: dict[str, int] = {}
    vectors_have: int = 0
    vectors_want: int = 0
    items: dict[str, Items] = {}


class Mask(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows of its generation a delta takes the place of: units by id, notes by tenant and `document_path()`.

    Events are never masked: they do not change.
    """

    units: tuple[str, ...] = ()
    documents: tuple[tuple[str, str], ...] = ()


class NoteState(msgspec.Struct, frozen=True, array_like=True):
    """A note as it was when a generation read it: what tells whether it has changed since."""

    relative: str
    size: int
    mtime_ns: int
    inode: int
    mode: int


class SourceNotes(msgspec.Struct, frozen=True, kw_only=True):
    """The notes of one root that a generation holds."""

    source_id: str
    path: str
    name: str
    tenant: str
    notes: list[NoteState]


class VectorIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The vector index of a table, and how it must be asked for the recall that the self-test saw.

    `probes` of its `partitions` are looked into by a search over all rows; `refine` times the rows that are wanted are
    compared again with their full vectors.
    """

    kind: str
    partitions: int
    probes: int
    refine: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A generation's description of itself, or a delta's: `rows`, `items` and `vectors_*` are of its own tables.

    `skipped` are files that the scan left out or whose content was not text; `held` are roots, folders and files
    that could not be read, so their rows were taken over from the generation before. `deferred` of the notes in `held`
    could be read, but are left to a later generation. A table that is not in `vector_indexes` is searched exactly.
    """

    format: int
    generation: int
    delta: int | None
    covers: Covers
    identity: EmbeddingIdentity | None
    rows: dict[str, int]
    vectors_have: int
    vectors_want: int
    lancedb_version: str
    table_versions: dict[str, int]
    built_at: int
    skipped: list[Skip]
    held: list[Skip]
    sources: list[SourceState]
    files: list[FileEntry]
    items: dict[str, Items] = {}
    masked: Masked = Masked()
    vector_indexes: dict[str, VectorIndex] = {}
    deferred: int = 0


class Pointer(msgspec.Struct, frozen=True, kw_only=True):
    """The content of CURRENT."""

    generation: int
    delta: int | None = None


def document_path(root_name: str, relative: str) -> str:
    """Return the path under which a note is known to clients: the name of its root, and its place below it."""
    return f"{root_name}/{relative}"


def embedded_text(heading: str | None, text: str) -> str:
    """Return the text that is embedded for a row, whose sha256 is its `hash`: the headings above it, and the text."""
    return f"{heading}\n{text}" if heading else text


def generation_name(number: int) -> str:
    """Return the folder name of a generation."""
    return f"gen-{number:06d}"


def generation_path(index: Path, number: int) -> Path:
    """Return the folder of a sealed generation."""
    return index / generation_name(number)


def delta_name(number: int, delta: int) -> str:
    """Return the folder name of a delta over a generation."""
    return f"{generation_name(number)}-d{delta:04d}"


def delta_path(index: Path, number: int, delta: int) -> Path:
    """Return the folder of a sealed delta."""
    return index / delta_name(number, delta)


def sealed_path(index: Path, number: int, delta: int | None) -> Path:
    """Return the folder of a sealed generation, or of a sealed delta over it."""
    return index / folder_name(number, delta)


def folder_name(number: int, delta: int | None) -> str:
    """Return the folder name of a generation, or of a delta over it."""
    return generation_name(number) if delta is None else delta_name(number, delta)


def build_path(index: Path, number: int, delta: int | None = None) -> Path:
    """Return the temporary folder in which a generation, or a delta over it, is built."""
    return index / f"{folder_name(number, delta)}{TEMPORARY}"


def build_paths(index: Path, number: int) -> list[Path]:
    """Return the temporary folders of a build that exist or will: of the generation, and of deltas over it."""
    deltas = (
        path for path in index.glob(f"{generation_name(number)}-d*{TEMPORARY}") if not path.name.endswith(".gone.tmp")
    )
    return [build_path(index, number), *deltas]


def scratch_path(index: Path, *, delta: bool = False) -> Path:
    """Return the folder for temporary files of a build, one for generations and one for deltas: two may be under way.

    The same for all of a kind, as TMPDIR is set before any thread runs.
    """
    return index / f"{'scratch-delta' if delta else 'scratch'}{TEMPORARY}"


def doomed_path(index: Path, number: int, delta: int | None = None) -> Path:
    """Return the name that a folder is given before it is deleted, so that half of one is never taken for one."""
    return index / f"{folder_name(number, delta)}.gone{TEMPORARY}"


def sealed_numbers(index: Path) -> list[int]:
    """Return the numbers of the sealed generations on disk, ascending."""
    return sorted(int(match[1]) for name in _folders(index) if (match := _NAME.match(name)))


def count_until(index: Path, number: int) -> int:
    """Return how many folders there are of generations up to a number: sealed, being built or being deleted."""
    return sum((match := _ANY_NAME.match(name)) is not None and int(match[1]) <= number for name in _folders(index))


def sealed_deltas(index: Path) -> list[tuple[int, int]]:
    """Return the sealed deltas on disk as (generation, delta), ascending."""
    return sorted((int(match[1]), int(match[2])) for name in _folders(index) if (match := _DELTA_NAME.match(name)))


def _folders(index: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(index) if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_current(index: Path) -> Pointer | None:
    """Return the pointer, or None when it is missing or not readable as one."""
    try:
        with (index / CURRENT).open("rb") as file:
            content = file.read(POINTER_BYTES_MAX + 1)
        if len(content) > POINTER_BYTES_MAX:
            return None
        return msgspec.json.decode(content, type=Pointer)
    except (OSError, msgspec.DecodeError):
        return None


def write_current(index: Path, pointer: Pointer) -> None:
    """Replace the pointer atomically; durable on return."""
    replace_file(index / CURRENT, msgspec.json.encode(pointer) + b"\n")


def replace_file(path: Path, content: bytes) -> None:
    """Give a file of the index folder a new content, all of it or none; durable on return."""
    temporary = path.with_name(f"{path.name}{TEMPORARY}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_tree(root: Path) -> list[FileEntry]:
    """fsync every file and, bottom-up, every folder below `root`; return what is there (the manifest left out)."""
    entries = []
    for folder, _, names in os.walk(root, topdown=False):
        for name in sorted(names):
            path = Path(folder) / name
            if path == root / MANIFEST:
                continue
            entries.append(_entry(root, path, sync=True))
        fsync_directory(Path(folder))
    return sorted(entries, key=lambda entry: entry.path)


def fsync_files(root: Path) -> None:
    """fsync every file and, bottom-up, every folder below `root`: what is written early need not wait for the seal."""
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            with (Path(folder) / name).open("rb") as file:
                os.fsync(file.fileno())
        fsync_directory(Path(folder))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a folder that is still being built; durable on return."""
    with (folder / MANIFEST).open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        file.flush()
        os.fsync(file.fileno())
    fsync_directory(folder)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a generation, or raise GenerationSuspect."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise GenerationSuspect(f"generation {folder.name}: manifest not readable: {error}") from error
    if manifest.format != FORMAT:
        raise GenerationSuspect(f"generation {folder.name}: format {manifest.format}, this version reads {FORMAT}")
    return manifest


def verify(folder: Path, check: Callable[[], None] = lambda: None) -> Manifest:
    """Compare every file with the manifest (names, sizes, sha256); raise GenerationSuspect at the first difference.

    `check` is called between files and may raise to stop.
    """
    manifest = verify_shape(folder)
    for entry in manifest.files:
        check()
        if _entry_or_suspect(folder, entry.path) != entry:
            raise GenerationSuspect(f"generation {folder.name}: file {entry.path!r} is not what was sealed")
    return manifest


def verify_shape(folder: Path) -> Manifest:
    """Compare the names and sizes of the files with the manifest, no contents; raise GenerationSuspect.

    Cheap enough to be done every second: it notices a deletion and a truncation, not a flipped bit.
    """
    manifest = read_manifest(folder)
    named = folder_name(manifest.generation, manifest.delta)
    if named != folder.name:
        raise GenerationSuspect(f"generation {folder.name}: its manifest is that of {named}")
    expected = {entry.path: entry.bytes for entry in manifest.files}
    found = _sizes(folder)
    missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or extra:
        raise GenerationSuspect(
            f"generation {folder.name}: {len(missing)} files missing, {len(extra)} unexpected: {(missing + extra)[0]!r}"
        )
    for path, size in expected.items():
        if found[path] != size:
            raise GenerationSuspect(f"generation {folder.name}: file {path!r} has {found[path]} bytes, sealed {size}")
    return manifest


def _sizes(folder: Path) -> dict[str, int]:
    """Return the size of every file below `folder` by its relative path; the manifest is left out."""
    sizes = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            if path != folder / MANIFEST:
                sizes[str(path.relative_to(folder))] = _size_or_none(path)
    return {path: size for path, size in sizes.items() if size is not None}


def _size_or_none(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except OSError:
        return None  # deleted since it was listed: missing


def reference(folder: Path, manifest: Manifest) -> GenerationRef:
    """Return what the searcher needs to know of a verified generation."""
    return GenerationRef(
        generation=manifest.generation,
        path=str(folder),
        covers=manifest.covers,
        rows=manifest.rows,
        vectors_have=manifest.vectors_have,
        vectors_want=manifest.vectors_want,
        identity=manifest.identity,
        built_at=manifest.built_at,
        bytes=sum(entry.bytes for entry in manifest.files),
        vector_index={table: index.kind for table, index in manifest.vector_indexes.items()},
        items=manifest.items,
        deferred=manifest.deferred,
    )


def with_delta(base: GenerationRef, folder: Path, delta: Manifest) -> GenerationRef:
    """Return what the searcher needs to know of a generation with a verified delta over it."""
    masked = delta.masked
    return GenerationRef(
        generation=base.generation,
        delta=delta.delta,
        path=base.path,
        delta_path=str(folder),
        covers=delta.covers,
        rows={name: rows - masked.rows.get(name, 0) + delta.rows[name] for name, rows in base.rows.items()},
        vectors_have=base.vectors_have - masked.vectors_have + delta.vectors_have,
        vectors_want=base.vectors_want - masked.vectors_want + delta.vectors_want,
        identity=base.identity,
        built_at=delta.built_at,
        bytes=base.bytes + sum(entry.bytes for entry in delta.files),
        delta_rows=sum(delta.rows.values()),
        vector_index=base.vector_index,
        items={
            name: items.minus(masked.items.get(name, Items())).plus(delta.items.get(name, Items()))
            for name, items in base.items.items()
        },
        deferred=delta.deferred,
    )


def _entry_or_suspect(folder: Path, path: str) -> FileEntry:
    try:
        return _entry(folder, folder / path, sync=False)
    except OSError as error:
        raise GenerationSuspect(f"generation {folder.name}: file {path!r} not readable: {error}") from error


def _entry(root: Path, path: Path, *, sync: bool) -> FileEntry:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if sync:
            os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
    return FileEntry(path=str(path.relative_to(root)), bytes=size, sha256=digest)


def write_record(path: Path, record: msgspec.Struct | list[SourceNotes]) -> None:
    """Write a file of a folder that is still being built; made durable with the folder."""
    path.write_bytes(msgspec.msgpack.encode(record))


def read_mask(folder: Path) -> Mask:
    """Return what a delta masks, or raise GenerationSuspect."""
    try:
        return msgspec.msgpack.decode((folder / MASK).read_bytes(), type=Mask)
    except (OSError, msgspec.DecodeError) as error:
        raise GenerationSuspect(f"generation {folder.name}: {MASK} not readable: {error}") from error


def read_notes(folder: Path) -> list[SourceNotes]:
    """Return the notes that a generation holds, or raise GenerationSuspect."""
    try:
        return msgspec.msgpack.decode((folder / NOTES).read_bytes(), type=list[SourceNotes])
    except (OSError, msgspec.DecodeError) as error:
        raise GenerationSuspect(f"generation {folder.name}: {NOTES} not readable: {error}") from error


class PendingText(msgspec.Struct, frozen=True, array_like=True):
    """A text that has no vector yet: sha256 of the text, the text, and the row it is of (the first one, if several)."""

    hash: bytes
    text: str
    name: str = ""


def encode_pending(texts: Iterable[PendingText]) -> bytes:
    """Return the PENDING file: length-prefixed msgpack records, so that it is read from any offset in pieces."""
    return b"".join(encode_pending_record(text) for text in texts)


def encode_pending_record(text: PendingText) -> bytes:
    """Return one record of the PENDING file."""
    body = msgspec.msgpack.encode(text)
    return len(body).to_bytes(4, "big") + body


def read_pending(folder: Path, offset: int, texts_max: int) -> tuple[list[PendingText], int | None]:
    """Read at most `texts_max` records from byte `offset`; return them and the next offset, None at the end.

    Raises GenerationSuspect when the file is gone or is not what was written.
    """
    texts: list[PendingText] = []
    try:
        with (folder / PENDING).open("rb") as file:
            file.seek(offset)
            while len(texts) < texts_max and (record := _read_record(file)) is not None:
                texts.append(record)
            position = file.tell()
            return texts, position if file.read(1) else None
    except (OSError, msgspec.DecodeError) as error:
        raise GenerationSuspect(f"generation {folder.name}: {PENDING} not readable at {offset}: {error}") from error


def count_pending(folder: Path) -> int:
    """Return how many texts the PENDING file lists; raises GenerationSuspect. Reads no text: 100,000 take 0.1 s."""
    count = 0
    try:
        with (folder / PENDING).open("rb") as file:
            while len(header := file.read(4)) == 4:
                file.seek(int.from_bytes(header, "big"), os.SEEK_CUR)
                count += 1
    except OSError as error:
        raise GenerationSuspect(f"generation {folder.name}: {PENDING} not readable: {error}") from error
    return count


def _read_record(file: BinaryIO) -> PendingText | None:
    header = file.read(4)
    if not header:
        return None
    size = int.from_bytes(header, "big")
    if len(header) < 4 or size > PENDING_RECORD_BYTES_MAX:
        raise msgspec.DecodeError(f"record header {header!r}")
    return msgspec.msgpack.decode(file.read(size), type=PendingText)
