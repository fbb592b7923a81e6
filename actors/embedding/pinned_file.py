"""Weights that are not the ones we measured are not loaded: another file of the same name is another vector space.

The whole file is hashed once a process, before the engine maps it: 72 MB take 60 ms with SHA instructions and about
0.35 s without, next to a model load of a second, and the pages are in memory afterwards.
"""

import hashlib
from pathlib import Path

import msgspec

from actors.errors import EmbeddingUnavailable


class PinnedFile(msgspec.Struct, frozen=True):
    """A file inside an installed package: its name there, its length in bytes and its sha256 in hex."""

    name: str
    bytes: int
    sha256: str


def check_pinned(folder: Path, pinned: PinnedFile) -> Path:
    """Return the path of the file, or raise EmbeddingUnavailable when it is not the pinned one."""
    path = folder / pinned.name
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest() if size == pinned.bytes else ""
    except OSError as error:
        raise EmbeddingUnavailable(f"weights {pinned.name!r} not readable: {error.strerror}", hint=_HINT) from error
    if size != pinned.bytes:
        raise EmbeddingUnavailable(f"weights {pinned.name!r} are {size} bytes, {pinned.bytes} are expected", hint=_HINT)
    if digest != pinned.sha256:
        raise EmbeddingUnavailable(
            f"weights {pinned.name!r} have sha256 {digest[:12]}…, {pinned.sha256[:12]}… is expected", hint=_HINT
        )
    return path


_HINT = "install the version of the package that pyproject.toml names"
