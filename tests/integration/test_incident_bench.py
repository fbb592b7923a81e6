"""The incident's benchmark at a tiny size: both sides do the work, and the one file fails as the incident did."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from bench.incident import single_file
from bench.incident.bulkhead import Bulkhead
from bench.incident.figure import draw
from bench.incident.load import Load
from bench.incident.memory import MonolithSpec, Refused
from bench.incident.monolith import Monolith
from bench.incident.results import BULKHEAD, IDLE, LATE, LOCKED, MONOLITH, OK, PACE_S, REBUILD, REPLAYED
from bench.incident.single_file import MonolithMemory, connect, create, lock_path
from bench.incident.table import full_table, ratio_table
from bench.incident.windows import System, run
from bench.incident.work import Sizes, write_notes
from chaos.endpoint import endpoint

SIZES = Sizes(chunks=60, files=6, dimensions=16)
EAGER = "nice = 0\nidle_class = false\nsettle_ms = 50\nbuild_every_ms = 50\nduty_percent_max = 100"
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Give the port of an endpoint."""
    with endpoint(SIZES.dimensions) as number:
        yield number


@pytest.fixture
def memory(tmp_path: Path, port: int) -> Iterator[MonolithMemory]:
    """Give a client of a new file without notes."""
    database = str(tmp_path / "agent.sqlite")
    create(database, SIZES.dimensions)
    client = MonolithMemory(database, port)
    yield client
    client.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the limits of the incident short: only what follows from them is tested, not how long they are."""
    monkeypatch.setattr(single_file, "BUSY_MS", 20)
    monkeypatch.setattr(single_file, "SEARCH_S", 0.05)
    monkeypatch.setattr(single_file, "REPLAY_S", PATIENCE_S)


def test_a_run_measures_both_and_can_be_shown(data: Path, port: int) -> None:
    place = data.parent
    notes = place / "notes"
    write_notes(notes, SIZES)
    systems: list[System] = [
        Monolith(place, notes, SIZES, port, stored="json"),
        Bulkhead(place, notes, SIZES, port, builder=EAGER),
    ]
    results = run(systems, SIZES, rounds=1, seconds=1.0)
    for system in (MONOLITH, BULKHEAD):
        for phase in (IDLE, REBUILD):
            (window,) = results.of(system, phase)
            assert {op.kind for op in window.ops} == set(PACE_S)
            assert bool(window.rebuilds) == (phase == REBUILD)
        assert all(rebuild.publish_s is not None for rebuild in window.rebuilds)
        assert results.usage[system].rss_bytes > 10**6
        assert results.usage[system].disk_bytes > 10**4
    felt = [op for phase in (IDLE, REBUILD) for window in results.of(BULKHEAD, phase) for op in window.ops]
    assert [op for op in felt if op.outcome != OK] == []
    assert full_table(results) and ratio_table(results) and draw(results)
    assert counts(place / "monolith" / "agent.sqlite") == [SIZES.chunks] * 4


def counts(database: Path) -> list[object]:
    """Return how many rows the tables of the index have."""
    connection = connect(str(database))
    tables = ("chunks", "chunks_fts", "chunks_vec", "embedding_cache")
    found = [connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0] for table in tables]
    connection.close()
    return found


@pytest.mark.usefixtures("hasty")
def test_a_writer_of_the_one_file_gives_up_while_another_holds_the_lock(tmp_path: Path, memory: MonolithMemory) -> None:
    memory.append(1)
    with_lock = apsw.Connection(str(tmp_path / "agent.sqlite"))
    with_lock.execute("BEGIN IMMEDIATE")
    for act in (memory.append, memory.approve):
        with pytest.raises(Refused) as refused:
            act(2)
        assert refused.value.outcome == LOCKED
    with_lock.execute("COMMIT")
    memory.append(3)
    memory.approve(2)
    assert with_lock.execute("SELECT max(seq) FROM transcript_events").fetchall() == [(2,)]
    with_lock.close()


def test_the_clients_report_what_was_locked(tmp_path: Path, port: int) -> None:
    """Each client does one thing at least; the writers have the real busy timeout to wait for."""
    database = str(tmp_path / "agent.sqlite")
    create(database, SIZES.dimensions)
    load = Load(MonolithSpec(database=database, endpoint_port=port))
    with_lock = apsw.Connection(database)
    try:
        with_lock.execute("BEGIN IMMEDIATE")
        load.start()
        outcomes = {op.kind: op.outcome for op in load.stop()}
        assert outcomes == {"append": LOCKED, "approval": LOCKED, "search": OK}
        with_lock.execute("ROLLBACK")
        load.start()
        assert {op.outcome for op in load.stop()} == {OK}
    finally:
        with_lock.close()
        load.close()


@pytest.mark.usefixtures("hasty")
def test_a_search_waits_for_a_publication_and_its_failure_is_replayed(tmp_path: Path, memory: MonolithMemory) -> None:
    publishing = os.open(lock_path(str(tmp_path / "agent.sqlite")), os.O_RDWR)
    fcntl.flock(publishing, fcntl.LOCK_EX)
    with pytest.raises(Refused) as refused:
        memory.search(1)
    assert refused.value.outcome == LATE
    os.close(publishing)
    with pytest.raises(Refused) as replayed:
        memory.search(2)
    assert replayed.value.outcome == REPLAYED, "though the index is healthy"


def test_a_search_of_the_one_file_finds_by_words_and_by_meaning(data: Path, port: int) -> None:
    notes = data.parent / "notes"
    write_notes(notes, SIZES)
    side = Monolith(data.parent, notes, SIZES, port, stored="blob")
    side.prepare()
    memory = MonolithMemory(side.spec.database, port)
    try:
        memory.append(1)
        assert memory.search(1) == ()
        text = (notes / "note-00003.md").read_text(encoding="utf-8").split("\n\n")[2]
        hits = memory.find(text)
        assert "note-00003.md" in str(hits[0]) and text[:60] in str(hits[0])
    finally:
        memory.close()
