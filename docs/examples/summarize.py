"""A worker for `summarize` jobs: leases one, reads its events, puts a unit, completes the job. Standard library only.

    python docs/examples/summarize.py                          # goes on for ever
    python docs/examples/summarize.py --drain                  # until no such job is left
    python docs/examples/summarize.py --bridge "bulkhead stdio --data DIR"

It may be killed at any moment, and so may the daemon: whoever leases the job after that puts the same unit again, under
the same request_id, which changes nothing. docs/JOBS.md explains each message.

The summary is an extract: the sentences whose words the conversation uses most, English or Chinese, in their order. Put
a model in place of `summarize`, and keep the rest.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

PAGE_EVENTS = 200
SENTENCES = 5
SENTENCE_CHARS = 300
IDLE_S = 1.0
ATTEMPTS = 30
CONFLICT = 1014
_ENDS = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")
_WORDS = re.compile(r"[a-z0-9]+(?:'[a-z]+)?|[\u4e00-\u9fff]+")


class Refused(Exception):
    """The daemon answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]
        self.retryable: bool = (error.get("data") or {}).get("retryable") is True


class Bridge:
    """A `bulkhead stdio` process, asked one thing after the other. It starts the daemon when there is none."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._last_id = 0

    def call(self, method: str, **params: object) -> Any:
        """Return the result of a request. What may succeed later is tried again as it is: a write has a request_id."""
        for _ in range(ATTEMPTS):
            try:
                return self._call_once(method, params)
            except Refused as error:
                if not error.retryable:
                    raise
                time.sleep(IDLE_S)
        return self._call_once(method, params)

    def _call_once(self, method: str, params: dict[str, object]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._last_id += 1
        request = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            answer = json.loads(line)
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    raise Refused(answer["error"])
                return answer["result"]
        raise SystemExit("the bridge has ended")


class Sentence(NamedTuple):
    """A sentence of the conversation, and the event that it is from."""

    text: str
    event_id: str
    place: int


def summarize(events: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """Return a summary, and the ids of the events that it rests on; the same events give the same summary."""
    sentences: list[Sentence] = []
    for event in events:
        if event["kind"] == "message":
            for text in _ENDS.split(event["content"]):
                if len(_terms(text)) >= 3:
                    sentences.append(Sentence(text.strip()[:SENTENCE_CHARS], event["event_id"], len(sentences)))
    weights = Counter(term for sentence in sentences for term in set(_terms(sentence.text)))
    best = sorted(sentences, key=lambda sentence: (-_score(sentence.text, weights), sentence.place))
    chosen = sorted(_distinct(best)[:SENTENCES], key=lambda sentence: sentence.place)
    return "\n".join(sentence.text for sentence in chosen), list(dict.fromkeys(each.event_id for each in chosen))


def _terms(text: str) -> list[str]:
    """Return the words of a text; Chinese, which has no spaces, by pairs of characters."""
    terms: list[str] = []
    for word in _WORDS.findall(text.lower()):
        is_latin = word[0] < "\u4e00"
        terms += [word] if is_latin else [word[at : at + 2] for at in range(max(1, len(word) - 1))]
    return terms


def _score(text: str, weights: Counter[str]) -> float:
    """Return how much a sentence says of what is said often; a long one is no better for its length."""
    terms = set(_terms(text))
    return sum(weights[term] for term in terms if weights[term] > 1) / (8 + len(terms))


def _distinct(sentences: list[Sentence]) -> list[Sentence]:
    return list({sentence.text: sentence for sentence in reversed(sentences)}.values())[::-1]


class Worker:
    """Does jobs, one after the other."""

    def __init__(self, bridge: Bridge, *, lease_ms: int, pace_s: float) -> None:
        self._bridge = bridge
        self._lease_ms = lease_ms
        self._pace_s = pace_s
        self._name = f"summarize.py {os.getpid()}"

    def run(self, *, drain: bool) -> None:
        """Lease and do jobs; with `drain` until there is none that is queued or leased."""
        while True:
            leased = self._bridge.call(
                "job.lease",
                kinds=["summarize"],
                lease_ms=self._lease_ms,
                worker=self._name,
                request_id=f"lease-{uuid.uuid4().hex}",
            )
            for job in leased["jobs"]:
                self._do(job)
            if not leased["jobs"]:
                if drain and not self._is_work_left():
                    return
                time.sleep(IDLE_S)

    def _do(self, job: dict[str, Any]) -> None:
        self._say("leased", job)
        try:
            self._put_summary(job)
        except Refused as error:
            if error.code == CONFLICT:
                # The lease is over: the job is somebody else's by now, or nobody's, and will be done.
                self._say("lost", job)
                return
            self._fail(job, error)

    def _put_summary(self, job: dict[str, Any]) -> None:
        job_id, token, task = job["job_id"], job["token"], job["payload"]
        text, event_refs = summarize(list(self._events(job)))
        unit_id = None
        if text:
            unit_id = f"summary-{job_id}"
            self._bridge.call(
                "unit.put",
                unit_id=unit_id,
                type="summary",
                scope="session",
                session_id=task["session_id"],
                text=text,
                event_refs=event_refs,
                facts={"job_id": job_id, "after_seq": task["after_seq"], "until_seq": task["until_seq"]},
                # Of the job, not of this attempt: a unit that an earlier attempt has put is not put again.
                request_id=f"summarize-{job_id}",
            )
            self._say("put", job)
        self._bridge.call("job.complete", job_id=job_id, token=token, result={"unit_id": unit_id})
        self._say("completed", job)

    def _events(self, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events of the job page by page; a long session takes longer than the first lease."""
        task = job["payload"]
        after_seq, more = task["after_seq"], True
        while more:
            page = self._bridge.call(
                "session.history", session_id=task["session_id"], after_seq=after_seq, limit=PAGE_EVENTS
            )
            for event in page["events"]:
                if event["seq"] > task["until_seq"]:
                    return
                yield event
                after_seq = event["seq"]
            more = page["more"]
            self._bridge.call("job.renew", job_id=job["job_id"], token=job["token"], lease_ms=self._lease_ms)

    def _fail(self, job: dict[str, Any], error: Refused) -> None:
        try:
            self._bridge.call("job.fail", job_id=job["job_id"], token=job["token"], error=str(error))
        except Refused as refusal:
            if refusal.code != CONFLICT:
                raise
        self._say("failed", job)

    def _is_work_left(self) -> bool:
        return any(
            self._bridge.call("job.list", kind="summarize", status=status, limit=1)["jobs"]
            for status in ("queued", "leased")
        )

    def _say(self, what: str, job: dict[str, Any]) -> None:
        print(what, job["job_id"], f"attempt {job['attempt']}", flush=True)
        time.sleep(self._pace_s)


def main() -> None:
    """Read the command line and work."""
    parser = argparse.ArgumentParser(description="summarise sessions through the job queue of Bulkhead")
    parser.add_argument("--bridge", default="bulkhead stdio", help="the command that talks to the daemon (%(default)s)")
    parser.add_argument("--lease-ms", type=int, default=60_000, help="how long a job is ours (%(default)s)")
    parser.add_argument("--drain", action="store_true", help="leave when no job is left")
    parser.add_argument("--pace", type=float, default=0.0, metavar="S", help="pause between steps, to watch them")
    given = parser.parse_args()
    worker = Worker(Bridge(shlex.split(given.bridge)), lease_ms=given.lease_ms, pace_s=given.pace)
    worker.run(drain=given.drain)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
