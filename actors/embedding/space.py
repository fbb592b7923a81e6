"""Is the model behind an endpoint still the one whose vectors are kept under its name?

Two models of the same dimensions make a garbage ranking and no error. The identity (`identity.py`) holds what the
configuration says; what the endpoint really runs can change behind an unchanged name, by an upgrade, a fallback of a
gateway, or a second server on the same port. So one short text is embedded when the endpoint is first used, and its
vector kept in the index folder. It is embedded again by the next process, and whenever the endpoint names another
model than before: a name alone proves nothing, as replicas spell it differently. The folder may be deleted at any
time; then the first answer is believed again.

Used by the embedding worker (reads and writes) and, through a thread, by the daemon (reads).
"""

import array
import contextlib
import sys
from pathlib import Path

import msgspec

CANARY = "The harbour master keeps a blue notebook. 港口的老人每天写日记。"
FILE_NAME = "EMBEDDING.json"
# The same model gives 0.999 and more, also quantised and on other hardware; two models are below 0.5 of each other.
COSINE_MIN = 0.98
SPACES_KEPT = 16


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the model behind an identity: the names it gave itself, and its vector of CANARY."""

    models: list[str]
    canary: bytes


class SpaceFile:
    """The spaces by the key of their identity, in one small file of the index folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def read(self, identity: str) -> Space | None:
        """Return what is known; None when that is nothing, or the file is gone or damaged."""
        return self._read().get(identity)

    def write(self, identity: str, space: Space) -> None:
        """Keep what is known now; a folder that takes nothing costs the next process its comparison, no more."""
        spaces = {**self._read(), identity: space}
        kept = dict(list(spaces.items())[-SPACES_KEPT:])
        temporary = self._path.with_name(f"{FILE_NAME}.tmp")
        with contextlib.suppress(OSError):
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1))
            temporary.replace(self._path)

    def _read(self) -> dict[str, Space]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Space])
        except (OSError, msgspec.DecodeError):
            return {}


def same_space(kept: bytes, given: bytes) -> bool:
    """Say whether two vectors of the same text, unit length and little-endian float32, are of the same model."""
    if len(kept) != len(given):
        return False
    return sum(here * there for here, there in zip(_values(kept), _values(given), strict=True)) >= COSINE_MIN


def foreign(model: str, said: str | None) -> str:
    """Return what is wrong, as errors say it."""
    name = f" (it calls itself {said[:60]!r})" if said is not None and said != model else ""
    return f"the endpoint answers as another model than before under the name {model!r}{name}: its vectors are not used"


def _values(vector: bytes) -> list[float]:
    values = array.array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()
