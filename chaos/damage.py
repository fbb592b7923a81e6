"""Damage to files, and copies to undo it: what a bad disk, a half restore or a careless person does to the data.

Works on the files of a daemon that is stopped, or on files that a running one does not write.
"""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

Kind = Literal["zero", "truncate", "bit", "block", "header", "delete"]
KINDS: tuple[Kind, ...] = ("zero", "truncate", "bit", "block", "delete")
BLOCK_BYTES = 64
HEADER_BYTES = 100
# Not part of what is copied: they belong to a life of the daemon and not to the data.
LEFT_ALONE = frozenset({"logs", "incidents", "faults"})


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One damage: to which class of files (a name and a glob below the data directory), and of which kind."""

    name: str
    glob: str
    kind: Kind

    def __str__(self) -> str:
        return f"{self.name}: {self.kind}"


def damage(path: Path, kind: Kind, rng: random.Random) -> str:
    """Damage a file, and say what was done to it."""
    content = bytearray(path.read_bytes())
    detail = f"{path.name} ({len(content)} bytes)"
    match kind:
        case "delete":
            path.unlink()
            return f"{detail}: deleted"
        case "zero":
            content[:] = bytes(len(content))
        case "truncate":
            del content[len(content) // 2 :]
        case "bit":
            at = rng.randrange(len(content))
            content[at] ^= 1 << rng.randrange(8)
            detail += f" at {at}"
        case "block" | "header":
            end = HEADER_BYTES if kind == "header" else len(content)
            at = rng.randrange(max(1, min(end, len(content)) - BLOCK_BYTES))
            piece = rng.randbytes(min(BLOCK_BYTES, len(content)))
            content[at : at + len(piece)] = piece
            detail += f" at {at}"
    path.write_bytes(bytes(content))
    return f"{detail}: {kind}"


def pick(data: Path, glob: str, rng: random.Random) -> Path | None:
    """Choose one of the files of a class that hold something, None when there is none."""
    found = sorted(path for path in data.glob(glob) if path.is_file() and path.stat().st_size)
    return rng.choice(found) if found else None


class Copy:
    """A copy of the rooms of a data directory, made while no daemon runs."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._copy = data.with_name("copy")
        for room in self._rooms(data):
            shutil.copytree(room, self._copy / room.name)

    def restore(self) -> None:
        """Put every room back as it was; what has been added since is gone."""
        for room in self._rooms(self._data):
            shutil.rmtree(room)
        for room in self._rooms(self._copy):
            shutil.copytree(room, self._data / room.name)

    @staticmethod
    def _rooms(folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if path.is_dir() and path.name not in LEFT_ALONE:
                yield path
