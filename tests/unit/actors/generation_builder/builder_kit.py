"""What the tests of the builder's worker share: a truth to build from, and a driver that makes builds of it."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from actors.messages.base import CORPORA, Done, Message
from actors.messages.builder_work import (
    BeginBuild,
    FlipGeneration,
    IndexTable,
    SealGeneration,
    Staged,
    StageDocuments,
    StageEvents,
    StageUnits,
    StageVectors,
    TestGeneration,
    WriteTable,
)
from actors.messages.core_writer import SourceRoot
from actors.messages.index import Covers, EmbeddingIdentity, GenerationRef
from actors.settings import GenerationBuilderSettings, RoomSetup
from tests.worker_client import WorkerClient

MODULE = "actors.generation_builder.worker"
DIMENSIONS = 8
IDENTITY = EmbeddingIdentity(
    provider="fake", model="hash", dimensions=DIMENSIONS, normalised=True, prefix="", chunking="v1"
)
DAY_US = 86_400_000_000
Event = dict[str, object]


def event(seq: int, content: str, **members: object) -> Event:
    """Return an event as a page holds it."""
    return {
        "event_id": f"e{seq}",
        "seq": seq,
        "ts": 1_700_000_000_000_000 + seq * DAY_US,
        "kind": "message",
        "actor": "user" if seq % 2 else "assistant",
        "session_id": "s1",
        "content": content,
        "tags": ["chat"],
        "tenant": "default",
        "scope": "session",
        "meta": None,
        **members,
    }


def unit(core_seq: int, text: str, **members: object) -> Event:
    """Return a unit as a page holds it."""
    return {
        "unit_id": f"u{core_seq}",
        "version": 1,
        "core_seq": core_seq,
        "updated_at": 1_700_000_000_000_000 + core_seq,
        "type": "profile",
        "scope": "user",
        "text": text,
        "tags": [],
        "tenant": "default",
        "facts": None,
        **members,
    }


EVENTS = [
    event(1, "The deployment of the billing service failed at midnight"),
    event(2, "我们决定把数据库备份改到每天凌晨三点"),
    event(3, "ok"),
    event(4, "   "),
    event(5, "Please look at src/auth_middleware.py, the token expires too early"),
]
UNITS = [unit(1, "The user prefers short answers"), unit(2, "用户住在上海")]
NOTES = {
    "linux/ls.md": "# ls\n\nlist directory contents\n\n## Options\n\n-a shows hidden files\n",
    "日记.md": "# 日记\n\n今天学习了向量数据库。\n",
    "plain.md": "no heading here\n",
}


def write_notes(root: Path, notes: dict[str, str] | None = None) -> SourceRoot:
    """Write notes below a folder and return it as a source."""
    for name, text in (NOTES if notes is None else notes).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    root.mkdir(parents=True, exist_ok=True)
    return source(root)


def source(root: Path, name: str = "notes", tenant: str = "default") -> SourceRoot:
    """Return a folder as a source."""
    return SourceRoot(source_id=f"id-{root.name}", path=str(root), name=name, added_at=1, tenant=tenant)


def vector_of(key: bytes) -> bytes:
    """Return the unit vector that the tests give for a hash."""
    values = np.random.default_rng(int.from_bytes(key[:8], "big")).standard_normal(DIMENSIONS)
    return (values / np.linalg.norm(values)).astype("<f4").tobytes()


def sha(text: str) -> bytes:
    """Return the hash of an embedded text."""
    return hashlib.sha256(text.encode()).digest()


def settings(index: Path, **limits: object) -> RoomSetup:
    """Return the settings of a worker on this index folder."""
    return RoomSetup(directory=str(index), generation_builder=GenerationBuilderSettings(**limits))  # type: ignore[arg-type]


class Builder:
    """A builder's worker, driven like the actor drives it."""

    def __init__(self, index: Path, **limits: object) -> None:
        self.index = index
        self.worker = WorkerClient(MODULE, settings(index, **limits))

    def __enter__(self) -> "Builder":
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.close()

    def do(self, message: Message) -> None:
        """Make a call that answers Done."""
        self.worker.call(message, Done)

    def begin(
        self,
        number: int,
        *,
        identity: EmbeddingIdentity | None = IDENTITY,
        previous: GenerationRef | None = None,
        sources: Sequence[SourceRoot] = (),
    ) -> None:
        """Begin a build."""
        covers = Covers(event_seq=len(EVENTS), core_seq=len(UNITS), sources_digest="digest")
        self.do(
            BeginBuild(generation=number, covers=covers, identity=identity, previous=previous, sources=list(sources))
        )

    def stage(
        self, *, events: Iterable[Event] = (), units: Iterable[Event] = (), documents: bool = False
    ) -> list[bytes]:
        """Stage rows and return the hashes that are wanted."""
        wanted = self.staged(StageEvents(rows=msgspec.msgpack.encode(list(events)))).wanted
        wanted += self.staged(StageUnits(rows=msgspec.msgpack.encode(list(units)))).wanted
        more = documents
        while more:
            staged = self.staged(StageDocuments(files_max=2))
            wanted += staged.wanted
            more = staged.more
        return wanted

    def staged(self, message: Message) -> Staged:
        """Make a call that stages."""
        return self.worker.call(message, Staged)

    def give(self, keys: Sequence[bytes]) -> None:
        """Give the vectors of these hashes."""
        self.give_blob(keys, DIMENSIONS, b"".join(map(vector_of, keys)))

    def give_blob(self, keys: Sequence[bytes], dimensions: int, blob: bytes) -> None:
        """Give vectors as the cache does."""
        self.do(StageVectors(keys=list(keys), dimensions=dimensions, blob=blob))

    def finish(self) -> GenerationRef:
        """Write, index, test and seal."""
        for corpus in CORPORA:
            self.do(WriteTable(corpus=corpus))
        for corpus in CORPORA:
            self.do(IndexTable(corpus=corpus))
        self.do(TestGeneration())
        return self.worker.call(SealGeneration(), GenerationRef)

    def build(
        self,
        number: int,
        *,
        events: Sequence[Event] = tuple(EVENTS),
        units: Sequence[Event] = tuple(UNITS),
        sources: Sequence[SourceRoot] = (),
        identity: EmbeddingIdentity | None = IDENTITY,
        previous: GenerationRef | None = None,
        give: bool = True,
        flip: bool = True,
    ) -> GenerationRef:
        """Make a whole generation, with all the vectors that are wanted or with none, and publish it."""
        self.begin(number, identity=identity, previous=previous, sources=sources)
        wanted = self.stage(events=events, units=units, documents=bool(sources))
        if give and wanted:
            self.give(wanted)
        sealed = self.finish()
        if flip:
            self.do(FlipGeneration(generation=number))
        return sealed


def rows_of(ref: GenerationRef, corpus: str) -> list[dict[str, object]]:
    """Return the rows of a table of a sealed generation, in their order."""
    import lancedb

    rows: list[dict[str, object]] = lancedb.connect(ref.path).open_table(corpus).search().to_arrow().to_pylist()
    return rows


def hits(ref: GenerationRef, corpus: str, terms: str, *, limit: int = 50) -> list[tuple[str, float]]:
    """Return the ids that a keyword query finds, with their scores, best first."""
    import lancedb
    from lancedb.query import MatchQuery

    table = lancedb.connect(ref.path).open_table(corpus)
    query = table.search(MatchQuery(terms, "terms"), query_type="fts").select(["id", "_score"]).limit(limit)
    return [(row["id"], row["_score"]) for row in query.to_arrow().to_pylist()]
