"""How far a build is: never back, never ahead of its stage, and better with every build."""

from itertools import pairwise

from actors.generation_builder.pace import COSTS, STAGES, Pace

ROWS = {"events": 10_000, "units": 0, "documents": 1_000}


def walk(pace: Pace, *, speed: float = 1.0) -> list[tuple[str, float, int]]:
    """Go through all stages, each in so many times what it is expected to take; return (stage, percent, eta)."""
    now, seen = 0.0, []
    for stage in STAGES:
        rows = ROWS.get(stage.rpartition(" ")[2], sum(ROWS.values()))
        takes = speed * max(0.02, rows * COSTS[stage.partition(" ")[0]])
        pace.at(stage, 0, rows, now)
        for tenth in range(1, 10):
            now += takes / 10
            if stage.startswith(("events", "write")):
                pace.at(stage, rows * tenth // 10, rows, now)
            percent, _, eta = pace.estimate(now)
            assert eta is not None
            seen.append((stage, percent, eta))
        now += takes / 10
    return seen


def test_the_percentage_rises_and_ends_near_the_whole() -> None:
    seen = [percent for _, percent, _ in walk(Pace(ROWS, {}, 0.0))]
    assert all(before <= after for before, after in pairwise(seen))
    assert seen[0] < 10 and 95 < seen[-1] <= 100


def test_the_time_left_is_that_of_the_build_and_not_of_the_table() -> None:
    """Twice as slow as expected: halfway through, about as much time is left as has passed."""
    seen = walk(Pace(ROWS, {}, 0.0), speed=2.0)
    whole = sum(
        2 * max(0.02, ROWS.get(stage.rpartition(" ")[2], sum(ROWS.values())) * COSTS[stage.partition(" ")[0]])
        for stage in STAGES
    )
    _, percent, eta = next(each for each in seen if each[1] >= 50)
    assert abs(eta - whole * (1 - percent / 100)) <= 0.3 * whole + 1


def test_a_stage_that_counts_nothing_moves_on_and_never_past_its_end() -> None:
    pace = Pace(ROWS, {}, 0.0)
    pace.at("index events", 0, 0, 0.0)
    seen = [pace.estimate(seconds).percent for seconds in (1, 10, 100, 10_000)]
    assert all(before < after for before, after in pairwise(seen))
    pace.at("test", 0, 0, 10_000)
    assert pace.estimate(10_000).percent >= seen[-1]


def test_rows_per_second_are_of_the_stage_and_only_where_it_counts_rows() -> None:
    pace = Pace(ROWS, {}, 0.0)
    pace.at("events", 0, 10_000, 0.0)
    pace.at("events", 4_000, 10_000, 2.0)
    assert pace.estimate(2.0).rows_per_s == 2_000
    pace.at("documents", 3, 10, 3.0)  # files
    pace.at("documents", 5, 10, 4.0)
    assert pace.estimate(4.0).rows_per_s is None


def test_a_build_learns_from_the_one_before() -> None:
    pace = Pace(ROWS, {}, 0.0)
    for stage, until in (("events", 1.0), ("write events", 3.0), ("index events", 13.0), ("test", 13.0)):
        pace.at(stage, 0, 0, until)
    learned = pace.learned(ROWS, 13.0)
    assert learned["write"] == 10.0 / 10_000
    assert "documents" not in learned
    again = Pace(ROWS, learned, 0.0)
    again.at("index events", 0, 0, 1.0)
    slow, fast = again.estimate(1.0).eta_s, Pace(ROWS, {}, 0.0).estimate(1.0).eta_s
    assert slow is not None and fast is not None


def test_a_report_of_another_name_counts_within_the_stage() -> None:
    pace = Pace(ROWS, {}, 0.0)
    pace.at("vectors", 500, 1_000, 1.0)  # lent while the build begins
    assert 0 < pace.estimate(1.0).percent < 100 / len(STAGES)
