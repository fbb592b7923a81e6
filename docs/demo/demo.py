"""`make demo`: Bulkhead with real input, and what it does while it is being killed.

One act per function, in the order of `ACTS`. Needs nothing but the project; works in a temporary directory, ends by
itself within about three minutes, leaves nothing behind. Exit code 0 when everything held, 1 when something did not,
130 when it was interrupted.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import narration
from bridge import Bridge, Refused
from load import SESSION, Load, Second
from narration import Progress, bad, detail, good, headline, say, show_answer, struck
from place import DEMO, Place

# Patience for a busy machine: builds run at idle priority. On a quiet one it is a matter of seconds.
GENERATION_WAIT_S = 150.0
VECTORS_WAIT_S = 80.0
GROUP = 40  # events in one event.append_many
PAGE = 500  # events in one page of session.history
MAYHEM_S = 22  # how long the load runs, at least
MAYHEM_S_MAX = 90  # … and at most, while waiting for a generation that was published after all the kills
CATCH_BUILD_S = 10.0  # how long a build may take until it is where we want to kill it
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 130

AT_ONCE = ("bad magic 0x00000000", "芝麻对鸡肉过敏")
IN_ITS_WORDS = (
    ("Chinese", "妈妈几点的飞机到，谁去接"),
    ("an identifier out of an error message", "E_SIG_MISMATCH (0x2F)"),
    ("from the docs of this repository", "is a request executed again when I repeat its request_id"),
)
IN_OTHER_WORDS = (
    ("in other words", "somebody almost emptied a whole greenhouse because of a wrong label"),
    ("the same in Chinese", "押金什么时候退"),
    ("English question, Chinese notes", "knee surgery of my father"),
)


class Failed(Exception):
    """A promise did not hold; the text says which."""


class Demo:
    """What the acts share."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.bridge: Bridge
        self.conversation = [json.loads(line) for line in _lines(DEMO / "conversation.jsonl")]
        self.load: Load | None = None

    def status(self) -> dict[str, Any]:
        """Ask the daemon how it is; the processes it names are remembered."""
        status: dict[str, Any] = self.bridge.call("system.status")
        self.place.watch(status)
        return status


# ---------------------------------------------------------------- the acts


def start(demo: Demo) -> None:
    """Start a bridge, which starts the daemon."""
    headline("A daemon, from nothing")
    say("$ bulkhead stdio          (a pipe; it starts the daemon because there is none)")
    begun = time.monotonic()
    demo.bridge = demo.place.open_bridge()
    demo.bridge.call("hello", client="demo")
    took_ms = (time.monotonic() - begun) * 1000
    status = demo.status()
    say(f"First answer {took_ms:.0f} ms after exec. Daemon {status['version']}, pid {status['pid']}.")


def append(demo: Demo) -> None:
    """Store the conversation; repeat one request."""
    sessions = {event["session_id"] for event in demo.conversation}
    headline(f"{len(demo.conversation)} events of {len(sessions)} conversations, on the disk before they are confirmed")
    begun = time.monotonic()
    for first in range(0, len(demo.conversation), GROUP):
        group = demo.conversation[first : first + GROUP]
        demo.bridge.call("event.append_many", events=group)
    took_ms = (time.monotonic() - begun) * 1000
    say(f"event.append_many, {GROUP} at a time: {len(demo.conversation)} events in {took_ms:.0f} ms.")
    promise = {
        "session_id": "family",
        "actor": "user",
        "content": "Joost 问能不能把大提琴放进儿童房那间。可以，那间不临街。",
        "tags": ["家里", "搬家"],
        "request_id": "demo-cello",
    }
    first_time = demo.bridge.call("event.append", **promise)
    again = demo.bridge.call("event.append", **promise)
    demo.conversation.append(promise)
    say(f"event.append               → {_shown(first_time)}")
    say(f"the same request once more → {_shown(again)}")
    _expect(again == {**first_time, "deduplicated": True}, "a repeated request_id did not return the first result")


def search_at_once(demo: Demo) -> None:
    """Search before there is any index."""
    headline("Searching at once: no index exists, no model has run")
    for query in AT_ONCE:
        _expect(bool(_ask(demo, query, hits=1)), f"{query!r} was not found by its words")
    say("The words are searched in the truth itself; the reply says what it had to do without.")


def add_notes(demo: Demo) -> None:
    """Register two folders of markdown notes, and wait for the first generation that holds them."""
    headline("Two folders of notes: a bilingual workspace, and the docs of this repository")
    for path in demo.place.copy_notes():
        source = demo.bridge.call("source.add", path=str(path))
        say(f"source.add {source['name']}: {sum(1 for _ in path.rglob('*.md'))} files that end in .md")
    begun = time.monotonic()
    # It would happen by itself a little later; with index.rebuild one knows which build holds the notes.
    build = demo.bridge.call("index.rebuild", reason="notes added")["build"]
    index = _wait_for(
        demo, GENERATION_WAIT_S, lambda index: index["builds"]["published"] >= build, _building, "the first generation"
    )
    rows = ", ".join(f"{count} {corpus}" for corpus, count in index["rows"].items())
    say(f"Generation {index['generation']} serves after {time.monotonic() - begun:.1f} s: {rows}.")


def ask(demo: Demo) -> None:
    """Ask six questions in two languages while there are words only."""
    headline("Six questions, answered by the words of the index")
    for kind, query in (*IN_ITS_WORDS, *IN_OTHER_WORDS):
        _ask(demo, query, kind)
    say("The last three have hardly a word in common with the notes that answer them. Hence the next act.")


def ask_again(demo: Demo) -> None:
    """Let the embedding go on for a while, and ask again what words alone could not find."""
    headline("Meaning comes behind: a local model embeds at the lowest priority, newest first")
    index = _wait_for(demo, VECTORS_WAIT_S, _all_embedded, _coverage, "vectors", must=False)
    say(f"{_coverage(index)[0].upper()}{_coverage(index)[1:]}.")
    for kind, query in IN_OTHER_WORDS:
        _ask(demo, query, kind)


def show_left_out(demo: Demo) -> None:
    """Show what is not in the index, and why."""
    headline("What was left out is reported, not silently dropped")
    for skip in demo.bridge.call("index.status")["skipped"]:
        place = skip["path"].removeprefix(f"{demo.place.root}/")
        say(f"  {place}: {skip['reason']}")
        detail(f"      {skip['detail']}")


def kill(demo: Demo) -> None:
    """Rebuild the index and kill everything in turn, while two clients append and search without pause."""
    headline("Now it gets rough: a rebuild, real SIGKILLs, and two clients that never stop")
    detail("  Times in ms, the worst of each second. After an error a client tries again (same request_id).")
    say(f"  {'':>3} {'appends':>8} {'worst':>6} {'searches':>9} {'worst':>6} {'errors':>7}  answered by")
    demo.load = Load(demo.place.open_bridge)
    demo.load.start()
    deeds = [(3, kill_builder), (6, kill_searcher), (10, kill_all_three), (15, kill_daemon)]
    published_before = None
    rebuilt = False
    for second in range(1, MAYHEM_S_MAX + 1):
        time.sleep(1.0)
        _show_second(second, demo.load.take_second())
        status = demo.status()
        published = status["index"]["builds"]["published"]
        # Whoever was killed before is given the time to come back, however slow the machine is.
        if deeds and second >= deeds[0][0] and status["searcher"]["workers_ready"] == 2:
            deeds.pop(0)[1](demo)
        elif not deeds and published_before is None:
            published_before = published
        rebuilt = published_before is not None and published > published_before
        if demo.load.failure is not None or (rebuilt and second >= MAYHEM_S):
            break
    demo.load.stop()
    if demo.load.failure is not None:
        raise Failed(f"a client had to give up: {demo.load.failure}")
    _expect(rebuilt, f"no generation was published within {MAYHEM_S_MAX} s in spite of the kills")
    status = demo.status()
    say(f"Generation {status['index']['generation']} was published since. {_states(status)}.")


def settle(demo: Demo) -> None:
    """Compare what was acknowledged with what is there."""
    headline("What is left of it")
    load = demo.load
    assert load is not None
    _expect_same(demo, SESSION, [(each.event_id, each.content) for each in load.acknowledged])
    for session in dict.fromkeys(event["session_id"] for event in demo.conversation):
        told = [event["content"] for event in demo.conversation if event["session_id"] == session]
        _expect([content for _, content in _history(demo, session)] == told, f"session {session!r} is not as it was")
    good(f"  {len(load.acknowledged)} events were acknowledged during the kills: each is there exactly once, in order.")
    good(f"  {len(demo.conversation)} events from before: each is there exactly once, in order.")
    say(f"  Appends that had to be repeated: {load.retried}, of which stored the first time: {load.deduplicated}.")
    say(f"  {load.searches} searches were answered. {load.asked_fresh} of them asked for the event that had been")
    say(f"  acknowledged a moment before; {load.found_fresh} found it.")
    _expect(not load.missed, f"acknowledged events were not found by their words: {', '.join(load.missed[:5])}")
    answer = demo.bridge.call("memory.search", query=IN_ITS_WORDS[0][1], limit=5)
    _expect(bool(answer["hits"]) and answer["generation"] is not None, "the index does not answer after the kills")


ACTS = (start, append, search_at_once, add_notes, ask, ask_again, show_left_out, kill, settle)


# ---------------------------------------------------------------- the deeds


def kill_builder(demo: Demo) -> None:
    """Ask for a rebuild, and kill the worker that builds in the middle of it."""
    building = _start_build(demo, until=("write events", "write documents", "test", "seal"))
    pid = _worker(demo.status(), "generation_builder")
    _sigkill(pid)
    struck(f"index.rebuild, {_stage(building)}; SIGKILL of the worker that builds (pid {pid})")


def kill_searcher(demo: Demo) -> None:
    """Kill the process that answers searches."""
    searcher = demo.status()["actors"]["searcher"]
    _sigkill(searcher["pid"])
    struck(f"SIGKILL of the active search worker (pid {searcher['pid']}); the spare is {searcher['spare_pid']}")


def kill_all_three(demo: Demo) -> None:
    """Kill the builder in the middle of a build, and at the same moment both search workers: words alone remain."""
    building = _start_build(demo, until=("test", "seal"))
    status = demo.status()
    searcher = status["actors"]["searcher"]
    pids = [_worker(status, "generation_builder"), searcher["pid"], searcher["spare_pid"]]
    for pid in filter(None, pids):
        _sigkill(pid)
    struck(f"index.rebuild, {_stage(building)}; SIGKILL of builder and both search workers {pids}")


def kill_daemon(demo: Demo) -> None:
    """Kill the daemon itself. The bridges find out, start another one, and go on."""
    pid = demo.status()["pid"]
    _sigkill(pid)
    struck(f"SIGKILL of the daemon itself (pid {pid})")
    begun = time.monotonic()
    # Whoever has a request in hand is told at once that its fate is unknown; a question is simply asked again.
    while (now := _pid_or_none(demo)) in (None, pid):
        time.sleep(0.01)
    say(f"      a bridge has started another one: pid {now} answered after {(time.monotonic() - begun) * 1000:.0f} ms")


def _pid_or_none(demo: Demo) -> int | None:
    try:
        return int(demo.status()["pid"])
    except Refused as error:
        if not error.retryable:
            raise
        return None


def _start_build(demo: Demo, *, until: tuple[str, ...]) -> dict[str, Any] | None:
    """Ask for a rebuild and wait until it has come so far; return what is being built, None when it was quicker."""
    build = demo.bridge.call("index.rebuild", reason="demo")["build"]
    expires = time.monotonic() + CATCH_BUILD_S
    while time.monotonic() < expires:
        index = demo.bridge.call("index.status")
        building: dict[str, Any] | None = index["building"]
        if building is not None and building["stage"] in until:
            return building
        if index["builds"]["published"] >= build:
            return None
        time.sleep(0.002)
    return None


def _worker(status: dict[str, Any], name: str) -> int | None:
    """Return the pid of an actor's worker of the same name."""
    workers = status["actors"][name]["workers"]
    return next((int(worker["pid"]) for worker in workers if worker["name"] == name), None)


def _sigkill(pid: int | None) -> None:
    _expect(pid is not None, "there was no process to kill")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


# ---------------------------------------------------------------- small things


def _ask(demo: Demo, query: str, kind: str = "", *, hits: int = 2) -> list[Any]:
    """Search, show the first hits, and return all."""
    say(f"  ? {query}" + (f"    ({kind})" if kind else ""))
    answer = demo.bridge.call("memory.search", query=query, limit=5)
    show_answer(answer, hits=hits)
    return list(answer["hits"])


def _wait_for(
    demo: Demo,
    seconds: float,
    is_reached: Callable[[dict[str, Any]], bool],
    describe: Callable[[dict[str, Any]], str],
    what: str,
    *,
    must: bool = True,
) -> dict[str, Any]:
    """Wait until index.status is as wanted; return it. When the time is over: fail if it `must` be reached."""
    progress, expires = Progress(), time.monotonic() + seconds
    while True:
        index: dict[str, Any] = demo.bridge.call("index.status")
        reached = is_reached(index)
        if reached or time.monotonic() >= expires:
            progress.end()
            _expect(reached or not must, f"{what} did not come within {seconds:g} s: {index['last_error']}")
            return index
        progress.show(describe(index))
        time.sleep(0.2)


def _all_embedded(index: dict[str, Any]) -> bool:
    vectors = index["vectors"]
    return bool(vectors["want"] and vectors["have"] == vectors["want"])


def _building(index: dict[str, Any]) -> str:
    building = index["building"]
    if building is None:
        return "waiting for a build"
    progress = f" {building['done']}/{building['total']}" if building["total"] else ""
    return f"building: {building['stage']}{progress}"


def _coverage(index: dict[str, Any]) -> str:
    vectors, speed = index["vectors"], index["embedding"]["texts_per_s"]
    have = f"{vectors['have']} of {vectors['want']} rows have a vector"
    return f"generation {index['generation']}: {have} ({speed:.1f} texts a second)"


def _stage(building: dict[str, Any] | None) -> str:
    if building is None:
        return "finished already"
    return f"now at {building['stage']!r}"


def _states(status: dict[str, Any]) -> str:
    states = {actor["state"] for actor in status["actors"].values()}
    return f"The {len(status['actors'])} actors are {' and '.join(sorted(states))}"


def _show_second(number: int, second: Second) -> None:
    answered_by = ", ".join(sorted("words only" if each is None else f"gen. {each}" for each in second.generations))
    # The three that are to be expected here; anything else is worth a look.
    expected = ("no_vectors", "no_generation", "search_worker_unavailable")
    others = ", ".join(f"{code} {count}×" for code, count in second.degraded.items() if code not in expected)
    answered_by = f"{answered_by or '–'}; without {others}" if others else answered_by or "–"
    say(
        f"  {number:>3} {second.appends:>8} {second.append_ms_max:>6.0f} {second.searches:>9}"
        f" {second.search_ms_max:>6.0f} {second.errors:>7}  {answered_by}"
    )


def _history(demo: Demo, session: str) -> list[tuple[str, str]]:
    """Return id and content of every event of a session, in order."""
    events: list[tuple[str, str]] = []
    after, more = 0, True
    while more:
        page = demo.bridge.call("session.history", session_id=session, after_seq=after, limit=PAGE)
        events += [(event["event_id"], event["content"]) for event in page["events"]]
        after, more = page["events"][-1]["seq"] if page["events"] else after, page["more"]
    return events


def _expect_same(demo: Demo, session: str, acknowledged: list[tuple[str, str]]) -> None:
    stored = _history(demo, session)
    if stored == acknowledged:
        return
    lost = [content for event_id, content in acknowledged if (event_id, content) not in set(stored)]
    twice = len(stored) - len(set(stored))
    raise Failed(
        f"acknowledged {len(acknowledged)}, stored {len(stored)}: {len(lost)} lost ({lost[:3]}), {twice} twice, "
        f"order {'kept' if sorted(stored) == sorted(acknowledged) else 'or content differs'}"
    )


def _shown(appended: dict[str, Any]) -> str:
    return f"seq {appended['seq']}, durability {appended['durability']}, deduplicated {appended['deduplicated']}"


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Failed(otherwise)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


# ---------------------------------------------------------------- the frame


def play(place: Place) -> str | None:
    """Play all acts; return why it failed, None when everything held."""
    demo = Demo(place)
    try:
        for act in ACTS:
            act(demo)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        if demo.load is not None:
            demo.load.stop()
    return None


def leave(place: Place, *, keep: bool) -> list[str]:
    """Drain the daemon and remove the directory; return what was left behind. Not to be interrupted."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    headline("Leaving")
    left = place.leave(keep=keep)
    say(f"The daemon has drained; {place.root} {'is kept' if keep else 'is removed'}.")
    for each in left:
        bad(f"left behind: {each}")
    return left


def _interrupt(*_signal: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    """Play, clean up in every case, and give the verdict as an exit code."""
    parser = argparse.ArgumentParser(description="See Bulkhead work, and survive.")
    parser.add_argument("--keep", action="store_true", help="leave the directory there, to look into it")
    keep = parser.parse_args().keep
    for each in SIGNALS:
        signal.signal(each, _interrupt)
    narration.prepare()
    begun = time.monotonic()
    place = Place()
    try:
        why = play(place)
    except KeyboardInterrupt:
        leave(place, keep=keep)
        say("Interrupted.")
        return INTERRUPTED
    left = leave(place, keep=keep)
    if why is not None:
        bad(f"FAILED: {why}")
    elif not left:
        good(f"Nothing was lost and nothing is left behind. {time.monotonic() - begun:.0f} s.")
    return 1 if why is not None or left else 0


if __name__ == "__main__":
    sys.exit(main())
