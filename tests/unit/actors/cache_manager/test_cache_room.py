"""The cache on real files: what is kept, what gives way, and what happens when its file is taken away or broken."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
import pytest

from actors.cache_manager import file as cache_file
from actors.cache_manager.worker import CacheRoom
from actors.child import StoreLost
from actors.errors import InvalidParams
from actors.messages.base import Done, Message, Statistics
from actors.messages.cache_manager import (
    CacheManagerMessage,
    CacheStats,
    ClearCache,
    GetVectors,
    PutVectors,
    TrimCache,
    Vectors,
)
from actors.settings import CacheManagerSettings, RoomSetup
from tests.unit.actors.room_kit import call_within

Answer = TypeVar("Answer", bound=msgspec.Struct)
WIDTH = 4


@contextmanager
def cache(folder: Path, **limits: Any) -> Iterator[CacheRoom]:
    room = CacheRoom(RoomSetup(directory=str(folder / "room"), cache_manager=CacheManagerSettings(**limits)))
    try:
        for lane in ("write", "read"):
            room.open(lane)
        yield room
    finally:
        room._file.close()


def ask(room: CacheRoom, message: Message, answer: type[Answer]) -> Answer:
    found = room.handle(message, call_within(60))
    assert isinstance(found, answer)
    return found


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def vector(number: int, dimensions: int = WIDTH) -> bytes:
    return number.to_bytes(4, "little") * dimensions


def put(room: CacheRoom, *numbers: int, identity: str = "m", dimensions: int = WIDTH) -> None:
    blob = b"".join(vector(number, dimensions) for number in numbers)
    message = PutVectors(identity=identity, keys=[key(number) for number in numbers], dimensions=dimensions, blob=blob)
    ask(room, message, Done)


def got(room: CacheRoom, *numbers: int, identity: str = "m") -> list[int]:
    """Return which of the vectors are there; each must be the one that was put."""
    answer = ask(room, GetVectors(identity=identity, keys=[key(number) for number in numbers]), Vectors)
    found = [numbers[index] for index in answer.found]
    assert answer.blob == b"".join(vector(number, answer.dimensions) for number in found)
    return found


def statistics(room: CacheRoom) -> dict[str, Any]:
    return dict(ask(room, CacheStats(), Statistics).values)


def test_vectors_come_back_as_they_were_put_even_after_a_restart(tmp_path: Path) -> None:
    with cache(tmp_path) as room:
        put(room, 1, 2, 3)
        assert got(room, 3, 9, 1) == [3, 1]
        assert got(room, 1, identity="another model") == []
        assert got(room) == []
    with cache(tmp_path) as room:
        assert got(room, 1, 2, 3) == [1, 2, 3]
        found = statistics(room)
        assert (found["entries"], found["hits"], found["misses"], found["recreated"]) == (3, 3, 0, 0)


def test_putting_a_key_again_replaces_its_vector(tmp_path: Path) -> None:
    with cache(tmp_path) as room:
        put(room, 1)
        ask(room, PutVectors(identity="m", keys=[key(1)], dimensions=WIDTH, blob=vector(7)), Done)
        answer = ask(room, GetVectors(identity="m", keys=[key(1)]), Vectors)
        assert answer.blob == vector(7)
        assert statistics(room)["entries"] == 1


def test_vectors_of_other_dimensions_than_the_last_are_misses(tmp_path: Path) -> None:
    with cache(tmp_path) as room:
        put(room, 1, 2)
        put(room, 3, dimensions=8)
        assert got(room, 1, 2, 3) == [3]
        put(room, 1, dimensions=8)
        assert got(room, 1, 2, 3) == [1, 3]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (GetVectors(identity="m", keys=[b"short"]), "a key of 5 bytes, it must be 32"),
        (GetVectors(identity="m", keys=[key(1)] * 3), r"3 keys, the limit is 2 \(cache_manager.keys_per_get_max\)"),
        (
            PutVectors(identity="m", keys=[key(1)], dimensions=2, blob=b"x" * 7),
            "blob is 7 bytes, 1 vectors of 2 dimensions",
        ),
        (PutVectors(identity="m", keys=[], dimensions=0, blob=b""), "dimensions is 0, the limits are 1 and"),
        (TrimCache(bytes_max=-1), "bytes_max is -1"),
    ],
)
def test_what_is_not_acceptable_is_refused(tmp_path: Path, message: Message, words: str) -> None:
    with cache(tmp_path, keys_per_get_max=2) as room, pytest.raises(InvalidParams, match=words):
        room.handle(message, call_within(60))


def test_the_least_recently_used_give_way(tmp_path: Path) -> None:
    with cache(tmp_path, bytes_max=1_000_000, evict_slice_rows=4) as room:
        kept = list(range(1, 11))
        put(room, *kept, dimensions=1536)
        for start in range(100, 400, 10):
            assert got(room, *kept) == kept, "used all the time, so they stay"
            put(room, *range(start, start + 10), dimensions=1536)
        found = statistics(room)
        assert found["bytes"] <= found["bytes_max"]
        assert found["evicted"] > 150
        assert got(room, 100, 399) == [399]


def test_the_file_never_outgrows_its_cap(tmp_path: Path) -> None:
    cap = 600_000
    with cache(tmp_path, bytes_max=cap, evict_slice_rows=8) as room:
        for start in range(0, 600, 40):
            put(room, *range(start, start + 40), dimensions=768)
            room._written_at -= 2
            while room.idle("write"):
                pass
            found = statistics(room)
            assert found["bytes"] <= cap
            assert found["file_bytes"] <= cap * 1.1
        assert found["entries"] > 40


def test_more_than_the_whole_cache_can_hold_keeps_the_last(tmp_path: Path) -> None:
    with cache(tmp_path, bytes_max=200_000) as room:
        put(room, *range(100), dimensions=1536)
        found = statistics(room)
        assert 0 < found["entries"] < 30
        assert found["bytes"] <= 200_000
        assert found["dropped"] > 70
        assert got(room, 0, 99) == [99]


def test_trimming_shrinks_the_file(tmp_path: Path) -> None:
    with cache(tmp_path) as room:
        put(room, *range(200), dimensions=768)
        before = statistics(room)
        trimmed = dict[str, Any](ask(room, TrimCache(bytes_max=300_000), Statistics).values)
        assert trimmed["bytes"] <= 300_000 < before["bytes"]
        assert statistics(room)["file_bytes"] <= 300_000
        assert 0 < trimmed["entries"] < 200
        assert got(room, 0, 199) == [199]
        assert ask(room, TrimCache(bytes_max=0), Statistics).values["entries"] == 0


def test_clearing_drops_everything(tmp_path: Path) -> None:
    with cache(tmp_path) as room:
        put(room, *range(100), dimensions=768)
        assert got(room, 5) == [5]
        assert ask(room, ClearCache(), Statistics).values["entries"] == 0
        assert got(room, 5) == []
        assert statistics(room)["bytes"] < 50_000
        put(room, 5)
        assert got(room, 5) == [5]


@pytest.mark.parametrize("victim", ["the file", "the folder", "the wal"])
def test_the_file_may_be_deleted_at_any_time(tmp_path: Path, victim: str) -> None:
    folder = tmp_path / "room"
    with cache(tmp_path) as room:
        put(room, 1, 2)
        assert got(room, 1, 2) == [1, 2]
        if victim == "the folder":
            shutil.rmtree(folder)
        elif victim == "the file":
            (folder / "cache.db").unlink()
        else:
            (folder / "cache.db-wal").unlink()
        assert got(room, 1, 2) in ([], [1, 2])
        put(room, 3)
        assert got(room, 1, 2, 3) == [3]
        assert statistics(room)["recreated"] == 1
        assert (folder / "cache.db").exists()
        assert folder.stat().st_mode & 0o777 == 0o700
        room.idle("write")
    with cache(tmp_path) as room:
        assert got(room, 1, 2, 3) == [3]


def test_a_missing_file_is_a_miss_and_made_again_in_idle_time(tmp_path: Path) -> None:
    with cache(tmp_path) as room:
        put(room, 1)
        shutil.rmtree(tmp_path / "room")
        assert got(room, 1) == []
        assert statistics(room)["entries"] == 0
        room.idle("write")
        assert statistics(room)["recreated"] == 1


def damage(path: Path, kind: str) -> None:
    if kind in {"foreign", "newer"}:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA {'application_id' if kind == 'foreign' else 'user_version'} = 77")
        return
    content = bytearray(path.read_bytes())
    if kind == "not a database":
        content[:] = b"no database" * 1000
    elif kind == "zeroed":
        content[4096:] = bytes(len(content) - 4096)
    elif kind == "cut":
        del content[-8192:]
    else:
        content.clear()
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["not a database", "zeroed", "cut", "empty", "foreign", "newer"])
def test_a_damaged_foreign_or_newer_file_is_replaced_at_the_start(tmp_path: Path, kind: str) -> None:
    with cache(tmp_path) as room:
        put(room, *range(50), dimensions=768)
    damage(tmp_path / "room" / "cache.db", kind)
    with cache(tmp_path) as room:
        assert got(room, 1) == []
        put(room, 1)
        assert got(room, 1) == [1]
        assert statistics(room)["recreated"] == (0 if kind == "empty" else 1)


def broken_while_open(room: CacheRoom) -> None:
    """Overwrite the pages of the open file, and empty the page caches of both connections."""
    path = room._file.path
    for database in (room._file._writer, room._file._reader):
        assert database is not None
        database.connection.execute("PRAGMA shrink_memory")
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xee" * (len(content) - 4096)
    path.write_bytes(content)


@pytest.mark.parametrize("met_by", ["get", "put", "stats"])
def test_a_file_that_breaks_while_open_is_replaced(tmp_path: Path, met_by: str) -> None:
    with cache(tmp_path) as room:
        put(room, *range(50), dimensions=768)
        got(room, 1)
        room._written_at -= 2
        while room.idle("write"):
            pass
        broken_while_open(room)
        if met_by == "get":
            assert got(room, 1) == []
        elif met_by == "stats":
            assert statistics(room)["entries"] == 0
        else:
            put(room, 77)
            assert statistics(room)["dropped"] == 1
        room.idle("write")
        put(room, 1)
        assert got(room, 1) == [1]
        assert statistics(room)["recreated"] == 1


def test_a_file_that_breaks_again_and_again_ends_the_process(tmp_path: Path) -> None:
    with cache(tmp_path) as room:
        for _ in range(cache_file.REPLACED_MAX):
            room._file.suspect()
            put(room, 1)
        room._file.suspect()
        with pytest.raises(StoreLost, match="damaged 4 times within an hour, the limit is 3"):
            put(room, 1)


def test_a_flipped_bit_is_a_miss_and_removed(tmp_path: Path) -> None:
    with cache(tmp_path) as room:
        put(room, 1, 2)
        with closing(sqlite3.connect(tmp_path / "room" / "cache.db", isolation_level=None)) as connection:
            connection.execute("UPDATE vectors SET vector = :other WHERE id = 1", {"other": vector(9)})
            connection.execute("UPDATE vectors SET checksum = checksum + 1 WHERE id = 2")
        assert got(room, 1, 2) == []
        room.idle("write")
        found = statistics(room)
        assert (found["damaged"], found["entries"]) == (2, 0)


def test_a_full_disk_drops_what_can_not_be_kept(tmp_path: Path) -> None:
    with cache(tmp_path) as room:
        put(room, 1)
        writer = room._file.writer().connection
        (pages,) = writer.execute("PRAGMA page_count").fetchone()
        writer.execute(f"PRAGMA max_page_count = {pages}")
        put(room, *range(100, 200), dimensions=WIDTH * 100)
        found = statistics(room)
        assert (found["dropped"], found["entries"]) == (100, 1)
        assert got(room, 1) == [1]
        writer.execute("PRAGMA max_page_count = 100000")
        put(room, 2)
        assert got(room, 1, 2) == [1, 2]


def test_a_look_up_writes_nothing_until_there_is_time(tmp_path: Path) -> None:
    with cache(tmp_path) as room:
        put(room, 1, 2)

        def changes() -> int:
            return room._file.writer().connection.total_changes

        before = changes()
        for _ in range(5):
            got(room, 1)
        assert changes() == before
        room.idle("write")
        once = changes()
        assert once > before
        room.idle("write")
        assert changes() == once


def test_every_message_of_the_room_has_a_lane() -> None:
    assert set(CacheRoom.lanes) == set(get_args(CacheManagerMessage))
