"""Which indexes a table gets, by its size. Pure.

Owns the numbers, and why they are what they are (docs/MEASUREMENTS.md, "Vector index", has the measurements):

* A table that is small enough is compared row by row: exact, nothing to build, nothing that differs between builds.
* Above that IVF with scalar quantisation: partitions found by k-means, a byte a dimension in them, and the best
  candidates compared again with their full vectors. IVF_PQ and HNSW cost 10 to 50 times as much to build.
* Vectors count, not rows: most rows of a young generation have none yet, and an index of them would be trained on
  what happened to be embedded first.

How many partitions a search looks into is a first guess where it is not all of them. The self-test doubles it until
its recall is good enough, and the manifest records what came out.
"""

import math
from typing import NamedTuple

from actors.generation import VectorIndex

IVF_SQ = "IVF_SQ"
# Values (vectors × dimensions) that are compared one by one. LanceDB compares about 200 million a second on two
# cores, so this is about 25 ms; an index answers in 10 ms at any size, so below this it has nothing to gain.
EXACT_VALUES_MAX = 5_000_000
# Vectors in a partition. The more partitions, the better the recall for what is looked at, and the longer the training.
PARTITION_VECTORS = 2048
# More than 256 are trained in a hierarchy by LanceDB, which has left indexes half empty.
PARTITIONS_MAX = 256
# Training looks at so many vectors a partition: 64 are as good as LanceDB's 256, for a quarter of the time and memory.
SAMPLE_RATE = 64
# Values that a search looks at: quantised ones go by at some thousand million a second. So up to this size a search
# looks into every partition, and where training happened to put their borders does not matter.
PROBED_VALUES = 100_000_000
# … and the least share of the partitions above: with a sixth of them real questions lost 7 % of the first ten.
PROBED_SHARE_MIN = 0.25
REFINE = 2


class IndexPlan(NamedTuple):
    """Which indexes a table gets."""

    keyword: bool
    vector: VectorIndex | None


def index_policy(
    rows: int, vectors: int, dimensions: int | None, *, exact_values_max: int = EXACT_VALUES_MAX
) -> IndexPlan:
    """Return which indexes a table with so many rows and so many vectors among them gets."""
    assert 0 <= vectors <= rows and (dimensions is None or dimensions > 0)
    vector = None
    if dimensions is not None and vectors * dimensions > exact_values_max:
        vector = vector_index(vectors, dimensions)
    return IndexPlan(keyword=rows > 0, vector=vector)


def vector_index(vectors: int, dimensions: int) -> VectorIndex:
    """Return the index for so many vectors."""
    assert vectors > 0 and dimensions > 0
    partitions = min(PARTITIONS_MAX, max(1, vectors // PARTITION_VECTORS))
    share = min(1.0, max(PROBED_SHARE_MIN, PROBED_VALUES / (vectors * dimensions)))
    probes = math.ceil(partitions * share)
    return VectorIndex(kind=IVF_SQ, partitions=partitions, probes=probes, refine=REFINE)


def more_probes(index: VectorIndex) -> VectorIndex | None:
    """Return the index asked twice as thoroughly, None when it was asked for everything it has."""
    if index.probes >= index.partitions:
        return None
    return VectorIndex(
        kind=index.kind,
        partitions=index.partitions,
        probes=min(index.partitions, 2 * index.probes),
        refine=index.refine,
    )
