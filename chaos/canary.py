"""Lose an acknowledged event on purpose: the checker must notice. A run in which this passes is worthless."""

from chaos.client import open_socket
from chaos.daemon import Daemon
from chaos.history import History
from chaos.load import append_until_acknowledged
from chaos.scenario import Run, Scenario, Verdict


async def run(given: Run) -> Verdict:
    """Acknowledge two events, and pretend that a third was acknowledged too."""
    history = History()
    daemon = Daemon(given.data)
    daemon.start()
    await daemon.connected()
    async with open_socket(daemon.socket_path) as client:
        for number in range(2):
            append = history.begin(f"r{number}", "s", f"event {number}")
            await append_until_acknowledged(client, append, history)
        history.begin("r-lost", "s", "never sent").outcome = "ok"
        wrong = await history.check(client)
    await daemon.stop()
    return Verdict(scenario=SCENARIO.name, seed=given.seed, violations=wrong, faults=1)


SCENARIO = Scenario("canary", "pretend that an event was acknowledged; the checker must say so", run, must_fail=True)
