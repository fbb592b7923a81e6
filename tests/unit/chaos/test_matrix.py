"""The recoveries in the fault matrix come from what a scenario measured, under the name of what really died."""

from chaos.matrix import measured, rows, table
from chaos.scenario import Run, Scenario, Verdict

SPREAD = {"count": 4, "median": 210.4, "p99": 330.0, "max": 330.0}


async def _never(given: Run) -> Verdict:
    raise AssertionError("a table runs nothing")


def _scenario(*faults: str) -> Scenario:
    return Scenario(name="some_scenario", purpose="something", run=_never, faults=faults)


def test_an_actor_that_died_shows_median_p99_and_count() -> None:
    assert measured("core_writer", {"recovery_ms": {"core_writer": SPREAD}}) == "210 / 330 ms (4)"


def test_the_death_of_the_supervisor_is_the_death_of_the_daemon() -> None:
    assert measured("supervisor", {"recovery_ms": {"daemon": SPREAD}}) == "210 / 330 ms (4)"


def test_the_death_of_another_actor_is_not_taken_for_it() -> None:
    assert measured("core_writer", {"recovery_ms": {"daemon": SPREAD, "cache_manager": SPREAD}}) is None


def test_a_search_worker_is_replaced_without_a_gap() -> None:
    again = {"count": 3, "p50": 2214.0, "p99": 2329.0, "max": 2329.0}
    assert measured("searcher (active)", {"both_loaded_again_ms": again}) == "no gap; replaced 2214 / 2329 ms (3)"
    assert measured("searcher", {"both_loaded_again_ms": {"count": 0, "p50": 0.0, "p99": 0.0, "max": 0.0}}) is None


def test_a_row_without_a_death_says_what_recovery_means_there() -> None:
    lines = table([_scenario("ENOSPC × core_writer", "half line × client")], {}).splitlines()
    assert "| as soon as there is room |" in lines[2]
    assert "| nothing dies |" in lines[3]


def test_a_cell_of_several_scenarios_is_one_row() -> None:
    (row,) = rows([_scenario("SIGKILL worker × core_writer"), _scenario("SIGKILL worker × core_writer")])
    assert (row.fault, row.actor, row.scenarios) == ("SIGKILL worker", "core_writer", ("some_scenario",) * 2)
