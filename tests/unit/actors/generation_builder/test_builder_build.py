"""Whole builds over pages of the truth, in the real worker, looked at with LanceDB from outside."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest

from actors import generation as generations
from actors.errors import BuildFailed, DeadlineExceeded, GenerationSuspect, StoreBusy
from actors.generation import PendingText, embedded_text, read_manifest, read_pending
from actors.messages.base import CORPORA, Done, Message
from actors.messages.builder_work import (
    AbandonBuild,
    IndexState,
    IndexTable,
    RecoverIndex,
    ScanResult,
    ScanSources,
    SealGeneration,
    StageEvents,
    StageVectors,
    TestGeneration,
    VerifyGeneration,
    WriteTable,
)
from actors.messages.core_writer import SourceRoot
from actors.messages.index import GenerationRef
from tests.unit.actors.generation_builder.builder_kit import (
    DIMENSIONS,
    EVENTS,
    IDENTITY,
    NOTES,
    UNITS,
    Builder,
    event,
    hits,
    rows_of,
    sha,
    source,
    unit,
    vector_of,
    write_notes,
)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """One worker for the tests that only build: importing LanceDB takes seconds."""
    with Builder(tmp_path_factory.mktemp("data") / "index") as builder:
        yield builder


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> SourceRoot:
    return write_notes(tmp_path_factory.mktemp("notes"))


@pytest.fixture(scope="module")
def complete(builder: Builder, notes: SourceRoot) -> GenerationRef:
    """Generation 1: everything, with all vectors."""
    return builder.build(1, sources=[notes])


def pending(ref: GenerationRef) -> list[PendingText]:
    texts, following = read_pending(Path(ref.path), 0, 10_000)
    assert following is None
    return texts


def test_the_rows_are_those_of_the_truth_newest_first(complete: GenerationRef) -> None:
    assert complete.rows == {"events": 5, "units": 2, "documents": 4}
    assert [row["id"] for row in rows_of(complete, "events")] == ["e5", "e4", "e3", "e2", "e1"]
    assert [row["id"] for row in rows_of(complete, "units")] == ["u2", "u1"]
    first = rows_of(complete, "events")[-1]
    assert first["text"] == EVENTS[0]["content"]
    assert (first["seq"], first["ts"], first["tags"]) == (1, EVENTS[0]["ts"], ["chat"])
    assert (first["tenant"], first["scope"], first["session_id"], first["actor"], first["kind"]) == (
        "default",
        "session",
        "s1",
        "user",
        "message",
    )
    assert (first["path"], first["heading"], first["from_line"], first["type"]) == (None, None, None, None)


def test_the_rows_of_notes_cite_their_lines(complete: GenerationRef) -> None:
    found = [(row["path"], row["heading"], row["from_line"], row["to_line"]) for row in rows_of(complete, "documents")]
    assert found == [
        ("notes/linux/ls.md", "ls", 1, 3),
        ("notes/linux/ls.md", "ls > Options", 5, 7),
        ("notes/plain.md", None, 1, 1),
        ("notes/日记.md", "日记", 1, 3),
    ]
    for row in rows_of(complete, "documents"):
        lines = NOTES[str(row["path"]).removeprefix("notes/")].split("\n")
        assert str(row["text"]).split("\n") == lines[int(str(row["from_line"])) - 1 : int(str(row["to_line"]))]


def test_words_find_their_rows_in_both_languages(complete: GenerationRef) -> None:
    assert [found for found, _ in hits(complete, "events", "deploy")] == ["e1"]
    assert [found for found, _ in hits(complete, "events", "备份")] == ["e2"]
    assert [found for found, _ in hits(complete, "events", "2023-11-17")] == ["e3"]
    assert [found for found, _ in hits(complete, "events", "src/auth_middleware.py")] == ["e5"]
    assert [found for found, _ in hits(complete, "units", "上海")] == ["u2"]
    assert len(hits(complete, "documents", "向量")) == 1
    # The name of the file and the headings above a chunk are among its terms.
    assert len(hits(complete, "documents", "linux")) == 2
    assert len(hits(complete, "documents", "plain")) == 1


def test_every_row_has_the_vector_of_its_text(complete: GenerationRef) -> None:
    assert (complete.vectors_have, complete.vectors_want) == (10, 10), "a blank event has nothing to embed"
    for corpus in CORPORA:
        for row in rows_of(complete, corpus):
            heading = None if row["heading"] is None else str(row["heading"])
            assert row["hash"] == sha(embedded_text(heading, str(row["text"])))
            if row["vector"] is not None:
                assert msgspec.convert(row["vector"], list[float]) == pytest.approx(_floats(vector_of(row["hash"])))
    assert [row["id"] for row in rows_of(complete, "events") if row["vector"] is None] == ["e4"]
    assert pending(complete) == []


def _floats(blob: bytes) -> list[float]:
    import struct

    return list(struct.unpack(f"<{DIMENSIONS}f", blob))


def test_the_manifest_describes_what_is_on_disk(complete: GenerationRef, builder: Builder, notes: SourceRoot) -> None:
    folder = Path(complete.path)
    manifest = generations.verify(folder)
    assert generations.reference(folder, manifest) == complete
    assert manifest.rows == complete.rows and manifest.identity == IDENTITY
    assert [(state.source_id, state.files) for state in manifest.sources] == [(notes.source_id, len(NOTES))]
    assert not [entry.path for entry in manifest.files if entry.path.startswith(("staging", "scratch"))]
    assert generations.read_current(builder.index) is not None
    assert not list(builder.index.glob("*.tmp")), "staging, scratch and temporary folder are gone"
    assert builder.worker.call(VerifyGeneration(generation=1), GenerationRef) == complete


def test_the_same_truth_gives_the_same_rows_and_the_same_scores(
    complete: GenerationRef, builder: Builder, notes: SourceRoot
) -> None:
    """A5: the index is deleted and built anew; ids, order and scores are those from before."""
    again = builder.build(2, sources=[notes], flip=False)
    for corpus in CORPORA:
        assert rows_of(again, corpus) == rows_of(complete, corpus)
    for terms in ("the at", "我 们 天", "ls option", "novemb 2023"):
        for corpus in CORPORA:
            assert hits(again, corpus, terms) == hits(complete, corpus, terms)


def test_of_equal_scores_the_newest_are_kept_when_a_limit_cuts(builder: Builder) -> None:
    events = [event(seq, "the same words", ts=0) for seq in range(1, 30)]  # one day: the date is part of the length
    ref = builder.build(3, events=events, units=[], flip=False)
    assert {found for found, _ in hits(ref, "events", "word", limit=10)} == {f"e{seq}" for seq in range(20, 30)}


def test_a_page_that_comes_twice_changes_nothing(builder: Builder) -> None:
    builder.begin(4)
    builder.stage(events=EVENTS, units=UNITS)
    assert builder.stage(events=EVENTS, units=UNITS) == []
    ref = builder.finish()
    assert ref.rows == {"events": 5, "units": 2, "documents": 0}


def test_pages_do_not_show_in_the_rows(builder: Builder, complete: GenerationRef) -> None:
    builder.begin(5)
    for page in (EVENTS[:2], EVENTS[2:3], EVENTS[3:]):
        builder.stage(events=page)
    ref = builder.finish()
    assert [row["id"] for row in rows_of(ref, "events")] == [row["id"] for row in rows_of(complete, "events")]


def test_a_hash_is_wanted_once(builder: Builder) -> None:
    builder.begin(6)
    wanted = builder.stage(events=[event(1, "same"), event(2, "same"), event(3, "other"), event(4, " \n")])
    assert wanted == [sha("same"), sha("other")]
    assert builder.stage(events=[event(5, "same")], units=[unit(1, "other")]) == []
    builder.do(AbandonBuild())


def test_vectors_come_from_the_generation_before_by_hash(builder: Builder, complete: GenerationRef) -> None:
    builder.begin(7, previous=complete)
    changed = [*EVENTS[:4], event(5, "a new text")]
    assert builder.stage(events=changed, units=UNITS) == [sha("a new text")]
    ref = builder.finish()
    assert (ref.vectors_have, ref.vectors_want) == (5, 6)
    assert pending(ref) == [PendingText(sha("a new text"), "a new text", "events/e5")]
    generations.verify(Path(complete.path))  # reading it has not changed it


def test_vectors_of_another_identity_are_not_taken(builder: Builder, complete: GenerationRef) -> None:
    other = msgspec.structs.replace(IDENTITY, model="another of the same size")
    builder.begin(8, previous=complete, identity=other)
    assert len(builder.stage(events=EVENTS)) == 4
    builder.do(AbandonBuild())


def test_damaged_vectors_are_taken_for_missing(builder: Builder) -> None:
    """A cache or an old generation may hold a flipped bit; that must not fail every build from now on."""
    builder.begin(9)
    keys = builder.stage(events=[event(seq, f"text {seq}") for seq in range(1, 5)])
    nan, long, zero = b"\x00\x00\xc0\x7f" * DIMENSIONS, b"\x00\x00\x00\x40" * DIMENSIONS, bytes(4 * DIMENSIONS)
    builder.do(StageVectors(keys=keys, dimensions=DIMENSIONS, blob=vector_of(keys[0]) + nan + long + zero))
    ref = builder.finish()
    assert (ref.vectors_have, ref.vectors_want) == (1, 4)
    assert [text.text for text in pending(ref)] == ["text 4", "text 3", "text 2"]


def test_vectors_of_another_size_end_the_build(builder: Builder) -> None:
    builder.begin(10)
    keys = builder.stage(events=[event(1, "text")])
    with pytest.raises(BuildFailed, match="7 dimensions"):
        builder.do(StageVectors(keys=keys, dimensions=7, blob=bytes(28)))
    with pytest.raises(BuildFailed, match="no build is under way"):
        builder.do(WriteTable(corpus="events"))
    assert not list(builder.index.glob("*.tmp"))


def test_without_an_embedder_there_is_no_vector_column(builder: Builder) -> None:
    builder.begin(11, identity=None)
    assert builder.stage(events=EVENTS, units=UNITS) == []
    ref = builder.finish()
    assert "vector" not in rows_of(ref, "events")[0]
    assert (ref.vectors_have, ref.vectors_want, pending(ref)) == (0, 0, [])


def test_nothing_at_all_is_a_generation_too(builder: Builder) -> None:
    ref = builder.build(12, events=[], units=[], flip=False)
    assert ref.rows == {"events": 0, "units": 0, "documents": 0}
    assert [rows_of(ref, corpus) for corpus in CORPORA] == [[], [], []]
    assert builder.worker.call(VerifyGeneration(generation=12), GenerationRef) == ref


def test_what_has_no_vector_is_pending_newest_first_and_in_turns(builder: Builder, tmp_path: Path) -> None:
    root = write_notes(tmp_path, {"big.md": "".join(f"# h{n}\n\nbig {n}\n\n" for n in range(5)), "small.md": "small\n"})
    events = [event(seq, f"event {seq}") for seq in range(1, 4)]
    ref = builder.build(13, events=events, units=[unit(1, "a unit")], sources=[root], give=False, flip=False)
    texts = [text.text for text in pending(ref)]
    assert texts[:2] == ["event 3", "a unit"]
    assert [text for text in texts if text.startswith("event")] == ["event 3", "event 2", "event 1"]
    of_notes = [text for text in texts if not text.startswith(("event", "a unit"))]
    assert "small" in of_notes[:2], "the small note does not wait for the big one"
    assert len(of_notes) == 6 and of_notes[-1].endswith("big 4")
    assert all(text.hash == sha(text.text) for text in pending(ref))
    # The list can be read in pieces, from the offset that the piece before gave.
    pieces, offset = [], 0
    while True:
        piece, following = read_pending(Path(ref.path), offset, 2)
        pieces += piece
        if following is None:
            break
        offset = following
    assert pieces == pending(ref)


def test_the_end_of_a_long_event_is_found_and_embedded(builder: Builder) -> None:
    """R4: content behind the first 6,000 characters was not found."""
    text = "".join(f"Sentence number {number} of a very long message. " for number in range(600)) + "needle-at-the-end"
    ref = builder.build(14, events=[event(1, text), event(2, "short")], units=[unit(1, text)], flip=False)
    rows = rows_of(ref, "events")
    assert rows[0]["id"] == "e2"
    assert [row["part"] for row in rows[1:]] == list(range(len(rows) - 1)) and len(rows) > 20
    assert "".join(str(row["text"]) for row in rows[1:]) == text
    assert [found for found, _ in hits(ref, "events", "needle-at-the-end")] == ["e1"]
    assert [found for found, _ in hits(ref, "units", "needle-at-the-end")] == ["u1"]
    assert rows[-1]["vector"] is not None and ref.vectors_have == ref.vectors_want


def test_a_needle_at_every_tenth_of_a_large_note_is_found(builder: Builder, tmp_path: Path) -> None:
    lines = [f"line {number} of the large note with some more words in its middle" for number in range(18_000)]
    for tenth in range(10):
        lines[tenth * 1800] = f"here is needle-{tenth}"
    root = write_notes(tmp_path, {"large.md": "\n".join(lines), "line.md": " ".join(lines)})
    assert (tmp_path / "line.md").stat().st_size > 1_000_000
    ref = builder.build(15, events=[], units=[], sources=[root], identity=None, flip=False)
    rows = {str(row["id"]): row for row in rows_of(ref, "documents")}
    for tenth in range(10):
        found = {str(rows[id_]["path"]): rows[id_] for id_, _ in hits(ref, "documents", f"needle-{tenth}")}
        assert set(found) == {"notes/large.md", "notes/line.md"}
        row = found["notes/large.md"]
        assert int(str(row["from_line"])) <= tenth * 1800 + 1 <= int(str(row["to_line"]))


def test_what_cannot_be_encoded_is_made_harmless(builder: Builder) -> None:
    ref = builder.build(16, events=[event(1, "before\0after \ufffd")], units=[], flip=False)
    assert rows_of(ref, "events")[0]["text"] == "beforeafter \ufffd"


def test_ids_that_look_like_sql_are_ids(builder: Builder) -> None:
    rows = [
        event(1, "one", event_id="' OR 1=1 --"),
        event(2, "two", event_id='a"b\\c'),
        event(3, "三三", event_id="é\n"),
    ]
    ref = builder.build(17, events=rows, units=[], flip=False)
    assert [row["id"] for row in rows_of(ref, "events")] == ["é\n", 'a"b\\c', "' OR 1=1 --"]


def test_a_page_that_is_no_page_fails_the_build(builder: Builder) -> None:
    builder.begin(18)
    with pytest.raises(BuildFailed, match="page of events not understood"):
        builder.staged(StageEvents(rows=msgspec.msgpack.encode([{"no": "event"}])))


def test_steps_out_of_order_are_refused(builder: Builder) -> None:
    for step in (
        IndexTable(corpus="events"),
        TestGeneration(),
        SealGeneration(),
    ):
        builder.begin(19)
        with pytest.raises(BuildFailed, match=r"not written yet|not tested yet"):
            builder.do(step)
    builder.begin(19)
    builder.do(WriteTable(corpus="events"))
    with pytest.raises(BuildFailed, match="written already"):
        builder.do(WriteTable(corpus="events"))


def test_a_number_is_never_used_twice(builder: Builder, complete: GenerationRef) -> None:
    with pytest.raises(BuildFailed, match="gen-000001 is sealed already"):
        builder.begin(1)
    assert generations.verify(Path(complete.path))


def test_a_step_past_its_deadline_is_not_done(builder: Builder) -> None:
    builder.begin(20)
    with pytest.raises(DeadlineExceeded):
        builder.worker.call(WriteTable(corpus="events"), Done, seconds=-1)
    builder.do(WriteTable(corpus="events"))
    builder.do(AbandonBuild())


def test_beginning_anew_drops_what_was_begun(builder: Builder) -> None:
    builder.begin(21)
    builder.stage(events=EVENTS)
    builder.begin(22)
    assert [path.name for path in builder.index.glob("gen-*.tmp")] == ["gen-000022.tmp"]
    builder.do(AbandonBuild())
    assert not list(builder.index.glob("*.tmp"))


def test_the_self_test_notices_a_row_too_few(builder: Builder) -> None:
    """A copy of the table with one row less takes its place between writing and testing."""
    import lancedb

    builder.begin(23)
    builder.stage(events=EVENTS)
    for corpus in CORPORA:
        builder.do(WriteTable(corpus=corpus))
    table = lancedb.connect(str(builder.index / "gen-000023.tmp")).open_table("events")
    table.delete("seq = 2")
    for corpus in CORPORA:
        builder.do(IndexTable(corpus=corpus))
    with pytest.raises(BuildFailed, match="self-test of table events: rows: expected 5, found 4"):
        builder.do(TestGeneration())
    assert not list(builder.index.glob("*.tmp"))


def test_the_self_test_notices_rows_outside_the_index(builder: Builder) -> None:
    import lancedb

    builder.begin(24)
    builder.stage(events=EVENTS)
    for corpus in CORPORA:
        builder.do(WriteTable(corpus=corpus))
        builder.do(IndexTable(corpus=corpus))
    table = lancedb.connect(str(builder.index / "gen-000024.tmp")).open_table("events")
    moved = table.search().where("seq = 2").to_arrow()
    table.delete("seq = 2")
    table.add(moved, on_bad_vectors="null")
    with pytest.raises(BuildFailed, match="keyword index: expected 5, found 4"):
        builder.do(TestGeneration())


def test_a_file_that_appears_after_the_self_test_is_noticed(builder: Builder) -> None:
    builder.begin(25)
    builder.stage(events=EVENTS)
    for corpus in CORPORA:
        builder.do(WriteTable(corpus=corpus))
        builder.do(IndexTable(corpus=corpus))
    builder.do(TestGeneration())
    (builder.index / "gen-000025.tmp" / "events.lance" / "data" / "more.lance").write_bytes(b"x")
    with pytest.raises(BuildFailed, match=r"files changed after the self-test: 'events.lance/data/more.lance'"):
        builder.do(SealGeneration())


@pytest.mark.parametrize("step", ["stage", "write", "index", "test", "seal"])
def test_deleting_the_index_under_a_build_fails_that_build_and_the_next_one_succeeds(
    builder: Builder, step: str, tmp_path: Path
) -> None:
    number = 30 + ["stage", "write", "index", "test", "seal"].index(step) * 2
    builder.begin(number)
    steps: list[tuple[str, list[Message]]] = [
        ("stage", [StageEvents(rows=msgspec.msgpack.encode(EVENTS))]),
        ("write", [WriteTable(corpus=corpus) for corpus in CORPORA]),
        ("index", [IndexTable(corpus=corpus) for corpus in CORPORA]),
        ("test", [TestGeneration()]),
        ("seal", [SealGeneration()]),
    ]
    for name, calls in steps:
        if name == step:
            saved = builder.index.rename(tmp_path / "deleted")
            with pytest.raises(BuildFailed, match="its folder was deleted"):
                builder.worker.call(calls[0], msgspec.Struct)
            break
        for call in calls:
            builder.worker.call(call, msgspec.Struct)
    ref = builder.build(number + 1, flip=False)
    assert generations.verify(Path(ref.path)).rows["events"] == 5
    # Put the folder of the other tests back.
    shutil.rmtree(builder.index)
    saved.rename(builder.index)


def test_vectors_cannot_be_borrowed_from_a_damaged_generation_and_the_build_goes_on(
    builder: Builder, tmp_path: Path
) -> None:
    first = builder.build(50, flip=False)
    for path in Path(first.path).rglob("*.lance"):
        if path.is_file():
            path.write_bytes(b"")
    builder.begin(51, previous=first)
    assert len(builder.stage(events=EVENTS)) == 4, "they are all wanted again"
    assert builder.finish().rows["events"] == 5
    assert read_manifest(Path(first.path)).generation == 50


def test_what_was_skipped_is_in_the_manifest(builder: Builder, tmp_path: Path) -> None:
    write_notes(tmp_path, {"good.md": "good\n"})
    (tmp_path / "binary.md").write_bytes(b"\x00\x01\x02")
    (tmp_path / "latin.md").write_bytes("Le café était fermé, nous avons déjeuné à l'hôtel.".encode("latin-1"))
    ref = builder.build(52, events=[], units=[], sources=[source(tmp_path)])
    manifest = read_manifest(Path(ref.path))
    assert {(Path(skip.path).name, skip.reason) for skip in manifest.skipped} == {
        ("binary.md", "binary"),
        ("latin.md", "not_utf8"),
    }
    # A scan does not read contents, and still tells what the build found out, as long as the files are there.
    scan = builder.worker.call(ScanSources(sources=[source(tmp_path)]), ScanResult)
    assert {skip.reason for skip in scan.skipped} == {"binary", "not_utf8"}
    (tmp_path / "binary.md").unlink()
    scan = builder.worker.call(ScanSources(sources=[source(tmp_path)]), ScanResult)
    assert [Path(skip.path).name for skip in scan.skipped] == ["latin.md"]


def test_deleting_the_index_again_and_again_never_ends_the_process(builder: Builder) -> None:
    """Whenever it happens, also in the middle of a call: a build fails, the worker stays, the next build succeeds."""
    stop = threading.Event()
    failed = 0

    def delete() -> None:
        random = Random(7)
        while not stop.wait(random.uniform(0, 0.3)):
            shutil.rmtree(builder.index, ignore_errors=True)

    deleter = threading.Thread(target=delete)
    deleter.start()
    try:
        for number in range(100, 115):
            try:
                builder.build(number)
            except (BuildFailed, GenerationSuspect, StoreBusy):
                failed += 1
            builder.worker.call(RecoverIndex(), IndexState)
    finally:
        stop.set()
        deleter.join()
    assert failed > 0, "the test must have hit at least one build"
    ref = builder.build(200)
    assert generations.verify(Path(ref.path)).rows["events"] == 5
