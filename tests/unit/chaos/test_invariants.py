"""Each invariant of the checker can be violated, and is then named; what holds is not."""

import random
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from actors import generation
from actors.messages.index import Covers
from chaos import checker
from chaos.client import Client
from chaos.databases import check_databases
from chaos.history import Append, History, Put, again, content_hash, refused, snapshot
from chaos.lag import LagMeter
from chaos.leaks import Census, check_gone, check_leaks, temporary_files
from chaos.load import Recorder, check_hits, check_page, read_event
from chaos.observer import join, look_at_current
from chaos.stage import without_waived
from chaos.timeline import Mark, Move, Op, Span, latencies, pending_at, percentile, recoveries, shifted, within

KNOWN = {
    "r1": Append(request_id="r1", session_id="s", content="one", outcome="ok", seq=1, event_id="e1"),
    "r2": Append(request_id="r2", session_id="s", content="two", outcome="ok", seq=2, event_id="e2"),
    "no": Append(request_id="no", session_id="s", content="refused", outcome="not_executed"),
    "may": Append(request_id="may", session_id="s", content="maybe", outcome="unknown"),
}
PUTS = {
    "p1": Put(request_id="p1", unit_id="u", text="first", outcome="ok", version=1, core_seq=7),
    "p2": Put(request_id="p2", unit_id="u", text="second", outcome="ok", version=2, core_seq=9),
    "no": Put(request_id="no", unit_id="u", text="stale", outcome="not_executed"),
    "may": Put(request_id="may", unit_id="u", text="lost", outcome="unknown"),
}


def stored(append: Append, seq: int | None = None, **changed: Any) -> dict[str, Any]:
    event = {
        "request_id": append.request_id,
        "session_id": append.session_id,
        "seq": append.seq if seq is None else seq,
        "event_id": append.event_id or "e",
        "content": append.content,
        "content_hash": content_hash(append.content),
    }
    return {**event, **changed}


GOOD = [stored(KNOWN["r1"]), stored(KNOWN["r2"])]


def kinds(violations: list[str]) -> set[str]:
    return {text.split(":")[0] for text in violations}


def op(**given: Any) -> Op:
    return msgspec.structs.replace(Op(at=1.0, name="append", seconds=0.01), **given)


# ---------------------------------------------------------------- I1 to I4


def test_what_was_told_and_is_stored_is_no_violation() -> None:
    assert checker.check_appends(KNOWN, GOOD) == []
    assert checker.check_appends(KNOWN, [*GOOD, stored(KNOWN["may"], 3)]) == []
    assert checker.check_sessions(GOOD, KNOWN.values()) == []
    assert checker.check_order([2, 1, 3]) == []


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (GOOD[:1], "I1"),  # lost
        ([*GOOD, GOOD[0]], "I1"),  # twice
        ([stored(KNOWN["r1"], 5), GOOD[1]], "I1"),  # under another number
        ([*GOOD, {**GOOD[0], "request_id": "stranger"}], "I1"),
        ([*GOOD, stored(KNOWN["no"], 3)], "I2"),
        ([*GOOD, stored(KNOWN["may"], 3), stored(KNOWN["may"], 4)], "I3"),
        ([stored(KNOWN["r1"], content="other"), GOOD[1]], "I4"),
        ([stored(KNOWN["r1"], content_hash="0"), GOOD[1]], "I4"),
        ([stored(KNOWN["r1"], session_id="t"), GOOD[1]], "I4"),
    ],
)
def test_events_that_differ_from_what_was_told_are_violations(found: list[dict[str, Any]], kind: str) -> None:
    assert kinds(checker.check_appends(KNOWN, found)) == {kind}


def test_what_was_begun_while_reading_is_looked_up_but_not_judged() -> None:
    later = Append(request_id="r3", session_id="s", content="three")
    assert checker.check_appends(KNOWN, [*GOOD, stored(later, 3)], everything={**KNOWN, "r3": later}) == []


def test_gaps_and_repetitions_of_seqs_are_violations() -> None:
    assert kinds(checker.check_order([1, 2, 4])) == {"I4"}
    assert kinds(checker.check_order([2, 3])) == {"I4"}
    assert kinds(checker.check_order([1, 1, 2])) == {"I4"}
    assert checker.check_order([1, 2, 4], breaks=1) == []


def test_the_order_of_a_session_is_that_of_its_sending() -> None:
    assert kinds(checker.check_sessions([GOOD[1], GOOD[0]], [])) == {"I4"}
    first = msgspec.structs.replace(KNOWN["r1"], seq=2, began_at=1.0, acknowledged_at=1.5)
    second = msgspec.structs.replace(KNOWN["r2"], seq=1, began_at=2.0, acknowledged_at=2.5)
    assert kinds(checker.check_sessions([], [first, second])) == {"I4"}
    overlapping = msgspec.structs.replace(second, began_at=1.2)
    assert checker.check_sessions([], [first, overlapping]) == []


def versions(*texts: str, core_seqs: tuple[int, ...] = (7, 9, 11)) -> list[dict[str, Any]]:
    return [
        {"version": number, "text": text, "core_seq": core_seqs[number - 1]} for number, text in enumerate(texts, 1)
    ]


def test_units_that_are_as_told_are_no_violation() -> None:
    assert checker.check_units(PUTS, {"u": versions("first", "second")}) == []
    assert checker.check_units(PUTS, {"u": versions("first", "second", "lost")}) == []


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (versions("first"), "I1"),
        (versions("second", "first", core_seqs=(7, 9)), "I1"),
        (versions("first", "second", "stale"), "I2"),
        (versions("first", "second", "stranger"), "I4"),
        (versions("first", "second", core_seqs=(7, 7)), "I4"),
        ([*versions("first", "second"), {"version": 4, "text": "lost", "core_seq": 12}], "I4"),
    ],
)
def test_units_that_differ_from_what_was_told_are_violations(found: list[dict[str, Any]], kind: str) -> None:
    assert kind in kinds(checker.check_units(PUTS, {"u": found}))


def test_a_put_of_unknown_outcome_may_not_take_effect_twice() -> None:
    assert kinds(checker.check_units(PUTS, {"u": [*versions("first", "second", "lost"), *versions("lost")]})) >= {"I3"}


def test_a_repetition_must_bring_the_first_result() -> None:
    history = History()
    append = history.begin("r", "s", "text")
    assert history.acknowledge(append, {"seq": 1, "event_id": "e", "deduplicated": False}) == []
    assert kinds(history.acknowledge(append, {"seq": 2, "event_id": "f", "deduplicated": False})) == {"I3"}
    put = history.begin_put("p", "u", "text")
    answer = {"version": 1, "core_seq": 1, "text": "text"}
    assert history.acknowledge_put(put, answer) == []
    assert kinds(history.acknowledge_put(put, {**answer, "version": 2})) == {"I3"}
    assert "I4" in kinds(history.acknowledge_put(put, {**answer, "text": "another"}))


def test_an_outcome_once_unknown_stays_unknown_until_it_is_acknowledged() -> None:
    append = Append(request_id="r", session_id="s", content="text")
    refused(append, "not_executed")
    assert append.outcome == "not_executed"
    again(append)
    refused(append, "unknown")
    refused(append, "not_executed")
    assert append.outcome == "unknown"
    append.outcome = "ok"
    refused(append, "not_executed")
    assert append.outcome == "ok"


def test_a_snapshot_does_not_follow() -> None:
    copy = snapshot({"r": (append := Append(request_id="r", session_id="s", content="text"))})
    append.outcome = "ok"
    assert copy["r"].outcome == "unknown"


# ---------------------------------------------------------------- I5


def test_a_page_that_lacks_what_was_acknowledged_before_is_a_violation() -> None:
    known = [KNOWN["r1"], KNOWN["r2"]]
    assert check_page("s", known, GOOD) == []
    assert check_page("s", known, GOOD[1:]) == []  # older than the page
    assert kinds(check_page("s", known, GOOD[:1])) == {"I5"}
    assert kinds(check_page("s", known, [])) == {"I5"}
    assert kinds(check_page("s", known, [GOOD[0], stored(KNOWN["r2"], content="other")])) == {"I4"}


def test_a_search_that_lacks_an_acknowledged_event_must_say_why() -> None:
    wanted = msgspec.structs.replace(KNOWN["r1"], token="zqtoken")
    answer: dict[str, Any] = {"hits": [{"id": "e1"}], "degraded": [], "generation": 3, "covers": None}
    assert check_hits(wanted, answer) == []
    assert kinds(check_hits(wanted, {**answer, "hits": []})) == {"I5"}
    assert check_hits(wanted, {**answer, "hits": [], "degraded": [{"code": "events_unavailable"}]}) == []
    late = {**answer, "hits": [], "degraded": [{"code": "search_worker_unavailable"}]}
    assert kinds(check_hits(wanted, late)) == {"I5"}, "the keyword search of the truth replaces the generation"


# ---------------------------------------------------------------- I6 to I8


def test_answers_in_time_and_of_the_right_kind_are_no_violation() -> None:
    allowed = {"append": {"1002"}}
    assert checker.check_answers([op(), op(outcome="1002"), op(late_s=0.2)], allowed, frozenset()) == []
    assert checker.check_answers([op(name="search", outcome="1016")], {}, {"search"}) == []


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (op(outcome="hung"), "I6"),
        (op(late_s=0.3), "I6"),
        (op(outcome="1004", late_s=0.3), "I6"),
        (op(outcome="-32603"), "I7"),
        (op(outcome="lost"), "I7"),
        (op(name="unit", outcome="1002"), "I8"),
    ],
)
def test_late_missing_and_unexpected_answers_are_violations(wrong: Op, kind: str) -> None:
    assert kinds(checker.check_answers([wrong], {"append": {"1002"}}, {"append"} if kind == "I6" else ())) == {kind}


def test_the_lateness_of_this_process_is_not_the_daemons() -> None:
    meter = LagMeter()
    meter.note(10.5, 0.4)
    meter.note(20.0, 0.1)
    assert meter.worst(9.0, 10.2) == 0.4, "it began inside"
    assert meter.worst(10.6, 11.0) == 0.0
    assert meter.worst(0.0, 100.0) == meter.worst_s == 0.4


async def test_a_client_notes_what_it_was_told() -> None:
    near, far = trio.testing.memory_stream_pair()
    client = Client(near, near)
    recorder = Recorder(History(), LagMeter())
    append = msgspec.structs.replace(KNOWN["r1"])

    async def answer(line: bytes) -> None:
        await far.receive_some(100_000)
        await far.send_all(line)

    async with trio.open_nursery() as nursery:
        await nursery.start(client.run)
        nursery.start_soon(answer, b'{"jsonrpc":"2.0","id":1,"error":{"code":1013,"message":"none"}}\n')
        await read_event(recorder, client, append)
        nursery.start_soon(answer, b"no frame\n" + b'{"jsonrpc":"2.0","id":2,"result":{"seq":1,"content_hash":"x"}}\n')
        await read_event(recorder, client, append)
        nursery.cancel_scope.cancel()
    recorder.closed(client)
    assert kinds(recorder.violations) == {"I5", "I4"}
    assert [each.outcome for each in recorder.ops] == ["1013", "ok"]
    assert recorder.bad_lines == 1, "I13"


# ---------------------------------------------------------------- I9


def search(at: float, number: int, seconds: float = 0.1) -> Op:
    return op(name="search", at=at, seconds=seconds, generation=number)


def test_a_generation_that_goes_back_is_a_violation() -> None:
    assert checker.check_generations([search(1, 3), search(2, 4)]) == []
    assert kinds(checker.check_generations([search(1, 4), search(2, 3)])) == {"I9"}
    assert checker.check_generations([search(1, 4, seconds=5), search(2, 3)]) == [], "they overlap"
    assert checker.check_generations([search(1, 4), search(2, 3)], resets=[1.5]) == []
    assert kinds(checker.check_generations([search(1, 4), search(2, 3), search(3, 5), search(4, 3)], [1.5])) == {"I9"}


def seal(index: Path, number: int) -> Path:
    folder = generation.generation_path(index, number)
    folder.mkdir(parents=True)
    (folder / "data").write_bytes(b"12345")
    entry = generation.FileEntry(path="data", bytes=5, sha256="0" * 64)
    manifest = generation.Manifest(
        format=generation.FORMAT,
        generation=number,
        delta=None,
        covers=Covers(event_seq=0, core_seq=0),
        identity=None,
        rows={},
        vectors_have=0,
        vectors_want=0,
        lancedb_version="0",
        table_versions={},
        built_at=0,
        skipped=[],
        held=[],
        sources=[],
        files=[entry],
    )
    generation.write_manifest(folder, manifest)
    return folder


def test_current_must_name_a_sound_generation(tmp_path: Path) -> None:
    assert look_at_current(tmp_path) is None, "nothing is published yet"
    folder = seal(tmp_path, 7)
    generation.write_current(tmp_path, generation.Pointer(generation=7))
    assert look_at_current(tmp_path) is None
    (folder / "data").write_bytes(b"1")
    assert "not sound" in (look_at_current(tmp_path) or "")
    generation.write_current(tmp_path, generation.Pointer(generation=8))
    assert "not sound" in (look_at_current(tmp_path) or "")
    (tmp_path / generation.CURRENT).write_bytes(b"")
    assert look_at_current(tmp_path) == "CURRENT cannot be read"


# ---------------------------------------------------------------- I10


def test_what_is_held_more_than_before_is_a_leak(tmp_path: Path) -> None:
    before = Census(processes=("actors.core_writer.worker",), descriptors=40, threads=8, temporary=())

    def after(**changed: Any) -> list[str]:
        return check_leaks(before, msgspec.structs.replace(before, **changed))

    assert after(descriptors=45, threads=13) == []
    assert after(processes=("actors.core_writer.worker", "actors.searcher.worker")) == [], "it starts late"
    for changed in (
        {"processes": ("actors.core_writer.worker",) * 3},
        {"processes": ("python leftover",)},
        {"descriptors": 46},
        {"threads": 14},
        {"temporary": ("generation_builder/gen-000009.tmp",)},
        {"generations": (1, 2, 3, 4, 5)},
    ):
        assert kinds(after(**changed)) == {"I10"}, changed
    (tmp_path / "socket").touch()
    assert len(check_gone(str(tmp_path / "socket"), ["7 python"])) == 2
    assert check_gone(str(tmp_path / "gone"), []) == []


def test_temporary_folders_are_named_once(tmp_path: Path) -> None:
    (tmp_path / "index" / "gen-000001.tmp" / "inner.tmp").mkdir(parents=True)
    (tmp_path / "file.tmp").touch()
    assert temporary_files(tmp_path) == ("file.tmp", "index/gen-000001.tmp")


# ---------------------------------------------------------------- I11


def moves(*states: str, actor: str = "core_writer", epochs: tuple[int, ...] = ()) -> list[Move]:
    found, epoch = [], 0
    for number, (before, after) in enumerate(pairwise(states)):
        epoch += after == "starting"
        given = epochs[number] if epochs else epoch
        found.append(Move(at=number, life=1, actor=actor, epoch=given, before=before, after=after, cause=""))
    return found


LIFE = ("new", "starting", "ready", "failed", "backoff", "starting", "ready")


def test_each_death_has_one_restart() -> None:
    assert checker.check_moves(moves(*LIFE), running=["core_writer"]) == []
    assert checker.check_moves(moves(*LIFE[:4], "quarantined"), running=["core_writer"]) == []
    assert kinds(checker.check_moves(moves(*LIFE[:4], "ready"))) == {"I11"}, "a death without a restart"
    assert kinds(checker.check_moves(moves(*LIFE[:-1]), running=["core_writer"])) == {"I11"}, "never came back"
    assert kinds(checker.check_moves(moves(*LIFE, epochs=(1, 1, 1, 1, 3, 3)))) == {"I11"}, "an epoch was left out"
    assert kinds(checker.check_moves(moves(*LIFE, epochs=(1, 1, 1, 1, 1, 1)))) == {"I11"}, "an epoch was kept"
    assert kinds(checker.check_moves([each for each in moves(*LIFE) if each.after != "failed"])) == {"I11"}
    assert checker.check_moves([each for each in moves(*LIFE) if each.after != "failed"], gaps=1) == []


def test_readings_of_the_ring_are_joined_without_repetition() -> None:
    chain = moves(*LIFE)
    assert join([], chain[:2]) == 2
    assert join(chain[:2], chain[:2]) == 0
    assert join(chain[:3], chain) == 3
    assert join(chain[:4], chain[2:]) == 2, "the oldest have left the ring"
    assert join(chain[:2], chain[3:]) is None, "entries were missed"


# ---------------------------------------------------------------- I12


def test_a_database_that_fails_its_check_is_a_violation(tmp_path: Path) -> None:
    path = tmp_path / "core_writer" / "core.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE units (id INTEGER PRIMARY KEY, text TEXT)")
        connection.execute("CREATE INDEX by_text ON units (text)")
        connection.executemany("INSERT INTO units VALUES (?, ?)", [(n, f"{n:0200}") for n in range(500)])
        connection.commit()
    assert check_databases(tmp_path) == []
    content = bytearray(path.read_bytes())
    content[8192:12288] = random.Random(1).randbytes(4096)
    path.write_bytes(content)
    assert kinds(check_databases(tmp_path)) == {"I12"}
    assert check_databases(tmp_path, damaged=["core_writer"]) == []


def test_a_full_text_index_that_contradicts_itself_is_a_violation(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "keywords.db")) as connection:
        connection.execute("CREATE VIRTUAL TABLE keywords USING fts5(terms)")
        connection.execute("INSERT INTO keywords (terms) VALUES ('one two')")
        connection.commit()
    assert check_databases(tmp_path) == []
    with closing(sqlite3.connect(tmp_path / "keywords.db")) as connection:
        connection.execute("UPDATE keywords_content SET c0 = 'three'")
        connection.commit()
    assert kinds(check_databases(tmp_path)) == {"I12"}


def test_a_segment_with_a_gap_is_a_violation(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "00000001.db")) as connection:
        connection.execute("CREATE TABLE sessions (id)")
        connection.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY)")
        connection.executemany("INSERT INTO events VALUES (?)", [(5,), (6,), (7,)])
        connection.commit()
        assert check_databases(tmp_path) == []
        connection.execute("DELETE FROM events WHERE seq = 6")
        connection.commit()
    assert kinds(check_databases(tmp_path)) == {"I4"}


# ---------------------------------------------------------------- sums


def test_a_waived_invariant_is_left_out_and_no_other() -> None:
    assert without_waived(["I1: a", "I12: b", "other"], {"I1": "on purpose"}) == ["I12: b", "other"]


def test_recoveries_are_measured_from_the_first_sign_of_death() -> None:
    chain = moves("new", "starting", "ready", "wedged", "failed", "backoff", "starting", "ready")
    assert recoveries(chain) == {"core_writer": [4]}


def test_errors_after_a_fault_are_measured_for_what_was_under_way() -> None:
    marks = [Mark(at=2.0, name="SIGKILL")]
    ops = [op(at=1.9, seconds=0.3, outcome="1002"), op(at=2.1, outcome="1003"), op(at=1.9, seconds=0.3)]
    assert pending_at(ops, marks) == [pytest.approx(0.2)]


def test_percentiles_windows_and_shifts() -> None:
    assert percentile([], 0.5) == 0.0
    assert percentile([1.0, 2.0, 3.0], 0.99) == 3.0
    assert latencies([op(seconds=0.001), op(seconds=0.1)])["max_ms"] == 100.0
    assert within([op(at=1), op(at=5)], [Span(name="w", begin=0, end=2)]) == [op(at=1)]
    assert shifted_at(5.0) == 3.0


def shifted_at(at: float) -> float:
    from chaos.timeline import Timeline

    line = Timeline(scenario="s", seconds=1, ops=[op(at=at)], marks=[], moves=[], lives=[], windows=[])
    return shifted(line, -2.0).ops[0].at
