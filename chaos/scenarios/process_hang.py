"""A handler hangs in a C call that lets go of the GIL, or in one that holds it and the whole worker with it.

Expected: the caller is answered by its deadline and a little; the worker is interrupted at the deadline, and killed
when it does not react; then the actor serves again. Callers of the others notice nothing. A hanging search worker costs
a query nothing but time: the spare, or the keyword search, answers.
"""

import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from chaos.client import Client, open_socket
from chaos.deaths import AFFECTED, CALM, DEATH_CODES, RAPID, Death, Watch, see_back, summary_ms, watching
from chaos.faults import control
from chaos.load import DEADLINE_S as LOAD_DEADLINE_S
from chaos.scenario import Run, Scenario, Tier, Verdict
from chaos.stage import Stage, staged
from chaos.targets import TARGETS, Answer, Target, ask

DEADLINE_S = 1.0
ANSWERED_S = DEADLINE_S + 0.25
# A batch of appends ends with its most patient member, so a hang of one of them may last as long as those of the load.
KILLED_S = {"core_writer": DEADLINE_S + 1, "transcript_appender": LOAD_DEADLINE_S + 1, "cache_manager": DEADLINE_S + 1}
GENEROUS_S = 1.5
STEP_MS = 5000
BUILDER_CONFIG = RAPID + f"\n[generation_builder]\nstep_deadline_ms = {STEP_MS}\n"
TRIES = 8
BUILD_S = 120.0


class Hung(msgspec.Struct, frozen=True, kw_only=True):
    """One call that hung: what its caller got, and what became of the worker."""

    answer: Answer
    death: Death


class Met(msgspec.Struct, frozen=True, kw_only=True):
    """One query that hung: its answer, and the time from its start until both search workers were loaded again."""

    answer: Answer
    replaced_s: float


async def hang_storage(given: Run, name: str, actor: str, roads: Sequence[str], times: int) -> Verdict:
    """Hang calls of every road into an actor, with and without the GIL."""
    async with staged(given, name, config=RAPID, launcher=True) as stage:
        for operation in AFFECTED[actor]:
            stage.allow(operation, *DEATH_CODES)
        hung: list[Hung] = []
        async with watching(stage.daemon.socket_path) as watch:
            for number in range(times):
                for road in roads:
                    for hold_gil in (False, True):
                        word = f"hang{number}{road.replace('_', '')}{'gil' * hold_gil}{given.seed}"
                        hung.append(await hang_once(stage, watch, TARGETS[road], word, hold_gil=hold_gil))
        judge(stage, actor, hung)
    return stage.verdict()


async def hang_once(stage: Stage, watch: Watch, target: Target, word: str, *, hold_gil: bool) -> Hung:
    """Hang one call and wait until the actor is back."""
    actor = target.actor
    await watch.up(actor)
    await control.inject(stage.data, actor, pid=None, fault="hang", hold_gil=hold_gil, **target.fault(word))
    await watch.look()
    victim = await watch.up(actor)
    count = len(control.fired(stage.data, actor, "hang"))
    async with open_socket(stage.daemon.socket_path) as client:
        answer = await ask(stage, client, target, word, deadline_s=DEADLINE_S)
    await control.wait_fired(stage.data, actor, "hang", times=count + 1)
    stage.mark("hang", actor, f"{target.method}{', GIL held' * hold_gil}")
    return Hung(answer=answer, death=await see_back(watch, actor, victim, answer.at))


def judge(stage: Stage, actor: str, hung: list[Hung]) -> None:
    """Put what was measured into the facts, and violate what is beyond its promise."""
    answered = [each.answer.seconds for each in hung]
    killed = [each.death.noticed_s for each in hung if each.death.noticed_s is not None]
    stage.facts["answered_ms"] = summary_ms(answered)
    stage.facts["killed_ms"] = summary_ms(killed)
    stage.facts["ready_ms"] = summary_ms([each.death.ready_s for each in hung])
    if max(answered) > ANSWERED_S + GENEROUS_S:
        stage.violate(f"I6: the caller of a hanging call was answered after {max(answered):.2f} s, by {ANSWERED_S} s")
    if max(killed, default=0.0) > KILLED_S[actor] + GENEROUS_S:
        stage.violate(f"a hanging worker was replaced only after {max(killed):.2f} s, promised {KILLED_S[actor]} s")
    wrong = {each.answer.outcome for each in hung} - {str(code) for code in DEATH_CODES}
    if wrong:
        stage.violate(f"callers of hanging calls got {sorted(wrong)}")


async def hang_searcher(given: Run) -> Verdict:
    """Hang queries in the active search worker; they are answered all the same."""
    async with staged(given, "process_hang_searcher", config=CALM, launcher=True) as stage:
        met: list[Met] = []
        async with watching(stage.daemon.socket_path) as watch, open_socket(stage.daemon.socket_path) as client:
            for number in range(given.size(1, 1, 6)):
                for hold_gil in (False, True):
                    met.append(await _hang_query(stage, watch, client, f"hang{number}{given.seed}", hold_gil))
        stage.facts["answered_ms"] = summary_ms([each.answer.seconds for each in met])
        stage.facts["both_loaded_again_ms"] = summary_ms([each.replaced_s for each in met])
        failed = [each.answer.outcome for each in met if not each.answer.ok]
        if failed:
            stage.violate(f"queries whose search worker hung were not answered: {failed}")
    return stage.verdict()


async def _hang_query(stage: Stage, watch: Watch, client: Client, word: str, hold_gil: bool) -> Met:
    """Hang one query; now and then one goes to the spare by turn, then another is tried."""
    for attempt in range(TRIES):
        await _both_loaded(watch)
        pid = watch.searcher["active_pid"]
        told = f"{word}try{attempt}{'gil' * hold_gil}"
        count = len(control.fired(stage.data, "searcher", "hang"))
        fault = TARGETS["searcher"].fault(told)
        await control.inject(stage.data, "searcher", pid=pid, fault="hang", hold_gil=hold_gil, **fault)
        began = time.monotonic()
        answer = await ask(stage, client, TARGETS["searcher"], told, deadline_s=LOAD_DEADLINE_S)
        if len(control.fired(stage.data, "searcher", "hang")) > count:
            stage.mark("hang", "searcher", f"pid {pid}{', GIL held' * hold_gil}")
            await _replaced(watch, pid)
            return Met(answer=answer, replaced_s=time.monotonic() - began)
    raise TimeoutError(f"no query met the hang within {TRIES} tries")


async def _replaced(watch: Watch, pid: int) -> None:
    """Wait until a search worker is gone and two others are loaded."""

    def gone() -> bool:
        return pid not in (watch.searcher["active_pid"], watch.searcher["spare_pid"])

    await watch.until(gone, f"the search worker {pid} to be replaced")
    await _both_loaded(watch)


async def _both_loaded(watch: Watch) -> None:
    await watch.look()
    await watch.until(lambda: watch.searcher["loaded"] >= 2, "two loaded search workers", BUILD_S)


async def hang_builder(given: Run) -> Verdict:
    """Hang a step of a build; it ends at the deadline of the step, and the next build goes through."""
    async with staged(given, "process_hang_generation_builder", config=BUILDER_CONFIG, launcher=True) as stage:
        ready: list[float] = []
        async with watching(stage.daemon.socket_path) as watch:
            for hold_gil in (False, True)[: given.size(1, 1, 2)]:
                victim = await watch.up("generation_builder")
                count = len(control.fired(stage.data, "generation_builder", "hang"))
                await control.inject(stage.data, "generation_builder", fault="hang", lane="build", hold_gil=hold_gil)
                fired = await control.wait_fired(stage.data, "generation_builder", "hang", times=count + 1)
                stage.mark("hang", "generation_builder", "GIL held" if hold_gil else "")
                ready.append((await see_back(watch, "generation_builder", victim, fired[-1].at)).ready_s)
        stage.facts["ready_ms"] = summary_ms(ready)
        published = (await stage.status())["index"]["builds"]["published"]
        await stage.until(lambda s: s["index"]["builds"]["published"] > published, seconds=BUILD_S)
    return stage.verdict()


def _storage(actor: str, roads: Sequence[str], tiers: tuple[Tier, ...] = ("ci", "soak")) -> Scenario:
    name = f"process_hang_{actor}"

    async def run(given: Run) -> Verdict:
        return await hang_storage(given, name, actor, roads, given.size(1, 1, 10))

    return _scenario(name, f"calls of {actor} hang in C, with and without the GIL", run, actor, tiers)


def _scenario(
    name: str,
    purpose: str,
    run: Callable[[Run], Awaitable[Verdict]],
    actor: str,
    tiers: tuple[Tier, ...] = ("ci", "soak"),
) -> Scenario:
    return Scenario(
        name=name,
        purpose=purpose,
        run=run,
        tiers=tiers,
        faults=(f"hang in a C call × {actor}", f"C loop that holds the GIL × {actor}"),
    )


SCENARIOS = (
    _storage("core_writer", ("core_writer", "core_writer_read"), ("soak",)),
    _storage("transcript_appender", ("transcript_appender", "transcript_appender_read")),
    _storage("cache_manager", ("cache_manager", "cache_manager_write"), ("soak",)),
    _scenario(
        "process_hang_searcher",
        "queries hang in a search worker; they are answered all the same",
        hang_searcher,
        "searcher",
    ),
    _scenario(
        "process_hang_generation_builder", "a step of a build hangs; searches go on", hang_builder, "generation_builder"
    ),
)
