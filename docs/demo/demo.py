"""`make demo`: Bulkhead with real input, and what it does while it is being killed.

One act per function, in the order of `ACTS`. Needs nothing but the project; works in a temporary directory, ends by
itself within about three minutes, leaves nothing behind. Exit code 0 when everything held, 1 when something did not,
130 when it was interrupted.
"""

import argparse
import signal
import sys
import time
from typing import Any, NoReturn

import narration
from kill import make_it_rough
from load import SESSION
from narration import bad, detail, good, headline, say, show_answer
from place import Place
from stage import Failed, Stage, expect

# Patience for a busy machine: builds run at idle priority. On a quiet one it is a matter of seconds.
GENERATION_WAIT_S = 150.0
VECTORS_WAIT_S = 80.0
BACK_WAIT_S = 60.0
GROUP = 40  # events in one event.append_many
PAGE = 500  # events in one page of session.history
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
    ("Chinese, in other words", "纸上的字太小了"),
    ("English question, Chinese notes", "knee surgery of my father"),
)


# ---------------------------------------------------------------- the acts


def start(stage: Stage) -> None:
    """Start a bridge, which starts the daemon."""
    headline("A daemon, from nothing")
    say("$ bulkhead stdio          (a pipe; it starts the daemon because there is none)")
    begun = time.monotonic()
    stage.bridge = stage.place.open_bridge()
    stage.bridge.call("hello", client="demo")
    took_ms = (time.monotonic() - begun) * 1000
    status = stage.status()
    say(f"First answer {took_ms:.0f} ms after exec. Daemon {status['version']}, pid {status['pid']}.")


def append(stage: Stage) -> None:
    """Store the conversation; repeat one request."""
    sessions = {event["session_id"] for event in stage.conversation}
    headline(
        f"{len(stage.conversation)} events of {len(sessions)} conversations, on the disk before they are confirmed"
    )
    begun = time.monotonic()
    for first in range(0, len(stage.conversation), GROUP):
        group = stage.conversation[first : first + GROUP]
        stage.bridge.call("event.append_many", events=group)
    took_ms = (time.monotonic() - begun) * 1000
    say(f"event.append_many, {GROUP} at a time: {len(stage.conversation)} events in {took_ms:.0f} ms.")
    event = {
        "session_id": "family",
        "actor": "user",
        "content": "Joost 问能不能把大提琴放进儿童房那间。可以，那间不临街。",
        "tags": ["家里", "搬家"],
        "request_id": "demo-cello",
    }
    first_time = stage.bridge.call("event.append", **event)
    again = stage.bridge.call("event.append", **event)
    stage.conversation.append(event)
    say(f"event.append               → {_shown(first_time)}")
    say(f"the same request once more → {_shown(again)}")
    expect(again == {**first_time, "deduplicated": True}, "a repeated request_id did not return the first result")


def search_at_once(stage: Stage) -> None:
    """Search before there is any index."""
    headline("Searching at once: no index exists, no model has run")
    for query in AT_ONCE:
        expect(bool(_ask(stage, query, hits=1)), f"{query!r} was not found by its words")
    say("The words are searched in the truth itself; the reply says what it had to do without.")


def add_notes(stage: Stage) -> None:
    """Register two folders of markdown notes, and wait for the first generation that holds them."""
    headline("Two folders of notes: a bilingual workspace, and the docs of this repository")
    for path in stage.place.copy_notes():
        source = stage.bridge.call("source.add", path=str(path))
        say(f"source.add {source['name']}: {sum(1 for _ in path.rglob('*.md'))} files that end in .md")
    begun = time.monotonic()
    # It would happen by itself a little later; with index.rebuild one knows which build holds the notes.
    build = stage.bridge.call("index.rebuild", reason="notes added")["build"]
    index = stage.wait_for_index(GENERATION_WAIT_S, lambda index: index["builds"]["published"] >= build, _building)
    expect(
        index["builds"]["published"] >= build, f"no generation within {GENERATION_WAIT_S:g} s: {index['last_error']}"
    )
    rows = ", ".join(f"{count} {corpus}" for corpus, count in index["rows"].items())
    say(f"Generation {index['generation']} serves after {time.monotonic() - begun:.1f} s: {rows}.")


def ask(stage: Stage) -> None:
    """Ask six questions in two languages while there are words only."""
    headline("Six questions, answered by the words of the index")
    for kind, query in (*IN_ITS_WORDS, *IN_OTHER_WORDS):
        _ask(stage, query, kind)
    say("The last three have hardly a word in common with the notes that answer them. Hence the next act.")


def ask_again(stage: Stage) -> None:
    """Let the embedding go on for a while, and ask again what words alone could not find."""
    headline("Meaning comes behind: a local model embeds at the lowest priority, newest first")
    index = stage.wait_for_index(VECTORS_WAIT_S, _all_embedded, _coverage)
    say(f"{_coverage(index)[0].upper()}{_coverage(index)[1:]}.")
    for kind, query in IN_OTHER_WORDS:
        _ask(stage, query, kind)


def show_left_out(stage: Stage) -> None:
    """Show what is not in the index, and why."""
    headline("What was left out is reported, not silently dropped")
    for skip in stage.bridge.call("index.status")["skipped"]:
        place = skip["path"].removeprefix(f"{stage.place.root}/")
        say(f"  {place}: {skip['reason']}")
        detail(f"      {skip['detail']}")


def settle(stage: Stage) -> None:
    """Compare what was acknowledged with what is there."""
    headline("What is left of it")
    load = stage.load
    assert load is not None
    _expect_same(stage, SESSION, [(each.event_id, each.content) for each in load.acknowledged])
    for session in dict.fromkeys(event["session_id"] for event in stage.conversation):
        told = [event["content"] for event in stage.conversation if event["session_id"] == session]
        expect([content for _, content in _history(stage, session)] == told, f"session {session!r} is not as it was")
    good(f"  {len(load.acknowledged)} events were acknowledged during the kills: each is there exactly once, in order.")
    good(f"  {len(stage.conversation)} events from before: each is there exactly once, in order.")
    say(f"  Appends that had to be repeated: {load.retried}, of which stored the first time: {load.deduplicated}.")
    say(f"  {load.searches} searches were answered. {load.asked_fresh} of them asked for the event that had been")
    say(f"  acknowledged a moment before; {load.found_fresh} found it.")
    expect(not load.missed, f"acknowledged events were not found by their words: {', '.join(load.missed[:5])}")
    expect(_answers_from_the_index(stage), f"the index does not answer {BACK_WAIT_S:g} s after the kills")


ACTS = (start, append, search_at_once, add_notes, ask, ask_again, show_left_out, make_it_rough, settle)


# ---------------------------------------------------------------- small things


def _ask(stage: Stage, query: str, kind: str = "", *, hits: int = 2) -> list[Any]:
    """Search, show the first hits, and return all."""
    say(f"  ? {query}" + (f"    ({kind})" if kind else ""))
    answer = stage.bridge.call("memory.search", query=query, limit=5)
    show_answer(answer, hits=hits)
    return list(answer["hits"])


def _answers_from_the_index(stage: Stage) -> bool:
    """Search until a generation answers and not the words alone; return whether one does in time."""
    expires = time.monotonic() + BACK_WAIT_S
    while time.monotonic() < expires:
        answer = stage.bridge.call("memory.search", query=IN_ITS_WORDS[0][1], limit=5)
        if answer["hits"] and answer["generation"] is not None:
            return True
        time.sleep(0.2)
    return False


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


def _history(stage: Stage, session: str) -> list[tuple[str, str]]:
    """Return id and content of every event of a session, in order."""
    events: list[tuple[str, str]] = []
    after, more = 0, True
    while more:
        page = stage.bridge.call("session.history", session_id=session, after_seq=after, limit=PAGE)
        events += [(event["event_id"], event["content"]) for event in page["events"]]
        after, more = page["events"][-1]["seq"] if page["events"] else after, page["more"]
    return events


def _expect_same(stage: Stage, session: str, acknowledged: list[tuple[str, str]]) -> None:
    stored = _history(stage, session)
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


# ---------------------------------------------------------------- the frame


def play(place: Place) -> str | None:
    """Play all acts; return why it failed, None when everything held."""
    stage = Stage(place)
    try:
        for act in ACTS:
            act(stage)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        if stage.load is not None:
            stage.load.stop()
    return None


def leave(place: Place, *, keep: bool) -> list[str]:
    """Drain the daemon and remove the directory; return what was left behind. Not to be interrupted."""
    for each in SIGNALS:
        signal.signal(each, lambda *_: None)
    # First the deed and then the words: there may be nobody left to print to.
    left = place.leave(keep=keep)
    headline("Leaving")
    say(f"The daemon has drained; {place.root} {'is kept' if keep else 'is removed'}.")
    for remains in left:
        bad(f"left behind: {remains}")
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
