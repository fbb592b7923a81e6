"""What can be done to the folder of a sealed generation or delta, and to the pointer at it: more than a bad file.

Each harm is a name and a function that does it, given the folder, another one of its kind, and randomness; it returns
what was done, or None when there is nothing to do it to. Works on the files of a daemon, stopped or running.
"""

import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from chaos.damage import KINDS, Kind, damage

# The classes of files of a sealed folder: reliability.md §5.4 counts them.
CLASSES = {
    "MANIFEST": "MANIFEST.json",
    "MASK": "MASK.msgpack",
    "NOTES": "NOTES.msgpack",
    "PENDING": "PENDING.msgpack",
    "term counts": "*.arrow",
    "lance data": "**/data/*",
    "lance manifest": "**/_versions/*",
    "lance transaction": "**/_transactions/*",
    "index": "**/_indices/**/*",
}
SWAPPED = ("MANIFEST", "MASK", "NOTES", "term counts", "lance data")


class Harm(NamedTuple):
    """One harm: `do(folder, other, rng)`."""

    name: str
    do: Callable[[Path, Path, random.Random], str | None]


def folder_harms() -> list[Harm]:
    """Return every harm to a sealed folder."""
    return [
        *(Harm(f"{name}: {kind}", partial(_damage, glob, kind)) for name, glob in CLASSES.items() for kind in KINDS),
        *(Harm(f"{name}: swapped with another's", partial(_swap_file, CLASSES[name])) for name in SWAPPED),
        Harm("one file more", _add_file),
        Harm("one file grown", _grow_file),
        Harm("folder: gone", _remove),
        Harm("folder: only its manifest is left", _empty),
        Harm("folder: a file in its place", _flatten),
        Harm("folder: swapped with another's", _swap_folder),
    ]


def _files(folder: Path, glob: str) -> list[Path]:
    return sorted(path for path in folder.glob(glob) if path.is_file() and path.stat().st_size)


def _damage(glob: str, kind: Kind, folder: Path, other: Path, rng: random.Random) -> str | None:
    found = _files(folder, glob)
    return damage(rng.choice(found), kind, rng) if found else None


def _swap_file(glob: str, folder: Path, other: Path, rng: random.Random) -> str | None:
    """Exchange two files of the same class that differ, the most alike first: they may have the same size."""
    pairs = [
        (abs(one.stat().st_size - two.stat().st_size), one, two)
        for one in _files(folder, glob)
        for two in _files(other, glob)
        if one.read_bytes() != two.read_bytes()
    ]
    if not pairs:
        return None
    _, one, two = min(pairs)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    return f"{one.relative_to(folder.parent)} and {two.relative_to(folder.parent)} exchanged"


def _add_file(folder: Path, other: Path, rng: random.Random) -> str:
    path = rng.choice([folder, *(each for each in sorted(folder.rglob("*")) if each.is_dir())]) / "stray.lance"
    path.write_bytes(rng.randbytes(100))
    return f"{path.relative_to(folder.parent)} added"


def _grow_file(folder: Path, other: Path, rng: random.Random) -> str:
    path = rng.choice(_files(folder, "**/data/*"))
    with path.open("ab") as file:
        file.write(bytes(1))
    return f"{path.relative_to(folder.parent)} is a byte longer"


def _remove(folder: Path, other: Path, rng: random.Random) -> str:
    shutil.rmtree(folder)
    return f"{folder.name} deleted"


def _empty(folder: Path, other: Path, rng: random.Random) -> str:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != CLASSES["MANIFEST"]:
            path.unlink()
    return f"all but the manifest of {folder.name} deleted"


def _flatten(folder: Path, other: Path, rng: random.Random) -> str:
    shutil.rmtree(folder)
    folder.write_bytes(rng.randbytes(100))
    return f"{folder.name} replaced by a file"


def _swap_folder(folder: Path, other: Path, rng: random.Random) -> str:
    aside = folder.with_name("aside")
    folder.rename(aside)
    other.rename(folder)
    aside.rename(other)
    return f"{folder.name} and {other.name} exchanged"


# ---------------------------------------------------------------- the pointer


class Pointing(NamedTuple):
    """A content for CURRENT."""

    name: str
    content: bytes


def pointers(generation: int, delta: int | None, *, before: int, gone: int) -> Iterator[Pointing]:
    """Yield contents for CURRENT: `before` is an earlier generation that is kept, `gone` a delta that is not."""
    yield Pointing("empty", b"")
    yield Pointing("zeros", bytes(41))
    yield Pointing("garbage", b"\xff\x00garbage\n")
    yield Pointing("huge", b" " * (64 << 20))
    yield Pointing("huge after a good one", _pointer(generation, delta) + b" " * (64 << 20))
    yield Pointing("half", _pointer(generation, delta)[:12])
    yield Pointing("another shape", b"[42, 7]\n")
    yield Pointing("text for a number", b'{"generation": "42", "delta": null}\n')
    yield Pointing("a path for a number", b'{"generation": "../../etc", "delta": null}\n')
    yield Pointing("a negative number", _pointer(-1, None))
    yield Pointing("a number without end", _pointer(10**300, None))
    yield Pointing("a generation that never was", _pointer(generation + 1000, None))
    yield Pointing("a delta that never was", _pointer(generation, 9999))
    yield Pointing("a delta that was retired", _pointer(generation, gone))
    yield Pointing("the generation before", _pointer(before, None))
    yield Pointing("the generation before, with this delta", _pointer(before, delta))


def _pointer(generation: int, delta: int | None) -> bytes:
    return f'{{"generation":{generation},"delta":{"null" if delta is None else delta}}}\n'.encode()
