"""Restoring a data directory from a backup, while no daemon runs on it. This process has all its files to itself.

    DIR.restore.tmp/     being made; holds RESTORE.json once it is complete
    DIR.before-<time>/   the directory that was replaced, kept

The new directory is made beside the one it replaces and given its name at the end. Until it is complete nothing else
has changed, and what a killed restore has left is removed by the next one. From then on it counts: between the two
renames there may be no directory of that name, so a daemon that finds the note does not begin an empty one (claim.py),
and the next restore completes this one first.

Not taken over: the index, which is made anew from the truth. Taken over from the replaced directory: its backups and
its embedding cache.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from actors.errors import BulkheadError, Conflict, DiskFull, InvalidParams, Quarantined
from supervisor import paths
from supervisor.claim import IDENTITY, INTERRUPTED_RESTORE, NETWORK_FILE_SYSTEMS, draft_of, file_system_of
from supervisor.version import VERSION

FREE_BYTES_MIN = 64 * 1024 * 1024
TAKEN_OVER = ("backups", "cache_manager")
# What a directory without a memory in it may hold.
_HARMLESS = frozenset({paths.LOCK, paths.LOGS, "incidents"})

Progress = Callable[[str, int, int], None]


def restore(
    backup: Path, data: Path, *, replace: bool, told: Progress = lambda stage, done, total: None
) -> Path | None:
    """Restore a backup as the data directory `data`; return where the one that was there is now (None: there was none).

    `replace` allows that there is one. Raises BulkheadError with nothing changed, OSError as the disk has it.
    """
    from actors.sql import backup_files, backup_folder, backup_restore

    _require_local(data)
    with _held(data):
        if finish(data):
            raise Conflict(
                f"an earlier restore of {str(data)!r} had been interrupted when it was complete, and is done now",
                hint="start the daemon; or restore again, if this is not the backup that you want",
            )
        backup = _found(backup, data)
        occupied = _is_occupied(data)
        manifest = backup_folder.read_manifest(backup)
        _require_fit(data, manifest.identity, manifest.program, occupied=occupied, replace=replace)
        told("verifying", 0, manifest.bytes)
        backup_folder.verify(backup, backup_files.Pace(lambda: None, hurry=lambda: True))
        before = backup_restore.numbers_of(data) if occupied else {}
        draft = draft_of(data)
        with _drafting(draft):
            _require_room(draft, manifest.bytes)
            backup_restore.make_directory(backup, manifest, draft, before, told)
            aside = _aside(data)
            _write_note(draft, aside)
        finish(data)
    return aside if aside.is_dir() else None


def finish(data: Path) -> bool:
    """Complete a restore that was complete but for its name; return whether there was one. May be done twice."""
    draft = draft_of(data)
    if (draft / INTERRUPTED_RESTORE).exists():
        aside = _read_note(draft)
        if data.exists() and not aside.exists():
            data.rename(aside)
        elif data.exists() and not _is_occupied(data):
            shutil.rmtree(data)  # begun by a daemon that was refused then
        draft.rename(data)
        _fsync(data.parent)
    note = data / INTERRUPTED_RESTORE
    if not note.exists():
        return False
    _take_over(_read_note(data), data)
    note.unlink()
    _fsync(data)
    return True


# ---------------------------------------------------------------- what is allowed


def _require_local(data: Path) -> None:
    kind = file_system_of(data)
    if kind in NETWORK_FILE_SYSTEMS:
        raise InvalidParams(
            f"restore refused: {str(data)!r} is on a {kind} file system; locks and fsync cannot be relied on there"
        )


def _require_fit(data: Path, identity: str, program: str, *, occupied: bool, replace: bool) -> None:
    if _version(program) > _version(VERSION):
        raise Quarantined(
            f"restore refused: the backup was made by bulkhead {program}, this is {VERSION}",
            hint="install that version, or a newer one",
        )
    if not occupied:
        return
    if not replace:
        raise Conflict(
            f"restore refused: {str(data)!r} holds a memory; with --yes it is kept aside and replaced",
            hint="or restore into another directory with --data DIR",
        )
    here = _identity_of(data)
    if here is not None and here != identity:
        raise Conflict(
            f"restore refused: the backup is of data directory {identity!r}, {str(data)!r} is {here!r}",
            hint="restore it into another directory with --data DIR",
        )


def _require_room(draft: Path, size: int) -> None:
    free = shutil.disk_usage(draft).free
    if free - size < FREE_BYTES_MIN:
        raise DiskFull(f"restore refused: it needs {size} bytes, {free} are free, and {FREE_BYTES_MIN} must stay free")


def _is_occupied(data: Path) -> bool:
    return data.is_dir() and any(path.name not in _HARMLESS for path in data.iterdir())


def _identity_of(data: Path) -> str | None:
    try:
        return (data / IDENTITY).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _found(backup: Path, data: Path) -> Path:
    """Return the folder of a backup that is given by its path, or by its name when it is one of `data`."""
    for path in (backup, data / "backups" / backup):
        if (path / "MANIFEST.json").is_file():
            return path.resolve()
    raise InvalidParams(
        f"restore refused: {str(backup)!r} is no backup: there is no MANIFEST.json in it",
        hint="give the folder of a backup, or the name of one that `bulkhead backup list` shows",
    )


@contextmanager
def _held(data: Path) -> Iterator[None]:
    """Hold the lock of the daemon, and the one of whoever starts a daemon, so that none begins meanwhile."""
    held = [_lock(Path(paths.start_lock_path(str(data))))]
    try:
        paths.make_data_directory(str(data))
        held.append(_lock(data / paths.LOCK))
        yield
    finally:
        for fd in reversed(held):
            os.close(fd)


def _lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise Conflict(
            f"restore refused: {str(path)!r} is locked: a daemon runs on this directory, or another restore",
            hint="end the daemon with `bulkhead stop`",
        ) from error
    return fd


# ---------------------------------------------------------------- the exchange


@contextmanager
def _drafting(draft: Path) -> Iterator[None]:
    """Give an empty folder, and remove it when the work on it fails."""
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    try:
        yield
    except (BulkheadError, OSError):
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _aside(data: Path) -> Path:
    return data.with_name(f"{data.name}.before-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")


def _write_note(draft: Path, aside: Path) -> None:
    """From here on the new directory counts."""
    _fsync(draft)
    temporary = draft / f"{INTERRUPTED_RESTORE}.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump({"aside": aside.name}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(draft / INTERRUPTED_RESTORE)
    _fsync(draft)
    _fsync(draft.parent)


def _read_note(folder: Path) -> Path:
    """Return where the directory goes that is replaced."""
    name = json.loads((folder / INTERRUPTED_RESTORE).read_text(encoding="utf-8"))["aside"]
    return folder.with_name(Path(name).name)


def _take_over(aside: Path, data: Path) -> None:
    for name in TAKEN_OVER:
        if (aside / name).is_dir() and not (data / name).exists():
            (aside / name).rename(data / name)
    _fsync(data)
    if aside.is_dir() and not _is_occupied(aside):
        shutil.rmtree(aside, ignore_errors=True)


def _fsync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
