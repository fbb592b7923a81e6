"""How database files are opened, refused, written and given up."""

import dataclasses
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from actors.child import StoreLost
from actors.errors import DiskFull, Interrupted, Quarantined, StoreBroken, StoreBusy
from actors.sql import writer_epoch
from actors.sql.database import (
    Database,
    FileKind,
    Until,
    attach_reader,
    checkpoint,
    map_error,
    open_reader,
    open_writer,
    savepoint,
    transaction,
    wal_bytes,
)

ROOT = Path(__file__).resolve().parents[3]
KIND = FileKind(
    name="test",
    application_id=0x62685858,
    user_version=3,
    schema="""
        PRAGMA application_id = 0x62685858; -- a comment; with a semicolon
        PRAGMA user_version = 3;
        CREATE TABLE numbers (n INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT;
    """,
    synchronous="FULL",
    busy_timeout_ms=50,
)
ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "test.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with closing(Database(open_writer(path, KIND), path)) as opened:
        yield opened


def insert(connection: sqlite3.Connection, n: int, text: str = "") -> None:
    connection.execute("INSERT INTO numbers (n, text) VALUES (:n, :text)", {"n": n, "text": text})


def count(connection: sqlite3.Connection) -> int:
    (rows,) = connection.execute("SELECT count(*) FROM numbers").fetchone()
    return int(rows)


def test_a_fresh_file_gets_its_schema_and_the_settings_of_the_house(database: Database) -> None:
    expected = {
        "application_id": 0x62685858,
        "user_version": 3,
        "journal_mode": "wal",
        "synchronous": 2,
        "page_size": 4096,
        "auto_vacuum": 0,
        "busy_timeout": 50,
        "foreign_keys": 1,
        "trusted_schema": 0,
        "cell_size_check": 1,
        "mmap_size": 0,
        "wal_autocheckpoint": 1000,
        "journal_size_limit": 16 * 1024 * 1024,
        "secure_delete": 1,
    }
    found = {name: database.connection.execute(f"PRAGMA {name}").fetchone()[0] for name in expected}
    assert found == expected
    assert count(database.connection) == 0


def test_eight_processes_open_a_fresh_file_at_once_and_write(path: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from actors.sql.database import Until, open_writer, transaction
from tests.unit.actors.sql.test_sqlite import KIND, insert
sys.stdin.readline()
connection = open_writer(Path({str(path)!r}), KIND)
for n in range(100):
    with transaction(connection, Until.after(60)):
        insert(connection, int(sys.argv[1]) * 1000 + n)
connection.close()
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(number)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for number in range(8)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors.decode()
    with closing(open_writer(path, KIND)) as connection:
        assert count(connection) == 800


@pytest.mark.parametrize(
    ("pragma", "words"),
    [
        ("application_id = 7", "application_id is 0x7, expected 0x62685858"),
        ("user_version = 4", "schema version 4, this program knows up to 3"),
        ("user_version = 2", "schema version 2, this program needs 3 or newer"),
    ],
)
def test_a_foreign_or_newer_file_is_refused_and_left_alone(path: Path, pragma: str, words: str) -> None:
    with closing(open_writer(path, KIND)) as connection:
        insert(connection, 1)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA {pragma}")
    before = path.read_bytes()
    with pytest.raises(Quarantined, match=words):
        open_writer(path, KIND)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"my grandmother's recipes\n" * 400)
    before = path.read_bytes()
    with pytest.raises(Quarantined, match="damaged"):
        open_writer(path, KIND)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["zeroed page", "cut", "flipped header of a page"])
def test_a_damaged_file_is_refused_and_left_alone(path: Path, damage: str) -> None:
    with closing(open_writer(path, KIND)) as connection, transaction(connection, Until.after(60)):
        for n in range(2000):
            insert(connection, n, "x" * 50)
    content = bytearray(path.read_bytes())
    if damage == "zeroed page":
        content[3 * 4096 : 4 * 4096] = bytes(4096)
    elif damage == "cut":
        del content[-8192:]
    else:
        content[5 * 4096] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(Quarantined, match="damaged"):
        open_writer(path, KIND)
    assert path.read_bytes() == content


def test_a_reader_reads_but_neither_writes_nor_checkpoints(database: Database) -> None:
    insert(database.connection, 1)
    with closing(open_reader(database.path, KIND)) as reader:
        assert count(reader) == 1
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            insert(reader, 2)
        size = wal_bytes(database.path)
    assert wal_bytes(database.path) == size > 0, "closing the reader must leave the WAL alone"
    assert count(database.connection) == 1


def test_an_attached_file_can_be_read_but_not_written(path: Path, database: Database) -> None:
    insert(database.connection, 1)
    other = path.with_name("other.db")
    with closing(open_writer(other, KIND)) as connection:
        attach_reader(connection, path, "truth")
        assert connection.execute("SELECT count(*) FROM truth.numbers").fetchone() == (1,)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("DELETE FROM truth.numbers")
        with transaction(connection, Until.after(60)):
            insert(database.connection, 2)  # a transaction over there takes no lock over here


def test_a_transaction_that_fails_leaves_nothing(database: Database) -> None:
    with pytest.raises(ValueError, match="no"), transaction(database.connection, Until.after(60)):
        insert(database.connection, 1)
        raise ValueError("no")
    assert not database.connection.in_transaction
    assert count(database.connection) == 0


def test_a_transaction_is_not_committed_after_its_deadline(database: Database) -> None:
    with pytest.raises(Interrupted), transaction(database.connection, Until.after(-1)):
        insert(database.connection, 1)
    assert count(database.connection) == 0


def test_a_savepoint_takes_back_its_part_only(database: Database) -> None:
    with transaction(database.connection, Until.after(60)):
        insert(database.connection, 1)
        with pytest.raises(StoreBusy), savepoint(database.connection):
            insert(database.connection, 2)
            raise StoreBusy("an operating error")
        insert(database.connection, 3)
    assert database.connection.execute("SELECT n FROM numbers ORDER BY n").fetchall() == [(1,), (3,)]


def test_a_statement_stops_at_the_deadline_of_its_call(database: Database) -> None:
    with pytest.raises(Interrupted), database.during(Until.after(0.05), "counting failed") as connection:
        connection.execute(ENDLESS).fetchone()
    assert count(database.connection) == 0  # the connection is as good as before


def test_an_inner_deadline_ends_the_inner_work_only(database: Database) -> None:
    with database.during(Until.after(60), "outer failed") as connection:
        with pytest.raises(Interrupted), database.during(Until.after(0.05), "inner failed"):
            connection.execute(ENDLESS).fetchone()
        assert count(connection) == 0


class Stoppable(Until):
    """A call that somebody else stops, and that says when it has begun to work."""

    def __init__(self) -> None:
        super().__init__(2**62)
        self.stopped = False
        self.asked = threading.Event()

    def expired(self) -> bool:
        self.asked.set()
        return self.stopped


def test_interrupt_from_another_thread_stops_the_running_statement(database: Database) -> None:
    call = Stoppable()

    def stop() -> None:
        call.asked.wait()
        call.stopped = True
        database.interrupt()

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(Interrupted), database.during(call, "counting failed") as connection:
        connection.execute(ENDLESS).fetchone()
    thread.join()


def test_an_interrupt_that_comes_late_does_not_hit_the_next_call(database: Database) -> None:
    late = Stoppable()
    with database.during(late, "first failed") as connection:
        count(connection)
    late.stopped = True
    with database.during(Until.after(60), "second failed") as connection:
        rows = connection.execute(f"{ENDLESS.replace('FROM c)', 'FROM c WHERE n < 50000)')}")
        database.interrupt()
        assert rows.fetchone() == (50000,)


def test_a_full_disk_is_an_operating_error_and_reads_go_on(database: Database) -> None:
    insert(database.connection, 0)
    database.connection.execute("PRAGMA max_page_count = 10")
    with (
        pytest.raises(DiskFull) as caught,
        database.during(Until.after(60), "append failed") as connection,
        transaction(connection, Until.after(60)),
    ):
        for n in range(1, 1000):
            insert(connection, n, "x" * 1000)
    assert caught.value.outcome == "not_executed"
    assert "append failed" in caught.value.message
    assert not database.connection.in_transaction
    assert count(database.connection) == 1


def test_a_lock_that_stays_is_reported_at_the_deadline(database: Database) -> None:
    with closing(sqlite3.connect(database.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with (
            pytest.raises(StoreBusy),
            database.during(Until.after(0.2), "append failed") as connection,
            transaction(connection, Until.after(0.2)),
        ):
            insert(connection, 1)
        other.execute("ROLLBACK")
    with transaction(database.connection, Until.after(60)):
        insert(database.connection, 1)


def test_a_lock_that_is_released_in_time_is_waited_for(database: Database) -> None:
    """The wait is longer than one busy timeout (50 ms), which is kept short because it can't be interrupted."""
    with closing(sqlite3.connect(database.path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.3, lambda: other.execute("ROLLBACK"))
        timer.start()
        with transaction(database.connection, Until.after(60)):
            insert(database.connection, 1)
        timer.join()
    assert count(database.connection) == 1


def error_named(name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("something")
    error.sqlite_errorname = name
    return error


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("SQLITE_FULL", DiskFull),
        ("SQLITE_BUSY", StoreBusy),
        ("SQLITE_BUSY_SNAPSHOT", StoreBusy),
        ("SQLITE_LOCKED", StoreBusy),
        ("SQLITE_INTERRUPT", Interrupted),
        ("SQLITE_IOERR_FSYNC", StoreBroken),
        ("SQLITE_IOERR_WRITE", StoreBroken),
        ("SQLITE_CORRUPT_VTAB", StoreBroken),
        ("SQLITE_NOTADB", StoreBroken),
        ("SQLITE_CANTOPEN", StoreBroken),
        ("SQLITE_READONLY_DBMOVED", StoreBroken),
    ],
)
def test_errors_of_the_disk_become_operating_errors(name: str, kind: type) -> None:
    mapped = map_error(error_named(name), "append failed")
    assert mapped is not None
    assert type(mapped) is kind
    assert mapped.outcome == "not_executed"


def test_only_an_io_error_of_a_commit_has_an_unknown_outcome() -> None:
    broken = map_error(error_named("SQLITE_IOERR_FSYNC"), "commit failed", outcome="unknown")
    full = map_error(error_named("SQLITE_FULL"), "commit failed", outcome="unknown")
    assert broken is not None and full is not None
    assert (broken.outcome, full.outcome) == ("unknown", "not_executed")


def test_a_mistake_of_ours_stays_what_it_is(database: Database) -> None:
    with (
        pytest.raises(sqlite3.OperationalError, match="no such table"),
        database.during(Until.after(60), "reading failed") as connection,
    ):
        connection.execute("SELECT * FROM absent")
    with pytest.raises(sqlite3.IntegrityError), database.during(Until.after(60), "writing failed") as connection:
        insert(connection, 1)
        insert(connection, 1)


@pytest.mark.parametrize("victim", ["test.db", "test.db-wal"])
def test_a_file_that_was_taken_away_is_not_written_to(database: Database, victim: str) -> None:
    insert(database.connection, 1)
    database.require_in_place("append")
    database.path.with_name(victim).unlink()
    with pytest.raises(StoreLost, match="removed or replaced"):
        database.require_in_place("append")


def test_damage_that_is_met_while_reading_means_that_the_process_must_go(path: Path) -> None:
    with closing(open_writer(path, KIND)) as writer, transaction(writer, Until.after(60)):
        for n in range(2000):
            insert(writer, n, "x" * 50)
    with closing(Database(open_writer(path, KIND), path)) as database:
        content = bytearray(path.read_bytes())
        content[4096:] = b"\xff" * (len(content) - 4096)
        path.write_bytes(content)
        database.connection.execute("PRAGMA shrink_memory")
        with pytest.raises(StoreLost) as caught, database.during(Until.after(60), "reading failed") as connection:
            count(connection)
    assert isinstance(caught.value.error, StoreBroken)
    assert caught.value.error.outcome == "not_executed"


def test_truncating_the_wal_waits_for_no_reader(database: Database) -> None:
    insert(database.connection, 1)
    with closing(open_reader(database.path, KIND)) as reader:
        reader.execute("BEGIN")
        count(reader)
        insert(database.connection, 2)
        assert not checkpoint(database.connection, "TRUNCATE")
        reader.execute("COMMIT")
    assert checkpoint(database.connection, "TRUNCATE")
    assert wal_bytes(database.path) == 0


def test_a_cell_that_is_no_text_any_more_is_damage_of_that_cell_only(database: Database) -> None:
    insert(database.connection, 1)
    database.connection.execute("UPDATE numbers SET text = CAST(x'ff' AS TEXT)")
    with (
        pytest.raises(StoreBroken, match="reading failed"),
        database.during(Until.after(60), "reading failed") as connection,
    ):
        connection.execute("SELECT text FROM numbers").fetchone()
    assert count(database.connection) == 1


class FailingCommit(sqlite3.Connection):
    """A connection on a disk that fails at COMMIT, and then at everything."""

    broken = False

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" or self.broken:
            self.broken = True
            raise error_named("SQLITE_IOERR_FSYNC")
        return super().execute(sql, *arguments)


def test_a_commit_that_fails_is_unknown_also_when_the_rollback_fails(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, factory=FailingCommit)) as connection:
        with pytest.raises(StoreLost) as caught, transaction(connection, Until.after(60)):
            connection.execute("CREATE TABLE t (n)")
        assert caught.value.error.outcome == "unknown"


def test_a_body_that_fails_before_commit_is_not_executed_also_when_the_rollback_fails(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, factory=FailingCommit)) as connection:
        with pytest.raises(StoreLost) as caught, transaction(connection, Until.after(60)):
            connection.execute("CREATE TABLE t (n)")
            connection.broken = True
            raise StoreBusy("anything")
        assert caught.value.error.outcome == "not_executed"


def test_a_writer_that_was_replaced_neither_commits_nor_checkpoints(path: Path) -> None:
    kind = dataclasses.replace(
        KIND,
        schema=KIND.schema + "CREATE TABLE meta (name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;",
    )
    with closing(open_writer(path, kind)) as old, closing(open_writer(path, kind)) as new:
        for number, writer in enumerate((old, new)):
            with transaction(writer, Until.after(60)):
                assert writer_epoch.take_over(writer, "it") == number + 1
        with transaction(new, Until.after(60)):
            insert(new, 1)
        for attempt in (lambda: checkpoint(old, "PASSIVE"), lambda: try_insert(old)):
            with pytest.raises(StoreLost, match="another writer has taken over it") as caught:
                attempt()
            assert caught.value.error.outcome == "not_executed"
        assert not old.in_transaction
        assert checkpoint(new, "PASSIVE")
        assert count(new) == 1


def try_insert(connection: sqlite3.Connection) -> None:
    with transaction(connection, Until.after(60)):
        insert(connection, 2)
