"""The file of a soak: what is in it is not repeated, and what it says is counted right."""

from pathlib import Path

import msgspec
import pytest

from chaos import soak
from chaos.scenario import Run, Verdict
from chaos.soak import Kind, Line, left, line_of, next_shard, read, summary


async def nothing(given: Run, count: int) -> Verdict:
    """Stand in for a shard."""
    return Verdict(scenario="x", seed=given.seed, violations=[], faults=count)


WORKERS = Kind(name="worker_kill", total=100, shard=40, run=nothing)
BUILDERS = Kind(name="builder_kill", total=10, shard=5, run=nothing)
KINDS = (WORKERS, BUILDERS)


def line(kind: str, kills: int, **more: int) -> Line:
    """Make a shard's line."""
    good = Line(
        date="2026-01-01T00:00:00Z",
        seed=1,
        kind=kind,
        kills=kills,
        acknowledged=1,
        lost=0,
        duplicated=0,
        hung=0,
        wrong=0,
        seconds=1.0,
    )
    return msgspec.structs.replace(good, **more)


def write(file: Path, lines: list[Line], tail: bytes = b"") -> None:
    """Write a soak's file."""
    file.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in lines) + tail)


def test_a_file_that_is_not_there_has_no_shards(tmp_path: Path) -> None:
    assert read(tmp_path / "soak.jsonl") == []


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "soak.jsonl"
    write(file, [line("worker_kill", 40)], b'{"date": "2026-01')
    assert [each.kills for each in read(file)] == [40]


def test_a_line_after_a_torn_one_is_read(tmp_path: Path) -> None:
    file = tmp_path / "soak.jsonl"
    write(file, [line("worker_kill", 40)], b'{"date": "2026-01')
    soak.append(file, line("worker_kill", 7))
    assert [each.kills for each in read(file)] == [40, 7]


def test_what_is_in_the_file_is_not_repeated() -> None:
    lines = [line("worker_kill", 40), line("worker_kill", 40), line("builder_kill", 10)]
    assert left(WORKERS, lines) == 20
    assert left(BUILDERS, lines) == 0
    assert next_shard(KINDS, lines, []) == (WORKERS, 20)
    assert next_shard(KINDS, [*lines, line("worker_kill", 20)], []) == (None, 0)


def test_the_kind_of_which_least_is_done_is_next() -> None:
    assert next_shard(KINDS, [line("worker_kill", 40)], [])[0] is BUILDERS
    assert next_shard(KINDS, [line("worker_kill", 40), line("builder_kill", 5)], [])[0] is WORKERS


@pytest.mark.parametrize(
    ("violation", "column"),
    [
        ("I1: s1-1: acknowledged as seq 4, found 0 times", "lost"),
        ("I1: s1-1: acknowledged as seq 4, found 2 times", "duplicated"),
        ("I3: s1-1: outcome unknown, stored 2 times", "duplicated"),
        ("I3: s1-1: acknowledged twice, as seq 1 and 2", "duplicated"),
        ("I4: seqs given twice: [3]", "duplicated"),
        ("I6: append after 10.003 s (event.append): no answer at all", "hung"),
        ("I4: s1-1: stored with other content, session or hash than was sent", "wrong"),
        ("the scenario raised TimeoutError", "wrong"),
    ],
)
def test_each_violation_is_counted_once(violation: str, column: str) -> None:
    verdict = Verdict(scenario="x", seed=7, violations=[violation], faults=3, facts={"acknowledged": 12})
    counted = line_of(WORKERS, verdict, date="2026-01-01T00:00:00Z")
    found = {name: getattr(counted, name) for name in ("lost", "duplicated", "hung", "wrong")}
    assert found == {**dict.fromkeys(found, 0), column: 1}
    assert (counted.kills, counted.acknowledged, counted.seed) == (3, 12, 7)


def test_the_summary_bounds_the_rate_of_loss() -> None:
    text = summary(KINDS, [line("worker_kill", 100)])
    assert "3.000 %" in text
    assert "builder_kill" in text


def test_one_violation_makes_the_exit_status_red(tmp_path: Path) -> None:
    write(tmp_path / "soak.jsonl", [line("worker_kill", 40)])
    assert soak.main(["--out", str(tmp_path), "--summary"]) == 0
    write(tmp_path / "soak.jsonl", [line("worker_kill", 40, lost=1)])
    assert soak.main(["--out", str(tmp_path), "--summary"]) == 1


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "soak.jsonl"
    write(file, [line("worker_kill", 90), line("builder_kill", 5)])
    soak.go_on(list(KINDS), file, seed=1, until=float("inf"))
    made = [(each.kind, each.kills, each.seed) for each in read(file)[2:]]
    assert made == [("builder_kill", 5, 3), ("worker_kill", 10, 4)]


def test_several_shards_at_a_time_are_no_more_than_all(tmp_path: Path) -> None:
    file = tmp_path / "soak.jsonl"
    soak.go_on(list(KINDS), file, seed=1, until=float("inf"), jobs=3)
    lines = read(file)
    assert {kind.name: sum(each.kills for each in lines if each.kind == kind.name) for kind in KINDS} == {
        "worker_kill": 100,
        "builder_kill": 10,
    }
    assert len({each.seed for each in lines}) == len(lines) == 5


def test_a_shard_that_makes_no_faults_does_not_repeat_for_ever(tmp_path: Path) -> None:
    async def fruitless(given: Run, count: int) -> Verdict:
        return Verdict(scenario="x", seed=given.seed, violations=[], faults=0)

    file = tmp_path / "soak.jsonl"
    soak.go_on([msgspec.structs.replace(WORKERS, run=fruitless)], file, seed=1, until=float("inf"))
    assert len(read(file)) == soak.FRUITLESS_MAX
