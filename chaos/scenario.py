"""What a scenario is: a name, what it does to a daemon, how large, and a verdict. Data only; nothing runs here."""

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

import msgspec

Tier = Literal["smoke", "ci", "soak"]
TIERS: tuple[Tier, ...] = ("smoke", "ci", "soak")


class Verdict(msgspec.Struct, kw_only=True):
    """The outcome of one scenario. `faults` proves that something was really done to the daemon."""

    scenario: str
    seed: int
    violations: list[str]
    faults: int
    facts: dict[str, object] = {}
    skipped: str | None = None  # why it could not run here; neither passed nor failed
    tier: Tier = "ci"
    seconds: float = 0.0
    versions: dict[str, str] = {}

    @property
    def passed(self) -> bool:
        """Say whether nothing was violated and the fault really fired."""
        return self.skipped is None and not self.violations and self.faults > 0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What a scenario is given: an empty data directory, a seeded source of randomness, its size."""

    data: Path
    rng: random.Random
    seed: int
    tier: Tier = "ci"

    @property
    def smoke(self) -> bool:
        """Say whether this is the short run."""
        return self.tier == "smoke"

    def size(self, smoke: int, ci: int, soak: int) -> int:
        """Return the number that belongs to the tier."""
        return {"smoke": smoke, "ci": ci, "soak": soak}[self.tier]


class Scenario(msgspec.Struct, frozen=True):
    """A scenario. `must_fail` marks one that has to be red: a run in which it passes is worthless.

    `expect` are the beginnings of the violations that such a one must have: red for another reason is not noticed.
    `faults` are the cells of the fault matrix that it covers, each "fault × actor". `watchdog_s` bounds the whole
    scenario: one that takes longer is red, with all stacks in its verdict. `beside` says that another one may run at
    the same time: nothing that it judges depends on how fast the machine is.
    """

    name: str
    purpose: str
    run: Callable[[Run], Awaitable[Verdict]]
    must_fail: bool = False
    tiers: tuple[Tier, ...] = ("ci",)
    faults: tuple[str, ...] = ()
    watchdog_s: float = 300.0
    expect: tuple[str, ...] = ()
    beside: bool = False
