"""The fault matrix in words: per fault and actor what happens and what a client sees. Pure; numbers come from verdicts.

`python -m chaos table DIR` prints it as Markdown for docs/OPERATIONS.md, with the recovery times that the verdicts in
DIR measured. A tidy test keeps the matrix, the scenarios and the page in step: every cell that a scenario covers has
its row, and no row has a blank.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from chaos.scenario import Scenario

SEPARATOR = " × "
NOTHING = "nothing dies"
# Under which name a verdict keeps the recoveries of what a row is about.
DIES_AS = {"supervisor": "daemon", "builder": "generation_builder"}
# Workers whose death is not their actor's: what a verdict says of it, and under which name.
SEATS = {
    "searcher": {"replaced": "both_loaded_again_ms", "failover": "failover_ms"},
    "embedder": {"replaced": "replaced_ms"},
}


class Words(NamedTuple):
    """What happens, what a client sees, and what recovery means when no death is measured."""

    happens: str
    sees: str
    recovery: str = NOTHING


_DELAY = "a delay; `ActorDied` (1002, unknown) where it may not be repeated"
_MISS = "nothing: every look-up is a miss"
_OLD_INDEX = "nothing: the generation before serves, newer rows by keyword"
_SPARE = "nothing: the spare answers, or keyword search (`degraded`)"
_REFUSED_LINE = "that client: −32700 or −32600, connection kept; others nothing"
_RESTART = "worker replaced, in hand repeated once, siblings untouched"

# By fault, or by "fault × actor" where an actor differs.
WORDS: dict[str, Words] = {
    "SIGKILL worker": Words(_RESTART, _DELAY),
    "SIGKILL worker × cache_manager": Words(_RESTART, _MISS),
    "SIGKILL worker × generation_builder": Words("that build is lost, its temporary files go, built again", _OLD_INDEX),
    "SIGKILL worker × searcher": Words("queries in hand go to the spare at once", _SPARE),
    "SIGKILL worker × searcher (active)": Words("queries in hand go to the spare at once", _SPARE),
    "SIGKILL worker × searcher (spare)": Words("replaced in the background", "nothing"),
    "SIGKILL worker × searcher (both)": Words("both replaced", "keyword search meanwhile, marked `degraded`"),
    "SIGKILL × builder": Words("killed at each stage of a build: no half generation, ever", _OLD_INDEX),
    "SIGKILL at a system call × builder": Words(
        "before or after any open, write, sync, rename, unlink, mkdir, close: the view before or after, whole",
        _OLD_INDEX,
    ),
    "SIGKILL at a random time × builder": Words("that delta or generation is lost, made again", _OLD_INDEX),
    "SIGKILL × searcher": Words("queries in hand go to the spare at once", _SPARE),
    "SIGKILL × supervisor": Words(
        "workers die with it; a bridge starts the next daemon at once, one that keeps dying after 0.1 to 2 s",
        "1002 unknown; retry gives the first result",
    ),
    "SIGSTOP worker": Words("silent for 1 s: killed and replaced; woken later it is dead or fenced", _DELAY),
    "SIGSTOP worker × cache_manager": Words("silent for 1 s: killed and replaced", _MISS),
    "SIGSTOP worker × generation_builder": Words(
        "silent for too long: killed, built again", _OLD_INDEX, "when it is woken or replaced"
    ),
    "SIGSTOP worker × searcher": Words("queries are hedged to the spare, the stopped one is replaced", _SPARE),
    "hang in a C call": Words(
        "interrupt at the deadline, stacks, SIGKILL 0.5 s later", "`DeadlineExceeded` (1004) by its deadline + 0.25 s"
    ),
    "hang in a C call × cache_manager": Words("interrupt at the deadline, stacks, SIGKILL 0.5 s later", _MISS),
    "hang in a C call × searcher": Words("hedged to the spare, then killed", _SPARE),
    "hang in a C call × generation_builder": Words("killed at the deadline of the step, built again", _OLD_INDEX),
    "hang in a C call × supervisor": Words(
        "stacks to incidents/, exit 75; a bridge starts the next", "1002 unknown, then answers of the next daemon"
    ),
    "C loop that holds the GIL": Words(
        "no beats: killed and replaced", "`DeadlineExceeded` (1004) by its deadline + 0.25 s"
    ),
    "C loop that holds the GIL × cache_manager": Words("no beats: killed and replaced", _MISS),
    "C loop that holds the GIL × searcher": Words("no beats: queries go to the spare, it is replaced", _SPARE),
    "C loop that holds the GIL × generation_builder": Words("no beats: killed, built again", _OLD_INDEX),
    "C loop that holds the GIL × supervisor": Words(
        "faulthandler dumps stacks to stderr, exit 1", "1002 unknown, then answers of the next daemon"
    ),
    "raise in handler": Words("traceback to incidents/, worker replaced, that message repeated once", _DELAY),
    "raise in actor": Words("traceback to incidents/, next incarnation, siblings untouched", "a delay"),
    "cancel task": Words("next incarnation on the same mailbox", "a delay"),
    "invalid request": Words("refused before any work; nothing restarts", "−32602 that names the field and the limit"),
    "poison message": Words(
        "in hand at two deaths: condemned, kept on disk, others flow",
        "`PoisonMessage` (1006)",
        "at once: it is set aside",
    ),
    "poison message × cache_manager": Words(
        "in hand at two deaths: condemned, others flow", _MISS, "at once: it is not sent again"
    ),
    "poison message × searcher": Words(
        "brought down two search workers: condemned",
        "keyword search, `degraded: poison_query`",
        "at once: answered by words",
    ),
    "restarts spent": Words(
        "BROKEN: mail refused at once, probed every 10 s",
        "`ActorUnavailable` (1010) with `retry_after_ms`",
        "by a probe, every 10 s",
    ),
    "restarts spent × cache_manager": Words(
        "BROKEN: every look-up is a miss, probed every 10 s", "nothing", "by a probe, every 10 s"
    ),
    "away for good": Words(
        "stopped or hung again and again for the whole window", "typed errors for this actor only", "when it is let go"
    ),
    "away for good × cache_manager": Words(
        "stopped or hung again and again for the whole window", _MISS, "when it is let go"
    ),
    "away for good × searcher": Words(
        "both search workers away for the whole window", "keyword search, marked `degraded`", "when it is let go"
    ),
    "away for good × generation_builder": Words("no builds for the whole window", _OLD_INDEX, "when it is let go"),
    "dead for good": Words(
        "every actor dead at once: status and health still answer", "typed errors; `system.health` in milliseconds"
    ),
    "death after COMMIT": Words(
        "committed, and the answer lost: the repetition finds the first result", "the first result"
    ),
    "zombie writer": Words(
        "a stopped writer that was replaced wakes up: fenced, its write refused",
        "nothing; it is not in the file",
        "its successor serves already",
    ),
    "power loss": Words("what was not synced is gone: nothing that was acknowledged", _DELAY),
    "EIO on write": Words(
        "not acknowledged; worker replaced, file verified; twice in a row: BROKEN",
        "`StoreBroken` (1012), then a retry succeeds",
    ),
    "ENOSPC": Words(
        "rolled back; ballast freed, derived data gives way, reads and search go on",
        "`DiskFull` (1005) until there is room",
        "as soon as there is room",
    ),
    "slow fsync": Words("group commits grow, siblings untouched", "latency of the disk"),
    "hang in fsync": Words("killed after its deadline, file verified", "`DeadlineExceeded` (1004), outcome unknown"),
    "corrupt bytes": Words("found at the start or at use, never served", "see the rows of the actor"),
    "corrupt bytes × core_writer": Words(
        "files set aside, quarantined; what is sound is still read",
        "`Quarantined` (1009) for writes until `bulkhead restore`",
        "reads at once, writes by `bulkhead restore`",
    ),
    "corrupt bytes × transcript_appender": Words(
        "segment sealed as it is, next one started, appends go on",
        "`degraded: segment_damaged` on reads",
        "at once, in the next segment",
    ),
    "corrupt bytes × cache_manager": Words("deleted and made anew", _MISS, "at once, empty"),
    "delete and truncate": Words("found at the start or at use, never served", "see the rows of the actor"),
    "delete and truncate × core_writer": Words(
        "refused to be filled anew, quarantined",
        "`Quarantined` (1009) until `bulkhead restore`",
        "by `bulkhead restore`",
    ),
    "delete and truncate × transcript_appender": Words(
        "segment sealed, next one started, appends go on",
        "`degraded: segment_damaged` on reads",
        "at once, in the next segment",
    ),
    "delete and truncate × cache_manager": Words("made anew at the next use", _MISS, "at once, empty"),
    "corrupt generation": Words(
        "its hashes do not fit: not served, the one before is, a rebuild is queued",
        "the generation before, or keyword search",
        "the next generation",
    ),
    "corrupt delta": Words(
        "its hashes do not fit: its generation serves without it, the next delta holds it all",
        "nothing: newer rows by keyword meanwhile",
    ),
    "corrupt generation before": Words(
        "no way back and no refuge: what serves goes on, or keyword search",
        "`GenerationSuspect` (1008) for `index.rollback`",
    ),
    "corrupt CURRENT": Words("not believed: highest verified generation serves, put right", "nothing"),
    "delete and truncate CURRENT and manifest": Words(
        "highest verified generation serves",
        "nothing, or keyword search (`degraded`)",
        "at once, or the next generation",
    ),
    "another embedding model": Words(
        "its generation is built beside the old one, which serves meanwhile; one command goes back",
        "nothing; `comparison` tells how far the answers differ",
    ),
    "upserts without end": Words("what was replaced is masked at once and gone from the disk soon", "nothing"),
    "clock jump": Words("deadlines are monotonic; stored times never go back", "nothing"),
    "mailbox flood": Words(
        "refused at once by count and bytes, memory flat",
        "`Overloaded` (1001) with `retry_after_ms`",
        "at once when it ends",
    ),
    "mailbox flood × transcript_appender": Words(
        "waits up to 250 ms for room, then refused", "`Overloaded` (1001) with `retry_after_ms`", "at once when it ends"
    ),
    "mailbox flood × cache_manager": Words("look-ups beyond 256 are misses", "nothing", "at once when it ends"),
    "mailbox flood × searcher": Words(
        "what has least time left is shed", "`Overloaded` (1001) with `retry_after_ms`", "at once when it ends"
    ),
    "mailbox flood × generation_builder": Words("hints that say the same are one", "nothing", "at once when it ends"),
    "flood at the cap × client": Words(
        "clients take turns; the greediest is refused first",
        "the flooder: 1001; others: no error",
        "at once when it ends",
    ),
    "half line × client": Words("waits in that connection's buffer", "nothing for others"),
    "100 MB line × client": Words("drained to its newline, never held", _REFUSED_LINE),
    "malformed frames × client": Words("answered one by one", _REFUSED_LINE),
    "notification flood × client": Words("read and dropped", "nothing"),
    "costly lines × client": Words("bounded by lines and bytes in flight", "that client waits; others nothing"),
    "id reuse × client": Words("refused while the first is under way", "that client: −32600"),
    "cancel storm × client": Words(
        "cancelled; what is committed stays found by its request_id", "no answer to what was cancelled"
    ),
    "client vanishes × client": Words("its reads are cancelled, its writes finish", "nothing for others"),
    "slow reader × client": Words(
        "its outbox is bounded; closed after 10 s without progress", "that client is closed; others nothing"
    ),
    "connection storm × client": Words("refused beyond the limits", "that client: 1001"),
    "SIGKILL bridge × client": Words(
        "its requests are cancelled; one daemon, no process left", "nothing for others", "nothing to come back"
    ),
    "loop stalls × supervisor": Words("stacks of all threads to incidents/", "a delay", "when the loop goes on"),
    "SIGTERM × supervisor": Words("drains within 10 s, exit 0", "`ShuttingDown` (1007), then the next daemon"),
    "SIGKILL in a drain × supervisor": Words("as any SIGKILL", "1002 unknown, then answers of the next daemon"),
    "second signal × supervisor": Words("ends at once, exit 75", "1002 unknown, then answers of the next daemon"),
    "SIGKILL in its start × supervisor": Words("as any SIGKILL", "1002 unknown, then answers of the next daemon"),
    "two daemons on one data directory × daemon": Words("the second leaves with 75", "nothing"),
    "kill during start-up × daemon": Words("the next start finds everything in place", "a delay"),
    "pending notes × daemon": Words("10,000 unread notes wait: they are read in the background", "nothing"),
    "kill during the drain × daemon": Words("as any SIGKILL: nothing depends on a clean end", "a delay"),
    "kill during a build × daemon": Words("the lease is free, temporary files go at the next start", "a delay"),
    "stale lock and socket × daemon": Words("taken over; a lock dies with its holder", "nothing"),
    "fd exhaustion × listener": Words(
        "accepting pauses, nobody spins, recovers when clients leave",
        "new connections wait or are refused; others nothing",
        "when descriptors are free",
    ),
}


class Row(NamedTuple):
    """One cell of the matrix."""

    fault: str
    actor: str
    words: Words
    scenarios: tuple[str, ...]


def rows(scenarios: Iterable[Scenario]) -> list[Row]:
    """Return a row for each cell that a scenario covers, in the order of WORDS; KeyError for one without words."""
    covered: dict[str, list[str]] = {}
    for scenario in scenarios:
        for cell in scenario.faults:
            covered.setdefault(cell, []).append(scenario.name)
    order = {name: position for position, name in enumerate(WORDS)}

    def place(cell: str) -> int:
        return order[cell] if cell in order else order[cell.split(SEPARATOR, maxsplit=1)[0]]

    found = []
    for cell in sorted(covered, key=place):
        fault, actor = cell.split(SEPARATOR)
        words = WORDS[cell] if cell in WORDS else WORDS[fault]
        found.append(Row(fault, actor, words, tuple(covered[cell])))
    return found


def table(scenarios: Iterable[Scenario], facts: Mapping[str, Mapping[str, object]]) -> str:
    """Return the matrix as Markdown. `facts` are those of the verdicts, by scenario."""
    lines = [
        "| fault | actor | what happens | what a client sees | recovery | scenario |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows(scenarios):
        recovery = next((text for name in row.scenarios if (text := measured(row.actor, facts.get(name, {})))), None)
        names = ", ".join(f"`{name}`" for name in row.scenarios)
        cells = (row.fault, row.actor, row.words.happens, row.words.sees, recovery or row.words.recovery, names)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def measured(actor: str, facts: Mapping[str, object]) -> str | None:
    """Return the median and the p99 of an actor's recoveries in a scenario, or None when it did not die there.

    The death of a search worker or of the embedder is not their actor's: the others go on, and what is measured is
    when the place was filled again.
    """
    name = actor.split(" ", maxsplit=1)[0]
    for word, fact in SEATS.get(name, {}).items():
        again = facts.get(fact)
        if isinstance(again, Mapping) and again.get("count"):
            return f"no gap; {word} {again['p50']:.0f} / {again['p99']:.0f} ms ({again['count']})"
    recoveries = facts.get("recovery_ms")
    if not isinstance(recoveries, Mapping):
        return None
    found = recoveries.get(DIES_AS.get(name, name))
    if not isinstance(found, Mapping) or not found.get("count"):
        return None
    return f"{found['median']:.0f} / {found['p99']:.0f} ms ({found['count']})"
