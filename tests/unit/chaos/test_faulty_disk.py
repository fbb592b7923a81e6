"""The faulty disk under plain sqlite3, in processes of their own: it is there, it counts, it fails when told to.

The last tests are its reason: after SIGKILL on the volatile disk nothing that was committed with synchronous = FULL
is missing, and with OFF it is.
"""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from chaos.faults.disk import unavailable

ROOT = Path(__file__).resolve().parent.parent.parent.parent
BEGIN = """
import json, os, signal, sqlite3, sys
from chaos.faults.disk import Disk
from chaos.faults.disk_plan import DiskPlan
from chaos.faults.kinds import *
hits = []
plan = DiskPlan(lambda fault, detail: hits.append(fault))
disk = Disk(plan)

def connect(synchronous="FULL"):
    connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=0.1)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("PRAGMA wal_autocheckpoint = 20")
    connection.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY, filler TEXT)")
    return connection

def insert(connection, n):
    try:
        connection.execute("INSERT INTO t VALUES (?, ?)", (n, "x" * 3000))
        return "ok"
    except sqlite3.Error as error:
        return error.sqlite_errorname
"""

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


def run(script: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", BEGIN + textwrap.dedent(script), str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def result(script: str, path: Path) -> object:
    done = run(script, path)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return json.loads(done.stdout)


def rows(path: Path) -> list[int]:
    script = """
    c = connect()
    assert c.execute("PRAGMA quick_check").fetchone() == ("ok",)
    print(json.dumps([n for (n,) in c.execute("SELECT n FROM t ORDER BY n")]))
    """
    found = result(script, path)
    assert isinstance(found, list)
    return found


def test_every_kind_of_call_is_counted_for_its_file(tmp_path: Path) -> None:
    script = """
    c = connect()
    before = plan.counts.copy()
    insert(c, 1)
    c.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    print(json.dumps(plan.counts - before))
    """
    counts = result(script, tmp_path / "a.db")
    assert isinstance(counts, dict)
    assert counts["wal.write"] >= 2
    assert counts["wal.sync"] >= 2
    assert counts["db.write"] >= 1
    assert counts["db.sync"] >= 1
    assert counts["wal.truncate"] == 1


@pytest.mark.parametrize("nth", [1, 2, 5])
def test_a_fault_fires_at_exactly_the_nth_call(tmp_path: Path, nth: int) -> None:
    script = f"""
    c = connect()
    plan.add(DiskFail(operation="sync", file="wal", error="IOERR_FSYNC", nth={nth}))
    print(json.dumps([[insert(c, n) for n in range(1, 9)], hits]))
    """
    expected = ["SQLITE_IOERR_FSYNC" if n == nth else "ok" for n in range(1, 9)]
    assert result(script, tmp_path / "a.db") == [expected, ["disk_fail"]]


def test_a_lasting_fault_ends_when_it_is_cleared(tmp_path: Path) -> None:
    script = """
    c = connect()
    plan.add(DiskFail(operation="write", file="wal", error="FULL", times=None, partial=True))
    full = [insert(c, n) for n in (1, 2, 3)]
    reads = c.execute("SELECT count(*) FROM t").fetchone()[0]
    plan.clear()
    print(json.dumps([full, reads, insert(c, 4)]))
    """
    assert result(script, tmp_path / "a.db") == [["SQLITE_FULL"] * 3, 0, "ok"]
    assert rows(tmp_path / "a.db") == [4]


def test_a_read_error_and_a_slow_sync_reach_the_statement(tmp_path: Path) -> None:
    script = """
    import time
    c = connect()
    insert(c, 1)
    c.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    c.close()
    plan.add(DiskFail(operation="read", file="db", error="IOERR_READ", nth=1))
    try:
        sqlite3.connect(sys.argv[1]).execute("SELECT count(*) FROM t")
        read = "ok"
    except sqlite3.Error as error:
        read = error.sqlite_errorname
    c = connect()
    plan.add(DiskDelay(operation="sync", file="wal", seconds=0.3, times=1))
    began = time.monotonic()
    insert(c, 2)
    print(json.dumps([read, time.monotonic() - began >= 0.3, hits]))
    """
    assert result(script, tmp_path / "a.db") == ["SQLITE_IOERR_READ", True, ["disk_fail", "disk_delay"]]


def test_the_name_narrows_a_fault_to_one_database(tmp_path: Path) -> None:
    script = """
    c = connect()
    plan.add(DiskFail(operation="write", name="other.db", error="IOERR_WRITE", times=None))
    print(json.dumps([insert(c, 1), hits]))
    """
    assert result(script, tmp_path / "a.db") == ["ok", []]


def commit_and_die(path: Path, *, synchronous: str, leak: float = 0.0, failing: bool = False) -> list[int]:
    """Commit until SIGKILL on the volatile disk, with a second connection that reads; return what was acknowledged."""
    script = f"""
    disk.make_volatile(DiskVolatile(leak={leak}, seed=7))
    c = connect({synchronous!r})
    reader = connect()
    reader.execute("PRAGMA query_only = ON")
    if {failing}:
        plan.add(DiskFail(operation="sync", file="wal", error="IOERR_FSYNC", nth=30))
    for n in range(1, 100):
        if insert(c, n) != "ok":
            break
        assert reader.execute("SELECT max(n) FROM t").fetchone() == (n,)
        print(n, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    done = run(script, path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return [int(line) for line in done.stdout.split()]


@pytest.mark.parametrize("leak", [0.0, 0.5])
def test_a_power_cut_loses_nothing_that_was_committed_with_full_sync(tmp_path: Path, leak: float) -> None:
    acknowledged = commit_and_die(tmp_path / "a.db", synchronous="FULL", leak=leak)
    assert len(acknowledged) == 99
    assert rows(tmp_path / "a.db") == acknowledged


def test_a_power_cut_without_sync_loses_what_was_committed(tmp_path: Path) -> None:
    acknowledged = commit_and_die(tmp_path / "a.db", synchronous="OFF")
    assert len(acknowledged) == 99
    script = """
    try:
        c = connect()
        print(json.dumps(c.execute("SELECT count(*) FROM t").fetchone()[0]))
    except sqlite3.Error as error:
        print(json.dumps(error.sqlite_errorname))
    """
    assert result(script, tmp_path / "a.db") != len(acknowledged)


def test_a_failed_sync_is_not_acknowledged_and_what_came_before_it_survives(tmp_path: Path) -> None:
    acknowledged = commit_and_die(tmp_path / "a.db", synchronous="FULL", failing=True)
    assert 0 < len(acknowledged) < 99
    assert rows(tmp_path / "a.db") == acknowledged
