"""Questions about a view whose answers are known: exact, without what is masked, and the same every time."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from actors.generation_builder.verifying import queries_of, recall_of
from actors.messages.builder_work import SampleView
from actors.messages.index import GenerationRef, VectorProbe, ViewSample, WordProbe
from actors.messages.searcher import FoundRow
from tests.unit.actors.generation_builder.builder_kit import (
    DIMENSIONS,
    EVENTS,
    IDENTITY,
    Builder,
    event,
    hits,
    rows_of,
    sha,
    vector_of,
)
from tests.unit.actors.generation_builder.test_builder_delta import CHANGED, LATER, Store


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    with Builder(tmp_path_factory.mktemp("data") / "index") as builder:
        yield builder


def sample(builder: Builder, view: GenerationRef) -> ViewSample:
    return builder.worker.call(SampleView(view=view), ViewSample)


def test_the_words_find_their_rows_and_the_distances_are_exact(builder: Builder) -> None:
    events = [event(seq, f"note {seq} about tea, number n{seq * 7919}") for seq in range(1, 61)]
    ref = builder.build(900, events=events, units=(), flip=False)
    taken = sample(builder, ref)
    assert len(taken.words) == 8 and len(taken.vectors) > 10
    for probe in taken.words:
        assert probe.query.startswith("n") or probe.query.isdigit()
        assert probe.id in [found for found, _ in hits(ref, "events", probe.query)]
    vectors = np.array([row["vector"] for row in rows_of(ref, "events")], dtype=np.float32)
    for near in taken.vectors:
        question = np.frombuffer(near.vector, dtype="<f4")
        cosines = vectors @ question / np.linalg.norm(question)
        assert np.allclose(near.distances, np.sort(1 - cosines)[:10], atol=1e-5)
    assert sample(builder, ref) == taken


def test_what_a_delta_masks_is_asked_for_in_neither_way(builder: Builder, tmp_path: Path) -> None:
    store = Store(builder, tmp_path)
    view = store.delta(events=[LATER], units=[CHANGED], changed=["u1"])
    taken = sample(builder, view)
    assert {(probe.corpus, probe.id) for probe in taken.words if probe.corpus == "units"} <= {
        ("units", "u1"),
        ("units", "u2"),
    }
    assert all("short" not in probe.query for probe in taken.words)
    old, new = (
        np.frombuffer(vector_of(sha(text)), dtype="<f4")
        for text in ("The user prefers short answers", "The user prefers long answers")
    )
    stale = fresh = 0
    for near in taken.vectors:
        question = np.frombuffer(near.vector, dtype="<f4")
        question = question / np.linalg.norm(question)
        stale += any(abs(each - (1 - float(old @ question))) < 1e-6 for each in near.distances)
        fresh += any(abs(each - (1 - float(new @ question))) < 1e-6 for each in near.distances)
    assert not stale and fresh


def test_without_vectors_and_without_rows_there_is_less_to_ask(builder: Builder) -> None:
    assert not sample(builder, builder.build(901, identity=None, flip=False)).vectors
    assert not sample(builder, builder.build(902, give=False, flip=False)).vectors
    nothing = sample(builder, builder.build(903, events=(), units=(), flip=False))
    assert not nothing.words and not nothing.vectors
    one = sample(builder, builder.build(904, events=EVENTS[:1], units=(), identity=IDENTITY, flip=False))
    assert len(one.words) == 1


def found(score: float, name: str = "x") -> FoundRow:
    return FoundRow(corpus="events", id=name, part=0, score=score)


def test_recall_counts_the_near_ones_and_equally_near_ones_as_well() -> None:
    probe = VectorProbe(tenant="default", vector=b"\0" * 4 * DIMENSIONS, distances=[0.1, 0.2, 0.3])
    assert recall_of([probe], [[found(0.9), found(0.8), found(0.7)]])["value"] == 1.0
    assert recall_of([probe], [[found(0.7), found(0.7000000001), found(0.7)]])["value"] == 1.0
    assert recall_of([probe, probe], [[found(0.9), found(0.8), found(0.5)], []])["value"] == round(2 / 6, 4)
    assert recall_of([], [])["value"] is None


def test_a_row_that_is_not_found_by_its_words_is_named() -> None:
    probes = [WordProbe(corpus="events", id=name, part=0, tenant="default", query=name) for name in ("a", "b", "c")]
    result = queries_of(probes, [[found(2, "a")], [found(3, "x"), found(2, "b")], [found(1, "x")]])
    assert result == {"asked": 3, "found": 2, "first": 1, "missed": ["events/c"]}
