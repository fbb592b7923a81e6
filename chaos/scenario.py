"""What a scenario is: a name, what it does to a daemon, and a verdict."""

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec


class Verdict(msgspec.Struct, kw_only=True):
    """The outcome of one scenario. `faults` proves that something was really done to the daemon."""

    scenario: str
    seed: int
    violations: list[str]
    faults: int
    facts: dict[str, object] = {}

    @property
    def passed(self) -> bool:
        """Say whether nothing was violated and the fault really fired."""
        return not self.violations and self.faults > 0


class Run(msgspec.Struct, frozen=True):
    """What a scenario is given: an empty data directory, a seeded source of randomness, its size."""

    data: Path
    rng: random.Random
    seed: int
    smoke: bool


class Scenario(msgspec.Struct, frozen=True):
    """A scenario. `must_fail` marks the canary: a run in which it passes is red."""

    name: str
    purpose: str
    run: Callable[[Run], Awaitable[Verdict]]
    must_fail: bool = False
