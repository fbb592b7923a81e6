"""Deltas over a generation, in the real worker: what they hold, hand on and mask."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from actors import generation as generations
from actors.errors import BuildFailed, GenerationSuspect
from actors.generation import Masked, read_manifest, read_mask
from actors.generation_builder import earlier
from actors.messages.base import CORPORA, Done
from actors.messages.builder_work import (
    BeginDelta,
    FlipGeneration,
    IndexState,
    ProbeIndex,
    RecoverIndex,
    RetireGenerations,
)
from actors.messages.core_writer import SourceRoot
from actors.messages.index import Covers, GenerationRef, Items
from tests.unit.actors.generation_builder.builder_kit import (
    EVENTS,
    IDENTITY,
    UNITS,
    Builder,
    Event,
    event,
    rows_of,
    unit,
    write_notes,
)

LATER = event(6, "The rollback of the billing service went well")
CHANGED = unit(3, "The user prefers long answers", unit_id="u1", version=2)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """One worker for all tests: importing LanceDB takes seconds."""
    with Builder(tmp_path_factory.mktemp("data") / "index") as builder:
        yield builder


class Store:
    """A generation of its own, and the deltas over it."""

    numbers = iter(range(1, 1000))

    def __init__(self, builder: Builder, folder: Path) -> None:
        self.builder = builder
        self.root = write_notes(folder / "notes")
        self.base = builder.build(next(self.numbers), sources=[self.root])
        self.deltas = 0

    def note(self, name: str) -> Path:
        return Path(self.root.path) / name

    def delta(
        self,
        *,
        before: GenerationRef | None = None,
        events: Sequence[Event] = (),
        units: Sequence[Event] = (),
        changed: Sequence[str] = (),
        sources: Sequence[SourceRoot] | None = None,
        give: bool = True,
        flip: bool = False,
    ) -> GenerationRef:
        """Make a delta with all the vectors that are wanted."""
        self.deltas += 1
        given = [self.root] if sources is None else list(sources)
        covers = Covers(event_seq=6, core_seq=len(UNITS) + len(changed), sources_digest=f"digest {self.deltas}")
        begin = BeginDelta(
            base=self.base, before=before, delta=self.deltas, covers=covers, sources=given, changed_units=list(changed)
        )
        wanted = self.builder.staged(begin).wanted
        wanted += self.builder.stage(events=events, units=units, documents=bool(given))
        if give and wanted:
            self.builder.give(wanted)
        sealed = self.builder.finish()
        if flip:
            self.builder.do(FlipGeneration(generation=sealed.generation, delta=sealed.delta))
        return sealed


@pytest.fixture
def store(builder: Builder, tmp_path: Path) -> Store:
    return Store(builder, tmp_path)


def rows(view: GenerationRef, corpus: str) -> list[dict[str, object]]:
    """Return the rows of a delta's own table."""
    assert view.delta_path is not None
    base = GenerationRef(
        generation=view.generation,
        path=view.delta_path,
        covers=view.covers,
        rows={},
        vectors_have=0,
        vectors_want=0,
        identity=IDENTITY,
        built_at=0,
    )
    return rows_of(base, corpus)


def test_a_delta_holds_what_is_new_and_masks_what_changed(store: Store) -> None:
    view = store.delta(events=[LATER], units=[CHANGED], changed=["u1"])
    assert view.delta_path is not None
    assert (view.generation, view.delta, view.path) == (store.base.generation, 1, store.base.path)
    assert [row["id"] for row in rows(view, "events")] == ["e6"]
    assert [(row["id"], row["version"]) for row in rows(view, "units")] == [("u1", 2)]
    assert rows(view, "documents") == []
    assert read_mask(Path(view.delta_path)) == generations.Mask(units=("u1",))
    assert view.rows == {"events": 6, "units": 2, "documents": 4}
    assert (view.vectors_have, view.vectors_want) == (store.base.vectors_have + 1, store.base.vectors_want + 1)
    assert read_manifest(Path(view.delta_path)).masked == Masked(
        rows={"units": 1, "documents": 0},
        vectors_have=1,
        vectors_want=1,
        items={"units": Items(items=1, complete=1), "documents": Items()},
    )


def test_a_unit_that_is_no_longer_active_is_masked_and_has_no_row(store: Store) -> None:
    view = store.delta(changed=["u2"])
    assert rows(view, "units") == []
    assert view.rows["units"] == 1


def test_notes_that_changed_came_or_went(store: Store) -> None:
    store.note("plain.md").write_text("another text\n")
    store.note("new.md").write_text("# New\n\nsomething new\n")
    store.note("日记.md").unlink()
    view = store.delta()
    assert view.delta_path is not None
    assert {row["path"] for row in rows(view, "documents")} == {"notes/plain.md", "notes/new.md"}
    masked = {path for _, path in read_mask(Path(view.delta_path)).documents}
    assert masked == {"notes/plain.md", "notes/new.md", "notes/日记.md"}
    assert view.rows["documents"] == 4


def test_a_note_that_was_moved_keeps_its_vector_though_the_cache_has_lost_it(store: Store) -> None:
    store.note("plain.md").rename(store.note("moved.md"))
    view = store.delta(give=False)
    (row,) = rows(view, "documents")
    assert row["path"] == "notes/moved.md"
    assert row["vector"] is not None


def test_a_delta_takes_over_the_rows_of_the_one_before(store: Store) -> None:
    store.note("plain.md").write_text("another text\n")
    first = store.delta(events=[LATER], units=[CHANGED], changed=["u1"])
    store.note("new.md").write_text("# New\n\nsomething new\n")
    seventh = event(7, "And one more")
    second = store.delta(before=first, events=[LATER, seventh], changed=["u2"], give=False)
    whole = store.delta(events=[LATER, seventh], units=[CHANGED], changed=["u1", "u2"])
    for corpus in CORPORA:
        told, expected = ({row["id"]: row for row in rows(view, corpus)} for view in (second, whole))
        assert told.keys() == expected.keys()
        for name, row in told.items():
            assert {key: row[key] for key in ("text", "terms", "seq", "hash")} == {
                key: expected[name][key] for key in ("text", "terms", "seq", "hash")
            }
    assert [row["id"] for row in rows(second, "events")] == ["e7", "e6"]
    assert {row["id"] for row in rows(second, "events") if row["vector"] is not None} == {"e6"}, "nobody gave e7's"
    assert second.rows == whole.rows


def test_what_changed_again_is_not_taken_over(store: Store) -> None:
    first = store.delta(units=[CHANGED], changed=["u1"])
    again = unit(4, "The user prefers no answers", unit_id="u1", version=3)
    second = store.delta(before=first, units=[again], changed=["u1"])
    assert [(row["id"], row["version"]) for row in rows(second, "units")] == [("u1", 3)]
    store.note("plain.md").write_text("first change\n")
    third = store.delta(before=second)
    store.note("plain.md").write_text("second change\n")
    fourth = store.delta(before=third)
    assert [row["text"] for row in rows(fourth, "documents")] == ["second change"]


def test_a_note_that_cannot_be_read_keeps_the_rows_it_had(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(store.root.path)
    first = store.delta()
    folder.rename(folder.with_name("away"))
    view = store.delta(before=first)
    assert view.delta_path is not None
    assert view.rows["documents"] == 4, "the root has vanished: nothing is taken for deleted"
    assert read_mask(Path(view.delta_path)).documents == ()


def test_a_source_that_was_removed_is_masked(store: Store) -> None:
    view = store.delta(sources=[])
    assert view.rows["documents"] == 0


def test_a_delta_without_its_predecessor_is_refused(store: Store) -> None:
    first = store.delta(events=[LATER])
    assert first.delta_path is not None
    (Path(first.delta_path) / "MASK.msgpack").unlink()
    with pytest.raises(GenerationSuspect):
        store.delta(before=first)
    store.delta(events=[LATER])


def test_a_number_is_never_used_twice(store: Store) -> None:
    store.delta()
    store.deltas = 0
    with pytest.raises(BuildFailed, match=r"-d0001 is sealed already"):
        store.delta()


def test_current_names_both_and_both_come_back_after_a_restart(store: Store) -> None:
    view = store.delta(events=[LATER], flip=True)
    state = store.builder.worker.call(RecoverIndex(), IndexState)
    assert (state.current, state.base) == (view, store.base)
    assert state.deltas_highest >= 1
    store.builder.do(ProbeIndex(generation=view.generation, delta=view.delta))
    with pytest.raises(GenerationSuspect, match="expected gen-"):
        store.builder.do(ProbeIndex(generation=view.generation))


def test_a_damaged_delta_leaves_its_generation_in_service(store: Store) -> None:
    view = store.delta(events=[LATER], flip=True)
    assert view.delta_path is not None
    path = next(path for path in sorted(Path(view.delta_path).rglob("data/*.lance")))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    state = store.builder.worker.call(RecoverIndex(), IndexState)
    assert (state.current, state.base) == (store.base, store.base)
    assert [Path(suspect.path) for suspect in state.suspects] == [Path(view.delta_path)]


def test_retirement_deletes_deltas_that_nobody_reads(store: Store) -> None:
    first = store.delta(events=[LATER])
    second = store.delta(events=[LATER], flip=True)
    assert first.delta_path is not None and second.delta_path is not None
    store.builder.do(RetireGenerations(keep=[first.view]))
    assert Path(first.delta_path).is_dir() and Path(second.delta_path).is_dir()
    store.builder.do(RetireGenerations(keep=[]))
    assert not Path(first.delta_path).exists()
    assert Path(second.delta_path).is_dir() and Path(store.base.path).is_dir(), "CURRENT names them"


def test_a_generation_that_another_process_builds_is_left_alone(store: Store) -> None:
    index = store.builder.index
    generations.build_path(index, 999).mkdir()
    store.builder.do(RetireGenerations(keep=[store.base.view], building=999))
    assert generations.build_path(index, 999).is_dir()
    store.builder.worker.call(RetireGenerations(keep=[store.base.view]), Done)
    assert not generations.build_path(index, 999).exists()


def test_everything_at_once_is_what_a_fresh_generation_holds(store: Store) -> None:
    assert len(EVENTS) == 5
    store.note("plain.md").write_text("another text\n")
    view = store.delta(events=[LATER], units=[CHANGED], changed=["u1"])
    fresh = store.builder.build(
        next(store.numbers), events=[*EVENTS, LATER], units=[UNITS[1], CHANGED], sources=[store.root]
    )
    assert view.rows == fresh.rows
    assert view.items == fresh.items
    assert (view.vectors_have, view.vectors_want) == (fresh.vectors_have, fresh.vectors_want)


def test_a_view_whose_delta_masks_every_note_hands_on_the_new_ones_alone(store: Store) -> None:
    for name in ("linux/ls.md", "日记.md", "plain.md"):
        store.note(name).write_text(f"# new\n\nall of {name} is another text now\n")
    view = store.delta()
    kept = [row["text"] for batch in earlier.documents(view) for row in batch.to_pylist()]
    assert len(kept) == 3 and all("another text" in str(text) for text in kept)
