"""A table with a vector index: when it is asked, that it finds what an exact search finds, and that filters hold."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from actors.errors import GenerationSuspect, Interrupted
from actors.generation import MANIFEST, Manifest, VectorIndex, fsync_tree, read_manifest, write_manifest
from actors.messages.base import Candidate, Corpus, Filters
from actors.messages.index import GenerationRef
from actors.searcher.store import GenerationStore, Question
from actors.searcher.vector_index import Asked, asks_for_everything, how_to_ask
from tests.unit.actors.searcher.searcher_generations import IDENTITY, MadeRow, make_generation

DIMENSIONS = 16
ROWS = 3_000
INDEX = VectorIndex(kind="IVF_SQ", partitions=16, probes=12, refine=4)
WIDE = msgspec.structs.replace(IDENTITY, dimensions=DIMENSIONS)


# ------------------------------------------------------------------ when and how it is asked


@pytest.mark.parametrize(
    ("matching", "probes"), [(10_000, 4), (5_000, 8), (4_000, 10), (2_500, 16), (100, 16), (1, 16), (0, 16)]
)
def test_the_fewer_rows_are_left_the_more_partitions_are_looked_into(matching: int, probes: int) -> None:
    index = VectorIndex(kind="IVF_SQ", partitions=16, probes=4, refine=2)
    assert how_to_ask(index, rows=10_000, matching=matching) == Asked(probes, 2)
    assert not asks_for_everything(index)
    assert asks_for_everything(msgspec.structs.replace(index, probes=16))


# ------------------------------------------------------------------ on disk


def rows() -> list[MadeRow]:
    """Clustered vectors; one row of ten has none, one of 300 belongs to a session of its own."""
    rng = np.random.default_rng(3)
    centres = rng.standard_normal((30, DIMENSIONS))
    return [
        MadeRow(
            id=f"e{number}",
            text=f"row {number}",
            ts=number,
            seq=number,
            tenant="other" if number % 7 == 0 else "default",
            session_id="rare" if number % 300 == 1 else f"s{number % 3}",
            tags=["it's"] if number % 2 else [],
            vector=None
            if number % 10 == 0
            else [float(x) for x in centres[number % 30] + 0.4 * rng.standard_normal(DIMENSIONS)],
        )
        for number in range(ROWS)
    ]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> GenerationRef:
    tables: dict[Corpus, list[MadeRow]] = {"events": rows(), "units": [MadeRow(id="u1", text="unit", vector=[1] * 16)]}
    index = tmp_path_factory.mktemp("index")
    return make_generation(index, 1, tables, identity=WIDE, vector_indexes={"events": INDEX})


@pytest.fixture(scope="module")
def store(made: GenerationRef) -> GenerationStore:
    store = GenerationStore(cache_bytes=64 << 20)
    store.load(made, deadline_ns=time.monotonic_ns() + 60 * 10**9)
    return store


def ask(store: GenerationStore, vector: list[float], limit: int = 10, **members: object) -> list[Candidate]:
    base = Question(
        corpora=("events", "units"),
        filters=Filters(),
        tenant="default",
        limit=limit,
        deadline_ns=time.monotonic_ns() + 60 * 10**9,
    )
    return store.nearest(store.get(1), vector, msgspec.structs.replace(base, **members), lambda text: text)


def exactly(store: GenerationStore, vector: list[float], limit: int = 10, **members: object) -> list[Candidate]:
    opened = store.get(1)
    indexes, opened.base.vector_indexes = opened.base.vector_indexes, {}
    try:
        return ask(store, vector, limit, **members)
    finally:
        opened.base.vector_indexes = indexes


def questions(count: int = 20) -> list[list[float]]:
    vectors = [row.vector for row in rows() if row.vector is not None]
    return [[x + 0.01 for x in vectors[number * 97]] for number in range(count)]


def places(found: list[Candidate]) -> list[tuple[str, str]]:
    return [(each.corpus, each.id) for each in found]


def recall(store: GenerationStore, **members: Any) -> float:
    """Return the share of the exact first ten that the index finds."""
    shares = []
    for question in questions():
        exact, found = exactly(store, question, **members), ask(store, question, **members)
        assert len(found) == len(exact), "a filter must not make the list shorter"
        shares.append(len({*places(found)} & {*places(exact)}) / len(exact) if exact else 1.0)
    return sum(shares) / len(shares)


def test_the_index_finds_what_an_exact_search_finds(store: GenerationStore) -> None:
    assert recall(store) >= 0.98
    question = questions(1)[0]
    exact = {place.id: place.vector_score for place in exactly(store, question)}
    found = {place.id: place.vector_score for place in ask(store, question)}
    for each in exact.keys() & found.keys():
        assert found[each] == pytest.approx(exact[each], abs=1e-5), "scores are exact"


def test_the_index_is_asked(store: GenerationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one probe and no refinement the answer is worse: so it came from the index."""
    opened = store.get(1)
    poor = msgspec.structs.replace(INDEX, probes=1, refine=1)
    monkeypatch.setattr(opened.base, "vector_indexes", {"events": poor})
    wanted = [places(exactly(store, question, limit=100)) for question in questions()]
    found = [places(ask(store, question, limit=100)) for question in questions()]
    assert found != wanted


@pytest.mark.parametrize(
    "filters",
    [
        Filters(session_ids=("rare",)),
        Filters(session_ids=("s1",)),
        Filters(since=2_900),
        Filters(until=1_000),
        Filters(tags=("it's",)),
        Filters(session_ids=("nobody",)),
    ],
)
def test_filters_narrow_before_the_index_ranks(store: GenerationStore, filters: Filters) -> None:
    assert recall(store, filters=filters, corpora=("events",)) >= 0.98


def test_nobody_sees_the_rows_of_another_tenant_through_the_index(store: GenerationStore) -> None:
    for question in questions(5):
        assert all(int(each.id[1:]) % 7 for each in ask(store, question, limit=200, corpora=("events",)))
        others = ask(store, question, limit=200, tenant="other", corpora=("events",))
        assert others and not any(int(each.id[1:]) % 7 for each in others)
        assert ask(store, question, tenant="' OR true --") == []


def test_rows_without_a_vector_are_never_returned(store: GenerationStore) -> None:
    for question in questions(3):
        assert not any(int(each.id[1:]) % 10 == 0 for each in ask(store, question, limit=1000, corpora=("events",)))


def test_what_a_filter_leaves_is_counted_once(store: GenerationStore) -> None:
    opened = store.get(1)
    opened.base.matching.clear()
    for _ in range(3):
        ask(store, questions(1)[0], filters=Filters(since=1_000))
    assert len(opened.base.matching) == 1
    assert [*opened.base.matching.values()] == [sum(1 for n in range(1_000, ROWS) if n % 7)]


def test_a_count_ends_at_the_deadline(store: GenerationStore) -> None:
    store.get(1).base.matching.clear()
    with pytest.raises(Interrupted, match="deadline"):
        ask(store, questions(1)[0], deadline_ns=time.monotonic_ns() - 1)


# ------------------------------------------------------------------ what is refused


def small(folder: Path) -> GenerationRef:
    tables: dict[Corpus, list[MadeRow]] = {"events": rows()[:600]}
    return make_generation(folder, 1, tables, identity=WIDE, vector_indexes={"events": INDEX})


def load(ref: GenerationRef) -> None:
    GenerationStore(cache_bytes=64 << 20).load(ref, deadline_ns=time.monotonic_ns() + 60 * 10**9)


def reseal(ref: GenerationRef, change: Callable[[Manifest], Manifest]) -> None:
    folder = Path(ref.path)
    write_manifest(folder, change(msgspec.structs.replace(read_manifest(folder), files=fsync_tree(folder))))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("name", ["index.idx", "auxiliary.idx"])
@pytest.mark.parametrize("damage", [flip, empty, Path.unlink])
def test_damage_of_the_index_is_found_before_anything_is_opened(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    ref = small(tmp_path)
    damage(next(Path(ref.path).glob(f"events.lance/_indices/*/{name}")))
    with pytest.raises(GenerationSuspect, match="gen-000001"):
        load(ref)


@pytest.mark.parametrize("name", ["index.idx", "auxiliary.idx"])
def test_an_index_that_cannot_be_read_is_found_when_it_is_opened(tmp_path: Path, name: str) -> None:
    """Its manifest was written after the damage, so only the probe can find it."""
    ref = small(tmp_path)
    path = next(Path(ref.path).glob(f"events.lance/_indices/*/{name}"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    reseal(ref, lambda manifest: manifest)
    with pytest.raises(GenerationSuspect, match="opening failed"):
        load(ref)


def test_an_index_that_was_sealed_and_is_not_there_is_refused(tmp_path: Path) -> None:
    ref = make_generation(tmp_path, 1, {"events": rows()[:600]}, identity=WIDE)
    reseal(ref, lambda manifest: msgspec.structs.replace(manifest, vector_indexes={"events": INDEX}))
    with pytest.raises(GenerationSuspect, match="600 rows outside its vector index"):
        load(ref)


def test_an_index_of_another_kind_is_refused(tmp_path: Path) -> None:
    ref = small(tmp_path)
    other = msgspec.structs.replace(INDEX, kind="IVF_PQ")
    reseal(ref, lambda manifest: msgspec.structs.replace(manifest, vector_indexes={"events": other}))
    with pytest.raises(GenerationSuspect, match=r"vector index of table events is of kind .*, sealed was IVF_PQ"):
        load(ref)


def test_a_manifest_from_before_there_were_indexes_is_read(tmp_path: Path) -> None:
    ref = make_generation(tmp_path, 1, {"events": rows()[:10]}, identity=WIDE)
    path = Path(ref.path) / MANIFEST
    members = msgspec.json.decode(path.read_bytes())
    del members["vector_indexes"]
    path.write_bytes(msgspec.json.encode(members))
    assert read_manifest(Path(ref.path)).vector_indexes == {}
    load(ref)
