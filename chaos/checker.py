"""The invariants of a run, as functions from what was observed to what is wrong. Pure: no daemon, no clock, no files.

I1  acknowledged writes are there exactly once       I8  operations that no fault touches do not fail
I2  writes refused as `not_executed` are absent      I9  CURRENT names a sound generation; numbers never go back
I3  writes of unknown outcome: absent or once        I10 nothing is left behind (chaos.leaks)
I4  order, no gaps, the content that was sent        I11 each death has one restart or one terminal state
I5  what was acknowledged is read at once            I12 the files pass their own checks (chaos.databases)
I6  every request is answered by its deadline        I13 every line of a daemon or bridge is a frame
I7  errors are those that the fault may cause

Every violation begins with its number. Each of them has a test that makes it red.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from chaos.history import Append, Put, content_hash
from chaos.timeline import HUNG, OK, Move, Op

LATE_S = 0.25
SHOWN = 20
DEATH = "failed"
AFTER_DEATH = frozenset({"backoff", "broken", "quarantined", "stopped"})
SETTLED = frozenset({"ready", "degraded", "broken", "quarantined"})


# ---------------------------------------------------------------- I1 to I4: events


def check_appends(
    known: Mapping[str, Append],
    stored: Sequence[Mapping[str, Any]],
    *,
    everything: Mapping[str, Append] | None = None,
) -> list[str]:
    """Compare what clients were told about appends with all events that are stored.

    `known` is judged as it stands; `everything` may hold appends that were begun later and are only looked up.
    """
    by_request: dict[str, list[Mapping[str, Any]]] = {}
    for event in stored:
        by_request.setdefault(event["request_id"], []).append(event)
    wrong = []
    for request_id, append in known.items():
        wrong += _judge_append(append, by_request.get(request_id, []))
    sent = known if everything is None else everything
    for request_id, found in by_request.items():
        if request_id not in sent:
            wrong.append(f"I1: {request_id!r} is stored but was never sent")
        elif any(_is_other(sent[request_id], event) for event in found):
            wrong.append(f"I4: {request_id}: stored with other content, session or hash than was sent")
    return wrong


def _judge_append(append: Append, found: Sequence[Mapping[str, Any]]) -> list[str]:
    what = append.request_id
    if append.outcome == "ok" and len(found) != 1:
        return [f"I1: {what}: acknowledged as seq {append.seq}, found {len(found)} times"]
    if append.outcome == "ok" and (found[0]["seq"], found[0]["event_id"]) != (append.seq, append.event_id):
        return [f"I1: {what}: acknowledged as seq {append.seq}, stored as seq {found[0]['seq']}"]
    if append.outcome == "not_executed" and found:
        return [f"I2: {what}: refused as not executed, but stored as seq {found[0]['seq']}"]
    if append.outcome == "unknown" and len(found) > 1:
        return [f"I3: {what}: outcome unknown, stored {len(found)} times"]
    return []


def _is_other(append: Append, event: Mapping[str, Any]) -> bool:
    stored = (event["content"], event["content_hash"], event["session_id"])
    return stored != (append.content, content_hash(append.content), append.session_id)


def check_order(seqs: Iterable[int], *, breaks: int = 0) -> list[str]:
    """Check the seqs of all events of a data directory: they begin at 1, without gaps (but `breaks`), each once."""
    ordered = sorted(seqs)
    twice = sorted({a for a, b in pairwise(ordered) if a == b})
    gaps = [(a, b) for a, b in pairwise([0, *ordered]) if b > a + 1]
    wrong = []
    if twice:
        wrong.append(f"I4: seqs given twice: {twice[:10]}")
    if len(gaps) > breaks:
        wrong.append(f"I4: seq has {len(gaps)} gaps among {len(ordered)} events, {breaks} allowed: {gaps[:5]}")
    return wrong


def check_sessions(stored: Sequence[Mapping[str, Any]], appends: Iterable[Append]) -> list[str]:
    """Check the order inside sessions: as listed, and as sent: what was begun after an acknowledgement comes later."""
    wrong, last = [], dict[str, int]()
    for event in stored:
        session = event["session_id"]
        if event["seq"] <= last.get(session, 0):
            wrong.append(f"I4: session {session!r}: seq {event['seq']} is listed after {last[session]}")
        last[session] = event["seq"]
    by_session: dict[str, list[Append]] = {}
    for append in appends:
        if append.outcome == "ok":
            by_session.setdefault(append.session_id, []).append(append)
    for session, sent in by_session.items():
        wrong += _check_sent_order(session, sent)
    return wrong


def _check_sent_order(session: str, sent: Sequence[Append]) -> list[str]:
    wrong, highest = [], 0
    acknowledged = sorted(sent, key=lambda append: append.acknowledged_at)
    done = 0
    for append in sorted(sent, key=lambda append: append.began_at):
        while done < len(acknowledged) and acknowledged[done].acknowledged_at < append.began_at:
            highest = max(highest, acknowledged[done].seq or 0)
            done += 1
        if (append.seq or 0) <= highest:
            wrong.append(f"I4: session {session!r}: {append.request_id} has seq {append.seq}, an earlier one {highest}")
    return wrong


# ---------------------------------------------------------------- I1 to I4: units


def check_units(
    known: Mapping[str, Put],
    stored: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    everything: Mapping[str, Put] | None = None,
) -> list[str]:
    """Compare what clients were told about units with all stored versions (by unit, the oldest first)."""
    sent = {put.text for put in (known if everything is None else everything).values()}
    wrong = []
    by_unit: dict[str, list[Put]] = {}
    for put in known.values():
        by_unit.setdefault(put.unit_id, []).append(put)
    for unit_id, puts in by_unit.items():
        versions = stored.get(unit_id, ())
        numbers = [row["version"] for row in versions]
        if numbers != list(range(1, len(numbers) + 1)):
            wrong.append(f"I4: unit {unit_id}: versions are {numbers[:SHOWN]}, must count from 1 without gaps")
        core_seqs = [row["core_seq"] for row in versions]
        if core_seqs != sorted(set(core_seqs)):
            wrong.append(f"I4: unit {unit_id}: core_seq does not rise with the version")
        by_text: dict[str, list[Mapping[str, Any]]] = {}
        for row in versions:
            by_text.setdefault(row["text"], []).append(row)
        for put in puts:
            wrong += _judge_put(put, by_text.pop(put.text, []))
        wrong += [
            f"I4: unit {unit_id}: version {rows[0]['version']} was never sent"
            for text, rows in by_text.items()
            if text not in sent
        ]
    return wrong


def _judge_put(put: Put, found: Sequence[Mapping[str, Any]]) -> list[str]:
    if put.outcome == "ok" and len(found) != 1:
        return [f"I1: {put.request_id}: acknowledged as version {put.version}, found {len(found)} times"]
    if put.outcome == "ok" and (found[0]["version"], found[0]["core_seq"]) != (put.version, put.core_seq):
        return [f"I1: {put.request_id}: acknowledged as version {put.version}, stored as {found[0]['version']}"]
    if put.outcome == "not_executed" and found:
        return [f"I2: {put.request_id}: refused as not executed, but stored as version {found[0]['version']}"]
    if put.outcome == "unknown" and len(found) > 1:
        return [f"I3: {put.request_id}: outcome unknown, stored {len(found)} times"]
    return []


# ---------------------------------------------------------------- I6 to I8: answers


def check_answers(ops: Iterable[Op], allowed: Mapping[str, Collection[str]], ignore: Collection[str]) -> list[str]:
    """Check that every request was answered in time, and with nothing but what the faults may cause.

    `allowed` names per operation the outcomes that a fault may cause; one without an entry is untouched by faults.
    Operations in `ignore` may fail as they like, but not hang.
    """
    wrong = []
    for op in ops:
        may = allowed.get(op.name, ())
        if op.outcome in may:
            continue
        if op.outcome == HUNG:
            wrong.append(f"I6: {_told(op)}: no answer at all")
        elif op.late_s > LATE_S and op.outcome != "lost":
            wrong.append(f"I6: {_told(op)}: answered {op.late_s * 1000:.0f} ms after its deadline ({op.outcome})")
        elif op.outcome == OK or op.name in ignore:
            continue
        elif may:
            wrong.append(f"I7: {_told(op)}: error {op.outcome}, this fault may only cause {sorted(may)}")
        else:
            wrong.append(f"I8: {_told(op)}: error {op.outcome}, and no fault touches this operation")
    return wrong


def _told(op: Op) -> str:
    return (
        f"{op.name} after {op.seconds:.3f} s ({op.detail[:200]})" if op.detail else f"{op.name} at {op.seconds:.3f} s"
    )


# ---------------------------------------------------------------- I9: generations


def check_generations(ops: Iterable[Op], resets: Sequence[float] = ()) -> list[str]:
    """Check that no search was answered by an older generation than one that had ended before it began.

    `resets` are the instants after which an older one may serve: a rollback by command, a fallback from damage.
    """
    answered = [op for op in ops if op.generation is not None]
    ended = sorted(answered, key=lambda op: op.end)
    wrong, highest, done, since = [], 0, 0, 0.0
    for op in sorted(answered, key=lambda op: op.at):
        latest = max((at for at in resets if at <= op.end), default=0.0)
        if latest > since:
            since, highest = latest, 0
        while done < len(ended) and ended[done].end < op.at:
            if ended[done].at >= since:
                highest = max(highest, ended[done].generation or 0)
            done += 1
        if (op.generation or 0) < highest:
            wrong.append(f"I9: a search was answered by generation {op.generation} after one by {highest}")
    return wrong


# ---------------------------------------------------------------- I11: the supervisor's log


def check_moves(moves: Iterable[Move], *, gaps: int = 0, running: Collection[str] = ()) -> list[str]:
    """Check the changes of state: unbroken chains, one outcome for each death, epochs that rise by one.

    Every actor of `running` must have ended in a settled state. Judges nothing when entries were missed (`gaps`).
    """
    if gaps:
        return []
    chains: dict[tuple[int, str], list[Move]] = {}
    for move in moves:
        chains.setdefault((move.life, move.actor), []).append(move)
    wrong = []
    for (_, actor), chain in chains.items():
        for before, after in pairwise(chain):
            wrong += _check_step(actor, before, after)
    latest = max((life for life, _ in chains), default=0)
    for actor in running:
        last = chains.get((latest, actor))
        if last is not None and last[-1].after not in SETTLED:
            wrong.append(f"I11: {actor} ended in state {last[-1].after!r}, epoch {last[-1].epoch}")
    return wrong


def _check_step(actor: str, before: Move, after: Move) -> list[str]:
    if before.after != after.before:
        return [f"I11: {actor} went to {before.after!r} and then left {after.before!r} (epoch {after.epoch})"]
    wrong = []
    if before.after == DEATH and after.after not in AFTER_DEATH:
        wrong.append(f"I11: {actor}: the death of epoch {before.epoch} led to {after.after!r}")
    step = after.epoch - before.epoch
    if step != (1 if after.after == "starting" else 0):
        wrong.append(f"I11: {actor}: epoch went from {before.epoch} to {after.epoch} on the way to {after.after!r}")
    return wrong
