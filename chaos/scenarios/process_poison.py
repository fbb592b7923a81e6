"""A message that kills every worker that gets it: condemned at the second death, and known after a restart.

Expected: its caller is told `PoisonMessage`; everybody else's messages flow; the next daemon refuses it at once,
without a death; `poison.list` names it, and after `poison.clear` it is dispatched again. A query that brings down two
search workers is answered by keyword from then on, and says so.
"""

from chaos.client import open_socket
from chaos.deaths import AFFECTED, CALM, DEATH_CODES, RAPID, Watch, watching
from chaos.faults import control
from chaos.scenario import Run, Scenario, Tier, Verdict
from chaos.stage import Stage, staged
from chaos.targets import TARGETS, Answer, Target, ask

POISON = 1006
DEADLINE_S = 10.0
LOADED_S = 90.0
QUERY_TRIES = 4
# A worker that says which call it died of proves it; else one question is blamed once, and it takes a second one.
DEATHS_MAX = {"raise": 2, "exit": 4}


async def poison_storage(given: Run, name: str, road: str) -> Verdict:
    """Condemn a message, restart the daemon, clear it, and let it through."""
    target = TARGETS[road]
    async with staged(given, name, config=RAPID, launcher=True) as stage:
        for operation in AFFECTED[target.actor]:
            stage.allow(operation, *DEATH_CODES)
        for number, fault in enumerate(("raise", "exit")[: given.size(1, 2, 2)]):
            await _poison(stage, target, f"poison{number}{given.seed}", fault)
    return stage.verdict()


async def _poison(stage: Stage, target: Target, word: str, fault: str) -> None:
    actor = target.actor
    aimed = {"fault": fault, "calls": None, **target.fault(word)}
    control.at_start(stage.data, actor, aimed)
    await control.inject(stage.data, actor, pid=None, **aimed)
    epoch = await _epoch(stage, actor)
    _expect(stage, "the second death with it in hand", await _ask(stage, target, word), POISON)
    deaths = await _epoch(stage, actor) - epoch
    stage.mark("poison", actor, f"{target.method}, {fault}, {deaths} deaths")
    if deaths != 2:
        stage.violate(f"a message that kills {actor} killed it {deaths} times, must be 2")
    await stage.restart()
    epoch = await _epoch(stage, actor)
    _expect(stage, "a restart of the daemon", await _ask(stage, target, word), POISON)
    if await _epoch(stage, actor) != epoch:
        stage.violate(f"the condemned message was dispatched to {actor} again after a restart")
    await _clear(stage, target, word)


async def _clear(stage: Stage, target: Target, word: str) -> None:
    """Remove the cause, then the verdict; the message goes through."""
    await control.clear(stage.data, target.actor)
    listed = [each for each in (await stage.call("poison.list"))["messages"] if each["actor"] == target.actor]
    if not listed or any(len(each["causes"]) != 2 for each in listed):
        stage.violate(f"poison.list does not name the message and its two deaths: {listed}")
        return
    # A message of the load that was in hand both times is condemned with it: nobody can tell which of them it was.
    for each in listed:
        await stage.call("poison.clear", {"key": each["key"]})
    answer = await _ask(stage, target, word)
    if not answer.ok:
        stage.violate(f"after poison.clear the message was answered with {answer.outcome}")


async def _ask(stage: Stage, target: Target, word: str) -> Answer:
    async with open_socket(stage.daemon.socket_path) as client:
        return await ask(stage, client, target, word, deadline_s=DEADLINE_S)


async def _epoch(stage: Stage, actor: str) -> int:
    """Return the epoch of an actor that is up."""
    status = await stage.until(lambda s: s["actors"][actor]["state"] in ("ready", "degraded"))
    epoch: int = status["actors"][actor]["epoch"]
    return epoch


def _expect(stage: Stage, after: str, answer: Answer, code: int) -> None:
    if answer.outcome != str(code):
        stage.violate(f"after {after} the message was answered with {answer.outcome}, must be {code}")


async def poison_query(given: Run) -> Verdict:
    """Let one query bring down every search worker that gets it, with and without telling which call it was."""
    async with (
        staged(given, "process_poison_searcher", config=CALM, launcher=True) as stage,
        watching(stage.daemon.socket_path) as watch,
    ):
        for fault in ("raise", "exit")[: given.size(1, 2, 2)]:
            await _poison_query(stage, watch, f"poison{fault}{given.seed}", fault)
    return stage.verdict()


async def _poison_query(stage: Stage, watch: Watch, word: str, fault: str) -> None:
    target = TARGETS["searcher"]
    aimed = {"fault": fault, "calls": None, **target.fault(word)}
    await _loaded(watch)
    control.at_start(stage.data, "searcher", aimed)
    for each in ("active_pid", "spare_pid"):
        await control.inject(stage.data, "searcher", pid=watch.searcher[each], **aimed)
    answers: list[Answer] = []
    while len(answers) < QUERY_TRIES and not _is_poison(answers):
        await _loaded(watch)
        answers.append(await _ask(stage, target, word))
    fired = control.fired(stage.data, "searcher", fault)
    for one in fired:
        stage.mark("poison", "searcher", f"pid {one.pid}, {fault}")
    stage.facts[f"{fault}_deaths"] = len(fired)
    failed = [answer.outcome for answer in answers if not answer.ok]
    if failed:
        stage.violate(f"a query that kills its workers was refused: {failed}")
    if not _is_poison(answers):
        stage.violate(f"the query is not answered as poison after {len(fired)} deaths")
    if len(fired) > DEATHS_MAX[fault]:
        stage.violate(f"the query brought down {len(fired)} search workers, at most {DEATHS_MAX[fault]} is right")
    control.forget_start(stage.data, "searcher")
    await _loaded(watch)


async def _loaded(watch: Watch) -> None:
    await watch.look()
    await watch.until(lambda: watch.searcher["loaded"] >= 2, "two loaded search workers", LOADED_S)


def _is_poison(answers: list[Answer]) -> bool:
    last = answers[-1] if answers else None
    return last is not None and last.ok and "poison_query" in {each["code"] for each in last.result["degraded"]}


def _storage(road: str, tiers: tuple[Tier, ...]) -> Scenario:
    actor = TARGETS[road].actor
    name = f"process_poison_{road}"

    async def run(given: Run) -> Verdict:
        return await poison_storage(given, name, road)

    return Scenario(
        name=name,
        purpose=f"a message kills {actor} twice: condemned, also after a restart, until it is cleared",
        run=run,
        tiers=tiers,
        faults=(f"poison message × {actor}",),
        beside=True,
    )


SCENARIOS = (
    _storage("core_writer", ("soak",)),
    _storage("transcript_appender", ("ci", "soak")),
    _storage("transcript_appender_read", ("soak",)),
    _storage("cache_manager", ("soak",)),
    Scenario(
        name="process_poison_searcher",
        purpose="a query brings down two search workers: answered by keyword from then on",
        run=poison_query,
        tiers=("ci", "soak"),
        faults=("poison message × searcher",),
        beside=True,
    ),
)
