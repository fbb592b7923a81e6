"""Older files are brought up to date when they are opened for writing, whole or not at all, and by nobody else."""

import dataclasses
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from actors.core_writer import store
from actors.errors import Quarantined
from actors.settings import CoreWriterSettings
from actors.sql.database import FileKind, NotOurs, open_reader, open_writer, read_schema
from actors.sql.inspection import inspect

FIRST = FileKind(
    name="test",
    application_id=0x62685858,
    user_version=1,
    schema="""
        PRAGMA application_id = 0x62685858;
        PRAGMA user_version = 1;
        CREATE TABLE numbers (n INTEGER PRIMARY KEY) STRICT;
    """,
    synchronous="FULL",
)
SECOND = """
    CREATE TABLE words (w TEXT PRIMARY KEY) STRICT;
    INSERT INTO words SELECT 'number ' || n FROM numbers;
"""
THIRD = """
    ALTER TABLE words ADD COLUMN length INTEGER;
    UPDATE words SET length = length(w);
"""
LATEST = dataclasses.replace(
    FIRST,
    user_version=3,
    schema=f"{FIRST.schema}{SECOND}{THIRD} PRAGMA user_version = 3;",
    migrations={1: SECOND, 2: THIRD},
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "test.db"
    with closing(open_writer(path, FIRST)) as connection:
        connection.execute("INSERT INTO numbers VALUES (7)")
    return path


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_an_older_file_goes_through_every_version(path: Path) -> None:
    with closing(open_writer(path, LATEST)) as connection:
        assert connection.execute("SELECT w, length FROM words").fetchall() == [("number 7", 8)]
    assert version(path) == 3


def test_a_new_file_is_what_an_older_one_becomes(path: Path, tmp_path: Path) -> None:
    def tables(connection: sqlite3.Connection) -> list[tuple[str, str]]:
        return connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql NOT NULL ORDER BY name").fetchall()

    with closing(open_writer(path, LATEST)) as old, closing(open_writer(tmp_path / "new.db", LATEST)) as new:
        assert tables(old) == tables(new)


def test_looking_changes_nothing(path: Path) -> None:
    before = path.read_bytes()
    inspect(path, LATEST, lambda connection: None)
    with closing(open_reader(path, LATEST)) as reader:
        assert reader.execute("SELECT n FROM numbers").fetchall() == [(7,)]
    assert path.read_bytes() == before and version(path) == 1


def test_a_step_that_fails_leaves_the_version_before(path: Path) -> None:
    broken = dataclasses.replace(LATEST, migrations={1: SECOND, 2: "UPDATE words SET absent = 1;"})
    with pytest.raises(sqlite3.OperationalError):
        open_writer(path, broken)
    assert version(path) == 2
    with closing(open_writer(path, LATEST)) as connection:
        assert connection.execute("SELECT count(*) FROM words").fetchone() == (1,)


def test_a_file_that_holds_more_than_its_version_says_is_damaged(path: Path) -> None:
    with closing(open_writer(path, LATEST)):
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 1")
    with pytest.raises(Quarantined, match="holds what version 2 adds"):
        open_writer(path, LATEST)
    assert version(path) == 1


def test_a_file_older_than_all_of_them_is_refused(path: Path) -> None:
    with pytest.raises(NotOurs, match="needs 2 or newer"):
        open_writer(path, dataclasses.replace(LATEST, migrations={2: THIRD}))


def test_core_of_every_released_version_opens(tmp_path: Path) -> None:
    latest = store.file_kind(CoreWriterSettings())
    for released in range(1, latest.user_version + 1):
        names = [name for names in store.VERSIONS[:released] for name in names]
        schema = f"{read_schema('actors.core_writer', *names)}\nPRAGMA user_version = {released};"
        path = tmp_path / f"core-{released}.db"
        with closing(open_writer(path, dataclasses.replace(latest, user_version=released, schema=schema))):
            pass
        assert version(path) == released
        with closing(open_writer(path, latest)):
            pass
        assert version(path) == latest.user_version
