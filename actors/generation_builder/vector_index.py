"""The vector index of a table: built, held against an exact search, dropped when it is not good enough.

It is an accelerator. A table without it gives the exact answer, later; so whatever is wrong with it, from an error
of its training to a recall that is too low, costs the index and never the build. What is wrong is said on stderr.

What was measured with 0.40 and is relied on:
* k-means starts from a random choice that nobody can seed, so two builds of the same rows have different partitions.
  With the recall that is required the answers agree but for rows about as near as the last one that is returned;
* rows without a vector are not in the index, yet counted as covered by it;
* dropping an index leaves its folder, the only one with `*.idx` files in it.
"""

import shutil
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from actors.errors import BuildFailed
from actors.generation import VectorIndex
from actors.generation_builder.faults import storage_errors
from actors.generation_builder.index_policy import SAMPLE_RATE, more_probes

if TYPE_CHECKING:
    import numpy as np
    from lancedb.table import Table
    from numpy.typing import NDArray

    from actors.generation_builder.vectors import Matrix

VECTOR_INDEX = "vector_idx"
METRIC = "cosine"
# The sample: questions lie half-way between two vectors of the table that have nothing to do with each other, as real
# questions are not where the texts are. They are a stand-in and no bound. Recall of real and of half-way questions with
# 8 of 48 partitions, in two builds: 0.93 and 0.88, 0.96 and 0.99; with 32 of 195: 0.98 and 1.00 (vectors of the table
# itself: 0.99 and more each time). So more is asked of them than the 0.98 that is wanted of real ones.
QUESTIONS = 50
OFFSETS = 2000  # rows that are looked at for them: most may have no vector yet
NEAREST = 10
RECALL_MIN = 0.99
# Distances that differ by less are equal: they are computed by two programs, in two orders.
TOLERANCE = 1e-5
OPPOSITE = 1e-3  # what is left of two vectors that point away from each other points nowhere
QUERY_S = 60


def build(table: "Table", files: Path, plan: VectorIndex) -> bool:
    """Build the index of the table with these files; False when LanceDB could not. Raises DiskFull."""
    from lancedb.index import IvfSq

    config = IvfSq(distance_type=METRIC, num_partitions=plan.partitions, sample_rate=SAMPLE_RATE)
    try:
        with storage_errors(f"vector index of table {table.name}"):
            table.create_index("vector", config=config, name=VECTOR_INDEX)
    except BuildFailed as error:
        _say(table, error.message)
        _remove_files(files)
        return False
    return True


def keep_or_drop(
    table: "Table", files: Path, index: VectorIndex, sample: "Sample", check: Callable[[], None]
) -> VectorIndex | None:
    """Return the index with as many probes as a good recall takes; drop it when none do, or when it leaves rows out.

    Raises DiskFull, BuildFailed when it cannot even be dropped, and what `check` raises.
    """
    try:
        with storage_errors(f"self-test of the vector index of table {table.name}"):
            return _tested(table, index, sample, check)
    except BuildFailed as error:
        _say(table, error.message)
    with storage_errors(f"dropping the vector index of table {table.name}"):
        if table.index_stats(VECTOR_INDEX) is not None:
            table.drop_index(VECTOR_INDEX)
        _remove_files(files)
    return None


def _tested(table: "Table", index: VectorIndex, sample: "Sample", check: Callable[[], None]) -> VectorIndex:
    statistics = table.index_stats(VECTOR_INDEX)
    if statistics is None or statistics.num_unindexed_rows:
        raise BuildFailed(f"rows outside it: {'all' if statistics is None else statistics.num_unindexed_rows}")
    trial: VectorIndex | None = index
    recall = 0.0
    while trial is not None:
        recall = sample.recall(table, trial, check)
        if recall >= RECALL_MIN:
            return trial
        trial = more_probes(trial)
    raise BuildFailed(f"its recall is {recall:.3f}, at least {RECALL_MIN} is required")


class Sample:
    """Questions, and the distances of their exact answers, which are found while the rows pass by."""

    def __init__(self, questions: "Matrix") -> None:
        """Take the questions: one in a row, of any length but zero."""
        import numpy as np

        self.questions = questions
        self._units = _units(questions)
        self.nearest: NDArray[np.float32] = np.full((len(questions), NEAREST), np.inf, dtype=np.float32)

    @classmethod
    def of(cls, table: "Table", rows: int, dimensions: int) -> "Sample":
        """Take questions from the table: the same ones in every build of the same rows."""
        offsets = [rows * step // OFFSETS for step in range(min(rows, OFFSETS))]
        found = table.take_offsets(offsets).select(["vector"]).to_arrow().column("vector").combine_chunks().drop_null()
        return cls(halfway(found.flatten().to_numpy(zero_copy_only=False).reshape(len(found), dimensions), QUESTIONS))

    def offer(self, vectors: "Matrix") -> None:
        """Look at the next rows of the table."""
        import numpy as np

        if len(vectors):
            distances = 1 - self._units @ _units(vectors).T
            both = np.concatenate([self.nearest, distances], axis=1)
            self.nearest = np.partition(both, NEAREST - 1, axis=1)[:, :NEAREST]

    def recall(self, table: "Table", index: VectorIndex, check: Callable[[], None]) -> float:
        """Return the share of the nearest rows that the index finds. Of equally near rows any will do."""
        import numpy as np

        found = 0
        farthest = self.nearest.max(axis=1, where=np.isfinite(self.nearest), initial=-1)
        for question, bound in zip(self.questions, farthest, strict=True):
            check()
            found += int((_ask(table, index, question) <= bound + TOLERANCE).sum())
        return found / max(1, int(np.isfinite(self.nearest).sum()))


def halfway(vectors: "Matrix", count: int) -> "Matrix":
    """Return at most so many questions half-way between two vectors each; those that point nowhere are left out."""
    import numpy as np

    units = _units(vectors)
    chosen = np.linspace(0, max(0, len(units) - 1), num=min(len(units), count), dtype=np.int64)
    between: Matrix = units[chosen] + units[np.roll(chosen, len(chosen) // 3)]
    pointing: Matrix = between[np.linalg.norm(between, axis=1) > OPPOSITE]
    return pointing


def _ask(table: "Table", index: VectorIndex, question: "Matrix") -> "NDArray[np.float32]":
    """Ask the index as the searcher does."""
    query = table.search(question, vector_column_name="vector").distance_type(METRIC).nprobes(index.probes)
    query = query.refine_factor(index.refine).select(["_distance"]).limit(NEAREST)
    distances: NDArray[np.float32] = (
        query.to_arrow(timeout=timedelta(seconds=QUERY_S)).column("_distance").to_numpy(zero_copy_only=False)
    )
    return distances


def _units(vectors: "Matrix") -> "Matrix":
    import numpy as np

    units: Matrix = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units


def _remove_files(files: Path) -> None:
    for folder in (files / "_indices").glob("*"):
        if any(folder.glob("*.idx")):
            shutil.rmtree(folder, ignore_errors=True)


def _say(table: "Table", why: str) -> None:
    print(f"table {table.name} is published without a vector index, its searches are exact: {why}", file=sys.stderr)
