"""Run scenarios: `python -m chaos list | run NAME | all | soak | table DIR`, with `--help` for what else can be said.

Prints the seed first and one line per scenario; with --out one JSON verdict each and a report, DIR/index.html. Exit
status 1 when a scenario was violated, its fault did not fire, it left something behind, or one that must fail passed.
"""

import argparse
import random
import sys
import time
from pathlib import Path
from typing import get_args

import msgspec

from chaos import matrix, soak
from chaos.report import write_report
from chaos.runner import Result, perform_all
from chaos.scenario import Scenario, Tier, Verdict
from chaos.scenarios import every_scenario
from chaos.sums import brief, loop_lag

SHOWN = 8
LINE_CHARS = 300


def main() -> int:
    """Run what the command line asks for."""
    if sys.argv[1:2] == ["soak"]:
        return soak.main(sys.argv[2:])
    scenarios = every_scenario()
    given = arguments(scenarios).parse_args()
    if given.command == "list":
        for scenario in scenarios.values():
            print(f"{scenario.name:36} {'+'.join(scenario.tiers):14} {scenario.purpose}")
        return 0
    if given.command == "table":
        print(matrix.table(scenarios.values(), facts_in(given.verdicts)))
        return 0
    print(f"seed {given.seed}", flush=True)
    results: list[Result] = []
    began = time.monotonic()
    try:
        for result in perform_all(chosen(scenarios, given), given.seed, given.tier, jobs=given.jobs):
            say(result)
            keep(result, given.out)
            results.append(result)
    finally:
        # A run that is interrupted has a report of what there is.
        if given.out is not None:
            print(f"report {write_report(given.out, results, seed=given.seed, tier=given.tier)}")
    return sum_up(results, time.monotonic() - began)


def arguments(scenarios: dict[str, Scenario]) -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m chaos")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="name the scenarios")
    one = commands.add_parser("run", help="run one scenario")
    one.add_argument("name", choices=sorted(scenarios))
    every = commands.add_parser("all", help="run all scenarios of a tier")
    every.add_argument("--only", metavar="PREFIX", default="", help="only those whose name begins so")
    every.add_argument(
        "--jobs",
        type=int,
        help="how many at a time of all; with more than one no latency counts",
    )
    one.set_defaults(jobs=1)
    commands.add_parser("soak", help="thousands of kills, in shards, resumable (soak --help)")
    table = commands.add_parser("table", help="print the fault matrix as Markdown, with what a run measured")
    table.add_argument("verdicts", type=Path, metavar="DIR", help="the folder that a run with --out wrote")
    for each in (one, every):
        each.add_argument("--tier", choices=get_args(Tier), default="ci")
        each.add_argument("--smoke", dest="tier", action="store_const", const="smoke", help="the same as --tier smoke")
        each.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
        each.add_argument("--out", type=Path, metavar="DIR", help="keep verdicts and a report there")
    return parser


def facts_in(folder: Path) -> dict[str, dict[str, object]]:
    """Return the facts of the verdicts that a run left in a folder, by scenario."""
    verdicts = [msgspec.json.decode(path.read_bytes(), type=Verdict) for path in sorted(folder.glob("*.json"))]
    return {verdict.scenario: verdict.facts for verdict in verdicts}


def chosen(scenarios: dict[str, Scenario], given: argparse.Namespace) -> list[Scenario]:
    """Return the scenarios to be run, in order."""
    if given.command == "run":
        return [scenarios[given.name]]
    return [each for each in scenarios.values() if given.tier in each.tiers and each.name.startswith(given.only)]


def say(result: Result) -> None:
    """Print one scenario's line, and what was wrong."""
    verdict = result.verdict
    print(
        f"{result.word:8} {result.scenario:36} {verdict.seconds:6.1f} s  faults {verdict.faults:4}  {brief(verdict)}",
        flush=True,
    )
    if verdict.skipped is not None:
        print(f"         - {verdict.skipped}", flush=True)
    if not result.good:
        texts = verdict.violations or ["no fault fired" if not verdict.faults else "passed although it must fail"]
        for text in texts[:SHOWN]:
            print(f"         - {text[:LINE_CHARS]}")
        if len(texts) > SHOWN:
            print(f"         - and {len(texts) - SHOWN} more")


def keep(result: Result, out: Path | None) -> None:
    """Write the verdict as JSON."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(result.verdict), indent=1)
        (out / f"{result.scenario}.json").write_bytes(text)


def sum_up(results: list[Result], seconds: float) -> int:
    """Print the totals of a run that took so long; return the exit status."""
    count = {word: sum(each.word == word for each in results) for word in ("ok", "noticed", "skipped")}
    bad = [each.scenario for each in results if not each.good]
    p99, worst = loop_lag(result.verdict for result in results)
    print(
        f"{len(results)} scenarios in {seconds:.0f} s: {count['ok']} ok, {count['noticed']} noticed, "
        f"{count['skipped']} skipped, {len(bad)} failed; daemon's loop lag p99 {p99} ms, max {worst} ms"
    )
    if bad:
        print(f"failed: {' '.join(bad)}")
    return 1 if bad or not results else 0


if __name__ == "__main__":
    sys.exit(main())
