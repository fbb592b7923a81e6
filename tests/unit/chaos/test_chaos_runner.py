"""The runner survives whatever a scenario does: hang, crash, leave processes, and says so in its verdict."""

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest
import trio

from chaos import runner
from chaos.client import environment
from chaos.runner import Result, perform
from chaos.scenario import Run, Scenario, Verdict
from chaos.scenarios import every_scenario
from chaos.setup import write_config
from supervisor.config import load


async def calm(given: Run) -> Verdict:
    return Verdict(scenario="calm", seed=given.seed, violations=[], faults=1, facts={"drawn": given.rng.random()})


async def sleeps(given: Run) -> Verdict:
    await trio.sleep_forever()
    raise AssertionError


async def blocks(given: Run) -> Verdict:
    time.sleep(600)  # noqa: ASYNC251 - on purpose: not even a cancellation reaches it
    raise AssertionError


async def raises(given: Run) -> Verdict:
    raise LookupError("no such thing")


async def dies(given: Run) -> Verdict:
    os.abort()


async def leaves_a_process(given: Run) -> Verdict:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=environment(given.data))
    return Verdict(scenario="leaves", seed=given.seed, violations=[], faults=1)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "HARD_S", 1.0)
    monkeypatch.setattr(runner, "STACKS_S", 0.3)


def run(scenario: Scenario, seed: int = 1) -> Result:
    return perform(scenario, seed, "smoke")


def test_a_scenario_that_is_as_it_should_be_is_ok() -> None:
    result = run(Scenario("calm", "", calm))
    assert (result.word, result.good, result.verdict.tier) == ("ok", True, "smoke")
    assert result.verdict.versions["sqlite"]


def test_the_same_seed_draws_the_same_numbers_and_each_scenario_its_own() -> None:
    drawn = [
        run(Scenario(name, "", calm), seed).verdict.facts["drawn"] for name, seed in (("a", 1), ("a", 1), ("b", 1))
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_scenario_that_waits_for_ever_ends_with_the_stacks_of_its_tasks() -> None:
    result = run(Scenario("sleeps", "", sleeps, watchdog_s=0.2))
    assert result.word == "FAILED"
    assert "did not end within 0.2 s" in result.verdict.violations[0]
    assert "test_chaos_runner.py" in result.verdict.violations[0]
    assert "sleep_forever" in result.verdict.violations[0]


def test_a_scenario_that_blocks_its_process_is_killed_with_the_stacks_of_its_threads() -> None:
    result = run(Scenario("blocks", "", blocks, watchdog_s=0.2))
    assert result.verdict.violations[0] == "the scenario hung and was killed"
    assert any("in blocks" in text for text in result.verdict.violations)


def test_a_scenario_that_raises_or_takes_its_process_down_is_red() -> None:
    assert "LookupError: no such thing" in run(Scenario("raises", "", raises)).verdict.violations[0]
    died = run(Scenario("dies", "", dies)).verdict.violations
    assert died[0] == "the scenario ended without a verdict, by signal SIGABRT"
    assert any("Aborted" in text for text in died[1:])


def test_what_a_scenario_leaves_behind_is_found_and_killed() -> None:
    result = run(Scenario("leaves", "", leaves_a_process))
    assert result.word == "FAILED"
    assert "left processes behind" in result.verdict.violations[0]
    pid = int(result.verdict.violations[0].split("['")[1].split()[0])
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def judged(verdict: Verdict, *, must_fail: bool = False, expect: tuple[str, ...] = ()) -> str:
    return Result(
        scenario="s", purpose="", must_fail=must_fail, faults=(), expect=expect, verdict=verdict, timelines=[]
    ).word


def test_what_must_fail_must_do_so_for_its_own_reason() -> None:
    red = Verdict(scenario="s", seed=1, violations=["I1: lost"], faults=1)
    green = Verdict(scenario="s", seed=1, violations=[], faults=1)
    idle = msgspec.structs.replace(red, faults=0)
    assert judged(green) == "ok"
    assert judged(red) == "FAILED"
    assert judged(msgspec.structs.replace(green, faults=0)) == "FAILED", "its fault did not fire"
    assert judged(red, must_fail=True, expect=("I1",)) == "noticed"
    assert judged(red, must_fail=True, expect=("I3",)) == "MISSED", "red for another reason"
    assert judged(green, must_fail=True) == "MISSED"
    assert judged(idle, must_fail=True) == "MISSED"
    assert judged(msgspec.structs.replace(idle, skipped="no root")) == "skipped"


def test_every_scenario_says_what_it_is_for() -> None:
    for name, scenario in every_scenario().items():
        assert name == scenario.name
        assert scenario.purpose and scenario.tiers, name
        assert "cannot be imported" not in scenario.purpose, name


def test_a_scenarios_configuration_is_put_over_the_base_key_by_key(tmp_path: Path) -> None:
    extra = '[supervision]\nrestarts_max = 3\n[logs]\nlevel = "debug"\n[generation_builder]\nsuffixes = [".md"]\n'
    write_config(tmp_path / "c.toml", extra, launcher=True)
    config = load(tmp_path / "c.toml")
    assert (config.supervision.restarts_max, config.supervision.backoff_ms_max) == (3, 100)
    assert config.chaos.enabled and config.chaos.launcher == "chaos.faults.worker"
    assert config.logs.level == "debug"
    assert config.embedding.provider == "none"
