"""The vectors that a build has to give: hash to vector, the vectors in a scratch file, the hashes in memory.

They come from the generation before and from the cache, which is asked once for each. Only sound ones are kept
(finite, and of length 1 when the embedding says so). A damaged vector is treated as a missing one: it is embedded
again, instead of failing the self-test of every build from now on. About 150 bytes of memory a vector, whatever its
dimensions.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]
    Mask = NDArray[np.bool_]

NORM_TOLERANCE = 1e-3
HASH_BYTES = 32


class VectorBook:
    """Vectors of one embedding identity, added in any order, each hash once."""

    def __init__(self, path: Path, dimensions: int, *, normalised: bool) -> None:
        self.dimensions = dimensions
        self._path = path
        self._normalised = normalised
        self._places: dict[bytes, int] = {}
        self._asked: set[bytes] = set()
        self._file = path.open("wb", buffering=1 << 20)

    def __contains__(self, key: bytes) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    def ask(self, key: bytes) -> bool:
        """Say whether the vector is to be asked for: it is not here, and was not asked for before."""
        if key in self._places or key in self._asked:
            return False
        self._asked.add(key)
        return True

    def add(self, keys: Sequence[bytes], vectors: "Matrix") -> None:
        """Add vectors, row i for keys[i]; unsound ones and hashes that are there already are passed over."""
        assert vectors.shape == (len(keys), self.dimensions)
        for key, vector, good in zip(keys, vectors, sound(vectors, normalised=self._normalised), strict=True):
            if good and key not in self._places:
                self._places[key] = len(self._places)
                self._file.write(vector.tobytes())

    def gather(self, keys: Sequence[bytes]) -> "tuple[Matrix, Mask]":
        """Return one row a key, and which of them are there; the rows of the others are zero."""
        import numpy as np

        places = np.fromiter((self._places.get(key, -1) for key in keys), dtype=np.int64, count=len(keys))
        present = places >= 0
        vectors = np.zeros((len(keys), self.dimensions), dtype=np.float32)
        if present.any():
            self._file.flush()
            written = np.memmap(self._path, dtype=np.float32, mode="r", shape=(len(self._places), self.dimensions))
            vectors[present] = written[places[present]]
        return vectors, present

    def close(self) -> None:
        """Close the scratch file."""
        self._file.close()


def matrix(blob: bytes, count: int, dimensions: int) -> "Matrix":
    """Return `count` × `dimensions` little-endian float32 as an array, or raise ValueError."""
    import numpy as np

    if len(blob) != count * dimensions * 4:
        raise ValueError(
            f"{len(blob)} bytes of vectors, {count} of {dimensions} dimensions take {count * dimensions * 4}"
        )
    return np.frombuffer(blob, dtype="<f4").reshape(count, dimensions).astype(np.float32, copy=False)


def sound(vectors: "Matrix", *, normalised: bool) -> "Mask":
    """Return which rows are finite and have the length that the embedding promises (1, or at least more than 0)."""
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    good: Mask = np.isfinite(norms) & (np.abs(norms - 1) <= NORM_TOLERANCE if normalised else norms > 0)
    return good
