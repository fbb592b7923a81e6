"""What is known of a change of the embedding model survives a restart, and a successor only when it is still whole."""

from pathlib import Path

import pytest

from actors import generation as generations
from actors.generation_builder import model_change
from actors.messages.base import CORPORA
from actors.messages.builder_work import ModelChange
from actors.messages.index import Comparison, Covers, GenerationRef
from tests.unit.actors.generation_builder.builder_kit import IDENTITY

COMPARISON = Comparison(
    earlier=3,
    later=5,
    queries=4,
    with_vectors=4,
    top=10,
    overlap=0.5,
    rank_correlation=None,
    earlier_ms=1.5,
    later_ms=2.5,
)
SUCCESSOR = 5


def sealed(index: Path, number: int = SUCCESSOR) -> GenerationRef:
    """Seal a folder that looks like a generation to everybody but LanceDB."""
    folder = generations.generation_path(index, number)
    (folder / "events.lance" / "data").mkdir(parents=True)
    (folder / "events.lance" / "data" / "rows").write_bytes(b"x" * 1000)
    manifest = generations.Manifest(
        format=generations.FORMAT,
        generation=number,
        delta=None,
        covers=Covers(event_seq=7),
        identity=IDENTITY,
        rows=dict.fromkeys(CORPORA, 1),
        vectors_have=1,
        vectors_want=3,
        lancedb_version="",
        table_versions={},
        built_at=0,
        skipped=[],
        held=[],
        sources=[],
        files=generations.fsync_tree(folder),
    )
    generations.write_manifest(folder, manifest)
    return generations.reference(folder, manifest)


def recall(index: Path) -> ModelChange:
    return model_change.recall(index, lambda: None)


def test_what_is_kept_is_recalled(tmp_path: Path) -> None:
    assert recall(tmp_path) == ModelChange()
    change = ModelChange(successor=sealed(tmp_path), declined="a key", comparison=COMPARISON)
    model_change.keep(tmp_path, change)
    assert recall(tmp_path) == change
    model_change.keep(tmp_path, ModelChange(comparison=COMPARISON))
    assert recall(tmp_path) == ModelChange(comparison=COMPARISON)
    model_change.keep(tmp_path, ModelChange())
    assert recall(tmp_path) == ModelChange()


def test_nothing_is_written_when_there_is_nothing_to_keep(tmp_path: Path) -> None:
    model_change.keep(tmp_path, ModelChange())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"successor": "5"}', b"\xff", b'{"successor": 99}'])
def test_a_file_that_cannot_be_believed_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / generations.MODEL_CHANGE).write_bytes(content)
    assert recall(tmp_path) == ModelChange()


@pytest.mark.parametrize("damage", ["a bit", "gone"])
def test_a_successor_that_is_not_whole_is_none(tmp_path: Path, damage: str) -> None:
    model_change.keep(tmp_path, ModelChange(successor=sealed(tmp_path), declined="a key"))
    path = generations.generation_path(tmp_path, SUCCESSOR) / "events.lance" / "data" / "rows"
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"x" * 999 + b"y")
    assert recall(tmp_path) == ModelChange(declined="a key")
