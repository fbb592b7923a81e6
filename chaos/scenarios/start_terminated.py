"""SIGTERM, and SIGKILL 50 ms later, again and again (fault case C3): a shutdown that is cut short damages nothing.

Each life writes a little, is told to end, and is killed in the middle of its drain. After each the files are checked
by SQLite itself; in the end every row is there.
"""

import signal

import trio

from chaos.book import Book
from chaos.daemon import kill
from chaos.databases import check_databases
from chaos.scenario import Run, Scenario, Verdict
from chaos.scenarios.start_up import everything, family_gone
from chaos.stage import staged

NAME = "start_terminated"
PAUSE_S = 0.05
TRUTH = ("append", "write", "read")


async def run(given: Run) -> Verdict:
    """Run the scenario."""
    async with staged(given, NAME, load=None, wait=TRUTH) as stage:
        book = Book()
        for life in range(given.size(3, 10, 200)):
            await book.fill(stage.client, stage.rng, 5)
            process = stage.daemon.process
            assert process is not None
            kill(process.pid, signal.SIGTERM)
            await trio.sleep(PAUSE_S * (1 if life % 2 else stage.rng.random() * 4))
            if kill(process.pid) and process.wait() == -signal.SIGKILL:
                stage.mark("SIGTERM, SIGKILL", "daemon", f"life {life}")
            process.wait()
            stage.daemon.process = None
            await family_gone(stage)
            for text in await trio.to_thread.run_sync(check_databases, stage.data):
                stage.violate(f"life {life}: {text}")
            stage.daemon.start()
            await stage.daemon.connected()
            await stage.connected()
            await stage.ready(*TRUTH)
        await everything(stage, book)
    return stage.verdict()


SCENARIOS = (
    Scenario(
        name=NAME,
        purpose="SIGTERM and SIGKILL shortly after, again and again: the files are whole, every row is there",
        run=run,
        tiers=("soak",),
        faults=("kill during the drain × daemon",),
        watchdog_s=1200.0,
    ),
)
