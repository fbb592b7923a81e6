"""The worker process of cache_manager: look-ups on one lane, changes on the other, and a file that may vanish."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from sqlite3 import Connection, sqlite_version

import msgspec

from actors.cache_manager import store
from actors.cache_manager.file import CacheFile
from actors.child import CallContext, StoreLost, serve
from actors.errors import BulkheadError, DiskFull, InvalidParams
from actors.frames import Setup
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
from actors.settings import RoomSetup
from actors.sql.database import Call, Until, checkpoint, file_bytes, transaction, wal_bytes

Facts = dict[str, int | float | str | bool | None]
DIMENSIONS_MAX = 65_536
_TOUCHED_MAX = 100_000
_VACUUM_PAGES = 64
_EVICT_ROWS_MIN = 8
_QUIET_S = 1.0
_PAUSE_S = 5.0
_IDLE_SLICE_S = 5.0
_FLOAT_BYTES = 4


class CacheRoom:
    """The store of the cache, on its two lanes."""

    work: object = CacheManagerMessage
    lanes: Mapping[type[Message], str] = {
        PutVectors: "write",
        TrimCache: "write",
        ClearCache: "write",
        GetVectors: "read",
        CacheStats: "read",
    }

    def __init__(self, setup: RoomSetup) -> None:
        self._limits = setup.cache_manager
        self._file = CacheFile(Path(setup.directory) / store.FILE_NAME, store.file_kind(self._limits))
        self._counters = {"hits": 0, "misses": 0, "evicted": 0, "dropped": 0, "damaged": 0}
        self._lock = threading.Lock()
        self._touched: set[int] = set()
        self._damaged: set[int] = set()
        self._written_at = 0.0
        self._checkpointed = 0
        self._paused_until = 0.0

    def open(self, lane: str) -> Facts:
        """Open the file; `write` comes first and makes it."""
        if lane == "write":
            self._file.writer()
        return {"sqlite_version": sqlite_version}

    def handle(self, message: Message, call: CallContext) -> msgspec.Struct:
        """Do a call on its lane."""
        match message:
            case GetVectors():
                return self._get(message, call)
            case CacheStats():
                return self._read_statistics(call)
            case PutVectors():
                return self._put(message, call)
            case TrimCache():
                return self._trim(message, call)
            case ClearCache():
                self._file.clear()
                return self._statistics(self._file.writer().connection)
        raise AssertionError(f"not a message of the cache: {message!r}")

    def interrupt(self, lane: str) -> None:
        """Stop the running statement of a lane."""
        self._file.interrupt(lane)

    def idle(self, lane: str) -> bool:
        """Note what was used, give free pages back, copy the WAL into the file."""
        if lane == "read" or time.monotonic() < self._paused_until:
            return False
        call = Until.after(_IDLE_SLICE_S)
        try:
            with self._file.writer().during(call, "upkeep failed") as connection:
                return self._upkeep(connection, call)
        except BulkheadError:
            self._paused_until = time.monotonic() + _PAUSE_S
        except StoreLost:
            self._file.replace()
        return False

    def close(self, lane: str) -> None:
        """Leave the connections to the end of the process."""

    # ------------------------------------------------------------ looking up

    def _get(self, message: GetVectors, call: CallContext) -> Vectors:
        self._check_keys("cache get", message.keys)
        try:
            answer = self._look_up(message, call)
        except StoreLost:
            self._file.suspect()
            answer = None
        if answer is None:
            answer = Vectors(found=[], dimensions=0, blob=b"")
        self._counters["hits"] += len(answer.found)
        self._counters["misses"] += len(message.keys) - len(answer.found)
        return answer

    def _look_up(self, message: GetVectors, call: CallContext) -> Vectors | None:
        """Return the vectors of the keys that have one; None when there is no file or nothing of this identity."""
        database = self._file.reader()
        if database is None:
            return None
        with database.during(call, "cache get failed") as connection:
            identity = store.find_identity(connection, message.identity)
            if identity is None:
                return None
            found: list[int] = []
            vectors: list[bytes] = []
            for index, key in enumerate(message.keys):
                stored = store.find_vector(connection, identity.id, key)
                if stored is not None and self._is_usable(stored, identity.dimensions):
                    found.append(index)
                    vectors.append(stored.vector)
            return Vectors(found=found, dimensions=identity.dimensions, blob=b"".join(vectors))

    def _is_usable(self, stored: store.Stored, dimensions: int) -> bool:
        """Say whether a vector may be given out, and note that it was used, or that it is damaged."""
        with self._lock:
            if not stored.intact:
                self._damaged.add(stored.id)
                return False
            if len(self._touched) < _TOUCHED_MAX:
                self._touched.add(stored.id)
        return len(stored.vector) == dimensions * _FLOAT_BYTES

    def _read_statistics(self, call: CallContext) -> Statistics:
        try:
            database = self._file.reader()
            if database is not None:
                with database.during(call, "cache statistics failed") as connection:
                    return self._statistics(connection)
        except StoreLost:
            self._file.suspect()
        return self._statistics(None)

    def _statistics(self, connection: Connection | None) -> Statistics:
        return Statistics(
            values={
                "entries": 0 if connection is None else store.count_entries(connection),
                "bytes": 0 if connection is None else store.used_bytes(connection),
                "bytes_max": self._limits.bytes_max,
                "file_bytes": file_bytes(self._file.path),
                "wal_bytes": wal_bytes(self._file.path),
                "recreated": self._file.recreated,
                **self._counters,
            }
        )

    # ------------------------------------------------------------ changing

    def _put(self, message: PutVectors, call: CallContext) -> Done:
        """Keep vectors. When the disk does not let us, they are dropped: they can be computed again."""
        self._check_keys("cache put", message.keys)
        _check_blob(message)
        try:
            with self._file.writer().during(call, "cache put failed") as connection:
                self._store(connection, message, call)
        except DiskFull:
            self._counters["dropped"] += len(message.keys)
        except StoreLost:
            self._file.replace()
            self._counters["dropped"] += len(message.keys)
        self._written_at = time.monotonic()
        return Done()

    def _store(self, connection: Connection, message: PutVectors, call: CallContext) -> None:
        room = store.bytes_needed(message.dimensions)
        # Of more than the whole cache can hold, the last ones are kept.
        first = max(0, len(message.keys) - self._limits.bytes_max // room)
        keys = message.keys[first:]
        self._counters["dropped"] += first
        with transaction(connection, call):
            self._note_use(connection)
            self._make_room(connection, self._limits.bytes_max - room * len(keys), call)
            identity = store.adopt_identity(connection, message.identity, message.dimensions)
            tick = store.next_tick(connection)
            width = message.dimensions * _FLOAT_BYTES
            for index, key in enumerate(keys, start=first):
                vector = message.blob[index * width : (index + 1) * width]
                store.put_vector(connection, identity.id, key, vector, tick)
            self._make_room(connection, self._limits.bytes_max, call)

    def _trim(self, message: TrimCache, call: CallContext) -> Statistics:
        if message.bytes_max < 0:
            raise InvalidParams(f"cache trim refused: bytes_max is {message.bytes_max}, it must be at least 0")
        with self._file.writer().during(call, "cache trim failed") as connection:
            more = True
            while more:  # a transaction for each slice, so that a deadline keeps what was done
                with transaction(connection, call):
                    self._note_use(connection)
                    more = self._evict_slice(connection, message.bytes_max)
            while store.free_bytes(connection) and not call.expired():
                store.give_back(connection, _VACUUM_PAGES)
            checkpoint(connection, "PASSIVE")
            return self._statistics(connection)

    def _make_room(self, connection: Connection, bytes_max: int, call: Call) -> None:
        """Evict until at most `bytes_max` are in use, or nothing is left to evict."""
        while self._evict_slice(connection, bytes_max):
            call.check()

    def _evict_slice(self, connection: Connection, bytes_max: int) -> bool:
        """Evict a slice if more than `bytes_max` are in use; return whether it did."""
        excess = store.used_bytes(connection) - bytes_max
        if excess <= 0:
            return False
        # A row that goes frees about a page, so this is not much more than has to go.
        rows = min(self._limits.evict_slice_rows, max(_EVICT_ROWS_MIN, excess // store.PAGE_BYTES))
        evicted = store.evict(connection, rows)
        self._counters["evicted"] += evicted
        return evicted > 0

    def _note_use(self, connection: Connection) -> None:
        """Write down what was used since the last time, and remove what was found damaged."""
        with self._lock:
            touched, self._touched = self._touched, set()
            damaged, self._damaged = self._damaged, set()
        if touched:
            store.touch(connection, touched, store.next_tick(connection))
        store.remove(connection, sorted(damaged))
        self._counters["damaged"] += len(damaged)

    def _upkeep(self, connection: Connection, call: Call) -> bool:
        if self._touched or self._damaged:
            with transaction(connection, call):
                self._note_use(connection)
        if time.monotonic() - self._written_at < _QUIET_S:
            return False
        if store.free_bytes(connection) > 0:
            store.give_back(connection, _VACUUM_PAGES)
            self._checkpointed = -1  # the file is only shorter after a checkpoint
            return True
        if connection.total_changes != self._checkpointed:
            checkpoint(connection, "TRUNCATE" if wal_bytes(self._file.path) > store.WAL_BYTES_MAX else "PASSIVE")
            self._checkpointed = connection.total_changes
        return False

    def _check_keys(self, what: str, keys: list[bytes]) -> None:
        if len(keys) > self._limits.keys_per_get_max:
            raise InvalidParams(
                f"{what} refused: {len(keys)} keys, the limit is {self._limits.keys_per_get_max} "
                f"(cache_manager.keys_per_get_max)"
            )
        for key in keys:
            if len(key) != store.KEY_BYTES:
                raise InvalidParams(f"{what} refused: a key of {len(key)} bytes, it must be {store.KEY_BYTES}")


def _check_blob(message: PutVectors) -> None:
    if not 1 <= message.dimensions <= DIMENSIONS_MAX:
        raise InvalidParams(
            f"cache put refused: dimensions is {message.dimensions}, the limits are 1 and {DIMENSIONS_MAX}"
        )
    expected = len(message.keys) * message.dimensions * _FLOAT_BYTES
    if len(message.blob) != expected:
        raise InvalidParams(
            f"cache put refused: blob is {len(message.blob)} bytes, {len(message.keys)} vectors of "
            f"{message.dimensions} dimensions are {expected}"
        )


def _room(setup: Setup) -> CacheRoom:
    return CacheRoom(msgspec.msgpack.decode(setup.settings, type=RoomSetup))


if __name__ == "__main__":
    serve(_room)
