"""Core restored by its worker in maintenance mode: from a backup, from what is left, and killed in the middle."""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.errors import InvalidParams
from actors.messages.base import Candidates, Row, Rows
from actors.messages.core_writer import (
    GetSession,
    GetUnit,
    OpenSession,
    PutUnit,
    RestoreTruth,
    SearchUnits,
    UnitHistory,
)
from actors.settings import RoomSetup
from tests.unit.actors.room_kit import ask, core, killed, rows_of
from tests.worker_client import ROOT, WorkerClient

WORKER = "actors.core_writer.worker"
PAGE = 4096
LEAF = 0x0D
UNITS = 200
Json = dict[str, Any]


@pytest.fixture
def setup(tmp_path: Path) -> RoomSetup:
    """Give a room with two hundred units of two versions each and a session, and a backup of its first half."""
    found = RoomSetup(directory=str(tmp_path / "core_writer"), identity="mine")
    with core(tmp_path / "core_writer", identity="mine") as room:
        ask(room, OpenSession(session_id="s", title="The title"), Row)
        for number in range(UNITS):
            ask(room, put(number), Row)
    shutil.copy(tmp_path / "core_writer" / "core.db", tmp_path / "backup.db")
    with core(tmp_path / "core_writer", identity="mine") as room:
        for number in range(UNITS):
            ask(room, put(number, "second"), Row)
        ask(room, SearchUnits(query="text"), Candidates)
    return found


def put(number: int, text: str = "text") -> PutUnit:
    text = f"{text} {number} " + "x" * 700
    return PutUnit(unit_id=f"u{number}", type="plan", scope="user", text=text, request_id=f"{text[:12]}{number}")


def truth(setup: RoomSetup) -> Path:
    return Path(setup.directory) / "core.db"


def backup(setup: RoomSetup) -> Path:
    return Path(setup.directory).parent / "backup.db"


def damage(setup: RoomSetup, page: int, data: bytes = b"\xff" * PAGE) -> None:
    with truth(setup).open("r+b") as file:
        file.seek(page * PAGE)
        file.write(data)


def restore(setup: RoomSetup, path: Path | None) -> Json:
    restoring = msgspec.structs.replace(setup, restoring=True)
    with WorkerClient(WORKER, restoring) as client:
        message = RestoreTruth(path=None if path is None else str(path))
        return msgspec.json.decode(client.call(message, Row).row, type=Json)


def serve(setup: RoomSetup) -> WorkerClient:
    client = WorkerClient(WORKER, setup)
    assert not client.ready.info.get("quarantined")
    return client


def row(client: WorkerClient, message: Any) -> Json:
    return msgspec.json.decode(client.call(message, Row).row, type=Json)


def leaves_of_units(setup: RoomSetup) -> list[int]:
    """Return the pages of the file that hold rows of `units`; the results of requests hold the same texts as JSON."""
    content = truth(setup).read_bytes()
    pages = [content[at : at + PAGE] for at in range(0, len(content), PAGE)]
    return [
        number
        for number, page in enumerate(pages)
        if page[0] == LEAF and b"second" in page and b'"unit_id"' not in page
    ]


# ---------------------------------------------------------------- from a backup


def test_a_backup_takes_the_place_of_damaged_files_which_are_kept(setup: RoomSetup) -> None:
    damage(setup, 0)
    damaged = truth(setup).read_bytes()
    answer = restore(setup, backup(setup))
    assert answer["restored_from"] == str(backup(setup)) and answer["salvaged"] is False
    assert answer["tables"]["units"] == {"kept": UNITS, "lost": None}
    kept = Path(setup.directory) / answer["kept_aside"]
    assert (kept / "core.db").read_bytes() == damaged
    with serve(setup) as client:
        assert row(client, GetUnit(unit_id="u7"))["version"] == 1
        assert row(client, put(7, "third"))["version"] == 2
        assert len(client.call(SearchUnits(query="text", limit=5), Candidates).found) == 5
    assert sorted(path.name for path in Path(setup.directory).iterdir()) == sorted(
        [
            "core.db",
            "core.db-shm",
            "core.db-wal",
            answer["kept_aside"],
            "keywords.db",
            "keywords.db-shm",
            "keywords.db-wal",
        ]
    )


def test_no_number_is_given_out_twice_after_an_older_backup(setup: RoomSetup) -> None:
    """The old file counts to 400; a generation that was built from it must not take new changes for known ones."""
    restore(setup, backup(setup))
    with serve(setup) as client:
        assert row(client, put(7, "third"))["core_seq"] == 2 * UNITS + 1
    with serve(setup) as client:  # and the gap is no damage at the next start
        assert row(client, put(8, "third"))["core_seq"] == 2 * UNITS + 2


def test_when_the_old_file_can_not_be_read_its_index_tells_how_far_it_went(setup: RoomSetup) -> None:
    damage(setup, 0)
    restore(setup, backup(setup))
    with serve(setup) as client:
        assert row(client, put(7, "third"))["core_seq"] == 2 * UNITS + 1


def test_a_backup_with_a_wal_beside_it_is_taken_with_it(setup: RoomSetup, tmp_path: Path) -> None:
    other = msgspec.structs.replace(setup, directory=str(tmp_path / "other"))
    client = WorkerClient(WORKER, other)
    client.call(put(1), Row)
    killed(client)
    source = tmp_path / "other" / "core.db"
    assert source.with_name("core.db-wal").stat().st_size
    restore(setup, source)
    with serve(setup) as client:
        assert row(client, GetUnit(unit_id="u1"))["version"] == 1
    assert source.with_name("core.db-wal").exists(), "the source stays as it is"


def make_newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")


def make_empty(path: Path) -> None:
    path.write_bytes(b"")


def make_foreign(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")


def make_another_directory_s(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE meta SET value = 'other' WHERE name = 'identity'")
        connection.commit()


def make_incomplete(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM units WHERE core_seq = (SELECT max(core_seq) FROM units)")
        connection.commit()


def make_damaged(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(5 * PAGE)
        file.write(b"\xff" * PAGE)


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "newer": (make_newer, "schema version 99"),
    "empty": (make_empty, "is empty"),
    "foreign": (make_foreign, "is not a core database"),
    "another directory's": (make_another_directory_s, "belongs to data directory 'other'"),
    "incomplete": (make_incomplete, "counts 200 changes of units, the last one there is 199"),
    "damaged": (make_damaged, "restore refused"),
    "absent": (Path.unlink, "is no file"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_backup_that_is_not_whole_or_not_ours_is_refused_and_nothing_changed(setup: RoomSetup, kind: str) -> None:
    spoil, words = BAD[kind]
    spoil(backup(setup))
    before = truth(setup).read_bytes()
    with pytest.raises(InvalidParams, match="restore refused") as refused:
        restore(setup, backup(setup))
    assert words in refused.value.message
    assert str(setup.directory) not in refused.value.message, "it must name the file that was given"
    assert truth(setup).read_bytes() == before
    assert not [path for path in Path(setup.directory).iterdir() if path.is_dir()]
    with serve(setup) as client:
        assert row(client, GetUnit(unit_id="u7"))["version"] == 2


# ---------------------------------------------------------------- from what is left


def test_salvage_of_a_file_that_is_whole_keeps_everything(setup: RoomSetup) -> None:
    answer = restore(setup, None)
    assert answer["salvaged"] is True
    assert answer["tables"].keys() >= {"meta", "sessions", "units", "sources", "requests", "claims", "approvals"}
    assert {each["lost"] for each in answer["tables"].values()} == {0}
    with serve(setup) as client:
        assert row(client, GetUnit(unit_id="u7"))["version"] == 2
        assert row(client, GetSession(session_id="s"))["title"] == "The title"
        assert row(client, put(7, "second"))["deduplicated"] is True


def test_salvage_skips_damaged_pages_and_says_how_many_rows_that_cost(setup: RoomSetup) -> None:
    leaves = leaves_of_units(setup)
    assert len(leaves) > 10
    before = {row[0]: row for row in rows_of(truth(setup), "SELECT * FROM units")}
    for page in (leaves[2], leaves[3], leaves[8]):
        damage(setup, page)
    answer = restore(setup, None)
    units = answer["tables"]["units"]
    assert 3 <= units["lost"] <= 30 and units["kept"] + units["lost"] == 2 * UNITS
    after = rows_of(truth(setup), "SELECT * FROM units")
    assert len(after) == units["kept"]
    changed = [found for found in after if before[found[0]] != found]
    # Where the last version is lost, the one before is the latest now, and stays deprecated.
    assert all((found[1:3], found[8]) == (before[found[0]][1:3], "deprecated") for found in changed)
    assert rows_of(truth(setup), "SELECT unit_id FROM units GROUP BY unit_id HAVING sum(latest) <> 1") == []
    with serve(setup) as client:
        assert row(client, put(500))["core_seq"] == 2 * UNITS + 1
        assert client.call(UnitHistory(unit_id="u7", limit=5), Rows).count >= 1


def test_salvage_reads_a_file_whose_header_is_gone(setup: RoomSetup) -> None:
    damage(setup, 0, b"\xff" * 100)
    answer = restore(setup, None)
    assert answer["tables"]["units"] == {"kept": 2 * UNITS, "lost": 0}
    with serve(setup) as client:
        assert row(client, GetUnit(unit_id="u7"))["version"] == 2


def test_salvage_reads_a_file_that_was_cut(setup: RoomSetup) -> None:
    os.truncate(truth(setup), truth(setup).stat().st_size // 2)
    answer = restore(setup, None)
    assert 0 < answer["tables"]["units"]["kept"] < 2 * UNITS
    with serve(setup) as client:
        assert row(client, put(500))["core_seq"] > 2 * UNITS


def test_salvage_leaves_out_a_row_that_is_no_text_any_more(setup: RoomSetup) -> None:
    found = re.search(rb'(?<!")second 7 x{100}', truth(setup).read_bytes())
    assert found is not None
    at = found.start()
    with truth(setup).open("r+b") as file:
        file.seek(at)
        file.write(b"\xff")
    answer = restore(setup, None)
    assert answer["tables"]["units"] == {"kept": 2 * UNITS - 1, "lost": 1}
    with serve(setup) as client:
        assert row(client, GetUnit(unit_id="u7"))["status"] == "deprecated"


def test_salvage_of_nothing_is_refused_and_nothing_changed(setup: RoomSetup) -> None:
    truth(setup).write_bytes(b"\xff" * (20 * PAGE))
    before = truth(setup).read_bytes()
    with pytest.raises(InvalidParams, match=r"nothing of .* can be read"):
        restore(setup, None)
    assert truth(setup).read_bytes() == before


# ---------------------------------------------------------------- killed in the middle

KILLED_AT = """
import os, pathlib, signal, sys
import msgspec
from actors.core_writer.worker import _room
from actors.frames import Setup
from actors.messages.core_writer import RestoreTruth
from tests.unit.actors.room_kit import call_within

at, settings, message = int(sys.argv[1]), bytes.fromhex(sys.argv[2]), bytes.fromhex(sys.argv[3])
calls = 0

def deadly(name):
    original = getattr(os, name)
    def replacement(*arguments, **options):
        global calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)
    setattr(os, name, replacement)

for name in ("fsync", "mkdir", "replace", "unlink", "link", "rmdir"):
    deadly(name)
room = _room(Setup("core_writer", 1, msgspec.Raw(settings), 200, 0, False, 0))
room.open("write")
room.handle(msgspec.msgpack.decode(message, type=RestoreTruth), call_within(60))
"""


def dies(setup: RoomSetup, at: int, folder: Path) -> bool:
    """Restore from the backup in a process that SIGKILLs itself at its n-th call of the system; say whether it did."""
    script = folder / "dying_worker.py"
    script.write_text(KILLED_AT)
    settings = msgspec.msgpack.encode(msgspec.structs.replace(setup, restoring=True))
    message = msgspec.msgpack.encode(RestoreTruth(path=str(backup(setup))))
    done = subprocess.run(
        [sys.executable, "-P", str(script), str(at), settings.hex(), message.hex()],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        timeout=60,
    )
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode != 0


def test_a_restore_that_is_killed_at_any_step_leaves_the_old_file_or_the_new_one(
    setup: RoomSetup, tmp_path: Path
) -> None:
    client = WorkerClient(WORKER, setup)
    client.call(put(900), Row)
    killed(client)  # so there is a WAL that must not be applied to the backup
    pristine = tmp_path / "pristine"
    shutil.copytree(setup.directory, pristine)
    outcomes: list[str] = []
    dead = True
    while dead:
        shutil.rmtree(setup.directory)
        shutil.copytree(pristine, setup.directory)
        dead = dies(setup, len(outcomes) + 1, tmp_path)
        assert truth(setup).stat().st_size > 0, "there is always a file"
        with core(Path(setup.directory), identity="mine") as room:
            assert not room.is_damaged
            version = msgspec.json.decode(ask(room, GetUnit(unit_id="u7"), Row).row, type=Json)["version"]
            has_last = ask(room, UnitHistory(unit_id="u900", limit=1), Rows).count == 1
            outcomes.append({(2, True): "old", (1, False): "new"}[version, has_last])
            ask(room, put(901), Row)
        left = {path.name.split("-")[0] for path in Path(setup.directory).iterdir()}
        assert left <= {"core.db", "keywords.db", "damaged"}, left
    print(outcomes)
    assert outcomes == sorted(outcomes, reverse=True), "once the new one counts, it goes on counting"
    assert outcomes.count("old") >= 3 and outcomes.count("new") >= 5
