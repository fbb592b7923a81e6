"""Clients that behave badly, one kind after the other, beside clients that do not.

Expected: the abuser is told what is wrong, or loses its connection; the others have not one error; the daemon's
memory stays within a few of its own bounds (a line, an outbox) and goes back afterwards. The connections of the load
come from the same process as those of the abusers, so its limit of connections is met by both.
"""

from collections.abc import Awaitable, Callable

from chaos.abuse import ABUSES, Wrong
from chaos.memory import measured
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import Load, Stage, staged

# One line of 8 MiB in three forms (received, cut, decoded), an outbox of 16 MiB; and the allocator keeps a part.
PEAK_MIB, KEPT_MIB = 96, 48
CONFIG = "[protocol]\nstalled_client_ms = 1000\n"
FAULTS = {
    "half_line": "half line × client",
    "long_line": "100 MB line × client",
    "malformed": "malformed frames × client",
    "flood_of_nothing": "notification flood × client",
    "costly_lines": "costly lines × client",
    "reused_ids": "id reuse × client",
    "cancel_storm": "cancel storm × client",
    "vanishing": "client vanishes × client",
    "slow_reader": "slow reader × client",
    "crowd": "connection storm × client",
}


async def abuse(given: Run, name: str, kinds: tuple[str, ...]) -> Verdict:
    """Run these abuses one after the other."""
    async with staged(given, name, config=CONFIG, load=Load(appenders=1)) as stage:
        pid = (await stage.status())["pid"]
        memory_mib: dict[str, list[float]] = {}
        for kind in kinds:
            for _ in range(given.size(1, 1, 5)):
                memory_mib[kind] = await once(stage, kind, pid)
        stage.facts["memory_mib"] = memory_mib  # before, at most, afterwards
        stage.facts["polite"] = {kind: stage.p99(kind, "search") for kind in kinds}
    return stage.verdict()


async def once(stage: Stage, kind: str, pid: int) -> list[float]:
    """Let one abuse happen and judge what it cost; return the memory before, at most and afterwards, in MiB."""
    async with measured(pid) as memory:
        with stage.window(kind):
            try:
                stage.mark(kind, "client", await ABUSES[kind](stage.daemon.socket_path, stage.rng))
            except Wrong as error:
                stage.violate(f"{kind}: {error}")
        after = await memory.settled(memory.before + KEPT_MIB)
        if memory.peak > memory.before + PEAK_MIB:
            stage.violate(f"{kind}: the daemon took {memory.peak:.0f} MiB, {memory.before:.0f} before")
        if after > memory.before + KEPT_MIB:
            stage.violate(f"{kind}: the daemon keeps {after:.0f} MiB, {memory.before:.0f} before")
    return [round(value, 1) for value in (memory.before, memory.peak, after)]


def _alone(kind: str) -> Callable[[Run], Awaitable[Verdict]]:
    async def run(given: Run) -> Verdict:
        return await abuse(given, f"client_{kind}", (kind,))

    return run


async def _all(given: Run) -> Verdict:
    return await abuse(given, "client_abuse", tuple(ABUSES))


SCENARIOS = (
    Scenario(
        name="client_abuse",
        purpose="every kind of bad client in turn, beside good ones that notice nothing",
        run=_all,
        tiers=("smoke", "ci"),
        faults=tuple(FAULTS.values()),
    ),
    *(
        Scenario(
            name=f"client_{kind}",
            purpose=" ".join((ABUSES[kind].__doc__ or "").split(":")[0].split()).rstrip("."),
            run=_alone(kind),
            tiers=("soak",),
            faults=(FAULTS[kind],),
        )
        for kind in ABUSES
    ),
)
