"""SIGKILL the whole daemon at random while many clients append; bridges restart it (A4, I1 to I6).

Sixteen clients over sixteen bridges append 2,000 events in total while the daemon is killed twenty times. After each
restart every acknowledged event must be there exactly once, in order; at the end a retry of each request_id must
return the first result.
"""

import trio

from chaos.client import Client, open_bridge
from chaos.daemon import Daemon
from chaos.history import History, check_order, read_session
from chaos.load import append_until_acknowledged, sentence
from chaos.scenario import Run, Scenario, Verdict

CLIENTS = 16


async def run(given: Run) -> Verdict:
    """Run the scenario."""
    events, kills = (400, 5) if given.smoke else (2000, 20)
    history, wrong, done = History(), list[str](), trio.Event()
    daemon = Daemon(given.data)

    async def work(client: Client, session: str) -> None:
        for number in range(events // CLIENTS):
            append = history.begin(f"{session}-{number}", session, f"{sentence(given.rng)} #{number}")
            wrong.extend(await append_until_acknowledged(client, append, history))

    async def one(session: str) -> None:
        async with open_bridge(given.data) as client:
            await work(client, session)

    async def all_of_them() -> None:
        async with trio.open_nursery() as nursery:
            for index in range(CLIENTS):
                nursery.start_soon(one, f"s{index}")
        done.set()

    killed = 0
    async with open_bridge(given.data) as watcher, trio.open_nursery() as nursery:
        nursery.start_soon(all_of_them)
        # Kills go on until both are done: the work must not outrun the faults.
        while not done.is_set() or killed < kills:
            await trio.sleep(0.05 + given.rng.random() * 0.7)
            if killed < kills and daemon.pid() is not None:
                daemon.kill()
                killed += 1
                wrong.extend(await check_when_back(watcher, history))
    async with open_bridge(given.data) as client:
        wrong.extend(await retry_all(client, history))
        wrong.extend(await history.check(client))
        stored = [event for index in range(CLIENTS) for event in await read_session(client, f"s{index}")]
        wrong.extend(check_order(stored))
        if len(stored) != events // CLIENTS * CLIENTS:
            wrong.append(f"{len(stored)} events stored, {events} were appended")
    await daemon.stop()
    return Verdict(
        scenario=SCENARIO.name,
        seed=given.seed,
        violations=wrong,
        faults=killed,
        facts={"events": len(stored), "acknowledged": len(history.acknowledged()), "clients": CLIENTS},
    )


async def check_when_back(client: Client, history: History) -> list[str]:
    """Read everything back through the bridge as soon as there is a daemon again."""
    from chaos.client import RpcError

    while True:
        try:
            return await history.check(client)
        except RpcError as error:
            if not error.data.get("retryable"):
                raise
            await trio.sleep(0.05)


async def retry_all(client: Client, history: History) -> list[str]:
    """Repeat every append with its request_id: the first result must come back, marked as a repetition."""
    wrong = []
    for append in history.acknowledged():
        params = {
            "session_id": append.session_id,
            "actor": "user",
            "content": append.content,
            "request_id": append.request_id,
        }
        result = await client.call("event.append", params)
        if (result["event_id"], result["seq"], result["deduplicated"]) != (append.event_id, append.seq, True):
            wrong.append(f"{append.request_id}: a retry returned {result}")
    return wrong


SCENARIO = Scenario("kill_daemon", "SIGKILL the daemon while sixteen clients append", run)
