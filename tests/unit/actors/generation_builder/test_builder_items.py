"""What becomes of items: counted in rows, over a view in the real worker, and put together with what is newer."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from actors.generation import read_manifest
from actors.generation_builder.item_counter import ItemCounter, Tally, items_of
from actors.generation_builder.item_states import changed_last, item_counts
from actors.messages.base import Corpus
from actors.messages.builder_work import (
    BeginDelta,
    CountedItems,
    CountedView,
    CountInView,
    FindInView,
    FlipGeneration,
    ScanResult,
    ScanSources,
)
from actors.messages.core_writer import SourceRoot, UnitChanges
from actors.messages.generation_builder import ItemState
from actors.messages.index import Covers, EmbeddingIdentity, GenerationRef, Items
from tests.unit.actors.generation_builder.builder_kit import (
    EVENTS,
    IDENTITY,
    Builder,
    Event,
    event,
    sha,
    unit,
    write_notes,
)

LONG = " ".join(f"word{number} of a text that is cut into several pieces." for number in range(400))


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """One worker for all tests: importing LanceDB takes seconds."""
    with Builder(tmp_path_factory.mktemp("data") / "index") as builder:
        yield builder


numbers = iter(range(1, 1000))


def delta(
    builder: Builder,
    base: GenerationRef,
    number: int,
    *,
    source: SourceRoot,
    events: Sequence[Event] = (),
    units: Sequence[Event] = (),
    changed: Sequence[str] = (),
    give: bool = True,
) -> GenerationRef:
    covers = Covers(event_seq=6, core_seq=9, sources_digest=f"digest {base.generation} {number}")
    begin = BeginDelta(
        base=base, before=None, delta=number, covers=covers, sources=[source], changed_units=list(changed)
    )
    wanted = builder.staged(begin).wanted
    wanted += builder.stage(events=events, units=units, documents=True)
    if give and wanted:
        builder.give(wanted)
    return builder.finish()


def count(
    builder: Builder,
    view: GenerationRef | None,
    *sources: SourceRoot,
    refused: Sequence[bytes] = (),
    changed: Sequence[str] = (),
) -> dict[str, CountedItems]:
    builder.worker.call(ScanSources(sources=list(sources)), ScanResult)
    message = CountInView(view=view, sources=list(sources), refused=list(refused), changed_units=list(changed))
    return builder.worker.call(message, CountedView).corpora


def find(
    builder: Builder, view: GenerationRef, source: SourceRoot, corpus: Corpus, key: str, *refused: bytes
) -> ItemState:
    message = FindInView(view=view, sources=[source], refused=list(refused), corpus=corpus, key=key, tenant="default")
    return builder.worker.call(message, ItemState)


# ---------------------------------------------------------------- rows


def test_rows_of_an_item_are_one_item() -> None:
    counter = ItemCounter()
    for key, embeddable, present in (
        ("a", True, True),
        ("a", True, True),
        ("b", True, True),
        ("b", True, False),
        ("c", False, False),
        ("d", False, False),
        ("d", True, True),
    ):
        counter.add(key, embeddable=embeddable, present=present)
    assert counter.result() == Items(items=4, complete=2, bare=1)
    assert counter.result() == Items(items=4, complete=2, bare=1), "asking twice changes nothing"


def test_an_item_without_vectors_is_not_complete() -> None:
    assert items_of([Tally(2, 2, 0), Tally(1, 0, 0), Tally(3, 2, 2)]) == Items(items=3, complete=1, bare=1)


# ---------------------------------------------------------------- a view


def test_a_generation_knows_its_items(builder: Builder, tmp_path: Path) -> None:
    source = write_notes(tmp_path / "notes")
    view = builder.build(next(numbers), events=[*EVENTS, event(6, LONG)], sources=[source])
    assert view.rows["events"] > 6, "the long event has several rows"
    assert view.items == {
        "events": Items(items=6, complete=5, bare=1),
        "units": Items(items=2, complete=2),
        "documents": Items(items=3, complete=3),
    }
    assert read_manifest(Path(view.path)).items == view.items


def test_without_a_model_nothing_is_complete(builder: Builder, tmp_path: Path) -> None:
    source = write_notes(tmp_path / "notes")
    view = builder.build(next(numbers), sources=[source], identity=None)
    assert view.items["events"] == Items(items=5, complete=0, bare=1)
    assert view.items["documents"] == Items(items=3)


def test_what_a_delta_masks_is_no_item(builder: Builder, tmp_path: Path) -> None:
    source = write_notes(tmp_path / "notes")
    base = builder.build(next(numbers), sources=[source])
    (tmp_path / "notes" / "plain.md").write_text("another text\n")
    (tmp_path / "notes" / "日记.md").unlink()
    changed = unit(3, "The user prefers long answers", unit_id="u1", version=2)
    view = delta(
        builder,
        base,
        1,
        source=source,
        events=[event(6, "something new")],
        units=[changed],
        changed=["u1", "u2"],
        give=False,
    )
    assert view.items == {
        "events": Items(items=6, complete=4, bare=1),
        "units": Items(items=1, complete=0),
        "documents": Items(items=2, complete=1),
    }
    assert view.vectors_want - view.vectors_have == 3


def test_a_view_without_a_model_wants_no_vectors(builder: Builder, tmp_path: Path) -> None:
    source = write_notes(tmp_path / "notes")
    base = builder.build(next(numbers), sources=[source], identity=None)
    view = delta(builder, base, 1, source=source, changed=["u1"])
    assert (view.vectors_have, view.vectors_want) == (0, 0)


def test_what_has_changed_since_does_not_count(builder: Builder, tmp_path: Path) -> None:
    source = write_notes(tmp_path / "notes")
    base = builder.build(next(numbers), sources=[source])
    found = count(builder, base, source, changed=["u1", "unknown"])
    assert found["events"].current == base.items["events"]
    assert found["units"].current == Items(items=1, complete=1)
    assert found["documents"] == CountedItems(current=Items(items=3, complete=3))
    (tmp_path / "notes" / "plain.md").write_text("another text\n")
    (tmp_path / "notes" / "new.md").write_text("new\n")
    (tmp_path / "notes" / "日记.md").unlink()
    found = count(builder, base, source)
    assert found["documents"] == CountedItems(current=Items(items=1, complete=1), changed=2)


def test_a_unit_that_a_delta_holds_counts_once(builder: Builder, tmp_path: Path) -> None:
    source = write_notes(tmp_path / "notes")
    base = builder.build(next(numbers), sources=[source])
    changed = unit(3, "The user prefers long answers", unit_id="u1", version=2)
    view = delta(builder, base, 1, source=source, units=[changed], changed=["u1"])
    assert count(builder, view, source)["units"].current == Items(items=2, complete=2)
    assert count(builder, view, source, changed=["u1"])["units"].current == Items(items=1, complete=1)


def test_texts_that_are_refused_are_items_that_failed(builder: Builder, tmp_path: Path) -> None:
    source = write_notes(tmp_path / "notes")
    same = [event(6, "twice the same"), event(7, "twice the same")]
    view = builder.build(next(numbers), events=[*EVENTS, *same], sources=[source], give=False)
    refused = [sha("twice the same"), sha("用户住在上海"), sha("nobody wrote this")]
    found = count(builder, view, source, refused=refused)
    assert [found[corpus].refused for corpus in ("events", "units", "documents")] == [2, 1, 0]
    assert count(builder, view, source, refused=refused, changed=["u2"])["units"].refused == 0
    assert find(builder, view, source, "events", "e6", *refused) == ItemState(
        words="searchable", meaning="failed", reason="refused"
    )
    assert find(builder, view, source, "events", "e1", *refused).meaning == "pending"


def test_notes_that_hold_nothing_failed_with_their_reason(builder: Builder, tmp_path: Path) -> None:
    source = write_notes(tmp_path / "notes")
    (tmp_path / "notes" / "empty.md").write_text("")
    (tmp_path / "notes" / "binary.md").write_bytes(b"\0\1\2\3" * 100)
    (tmp_path / "notes" / "lost.md").symlink_to("nowhere.md")
    view = builder.build(next(numbers), sources=[source])
    found = count(builder, view, source)["documents"]
    assert found.current == Items(items=3, complete=3)
    assert found.failed == {"binary": 1, "empty": 1, "symlink_dangling": 1}
    for name, reason in (("empty.md", "empty"), ("binary.md", "binary"), ("lost.md", "symlink_dangling")):
        assert find(builder, view, source, "documents", f"notes/{name}") == ItemState(
            words="failed", meaning="failed", reason=reason
        )
    assert find(builder, view, source, "documents", "notes/never.md").reason == "not_found"
    assert find(builder, view, source, "documents", "notes/plain.md").meaning == "searchable"


def test_a_scan_is_told_the_same_however_often_it_is_reported(builder: Builder, tmp_path: Path) -> None:
    """The reasons of notes that are no text were added to the scan, and then to each delta made of it, twice."""
    source = write_notes(tmp_path / "notes")
    (tmp_path / "notes" / "binary.md").write_bytes(b"\0\1\2\3" * 100)
    base = builder.build(next(numbers), sources=[source])
    before: GenerationRef | None = None
    for number in range(1, 4):
        scanned = builder.worker.call(ScanSources(sources=[source]), ScanResult)
        assert [skip.reason for skip in scanned.skipped] == ["binary"]
        covers = Covers(event_seq=5, core_seq=2, sources_digest=scanned.digest)
        begin = BeginDelta(base=base, before=before, delta=number, covers=covers, sources=[source], changed_units=[])
        builder.staged(begin)
        builder.stage(documents=True)
        before = builder.finish()
        builder.do(FlipGeneration(generation=before.generation, delta=number))
        assert before.delta_path is not None
        assert [skip.reason for skip in read_manifest(Path(before.delta_path)).skipped] == ["binary"]


def test_without_a_view_everything_waits(builder: Builder, tmp_path: Path) -> None:
    source = write_notes(tmp_path / "notes")
    found = count(builder, None, source)
    assert found["events"] == CountedItems() and found["documents"] == CountedItems(changed=3)


# ---------------------------------------------------------------- put together


def view_of(identity: EmbeddingIdentity | None = IDENTITY) -> GenerationRef:
    return GenerationRef(
        generation=7,
        path="",
        covers=Covers(),
        rows={},
        vectors_have=0,
        vectors_want=0,
        identity=identity,
        built_at=0,
    )


COUNTED = CountedView(
    corpora={
        "events": CountedItems(current=Items(items=10, complete=6, bare=1), refused=2),
        "units": CountedItems(current=Items(items=4, complete=4)),
        "documents": CountedItems(
            current=Items(items=5, complete=3), refused=1, changed=2, failed={"binary": 1, "empty": 2}
        ),
    }
)


def test_the_parts_are_the_whole() -> None:
    found = item_counts(view_of(), COUNTED, events=5, units=0, model=True, at=1)
    events, units, documents = (found.corpora[name] for name in ("events", "units", "documents"))
    assert (events.accepted, events.words.searchable) == (15, 15)
    assert (events.meaning.searchable, events.meaning.pending, events.meaning.failed) == (6, 6, 3)
    assert events.meaning.reasons == {"nothing_to_embed": 1, "refused": 2}
    assert (units.accepted, units.meaning.searchable, units.meaning.pending) == (4, 4, 0)
    assert documents.accepted == 10
    assert (documents.words.searchable, documents.words.pending, documents.words.failed) == (5, 2, 3)
    assert (documents.meaning.searchable, documents.meaning.pending, documents.meaning.failed) == (3, 3, 4)
    for corpus in found.corpora.values():
        assert corpus.accepted == corpus.words.total == corpus.meaning.total


@pytest.mark.parametrize(("model", "pending", "failed"), [(True, 15, 0), (False, 0, 15)])
def test_without_vectors_all_is_pending_or_there_is_no_model(model: bool, pending: int, failed: int) -> None:
    found = item_counts(view_of(None), COUNTED, events=5, units=0, model=model, at=1)
    meaning = found.corpora["events"].meaning
    assert (meaning.searchable, meaning.pending, meaning.failed) == (0, pending, failed)
    for corpus in found.corpora.values():
        assert corpus.accepted == corpus.words.total == corpus.meaning.total


def test_a_unit_that_changed_while_it_was_paged_counts_as_it_is_last() -> None:
    pages = [
        UnitChanges(active=["a", "b"], gone=["c"], last_seq=3, more=True),
        UnitChanges(active=["c"], gone=["a"], last_seq=5, more=False),
    ]
    assert changed_last(pages) == (["a", "b", "c"], 2)
