"""A generation with a delta over it, read as one: the same answers as from one generation of the same rows."""

import gc
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from actors.errors import GenerationSuspect, NoGeneration
from actors.generation import MASK, Mask, fsync_tree, read_manifest, write_manifest
from actors.messages.base import CORPORA, Candidate, Corpus, Done, Filters
from actors.messages.index import EmbeddingIdentity, GenerationRef, split_view, view_name, view_number
from actors.messages.searcher import DropGeneration, LoadGeneration, Query, QueryResult
from actors.searcher.query_vectors import QueryVectors
from actors.searcher.ranking import fuse
from actors.searcher.search import Searching
from actors.searcher.store import GenerationStore, Question
from actors.settings import RoomSetup, SearcherSettings
from actors.text import analyse_query
from tests.unit.actors.generation_builder.builder_kit import IDENTITY, sha, vector_of
from tests.unit.actors.searcher.view_kit import Truth, ViewBuilder
from tests.worker_client import WorkerClient

Key = tuple[Corpus, str, int]
PATIENT = SearcherSettings(embed_deadline_ms=60_000)

BEFORE = Truth(
    events=("the billing service failed", "we moved the database backup", "用户住在上海"),
    units={"u1": (1, "prefers short answers"), "u2": (2, "works on billing"), "u3": (3, "likes tofu")},
    notes={"a.md": "# billing\n\nhow to deploy billing\n", "b.md": "tofu recipes\n", "c.md": "backup plan\n"},
)
NOW = Truth(
    events=(*BEFORE.events, "billing works again", "POL-358 is about the backup"),
    units={"u1": (1, "prefers short answers"), "u2": (4, "works on search and tofu"), "u4": (5, "lives in 上海")},
    notes={"a.md": "# billing\n\nhow to bill\n", "d.md": "tofu recipes\n", "c.md": "backup plan\n"},
)


@pytest.fixture
def store() -> GenerationStore:
    return GenerationStore(cache_bytes=32 << 20)


@pytest.fixture
def builder(tmp_path: Path) -> ViewBuilder:
    return ViewBuilder(tmp_path)


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> list[GenerationRef]:
    """A generation, and two deltas over it. For tests that leave them as they are."""
    builder = ViewBuilder(tmp_path_factory.mktemp("views"))
    base = builder.generation(42, BEFORE)
    return [base, builder.delta(base, 7, BEFORE, NOW), builder.delta(base, 8, BEFORE, BEFORE)]


def load(store: GenerationStore, *refs: GenerationRef) -> None:
    for ref in refs:
        store.load(ref, deadline_ns=soon())


def soon() -> int:
    return time.monotonic_ns() + 120 * 10**9


def question(**members: object) -> Question:
    base = Question(corpora=CORPORA, filters=Filters(), tenant="default", limit=100, deadline_ns=soon())
    return msgspec.structs.replace(base, **members)


def by_words(store: GenerationStore, ref: GenerationRef, words: str, **members: object) -> list[Candidate]:
    return store.keyword(store.get(ref.view), analyse_query(words), question(**members), str)


def by_vector(store: GenerationStore, ref: GenerationRef, text: str, **members: object) -> list[Candidate]:
    vector = np.frombuffer(vector_of(sha(text)), dtype="<f4").tolist()
    return store.nearest(store.get(ref.view), vector, question(**members), str)


def key(candidate: Candidate) -> Key:
    return candidate.corpus, candidate.id, candidate.part


def names(candidates: list[Candidate]) -> set[str]:
    return {candidate.path or candidate.id for candidate in candidates}


# ------------------------------------------------------------------ names


def test_a_view_is_named_by_its_generation_and_delta() -> None:
    view = view_number(42, 7)
    assert split_view(view) == (42, 7) and view_name(view) == "42-d0007"
    assert view_number(42, None) == 42 and split_view(42) == (42, None) and view_name(42) == "42"


# ------------------------------------------------------------------ one set of rows


def test_a_view_has_what_is_new_and_not_what_it_replaces(store: GenerationStore, views: list[GenerationRef]) -> None:
    load(store, *views)
    base, view, same = views
    assert names(by_words(store, base, "billing")) == {"e1", "u2", "notes/a.md"}
    assert names(by_words(store, view, "billing")) == {"e1", "e4", "notes/a.md"}
    assert [hit.snippet for hit in by_words(store, view, "bill") if hit.corpus == "documents"] == [
        "# billing\n\nhow to bill"
    ]
    assert names(by_words(store, view, "tofu")) == {"u2", "notes/d.md"}, "u3 is gone, b.md is called d.md"
    assert [hit.version for hit in by_words(store, view, "search")] == [1]
    assert names(by_words(store, view, "上海")) == {"e3", "u4"}
    assert names(by_words(store, same, "billing")) == {"e1", "u2", "notes/a.md"}
    assert len(by_vector(store, view, "x")) == sum(view.rows.values()) == 5 + 3 + 3
    assert store.get(view.view).vectors_have == 11


def test_another_tenant_s_note_of_the_same_name_is_not_hidden(
    store: GenerationStore, builder: ViewBuilder, tmp_path: Path
) -> None:
    base = builder.generation(1, BEFORE)
    view = builder.delta(base, 1, BEFORE, BEFORE)
    assert view.delta_path is not None
    remake(view, Mask(documents=(("other", "notes/a.md"),)))
    load(store, view)
    assert "notes/a.md" in names(by_words(store, view, "billing"))
    assert by_words(store, view, "billing", tenant="other") == []


def remake(view: GenerationRef, mask: Mask) -> None:
    """Seal a delta anew with another mask."""
    assert view.delta_path is not None
    folder = Path(view.delta_path)
    (folder / MASK).write_bytes(msgspec.msgpack.encode(mask))
    write_manifest(folder, msgspec.structs.replace(read_manifest(folder), files=fsync_tree(folder)))


WORDS = ["billing", "deploy", "tofu", "backup", "POL-358", "上海", "数据库", "user_id", "short", "answers"]
text = st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join)
Change = Literal["keep", "change", "remove", "rename", "add"]


@st.composite
def truths(draw: st.DrawFn) -> tuple[Truth, Truth]:
    """Draw a truth, and what became of it."""
    events = draw(st.lists(text, max_size=5))
    news = draw(st.lists(text, max_size=4))
    seq = 100
    units_before, units_now = {}, {}
    notes_before, notes_now = {}, {}
    for number in range(draw(st.integers(0, 6))):
        change: Change = draw(st.sampled_from(["keep", "change", "remove", "add"]))
        old, new = draw(text), draw(text)
        if change != "add":
            units_before[f"u{number}"] = (number + 1, old)
        if change != "remove":
            seq += 1
            units_now[f"u{number}"] = (number + 1, old) if change == "keep" else (seq, new)
    for number in range(draw(st.integers(0, 5))):
        change = draw(st.sampled_from(["keep", "change", "remove", "rename", "add"]))
        old, new = draw(text), draw(text)
        if change != "add":
            notes_before[f"n{number}.md"] = f"# title {number}\n\n{old}\n"
        if change in ("keep", "change", "add"):
            notes_now[f"n{number}.md"] = f"# title {number}\n\n{old if change == 'keep' else new}\n"
        elif change == "rename":
            notes_now[f"moved{number}.md"] = f"# title {number}\n\n{old}\n"
    return (
        Truth(events=tuple(events), units=units_before, notes=notes_before),
        Truth(events=(*events, *news), units=units_now, notes=notes_now),
    )


# A failure is shown as it was found: to make it smaller would take hundreds of builds.
@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(truths(), st.lists(st.sampled_from([*WORDS, "title", "absent"]), min_size=1, max_size=3).map(" ".join))
def test_a_view_answers_like_a_fresh_generation_of_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, truth: tuple[Truth, Truth], words: str
) -> None:
    before, now = truth
    builder = ViewBuilder(tmp_path_factory.mktemp("truth"))
    base = builder.generation(1, before)
    view, fresh = builder.delta(base, 1, before, now), builder.generation(2, now)
    assert (view.rows, view.vectors_have, view.covers) == (fresh.rows, fresh.vectors_have, fresh.covers)
    store = GenerationStore(cache_bytes=32 << 20)
    load(store, view, fresh)
    lists = [(by_words(store, ref, words), by_vector(store, ref, words)) for ref in (view, fresh)]
    (text_a, near_a), (text_b, near_b) = lists
    # The same scores for the same rows: so the same order, up to ties.
    assert scores(text_a) == pytest.approx(scores(text_b), rel=1e-5)
    assert scores(near_a) == pytest.approx(scores(near_b), abs=1e-5)
    for one, other in ((text_a, text_b), (near_a, near_b)):
        assert {key(hit): facts(hit) for hit in one} == {key(hit): facts(hit) for hit in other}
        assert list(scores(one).values()) == sorted(scores(one).values(), reverse=True)
    hybrid_a, hybrid_b = ({key(hit.candidate): hit.score for hit in fuse(*two, weight=0.5)} for two in lists)
    assert hybrid_a == pytest.approx(hybrid_b, abs=1e-4)


def scores(candidates: list[Candidate]) -> dict[Key, float]:
    found = {}
    for hit in candidates:
        score = hit.text_score if hit.text_score is not None else hit.vector_score
        assert score is not None and key(hit) not in found
        found[key(hit)] = score
    return found


def facts(hit: Candidate) -> Candidate:
    return msgspec.structs.replace(hit, text_score=None, vector_score=None)


def test_scores_made_anew_are_those_of_lance_where_nothing_has_changed(
    store: GenerationStore, builder: ViewBuilder
) -> None:
    """An empty delta: LanceDB's scores on one side, our formula on the other."""
    rng = np.random.default_rng(5)
    vocabulary = [*WORDS, *(f"word{number}" for number in range(40))]
    events = tuple(" ".join(rng.choice(vocabulary, size=rng.integers(1, 60))) for _ in range(150))
    truth = Truth(events=events, units={f"u{n}": (n + 1, events[n]) for n in range(20)})
    base = builder.generation(1, truth)
    view = builder.delta(base, 1, truth, truth)
    load(store, base, view)
    for words in ("billing", "tofu word7", "上海 数据库 user_id", "word1 word2 word3 word4 absent"):
        expected = scores(by_words(store, base, words, limit=1000))
        assert len(expected) > 5
        assert scores(by_words(store, view, words, limit=1000)) == pytest.approx(expected, rel=1e-5)


def test_without_counts_the_scores_of_lance_stay(store: GenerationStore, builder: ViewBuilder) -> None:
    """A generation that an earlier version sealed has none."""
    base = builder.generation(1, BEFORE)
    view = builder.delta(base, 1, BEFORE, NOW)
    expected = len(view_hits(store, view))
    folder = Path(base.path)
    for path in folder.glob("TERMS-*"):
        path.unlink()
    write_manifest(folder, msgspec.structs.replace(read_manifest(folder), files=fsync_tree(folder)))
    other = GenerationStore(cache_bytes=32 << 20)
    assert len(view_hits(other, view)) == expected


def view_hits(store: GenerationStore, view: GenerationRef) -> list[Candidate]:
    load(store, view)
    return by_words(store, view, "billing")


# ------------------------------------------------------------------ masked rows


def test_masked_rows_never_appear_also_when_they_fill_the_whole_top(
    store: GenerationStore, builder: ViewBuilder
) -> None:
    loud = {f"u{n:03d}": (n + 1, "tofu tofu tofu") for n in range(300)}
    quiet = {
        f"q{n}": (n + 500, f"a long text that has tofu in it once, and much more to say number {n}") for n in (1, 2)
    }
    before = Truth(units={**loud, **quiet}, notes={f"n{n}.md": "tofu tofu\n" for n in range(20)})
    now = Truth(units={**quiet, "new": (900, "new tofu")}, notes={"n3.md": "tofu tofu\n"})
    base = builder.generation(1, before)
    view = builder.delta(base, 1, before, now)
    load(store, base, view)
    assert names(by_words(store, base, "tofu", limit=10, corpora=("units",))) <= loud.keys()
    expected = {"new", "q1", "q2", "notes/n3.md"}
    assert names(by_words(store, view, "tofu", limit=10)) == expected
    assert names(by_vector(store, view, "tofu tofu tofu", limit=10)) == expected
    assert len(by_words(store, view, "tofu", limit=2)) == 2


# ------------------------------------------------------------------ damage


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_damage_in_any_file_of_a_delta_is_found_before_it_serves(store: GenerationStore, builder: ViewBuilder) -> None:
    base = builder.generation(42, BEFORE)
    view = builder.delta(base, 7, BEFORE, NOW)
    load(store, base)
    assert view.delta_path is not None
    files = [path for path in Path(view.delta_path).rglob("*") if path.is_file() and path.stat().st_size]
    kinds = {path.name.split("-")[0] for path in files}
    assert {"MANIFEST.json", MASK, "TERMS", "MASKED"} <= kinds and len(files) > 12
    for path in files:
        sound = path.read_bytes()
        for damage in (flip, Path.unlink, lambda path: path.write_bytes(b"")):
            damage(path)
            with pytest.raises(GenerationSuspect, match="gen-000042-d0007"):
                load(store, view)
            path.write_bytes(sound)
    with pytest.raises(NoGeneration, match="generation 42-d0007 is not open"):
        store.get(view.view)
    load(store, view)
    assert names(by_words(store, view, "billing")) == {"e1", "e4", "notes/a.md"}


def test_a_delta_of_other_vectors_or_with_another_number_is_refused(
    store: GenerationStore, builder: ViewBuilder
) -> None:
    base = builder.generation(1, BEFORE)
    view = builder.delta(base, 3, BEFORE, NOW)
    with pytest.raises(GenerationSuspect, match="says it is generation 1-d0003, not 1-d0004"):
        load(store, msgspec.structs.replace(view, delta=4))
    assert view.delta_path is not None
    folder = Path(view.delta_path)
    other = msgspec.structs.replace(IDENTITY, model="another")
    write_manifest(folder, msgspec.structs.replace(read_manifest(folder), identity=other))
    with pytest.raises(GenerationSuspect, match="1-d0003: its vectors are not of the space"):
        load(store, view)


@pytest.mark.parametrize("which", ["base", "delta"])
def test_an_error_while_serving_names_the_folder_and_has_it_verified_again(
    store: GenerationStore, builder: ViewBuilder, which: str
) -> None:
    base = builder.generation(42, BEFORE)
    view = builder.delta(base, 7, BEFORE, NOW)
    load(store, base, view)
    assert view.delta_path is not None
    folder = Path(base.path if which == "base" else view.delta_path)
    for path in folder.glob("*.lance/data/*"):
        path.unlink()
    name = "generation 42:" if which == "base" else "generation 42-d0007:"
    with pytest.raises(GenerationSuspect, match=f"^{name} .* search failed"):
        by_words(store, view, "billing")
        by_vector(store, view, "billing")
    with pytest.raises(NoGeneration):
        store.get(view.view)
    with pytest.raises(GenerationSuspect, match=folder.name):
        load(store, view)
    if which == "delta":
        assert names(by_words(store, base, "billing")) == {"e1", "u2", "notes/a.md"}
    else:
        with pytest.raises(NoGeneration):
            store.get(base.view)


# ------------------------------------------------------------------ lives


def test_views_of_one_generation_share_it(store: GenerationStore, views: list[GenerationRef]) -> None:
    base, view, same = views
    load(store, view)
    opened = store.get(view.view).base
    load(store, same, base)
    assert store.get(same.view).base is opened and store.get(base.view).base is opened
    store.drop(view.view)
    store.drop(base.view)
    assert names(by_words(store, same, "tofu")) == {"u3", "notes/b.md"}


def test_what_is_open_is_not_verified_again(store: GenerationStore, builder: ViewBuilder) -> None:
    """Told by a generation that would not pass a second time."""
    base = builder.generation(1, BEFORE)
    view = builder.delta(base, 1, BEFORE, NOW)
    load(store, base)
    (Path(base.path) / "extra").touch()
    load(store, view)
    with pytest.raises(GenerationSuspect, match="unexpected"):
        load(GenerationStore(cache_bytes=32 << 20), view)


class SlowEmbedder:
    """Embeds a question once it is let go."""

    def __init__(self) -> None:
        self.identity: EmbeddingIdentity = IDENTITY
        self.asked, self.go = threading.Event(), threading.Event()

    def embed_query(self, text: str) -> NDArray[np.float32]:
        self.asked.set()
        assert self.go.wait(60)
        return np.frombuffer(vector_of(sha(text)), dtype="<f4").astype(np.float32)


def test_a_search_under_way_ends_on_the_view_where_it_began(store: GenerationStore, builder: ViewBuilder) -> None:
    base = builder.generation(42, BEFORE)
    first, second = builder.delta(base, 7, BEFORE, NOW), builder.delta(base, 8, BEFORE, BEFORE)
    load(store, first)
    embedder = SlowEmbedder()
    searching = Searching(
        Query(view=first.view, query="billing"),
        store=store,
        vectors=QueryVectors(lambda: embedder),
        settings=PATIENT,
        deadline_ns=soon(),
    )
    results: list[QueryResult] = []
    thread = threading.Thread(target=lambda: results.append(searching.run()))
    thread.start()
    assert embedder.asked.wait(60)
    load(store, second)
    store.drop(first.view)
    assert names(by_words(store, second, "billing")) == {"e1", "u2", "notes/a.md"}
    store.drop(second.view)
    embedder.go.set()
    thread.join(60)
    assert [result.degraded for result in results] == [[]]
    assert len(results[0].vector) == 11 and "u4" in names(results[0].vector), "its own rows, not those of the other"
    assert names(results[0].text) == {"e1", "e4", "notes/a.md"}


@pytest.fixture
def client() -> Iterator[WorkerClient]:
    client = WorkerClient("actors.searcher.worker", RoomSetup(directory="", searcher=PATIENT))
    yield client
    assert client.close() == 0


def test_dropped_views_leave_no_file_open_and_the_generation_goes_with_the_last(
    client: WorkerClient, builder: ViewBuilder
) -> None:
    base = builder.generation(42, BEFORE)
    refs = [base, *(builder.delta(base, number, BEFORE, NOW) for number in (1, 2, 3))]
    assert all(ref.delta_path for ref in refs[1:])
    for ref in refs:
        client.call(LoadGeneration(generation=ref), Done)
        assert client.call(Query(view=ref.view, query="billing", mode="keyword"), QueryResult).text
    assert held(client, "TERMS-units.arrow"), "the counts are mapped"
    for ref in (refs[0], refs[1], refs[2]):
        client.call(DropGeneration(view=ref.view), Done)
        shutil.rmtree(ref.delta_path or "", ignore_errors=True)
    until(lambda: not held(client, "d0001") and not held(client, "d0002") and not held(client, "(deleted)"))
    query = Query(view=refs[3].view, query="billing", mode="keyword")
    assert names(client.call(query, QueryResult).text) == {"e1", "e4", "notes/a.md"}, "the generation is still open"
    assert held(client, "gen-000042/")
    client.call(DropGeneration(view=refs[3].view), Done)
    shutil.rmtree(builder.index)
    until(lambda: not held(client, str(builder.index)))


def held(client: WorkerClient, part: str) -> list[str]:
    """Return the open and mapped files of the worker's below the folders of this test that have this in their name."""
    place = Path("/proc") / str(client.process.pid)
    links = [link for fd in (place / "fd").iterdir() if (link := _readlink(fd))]
    maps = [line.split(maxsplit=5)[-1] for line in (place / "maps").read_text().splitlines() if "gen-0" in line]
    return [name for name in (*links, *maps) if part in name and "gen-0" in name]


def _readlink(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def until(done: Callable[[], bool]) -> None:
    """Wait for what happens a moment later: LanceDB frees on threads of its own."""
    limit = time.monotonic() + 20
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Free the tables of a test before its folders go."""
    yield
    gc.collect()
