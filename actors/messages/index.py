"""What an index is: the space of its vectors, how much of the truth it covers, a generation with its delta, a build."""

from typing import Literal

from actors.messages.base import Corpus, Struct


class EmbeddingIdentity(Struct, frozen=True, kw_only=True):
    """What makes two vectors comparable. A change of any member is another space and needs a generation of its own."""

    provider: str
    model: str
    dimensions: int
    normalised: bool
    prefix: str
    chunking: str

    @property
    def key(self) -> str:
        """Return the identity as one line, used as the key of caches and manifests."""
        return "|".join(
            (
                self.provider,
                self.model,
                str(self.dimensions),
                "unit" if self.normalised else "raw",
                self.prefix,
                self.chunking,
            )
        )


class Covers(Struct, frozen=True, kw_only=True):
    """How much of the truth a generation holds."""

    event_seq: int = 0
    core_seq: int = 0
    sources_digest: str = ""


def view_number(generation: int, delta: int | None) -> int:
    """Return the number under which a generation with a delta over it is known; without one it is the generation's."""
    return generation | (delta or 0) << _DELTA_SHIFT


def split_view(view: int) -> tuple[int, int | None]:
    """Return the generation and the delta that a view number stands for."""
    return view & (1 << _DELTA_SHIFT) - 1, view >> _DELTA_SHIFT or None


def view_name(view: int) -> str:
    """Return what a view is called in logs and errors: `42`, or `42-d0007` with a delta."""
    generation, delta = split_view(view)
    return str(generation) if delta is None else f"{generation}-d{delta:04d}"


_DELTA_SHIFT = 32


class Items(Struct, frozen=True, kw_only=True):
    """How many items (events, units, notes) something holds, whatever number of rows each of them has.

    Those in between, neither complete nor bare, still miss a vector.
    """

    items: int = 0
    complete: int = 0  # all of its text that can have a vector has one
    bare: int = 0  # there is nothing in it that a vector could stand for

    def plus(self, other: "Items") -> "Items":
        """Return both together."""
        return Items(
            items=self.items + other.items, complete=self.complete + other.complete, bare=self.bare + other.bare
        )

    def minus(self, other: "Items") -> "Items":
        """Return these without the other ones, which are among them."""
        return Items(
            items=self.items - other.items, complete=self.complete - other.complete, bare=self.bare - other.bare
        )


class GenerationRef(Struct, frozen=True, kw_only=True):
    """A generation that passed verification, with or without a delta over it: what the searcher needs to open it.

    `covers`, `rows`, `items` and the vectors are those of both together: what the delta masks does not count.
    """

    generation: int
    delta: int | None = None
    path: str
    delta_path: str | None = None
    covers: Covers
    rows: dict[str, int]
    vectors_have: int
    vectors_want: int
    identity: EmbeddingIdentity | None
    built_at: int
    bytes: int = 0  # of all its files
    delta_rows: int = 0  # how many rows the delta holds
    vector_index: dict[str, str] = {}  # the kind by table; one that is not there is searched exactly
    items: dict[str, Items] = {}  # by corpus
    deferred: int = 0  # notes that were left to the next generation

    @property
    def view(self) -> int:
        """Return the number by which readers know it."""
        return view_number(self.generation, self.delta)


class Skip(Struct, frozen=True, kw_only=True):
    """A file or folder that the scan left out, and why. `detail` is for people."""

    path: str
    reason: str
    detail: str = ""


class Progress(Struct, frozen=True, kw_only=True):
    """How far a build is: `done` of `total` rows in `stage` (files while notes are read), and estimates of the whole.

    `percent` is of the time that the build takes and never falls; `rows_per_s` is of the stage, None where it counts no
    rows; `eta_s` are seconds until it is published. `build` numbers the full builds of this daemon, 0 for a delta.
    """

    stage: str
    done: int = 0
    total: int = 0
    generation: int = 0
    build: int = 0
    reason: str = ""
    percent: float = 0.0
    rows_per_s: float | None = None
    eta_s: int | None = None


class BuildEnd(Struct, frozen=True, kw_only=True):
    """What became of a full build: published, kept as the successor of another embedding model, failed, cancelled."""

    build: int
    state: Literal["published", "successor", "failed", "cancelled"]
    generation: int | None = None
    error: str | None = None


class Comparison(Struct, frozen=True, kw_only=True):
    """How two generations answered what was asked lately: means over `queries`, medians of the times.

    `overlap` is the share of the first `top` hits that both have, `rank_correlation` Spearman's coefficient over the
    hits that both have; None where nothing could be compared.
    """

    earlier: int
    later: int
    queries: int
    with_vectors: int
    top: int
    overlap: float | None
    rank_correlation: float | None
    earlier_ms: float | None
    later_ms: float | None


class WordProbe(Struct, frozen=True, kw_only=True):
    """A question that must find a row of a view: a word of its text that few rows have."""

    corpus: Corpus
    id: str
    part: int
    tenant: str
    query: str


class VectorProbe(Struct, frozen=True, kw_only=True):
    """A question by vector (float32, little-endian), and the distances of the rows nearest to it, found exactly."""

    tenant: str
    vector: bytes
    distances: list[float]


class ViewSample(Struct, frozen=True, kw_only=True):
    """Questions about a view whose answers are known, taken from its own rows: the same ones for the same view."""

    words: list[WordProbe]
    vectors: list[VectorProbe]
