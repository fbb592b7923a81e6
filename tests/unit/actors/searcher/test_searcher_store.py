"""Generations on disk: what is opened, what is refused, what a search finds and in which order."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from actors.errors import GenerationSuspect, Interrupted, NoGeneration
from actors.generation import MANIFEST, fsync_tree, read_manifest, verify, write_manifest
from actors.messages.base import CORPORA, Candidate, Filters
from actors.messages.index import GenerationRef
from actors.searcher.store import GenerationStore, Question
from tests.unit.actors.searcher.searcher_generations import IDENTITY, MadeRow, make_generation

EVENTS = [
    MadeRow(id="e1", text="the cat sat on the mat", ts=1, seq=1, session_id="s1", actor="user", kind="message"),
    MadeRow(id="e2", text="用户身份已经确认", ts=2, seq=2, session_id="s1", tags=["身份"], vector=[1, 0, 0, 0]),
    MadeRow(id="e3", text="POL-358 was filed", ts=3, seq=3, session_id="s2", vector=[0, 1, 0, 0]),
    MadeRow(id="e4", text="long event, first part", part=0, ts=4, seq=4, vector=[0.6, 0.8, 0, 0]),
    MadeRow(id="e4", text="long event, second part", part=1, ts=4, seq=4, vector=[0, 0, 1, 0]),
    MadeRow(id="e5", text="other tenant's cat", ts=5, seq=5, tenant="other", vector=[1, 0, 0, 0]),
]
UNITS = [MadeRow(id="u1", text="likes cats", version=3, seq=9, ts=6, type="profile", scope="user", vector=[1, 0, 0, 0])]
DOCUMENTS = [
    MadeRow(id="d1", text="cats are cats", path="n/a.md", heading="Pets", from_line=1, to_line=2, ts=7),
]


@pytest.fixture
def ref(tmp_path: Path) -> GenerationRef:
    return make_generation(tmp_path, 1, {"events": EVENTS, "units": UNITS, "documents": DOCUMENTS})


@pytest.fixture
def store() -> GenerationStore:
    return GenerationStore(cache_bytes=32 << 20)


def soon() -> int:
    return time.monotonic_ns() + 60 * 10**9


def load(store: GenerationStore, ref: GenerationRef) -> None:
    store.load(ref, deadline_ns=soon())


def question(**members: object) -> Question:
    base = Question(corpora=CORPORA, filters=Filters(), tenant="default", limit=100, deadline_ns=soon())
    return msgspec.structs.replace(base, **members)


def by_word(store: GenerationStore, *terms: str, number: int = 1, **members: object) -> list[Candidate]:
    return store.keyword(store.get(number), list(terms), question(**members), lambda text: text)


def by_vector(store: GenerationStore, *vector: float, number: int = 1, **members: object) -> list[Candidate]:
    return store.nearest(store.get(number), list(vector), question(**members), lambda text: text)


def ids(candidates: list[Candidate]) -> list[tuple[str, int]]:
    return [(candidate.id, candidate.part) for candidate in candidates]


# ------------------------------------------------------------------ what a search finds


def test_a_keyword_search_joins_the_corpora_best_first(store: GenerationStore, ref: GenerationRef) -> None:
    load(store, ref)
    found = by_word(store, "cat")
    assert {c.id for c in found} == {"e1", "u1", "d1"}
    scores = [c.text_score or 0 for c in found]
    assert scores == sorted(scores, reverse=True) and scores[-1] > 0
    document = next(c for c in found if c.corpus == "documents")
    assert (document.path, document.heading, document.from_line, document.to_line) == ("n/a.md", "Pets", 1, 2)
    assert document.snippet == "cats are cats" and document.vector_score is None
    unit = next(c for c in found if c.corpus == "units")
    assert (unit.version, unit.seq, unit.type, unit.scope, unit.ts) == (3, 9, "profile", "user", 6)


def test_chinese_words_and_identifiers_are_found(store: GenerationStore, ref: GenerationRef) -> None:
    load(store, ref)
    assert ids(by_word(store, "身份")) == [("e2", 0)] and by_word(store, "身份")[0].tags == ("身份",)
    assert ids(by_word(store, "pol-358")) == [("e3", 0)]
    assert by_word(store, "absent") == []


def test_a_vector_search_gives_cosines_and_leaves_out_rows_without_a_vector(
    store: GenerationStore, ref: GenerationRef
) -> None:
    load(store, ref)
    found = by_vector(store, 2, 0, 0, 0)  # not of unit length: the angle counts
    assert ids(found) == [("u1", 0), ("e2", 0), ("e4", 0), ("e4", 1), ("e3", 0)]
    cosines = {(c.id, c.part): c.vector_score for c in found}
    assert cosines[("u1", 0)] == pytest.approx(1) and cosines[("e4", 0)] == pytest.approx(0.6)
    assert cosines[("e3", 0)] == pytest.approx(0) and all(c.text_score is None for c in found)


def test_nobody_sees_the_rows_of_another_tenant(store: GenerationStore, ref: GenerationRef) -> None:
    load(store, ref)
    assert ids(by_word(store, "cat", tenant="other")) == [("e5", 0)]
    assert ids(by_vector(store, 1, 0, 0, 0, tenant="other")) == [("e5", 0)]
    assert by_word(store, "cat", tenant="nobody") == []


def test_filters_narrow_before_the_limit_cuts(store: GenerationStore, ref: GenerationRef) -> None:
    load(store, ref)
    late = Filters(since=3, until=4)
    assert ids(by_vector(store, 1, 0, 0, 0, filters=late, limit=1)) == [("e3", 0)]
    assert ids(by_word(store, "file", "cat", filters=late, limit=1)) == [("e3", 0)]


def test_corpora_that_were_not_asked_for_are_not_searched(store: GenerationStore, ref: GenerationRef) -> None:
    load(store, ref)
    assert ids(by_word(store, "cat", corpora=("units",))) == [("u1", 0)]
    assert by_word(store, "cat", corpora=("units",), filters=Filters(path="n/")) == []
    assert by_word(store, "cat", corpora=()) == []


def test_equal_scores_are_ordered_by_time_id_and_part(tmp_path: Path, store: GenerationStore) -> None:
    rows = [
        MadeRow(id=f"e{n % 3}", part=n // 3, text="same words", ts=n % 2, vector=[0, 0, 0, 1])
        for n in (4, 1, 5, 0, 3, 2)
    ]
    load(store, make_generation(tmp_path, 1, {"events": rows}))
    expected = sorted(rows, key=lambda row: (-row.ts, row.id, row.part))
    for found in (by_word(store, "same"), by_vector(store, 0, 0, 0, 1)):
        assert ids(found) == [(row.id, row.part) for row in expected]


def test_the_same_search_gives_the_same_answer_also_where_the_limit_cuts_equal_scores(
    tmp_path: Path, store: GenerationStore
) -> None:
    rows = [MadeRow(id=f"e{n}", text="same words", ts=n, vector=[0, 0, 0, 1]) for n in range(300)]
    load(store, make_generation(tmp_path, 1, {"events": rows}))
    load(store, make_generation(tmp_path, 2, {"events": rows}))
    by_words = [ids(by_word(store, "same", number=number, limit=10)) for number in (1, 2) for _ in range(5)]
    assert all(found == by_words[0] for found in by_words)
    by_vectors = [ids(by_vector(store, 0, 0, 0, 1, number=number, limit=10)) for number in (1, 2) for _ in range(5)]
    assert all(found == by_vectors[0] for found in by_vectors)


def test_reading_changes_no_file_of_a_generation(store: GenerationStore, ref: GenerationRef) -> None:
    load(store, ref)
    by_word(store, "cat")
    by_vector(store, 1, 0, 0, 0)
    store.drop(1)
    verify(Path(ref.path))


# ------------------------------------------------------------------ several at once


def test_several_generations_are_open_by_number(tmp_path: Path, store: GenerationStore, ref: GenerationRef) -> None:
    load(store, ref)
    load(store, make_generation(tmp_path, 2, {"events": [MadeRow(id="new", text="cat")]}))
    assert ids(by_word(store, "cat", number=2)) == [("new", 0)]
    assert len(by_word(store, "cat", number=1)) == 3
    store.drop(1)
    store.drop(1)
    with pytest.raises(NoGeneration, match="generation 1 is not open"):
        store.get(1)
    assert ids(by_word(store, "cat", number=2)) == [("new", 0)]


def test_loading_twice_is_loading_once(store: GenerationStore, ref: GenerationRef) -> None:
    load(store, ref)
    opened = store.get(1)
    load(store, ref)
    assert store.get(1) is opened


def test_a_search_goes_on_when_its_generation_is_dropped_and_says_so_when_the_files_are_gone(
    store: GenerationStore, ref: GenerationRef
) -> None:
    load(store, ref)
    opened = store.get(1)
    store.drop(1)
    assert len(store.keyword(opened, ["cat"], question(), lambda text: text)) == 3
    shutil.rmtree(ref.path)
    with pytest.raises(NoGeneration, match="closed during"):
        store.nearest(opened, [1, 0, 0, 0], question(), lambda text: text)


def test_a_dropped_generation_holds_no_file_open(store: GenerationStore, ref: GenerationRef) -> None:
    load(store, ref)
    by_word(store, "cat")
    store.drop(1)
    shutil.rmtree(ref.path)
    assert [fd for fd in Path("/proc/self/fd").iterdir() if ref.path in _readlink(fd)] == []


def _readlink(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def test_an_empty_generation_answers_with_nothing(tmp_path: Path, store: GenerationStore) -> None:
    load(store, make_generation(tmp_path, 1, {}))
    assert by_word(store, "cat") == [] and by_vector(store, 1, 0, 0, 0) == []


def test_a_generation_without_an_embedder_has_no_vector_column(tmp_path: Path, store: GenerationStore) -> None:
    load(store, make_generation(tmp_path, 1, {"events": EVENTS[:1]}, identity=None))
    assert store.get(1).identity is None and ids(by_word(store, "cat")) == [("e1", 0)]


# ------------------------------------------------------------------ deadlines and damage


def test_a_search_ends_at_its_deadline(store: GenerationStore, ref: GenerationRef) -> None:
    load(store, ref)
    with pytest.raises(Interrupted, match="deadline"):
        by_word(store, "cat", deadline_ns=time.monotonic_ns() - 1)
    assert by_word(store, "cat")


def a_file(ref: GenerationRef, pattern: str) -> Path:
    return sorted(Path(ref.path).glob(pattern))[-1]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def zero(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [flip, zero, truncate, Path.unlink])
@pytest.mark.parametrize(
    "pattern",
    ["events.lance/data/*.lance", "events.lance/_versions/*.manifest", "events.lance/_indices/*/part_0_invert.lance"],
)
def test_damage_of_any_kind_is_found_before_anything_is_opened(
    store: GenerationStore, ref: GenerationRef, pattern: str, damage: Callable[[Path], None]
) -> None:
    damage(a_file(ref, pattern))
    with pytest.raises(GenerationSuspect, match="gen-000001"):
        load(store, ref)
    with pytest.raises(NoGeneration):
        store.get(1)


def test_damage_to_what_is_open_is_found_by_who_asks_for_it_anew(store: GenerationStore, ref: GenerationRef) -> None:
    store.load(ref, deadline_ns=soon())
    store.load(ref, deadline_ns=soon(), anew=True)
    flip(a_file(ref, "events.lance/data/*.lance"))
    store.load(ref, deadline_ns=soon())
    with pytest.raises(GenerationSuspect, match="not what was sealed"):
        store.load(ref, deadline_ns=soon(), anew=True)
    with pytest.raises(NoGeneration):
        store.get(ref.view)


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 1}'])
def test_a_damaged_manifest_is_found(store: GenerationStore, ref: GenerationRef, content: bytes) -> None:
    (Path(ref.path) / MANIFEST).write_bytes(content)
    with pytest.raises(GenerationSuspect, match="manifest not readable"):
        load(store, ref)


def reseal(ref: GenerationRef, **changes: object) -> None:
    """Write the manifest anew, so that the hashes agree with what is there now."""
    folder = Path(ref.path)
    manifest = msgspec.structs.replace(read_manifest(folder), files=fsync_tree(folder), **changes)
    write_manifest(folder, manifest)


def test_an_older_version_that_lance_opens_in_silence_is_refused(store: GenerationStore, ref: GenerationRef) -> None:
    versions = sorted(Path(ref.path).glob("units.lance/_versions/*.manifest"), key=lambda path: path.name)
    versions[0].unlink()  # names count down: the first is the newest
    reseal(ref)
    with pytest.raises(GenerationSuspect, match=r"table units is at version 1 .* sealed was version 2"):
        load(store, ref)


def test_missing_rows_are_refused(store: GenerationStore, ref: GenerationRef) -> None:
    reseal(ref, rows={**ref.rows, "events": 7})
    with pytest.raises(GenerationSuspect, match="with 6 rows, sealed was version 2 with 7 rows"):
        load(store, ref)


def test_vectors_of_another_size_are_refused(store: GenerationStore, ref: GenerationRef) -> None:
    reseal(ref, identity=msgspec.structs.replace(IDENTITY, dimensions=8))
    with pytest.raises(GenerationSuspect, match="vectors of 4 dimensions, the manifest says 8"):
        load(store, ref)


def test_rows_outside_the_keyword_index_are_refused(tmp_path: Path, store: GenerationStore) -> None:
    ref = make_generation(tmp_path, 1, {"events": EVENTS}, fts=False)
    with pytest.raises(GenerationSuspect, match="6 rows outside its keyword index"):
        load(store, ref)


def test_a_folder_with_another_number_is_refused(store: GenerationStore, ref: GenerationRef) -> None:
    with pytest.raises(GenerationSuspect, match="says it is generation 1, not 9"):
        load(store, msgspec.structs.replace(ref, generation=9))


def test_a_missing_generation_is_refused_and_not_created(store: GenerationStore, ref: GenerationRef) -> None:
    shutil.rmtree(ref.path)
    with pytest.raises(GenerationSuspect):
        load(store, ref)
    assert not Path(ref.path).exists()


def test_an_error_of_lance_while_serving_makes_the_generation_suspect(
    store: GenerationStore, ref: GenerationRef
) -> None:
    load(store, ref)
    for path in Path(ref.path).glob("*.lance/data/*"):
        path.unlink()
    with pytest.raises(GenerationSuspect, match=r"generation 1: .* search failed"):
        by_word(store, "sat")
        by_vector(store, 1, 0, 0, 0)


def test_the_reference_says_what_the_manifest_says(ref: GenerationRef) -> None:
    """The helper of these tests follows the contract: its manifest can be read as one."""
    raw = json.loads((Path(ref.path) / MANIFEST).read_bytes())
    assert raw["rows"] == {"events": 6, "units": 1, "documents": 1} and ref.vectors_have == 6


@pytest.fixture(autouse=True)
def closed(store: GenerationStore) -> Iterator[None]:
    yield
    for number in (1, 2):
        store.drop(number)
