"""Run scenarios: `python -m chaos list | run NAME | all [--smoke] [--seed N] [--out DIR]`.

Prints the seed first and one line per scenario; with --out one JSON verdict each. Exit status 1 when a scenario was
violated, its fault did not fire, it left processes behind, or the canary was not noticed.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

import msgspec
import trio

from chaos import canary, kill_builder, kill_daemon, kill_searcher
from chaos.daemon import Daemon, data_directory, kill
from chaos.scenario import Run, Scenario, Verdict

SCENARIOS = {each.name: each for each in (m.SCENARIO for m in (canary, kill_daemon, kill_searcher, kill_builder))}
SHOWN = 5


def perform(scenario: Scenario, seed: int, *, smoke: bool) -> Verdict:
    """Run one scenario in a directory of its own and see that nothing stays behind."""
    with data_directory() as data:
        run = Run(data=data, rng=random.Random(seed), seed=seed, smoke=smoke)
        try:
            verdict = trio.run(scenario.run, run)
        except Exception as error:
            verdict = Verdict(scenario=scenario.name, seed=seed, violations=[f"raised {error!r}"], faults=0)
        left = Daemon(data).family()
        for pid in left:
            kill(pid)
        if left:
            verdict.violations.append(f"left processes behind: {left}")
    return verdict


def report(scenario: Scenario, verdict: Verdict, seconds: float, out: Path | None) -> bool:
    """Print a verdict, keep it, and say whether it is as it should be."""
    good = verdict.passed != scenario.must_fail
    word = ("noticed" if scenario.must_fail else "ok") if good else "FAILED"
    print(
        f"{word:8} {scenario.name:16} {seconds:6.1f} s  faults {verdict.faults}  {json.dumps(verdict.facts)}",
        flush=True,
    )
    if not good:
        for text in verdict.violations[:SHOWN]:
            print(f"         - {text}")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{scenario.name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(verdict), indent=1))
    return good


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m chaos")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    one = commands.add_parser("run")
    one.add_argument("name", choices=sorted(SCENARIOS))
    every = commands.add_parser("all")
    for each in (one, every):
        each.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
        each.add_argument("--smoke", action="store_true")
        each.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.command == "list":
        for scenario in SCENARIOS.values():
            print(f"{scenario.name:16} {scenario.purpose}")
        return 0
    print(f"seed {given.seed}", flush=True)
    chosen = [SCENARIOS[given.name]] if given.command == "run" else list(SCENARIOS.values())
    results = []
    for scenario in chosen:
        began = time.monotonic()
        verdict = perform(scenario, given.seed, smoke=given.smoke)
        results.append(report(scenario, verdict, time.monotonic() - began, given.out))
    print(f"{sum(results)} of {len(results)} scenarios as they should be")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
