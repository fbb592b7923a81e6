"""The scenarios: every module of this folder gives some as `SCENARIOS`, and is found by being here."""

import importlib
import pkgutil
import traceback
from pathlib import Path

from chaos.scenario import TIERS, Run, Scenario, Verdict


def every_scenario() -> dict[str, Scenario]:
    """Return all scenarios by name, in the order of their modules.

    A module that cannot be imported is a scenario that fails in every tier, so that it neither goes unnoticed nor
    stops the others.
    """
    found: dict[str, Scenario] = {}
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        for scenario in _scenarios_of(module.name):
            assert scenario.name not in found, f"two scenarios are named {scenario.name!r}"
            found[scenario.name] = scenario
    return found


def _scenarios_of(module: str) -> tuple[Scenario, ...]:
    try:
        scenarios: tuple[Scenario, ...] = importlib.import_module(f"{__name__}.{module}").SCENARIOS
    except Exception:
        return (_broken(module, traceback.format_exc(limit=-3)),)
    return scenarios


def _broken(module: str, text: str) -> Scenario:
    async def run(given: Run) -> Verdict:
        return Verdict(scenario=module, seed=given.seed, violations=[f"module cannot be imported: {text}"], faults=0)

    return Scenario(name=module, purpose="(its module cannot be imported)", run=run, tiers=TIERS)
