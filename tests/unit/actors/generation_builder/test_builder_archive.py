"""The builder's worker writes an archive: what is in the file, and what becomes of one that is cut short or changed."""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actors.errors import BuildFailed, NotFound, Quarantined
from actors.messages.archives import AddToArchive, ArchiveFile, BeginArchive, SealArchive, VerifyArchive
from actors.messages.base import Done
from actors.settings import RoomSetup
from tests.unit.actors.generation_builder.builder_kit import MODULE
from tests.unit.actors.room_kit import killed
from tests.worker_client import WorkerClient


def client(tmp_path: Path) -> WorkerClient:
    """Start a worker."""
    setup = RoomSetup(
        directory=str(tmp_path / "index"), archive_directory=str(tmp_path / "archives"), identity="data-1"
    )
    return WorkerClient(MODULE, setup)


def row(seq: int, content: str, **members: object) -> dict[str, object]:
    """Return an event as the transcript hands it over."""
    return {
        "seq": seq,
        "event_id": f"e{seq}",
        "tenant": "default",
        "session_id": "s1",
        "ts": 1_700_000_000_000_000 + seq,
        "kind": "message",
        "actor": "user",
        "scope": "session",
        "channel": None,
        "project": "p",
        "trace_id": None,
        "request_id": f"r{seq}",
        "content_hash": hashlib.sha256(content.encode()).digest(),
        "tags": '["a","b"]',
        "meta": '{"k":1}',
        "content": content,
        **members,
    }


def page(*rows: dict[str, object]) -> AddToArchive:
    """Return the message that adds rows."""
    return AddToArchive(rows=msgspec.msgpack.encode(list(rows)))


def made(worker: WorkerClient, *pages: AddToArchive, number: int = 3) -> ArchiveFile:
    """Write an archive."""
    worker.call(BeginArchive(number=number), Done)
    for each in pages:
        worker.call(each, Done)
    return worker.call(SealArchive(), ArchiveFile)


def test_any_reader_of_parquet_reads_an_archive(tmp_path: Path) -> None:
    contents = ["hello", "你好，世界", "x" * 100_000, "emoji 🦊"]
    rows = [row(seq, content) for seq, content in enumerate(contents, start=7)]
    with client(tmp_path) as worker:
        sealed = made(worker, page(*rows[:2]), page(*rows[2:]))
        worker.call(VerifyArchive(archive=sealed), Done)
    path = tmp_path / "archives" / sealed.name
    assert sealed.name == "events-00000003-7-10.parquet"
    assert (sealed.rows, sealed.first_seq, sealed.last_seq) == (4, 7, 10)
    assert (sealed.first_ts, sealed.last_ts) == (1_700_000_000_000_007, 1_700_000_000_000_010)
    assert (sealed.bytes, sealed.sha256) == (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    table = pq.read_table(path)
    assert table.column("content").to_pylist() == contents
    assert table.column("ts").to_pylist()[0] == datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=7)
    assert table.column("tags").to_pylist()[0] == ["a", "b"]
    assert json.loads(table.column("meta").to_pylist()[0]) == {"k": 1}
    metadata: dict[bytes, bytes] = pq.read_metadata(path).metadata
    assert metadata[b"bulkhead.identity"] == b"data-1"
    assert metadata[b"bulkhead.archive"] == b"1"
    assert metadata[b"bulkhead.digest"].decode() == sealed.digest
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"


def test_the_same_events_give_the_same_digest_however_they_are_paged(tmp_path: Path) -> None:
    rows = [row(seq, f"text {seq}") for seq in range(1, 30)]
    with client(tmp_path) as worker:
        one = made(worker, page(*rows))
        other = made(worker, *(page(each) for each in rows))
        changed = made(worker, page(*rows[:-1], row(29, "another text")))
    assert one.digest == other.digest != changed.digest


def test_what_is_cut_short_leaves_nothing_that_counts(tmp_path: Path) -> None:
    worker = client(tmp_path)
    worker.call(BeginArchive(number=1), Done)
    worker.call(page(row(1, "a")), Done)
    killed(worker)
    assert [each.suffix for each in (tmp_path / "archives").iterdir()] == [".tmp"]
    with client(tmp_path) as again:
        with pytest.raises(BuildFailed, match="no archive is under way"):
            again.call(page(row(1, "a")), Done)
        sealed = made(again, page(row(1, "a")), number=2)
        assert [each.name for each in (tmp_path / "archives").iterdir()] == [sealed.name]


def test_content_that_is_not_what_its_hash_says_is_not_sealed(tmp_path: Path) -> None:
    wrong = {**row(1, "a"), "content": "b"}
    with client(tmp_path) as worker:
        worker.call(BeginArchive(number=1), Done)
        worker.call(page(wrong), Done)
        with pytest.raises(BuildFailed, match="event 1 does not say what its hash was made of"):
            worker.call(SealArchive(), ArchiveFile)
        assert not list((tmp_path / "archives").iterdir())


def test_an_archive_that_was_changed_or_is_gone_is_noticed(tmp_path: Path) -> None:
    with client(tmp_path) as worker:
        sealed = made(worker, page(row(1, "a"), row(2, "b")))
        path = tmp_path / "archives" / sealed.name
        rewritten: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        rewritten[1]["content"] = "c"
        pq.write_table(pa.Table.from_pylist(rewritten, schema=pq.read_schema(path)), path)
        with pytest.raises(Quarantined, match="not what was sealed"):
            worker.call(VerifyArchive(archive=sealed), Done)
        path.unlink()
        with pytest.raises(NotFound, match="there is no archive"):
            worker.call(VerifyArchive(archive=sealed), Done)
        outside = msgspec.structs.replace(sealed, name="../index/LOCK")
        with pytest.raises(NotFound):
            worker.call(VerifyArchive(archive=outside), Done)
