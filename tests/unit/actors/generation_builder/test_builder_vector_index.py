"""The vector index of a table: built by the real worker, sealed, damaged; dropped when it is not good enough."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.errors import GenerationSuspect
from actors.generation import VectorIndex, read_manifest
from actors.generation_builder import store, vector_index
from actors.generation_builder.index_policy import IndexPlan
from actors.generation_builder.staging import table_schema
from actors.generation_builder.vector_index import Sample
from actors.messages.base import Filters
from actors.messages.builder_work import AbandonBuild, VerifyGeneration
from actors.messages.index import GenerationRef
from actors.searcher.store import GenerationStore, Question
from tests.unit.actors.generation_builder.builder_kit import Builder, event, unit, vector_of

ROWS = 2_500
PLAN = VectorIndex(kind="IVF_SQ", partitions=16, probes=4, refine=2)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """A worker that indexes what has more than 8,000 values."""
    with Builder(tmp_path_factory.mktemp("data") / "index", exact_values_max=8_000) as builder:
        yield builder


@pytest.fixture(scope="module")
def indexed(builder: Builder) -> GenerationRef:
    """Generation 1: many events, of which a third has no vector; few units."""
    builder.begin(1)
    events = [event(seq, f"event number {seq}") for seq in range(1, ROWS + 1)]
    wanted = builder.stage(events=events, units=[unit(1, "one unit")])
    builder.give([key for number, key in enumerate(wanted) if number % 3])
    return builder.finish()


def index_files(folder: Path, corpus: str = "events") -> list[Path]:
    return sorted((folder / f"{corpus}.lance" / "_indices").glob("*/*.idx"))


# ------------------------------------------------------------------ by the worker


def test_a_large_table_is_indexed_and_a_small_one_is_not(indexed: GenerationRef) -> None:
    assert indexed.vectors_have < indexed.vectors_want
    manifest = read_manifest(Path(indexed.path))
    assert set(manifest.vector_indexes) == {"events"}
    index = manifest.vector_indexes["events"]
    assert (index.kind, index.probes) == ("IVF_SQ", index.partitions)
    assert {path.name for path in index_files(Path(indexed.path))} == {"index.idx", "auxiliary.idx"}
    assert index_files(Path(indexed.path), "units") == []


def test_the_files_of_the_index_are_sealed(indexed: GenerationRef, builder: Builder) -> None:
    sealed = {entry.path for entry in read_manifest(Path(indexed.path)).files}
    assert {str(path.relative_to(indexed.path)) for path in index_files(Path(indexed.path))} <= sealed
    assert builder.worker.call(VerifyGeneration(generation=1), GenerationRef) == indexed


def test_the_searcher_opens_it_and_finds_what_an_exact_search_finds(indexed: GenerationRef) -> None:
    opening = GenerationStore(cache_bytes=64 << 20)
    opening.load(indexed, deadline_ns=time.monotonic_ns() + 60 * 10**9)
    opened = opening.get(1)
    assert set(opened.base.vector_indexes) == {"events"}
    indexes = opened.base.vector_indexes
    for number in range(20):
        vector = [float(value) for value in np.frombuffer(vector_of(number.to_bytes(8, "big")), dtype="<f4")]
        answers = []
        for each in (indexes, {}):
            opened.base.vector_indexes = each
            question = Question(
                corpora=("events", "units"),
                filters=Filters(),
                tenant="default",
                limit=10,
                deadline_ns=time.monotonic_ns() + 60 * 10**9,
            )
            found = opening.nearest(opened, vector, question, lambda text: text)
            answers.append([(candidate.id, candidate.part) for candidate in found])
        assert answers[0] == answers[1] and len(answers[0]) == 10


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", ["index.idx", "auxiliary.idx"])
@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
def test_damage_of_the_index_is_found(
    builder: Builder, indexed: GenerationRef, name: str, damage: Callable[[Path], None]
) -> None:
    path = next(path for path in index_files(Path(indexed.path)) if path.name == name)
    before = path.read_bytes()
    damage(path)
    try:
        with pytest.raises(GenerationSuspect, match="gen-000001"):
            builder.worker.call(VerifyGeneration(generation=1), GenerationRef)
    finally:
        path.write_bytes(before)


def test_vectors_are_borrowed_from_an_indexed_generation(builder: Builder, indexed: GenerationRef) -> None:
    builder.begin(2, previous=indexed)
    wanted = builder.stage(events=[event(seq, f"event number {seq}") for seq in range(1, 31)])
    assert len(wanted) == 10, "a third had no vector"
    builder.do(AbandonBuild())


# ------------------------------------------------------------------ good enough or dropped


def write(folder: Path, vectors: np.ndarray, missing: int = 0) -> None:
    """Write a table of events with these vectors; every `missing`-th row has none."""
    import pyarrow as pa

    schema = table_schema(vectors.shape[1])
    count = len(vectors)
    gone = np.array([bool(missing) and number % missing == 0 for number in range(count)])
    values: dict[str, Any] = {
        "id": [f"e{number}" for number in range(count)],
        "tags": [[]] * count,
        "text": ["text"] * count,
        "terms": ["text"] * count,
        "hash": [number.to_bytes(32, "big") for number in range(count)],
    }
    values |= {name: [0] * count for name in ("part", "version", "seq", "ts")}
    arrays = [
        pa.array(values.get(field.name, [None] * count), field.type) for field in schema if field.name != "vector"
    ]
    flat = pa.array(vectors.astype("f4").reshape(-1))
    vector = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1], mask=pa.array(gone))
    store.write_table(folder, "events", schema, [pa.RecordBatch.from_arrays([*arrays, vector], schema=schema)])


def facts(vectors: np.ndarray, have: int, index: VectorIndex | None) -> store.TableFacts:
    return store.TableFacts(
        rows=len(vectors),
        vectors=have,
        dimensions=vectors.shape[1],
        normalised=False,
        probes=(),
        vector_index=index,
    )


def clustered(rows: int, dimensions: int = 16) -> np.ndarray:
    rng = np.random.default_rng(5)
    centres = rng.standard_normal((20, dimensions))
    return centres[rng.integers(0, 20, rows)] + 0.3 * rng.standard_normal((rows, dimensions))


def test_a_good_index_is_kept_with_the_probes_that_it_takes(tmp_path: Path) -> None:
    vectors = clustered(3_000)
    write(tmp_path, vectors, missing=4)
    made = store.index_table(tmp_path, "events", IndexPlan(keyword=True, vector=PLAN))
    assert made.vector_index == PLAN
    kept = store.check_table(tmp_path, "events", facts(vectors, 2_250, PLAN), lambda: None)
    assert kept.version == made.version and kept.vector_index is not None
    assert PLAN.probes <= kept.vector_index.probes <= PLAN.partitions


def test_an_index_that_finds_too_little_is_dropped_with_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vector_index, "RECALL_MIN", 1.01)
    vectors = clustered(1_000)
    write(tmp_path, vectors)
    made = store.index_table(tmp_path, "events", IndexPlan(keyword=True, vector=PLAN))
    assert index_files(tmp_path)
    left = store.check_table(tmp_path, "events", facts(vectors, 1_000, PLAN), lambda: None)
    assert left.vector_index is None and left.version > made.version
    assert index_files(tmp_path) == []
    assert "table events is published without a vector index" in capsys.readouterr().err
    # What is left is a whole table with its keyword index.
    assert store.check_table(tmp_path, "events", facts(vectors, 1_000, None), lambda: None) == left


def test_an_index_that_leaves_rows_out_is_dropped(tmp_path: Path) -> None:
    vectors = clustered(1_000)
    write(tmp_path, vectors)
    store.index_table(tmp_path, "events", IndexPlan(keyword=False, vector=PLAN))
    table = store.open_table(tmp_path, "events")
    moved = table.search().where("id = 'e7'").to_arrow()
    table.delete("id = 'e7'")
    table.add(moved)
    store.index_table(tmp_path, "events", IndexPlan(keyword=True, vector=None))
    assert store.check_table(tmp_path, "events", facts(vectors, 1_000, PLAN), lambda: None).vector_index is None
    assert index_files(tmp_path) == []


def test_an_index_that_cannot_be_built_costs_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = clustered(10)
    write(tmp_path, vectors, missing=1)  # no vector at all: LanceDB refuses to train on nothing
    made = store.index_table(tmp_path, "events", IndexPlan(keyword=True, vector=PLAN))
    assert made.vector_index is None and index_files(tmp_path) == []
    assert "vector index of table events" in capsys.readouterr().err
    assert store.check_table(tmp_path, "events", facts(vectors, 0, None), lambda: None) == made


def test_rows_that_are_all_alike_are_near_each_other_whichever_is_found(tmp_path: Path) -> None:
    vectors = np.tile(np.array([[0.6, 0.8, 0.0, 0.0]]), (600, 1))
    write(tmp_path, vectors)
    made = store.index_table(tmp_path, "events", IndexPlan(keyword=True, vector=PLAN))
    if made.vector_index is not None:
        kept = store.check_table(tmp_path, "events", facts(vectors, 600, PLAN), lambda: None)
        assert kept.vector_index is not None


def test_the_sample_knows_the_exact_distances_however_the_rows_come() -> None:
    vectors = clustered(500).astype("f4")
    whole, pieces = Sample(vectors[:5]), Sample(vectors[:5])
    whole.offer(vectors)
    for first in range(0, 500, 7):
        pieces.offer(vectors[first : first + 7])
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    exact = np.sort(1 - units[:5] @ units.T, axis=1)[:, :10]
    for sample in (whole, pieces):
        assert np.allclose(np.sort(sample.nearest, axis=1), exact, atol=1e-5)
