"""The search worker as a process: every message it takes, over its pipes, with the real model and real generations."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest

from actors.child import CallContext, _Child
from actors.embedding import open_embedder, resolve_identity
from actors.errors import GenerationSuspect, NoGeneration, NotFound
from actors.frames import Reply, Setup
from actors.generation import FileEntry, read_manifest, write_manifest
from actors.messages.base import Done, Row
from actors.messages.core_writer import SourceRoot
from actors.messages.index import GenerationRef
from actors.messages.searcher import DropGeneration, LoadGeneration, Query, QueryResult, ReadLines, WarmUp
from actors.searcher.worker import SearcherRoom
from actors.settings import EmbeddingSettings, RoomSetup, SearcherSettings
from tests.unit.actors.searcher.searcher_generations import MadeRow, make_generation
from tests.worker_client import WorkerClient

MODULE = "actors.searcher.worker"
TEXTS = {
    "paint": "I spend my weekends painting watercolour landscapes",
    "code": "POL-358: user_id is lost in auth_middleware.py",
    "cook": "我昨天学会了做麻婆豆腐",
}
PATIENT = SearcherSettings(embed_deadline_ms=60_000)  # the machine that runs the tests may be busy


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("index")


@pytest.fixture(scope="module")
def ref(index: Path) -> GenerationRef:
    embedder = open_embedder(EmbeddingSettings())
    assert embedder is not None
    vectors = embedder.embed_documents(list(TEXTS.values()))
    rows = [MadeRow(id=id, text=TEXTS[id], vector=vector.tolist()) for id, vector in zip(TEXTS, vectors, strict=True)]
    return make_generation(index, 1, {"events": rows}, identity=embedder.identity)


@pytest.fixture(scope="module")
def client(ref: GenerationRef) -> Iterator[WorkerClient]:
    """A worker with generation 1 open, shared by the tests that leave it as it is."""
    client = WorkerClient(MODULE, RoomSetup(directory="", searcher=PATIENT))
    try:
        warm = client.begin(WarmUp())
        client.finish(warm, Done)
        client.call(LoadGeneration(generation=ref), Done)
        yield client
    finally:
        assert client.close() == 0


def test_a_fresh_worker_reads_notes_while_everything_else_comes_up(tmp_path: Path) -> None:
    (tmp_path / "n.md").write_text("one\ntwo")
    read = ReadLines(
        path="n.md",
        from_line=2,
        lines=1,
        sources=[SourceRoot(source_id="s", path=str(tmp_path), name="n", added_at=0)],
    )
    with WorkerClient(MODULE, RoomSetup(directory="")) as client:
        warm = client.begin(WarmUp())
        reading = client.begin(read)
        # `finish` passes over other answers: had the warm-up been answered first, the last line would wait for ever.
        row = msgspec.json.decode(client.finish(reading, Row).row)
        assert row["text"] == "two" and row["total_lines"] == 2
        client.finish(warm, Done)
        with pytest.raises(NotFound):
            client.call(msgspec.structs.replace(read, path="/etc/passwd"), Row)


def test_a_question_is_answered_by_words_and_by_meaning(client: WorkerClient) -> None:
    result = client.call(Query(view=1, query="what is my hobby, is it art?"), QueryResult)
    assert (result.mode, result.degraded) == ("hybrid", [])
    assert result.vector[0].id == "paint" and len(result.vector) == 3
    result = client.call(Query(view=1, query="user_id"), QueryResult)
    assert [c.id for c in result.text] == ["code"] and result.text[0].snippet == TEXTS["code"]
    result = client.call(Query(view=1, query="豆腐"), QueryResult)
    assert [c.id for c in result.text] == ["cook"]


def test_questions_at_the_same_time_are_each_answered(client: WorkerClient) -> None:
    words = {"POL-358": "code", "豆腐": "cook", "watercolour": "paint"}
    calls = {client.begin(Query(view=1, query=word, mode="keyword")): id for word, id in words.items()}
    for _ in words:
        reply = client.receive(Reply)
        assert isinstance(reply, Reply)
        found = msgspec.msgpack.decode(reply.answer, type=QueryResult)
        assert [c.id for c in found.text] == [calls.pop(reply.seq)]


def test_a_damaged_generation_is_refused_and_the_open_one_goes_on(client: WorkerClient, index: Path) -> None:
    damaged = make_generation(index, 2, {"events": [MadeRow(id="x", text="x")]}, identity=None)
    data = next(Path(damaged.path).glob("events.lance/data/*"))
    data.write_bytes(b"\0" * data.stat().st_size)
    with pytest.raises(GenerationSuspect):
        client.call(LoadGeneration(generation=damaged), Done)
    with pytest.raises(NoGeneration):
        client.call(Query(view=2, query="x"), QueryResult)
    assert client.call(Query(view=1, query="豆腐"), QueryResult).text


def test_loading_a_generation_delays_no_query(client: WorkerClient, index: Path, tmp_path: Path) -> None:
    """A file that nobody writes into keeps the load busy for as long as the test wants."""
    slow = make_generation(index, 3, {"events": [MadeRow(id="x", text="x")]}, identity=None)
    pipe = Path(slow.path) / "pipe"
    os.mkfifo(pipe)
    manifest = read_manifest(Path(slow.path))
    entry = FileEntry(path="pipe", bytes=0, sha256="")
    write_manifest(Path(slow.path), msgspec.structs.replace(manifest, files=[entry, *manifest.files]))
    loading = client.begin(LoadGeneration(generation=slow))
    assert client.call(Query(view=1, query="豆腐"), QueryResult).text
    pipe.write_bytes(b"")  # opened for writing: the reader gets its end of file
    with pytest.raises(GenerationSuspect, match="pipe"):
        client.finish(loading, Done)


def test_a_dropped_generation_is_closed(client: WorkerClient, index: Path) -> None:
    ref = make_generation(index, 4, {"events": [MadeRow(id="x", text="word")]}, identity=None)
    client.call(LoadGeneration(generation=ref), Done)
    query = Query(view=4, query="word", mode="keyword")
    assert client.call(query, QueryResult).text
    client.call(DropGeneration(view=4), Done)
    client.call(DropGeneration(view=4), Done)
    with pytest.raises(NoGeneration, match="generation 4 is not open"):
        client.call(query, QueryResult)


class NoParent:
    """Takes the reports of a call that nobody waits for."""

    def send(self, frame: object) -> None:
        """Drop a report."""


@pytest.mark.parametrize(
    "embedding",
    [
        EmbeddingSettings(provider="none"),
        EmbeddingSettings(provider="no-such"),
    ],
)
def test_without_a_model_of_its_own_it_warms_up_and_answers_by_keyword(
    ref: GenerationRef, embedding: EmbeddingSettings
) -> None:
    result = ask_a_worker_with(embedding, ref)
    assert (result.mode, [c.id for c in result.text]) == ("keyword", ["cook"])
    assert [reason for reason, _ in result.degraded] == ["embedder_unavailable"]


def test_a_generation_of_a_model_of_this_machine_is_asked_by_that_whatever_is_configured_now(
    ref: GenerationRef,
) -> None:
    """E8: while the model is being changed, the generation that serves is of the old one."""
    remote = EmbeddingSettings(provider="openai-compatible", base_url="http://127.0.0.1:9", model="m", dimensions=384)
    result = ask_a_worker_with(remote, ref)
    assert (result.mode, result.degraded) == ("hybrid", []) and result.vector


def test_a_remote_model_is_not_the_workers_own(ref: GenerationRef, index: Path) -> None:
    """The daemon asks that, and the worker never goes to the network."""
    remote = EmbeddingSettings(provider="openai-compatible", base_url="http://127.0.0.1:9", model="m", dimensions=384)
    row = MadeRow(id="x", text="豆腐", vector=[1.0, *[0.0] * 383])
    of_remote = make_generation(index, 9, {"events": [row]}, identity=resolve_identity(remote))
    result = ask_a_worker_with(remote, of_remote)
    assert (result.mode, [c.id for c in result.text]) == ("keyword", ["x"])
    assert [reason for reason, _ in result.degraded] == ["embedder_unavailable"]


def ask_a_worker_with(embedding: EmbeddingSettings, ref: GenerationRef) -> QueryResult:
    settings = msgspec.msgpack.encode(RoomSetup(directory="", embedding=embedding, searcher=PATIENT))
    room = SearcherRoom(Setup("searcher", 1, msgspec.Raw(settings), 200, 0, False, 0))
    call = CallContext(1, time.monotonic_ns() + 60 * 10**9, cast(_Child, NoParent()))
    room.handle(WarmUp(), call)
    room.handle(LoadGeneration(generation=ref), call)
    result = room.handle(Query(view=ref.view, query="豆腐"), call)
    assert isinstance(result, QueryResult)
    return result
