"""Which indexes a table gets, by its size: decided without a table."""

import pytest

from actors.generation_builder.index_policy import (
    EXACT_VALUES_MAX,
    PARTITIONS_MAX,
    PROBED_SHARE_MIN,
    PROBED_VALUES,
    IndexPlan,
    index_policy,
    more_probes,
    vector_index,
)

SIZES = [(rows, size) for rows in (1_000, 10_000, 17_395, 100_000, 1_000_000) for size in (256, 384, 768, 1536)]


def test_an_empty_table_gets_no_index() -> None:
    assert index_policy(0, 0, 384) == IndexPlan(keyword=False, vector=None)


def test_without_vectors_there_is_no_vector_index() -> None:
    assert index_policy(1, 0, None) == IndexPlan(keyword=True, vector=None)
    assert index_policy(1_000_000, 0, None).vector is None
    assert index_policy(1_000_000, 0, 1536).vector is None, "none is embedded yet"


@pytest.mark.parametrize("dimensions", [256, 384, 768, 1536])
def test_the_index_begins_where_an_exact_search_takes_too_long(dimensions: int) -> None:
    most = EXACT_VALUES_MAX // dimensions
    assert index_policy(most, most, dimensions).vector is None
    assert index_policy(most + 1, most + 1, dimensions).vector is not None


def test_vectors_count_and_not_rows() -> None:
    assert index_policy(1_000_000, 1_000, 384).vector is None
    few, many = index_policy(1_000_000, 100_000, 384).vector, index_policy(1_000_000, 1_000_000, 384).vector
    assert few is not None and many is not None and few.partitions < many.partitions


@pytest.mark.parametrize(("rows", "dimensions"), SIZES)
def test_the_numbers_of_an_index_make_sense(rows: int, dimensions: int) -> None:
    index = index_policy(rows, rows, dimensions).vector
    if index is None:
        assert rows * dimensions <= EXACT_VALUES_MAX
        return
    assert 1 <= index.probes <= index.partitions <= PARTITIONS_MAX
    assert index.probes >= PROBED_SHARE_MIN * index.partitions
    assert index.refine >= 1


def test_the_threshold_can_be_moved() -> None:
    assert index_policy(100, 100, 8, exact_values_max=799).vector is not None
    assert index_policy(100, 100, 8, exact_values_max=800).vector is None


def test_more_probes_end_with_all_of_them() -> None:
    index = vector_index(1_000_000, 384)
    tried = [index.probes]
    following = more_probes(index)
    while following is not None:
        tried.append(following.probes)
        assert (following.partitions, following.refine) == (PARTITIONS_MAX, index.refine)
        following = more_probes(following)
    assert tried == sorted(set(tried)) and tried[-1] == index.partitions


def test_up_to_some_size_a_search_looks_into_every_partition() -> None:
    most = vector_index(PROBED_VALUES // 384, 384)
    assert most.probes == most.partitions > 1
    more = vector_index(2 * PROBED_VALUES // 384, 384)
    assert more.probes == pytest.approx(more.partitions / 2, abs=1)
