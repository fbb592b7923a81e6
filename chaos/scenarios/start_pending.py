"""Start with thousands of notes that nobody has indexed yet (fault case H3): the start waits for none of them.

The notes are registered, then the daemon is killed and started again before they are indexed: it answers at once, an
event that is appended then is found by the next search, and the notes follow in their own time.
"""

import time

import trio

from chaos.book import Book
from chaos.scenario import Run, Scenario, Verdict
from chaos.scenarios.damage_truth import start, stop
from chaos.setup import write_notes
from chaos.stage import staged

NAME = "start_pending_files"
TRUTH = ("append", "write", "read")
# The promise is 2 s on an idle machine; a start that waited for the notes would take minutes.
READY_S = 20.0
CONFIG = "[generation_builder]\nsettle_ms = 2000\n"


async def run(given: Run) -> Verdict:
    """Run the scenario."""
    files = given.size(500, 10_000, 10_000)
    async with staged(given, NAME, config=CONFIG, load=None, wait=TRUTH) as stage:
        folder = stage.data.with_name("notes")
        await trio.to_thread.run_sync(write_notes, folder, files, stage.rng)
        source = await stage.call("source.add", {"path": str(folder)})
        await stop(stage)
        began = time.monotonic()
        await start(stage)
        await stage.ready(*TRUTH)
        ready_s = time.monotonic() - began
        stage.mark("pending notes", "daemon", f"{files} notes pending, ready after {ready_s:.2f} s")
        book = Book()
        await book.fill(stage.client, stage.rng, 3)
        wrong, found = await book.compare_search(stage.client, stage.rng, complete=True)
        for text in wrong:
            stage.violate(text)
        if ready_s > READY_S:
            stage.violate(f"ready after {ready_s:.1f} s with {files} notes pending, promised 2 s")
        stage.facts["ready_s"] = round(ready_s, 2)
        stage.facts["first_answer"] = {"generation": found["generation"], "took_ms": found["took_ms"]}
        # What remains is the builder's work, and may be left undone: nobody waits for it.
        await stage.call("source.remove", {"source_id": source["source_id"]})
    return stage.verdict()


SCENARIOS = (
    Scenario(
        name=NAME,
        purpose="start with 10,000 notes that are not indexed yet: ready at once, the first search is answered",
        run=run,
        tiers=("ci", "soak"),
        faults=("pending notes × daemon",),
        beside=True,
    ),
)
