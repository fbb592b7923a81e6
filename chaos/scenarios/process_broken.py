"""A worker that is killed at once, again and again, with the restart limits as they ship: its actor rests.

Expected: after the restarts that its budget allows it is BROKEN; its callers are told so at once, and when to come
again; every sibling stays up; a probe brings it back by itself.
"""

from chaos.client import open_socket
from chaos.daemon import kill
from chaos.deaths import AFFECTED, DEATH_CODES, Watch, summary_ms, watching
from chaos.scenario import Run, Scenario, Tier, Verdict
from chaos.stage import Stage, staged
from chaos.targets import TARGETS, Answer, ask

UNAVAILABLE = 1010
# The defaults, but for the probe, which is only waited for.
CONFIG = """
[supervision]
restarts_max = 5
restart_window_ms = 60000
backoff_ms_min = 50
backoff_ms_max = 5000
probe_ms = 4000
"""
KILLS_MAX = 8
AT_ONCE_S = 1.0
DEADLINE_S = 5.0
BROKEN_S = 60.0


async def break_actor(given: Run, name: str, actor: str) -> Verdict:
    """Kill the worker of an actor until it is BROKEN; see what its callers and its siblings get; wait for the probe."""
    async with staged(given, name, config=CONFIG) as stage:
        for operation in AFFECTED[actor]:
            stage.allow(operation, *DEATH_CODES, UNAVAILABLE)
        async with watching(stage.daemon.socket_path) as watch:
            kills = await _kill_until_broken(stage, watch, actor)
            answers = [await _ask(stage, actor, number) for number in range(5)]
            await _judge(stage, watch, actor, answers)
            back = await watch.up(actor, after_epoch=watch.rows[actor].epoch)
        stage.facts["kills"] = kills
        stage.facts["refused_ms"] = summary_ms([answer.seconds for answer in answers])
        stage.facts["back_in_epoch"] = back.epoch
        answer = await _ask(stage, actor, 99)
        if not answer.ok:
            stage.violate(f"after the probe {actor} answered {answer.outcome}")
    return stage.verdict()


async def _kill_until_broken(stage: Stage, watch: Watch, actor: str) -> int:
    """Kill every worker as soon as it is ready, until the actor rests; return how many it took."""
    for kills in range(KILLS_MAX):
        row = watch.rows[actor]

        def decided(after: int = row.epoch if kills else 0) -> bool:
            now = watch.rows[actor]
            return now.state == "broken" or (now.up and now.epoch > after)

        await watch.until(decided, f"{actor} to be up or broken", BROKEN_S)
        if watch.rows[actor].state == "broken":
            return kills
        pid = watch.rows[actor].pid
        if pid is not None and kill(pid):
            stage.mark("kill", actor, f"epoch {watch.rows[actor].epoch}")
    stage.violate(f"{actor} is not broken after {KILLS_MAX} kills within its window")
    return KILLS_MAX


async def _ask(stage: Stage, actor: str, number: int) -> Answer:
    async with open_socket(stage.daemon.socket_path) as client:
        word = f"broken{number}{stage.run.seed}"
        return await ask(stage, client, TARGETS[actor], word, deadline_s=DEADLINE_S)


async def _judge(stage: Stage, watch: Watch, actor: str, answers: list[Answer]) -> None:
    wrong = [answer.outcome for answer in answers if answer.outcome != str(UNAVAILABLE)]
    if wrong:
        stage.violate(f"callers of the broken {actor} got {wrong}, must be {UNAVAILABLE}")
    if any(answer.error is not None and not answer.error.data.get("retry_after_ms") for answer in answers):
        stage.violate(f"the refusal of the broken {actor} does not say when to come again")
    if max(answer.seconds for answer in answers) > AT_ONCE_S:
        stage.violate(f"the broken {actor} refused only after {max(answer.seconds for answer in answers):.2f} s")
    down = [name for name, row in watch.rows.items() if name != actor and row.state not in ("ready", "degraded")]
    if down:
        stage.violate(f"while {actor} is broken, {down} are not up")


def _scenario(actor: str, tiers: tuple[Tier, ...]) -> Scenario:
    name = f"process_broken_{actor}"

    async def run(given: Run) -> Verdict:
        return await break_actor(given, name, actor)

    return Scenario(
        name=name,
        purpose=f"the worker of {actor} dies again and again: BROKEN, refused at once, back by a probe",
        run=run,
        tiers=tiers,
        faults=(f"restarts spent × {actor}",),
        beside=True,
    )


SCENARIOS = (
    _scenario("core_writer", ("ci", "soak")),
    _scenario("transcript_appender", ("soak",)),
    _scenario("cache_manager", ("soak",)),
)
