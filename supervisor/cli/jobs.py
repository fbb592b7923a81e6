"""jobs: what is queued, leased, done or dead; looking at one, replaying a dead one, cancelling one."""

import argparse
import uuid

from supervisor.cli.answers import OK, ask, member, members, say, say_json, table, to_json, when
from supervisor.cli.arguments import Verbs, positive, refuse
from supervisor.client import Client

PROGRAM = "bulkhead jobs"
ACTIONS = ("list", "show", "replay", "cancel")
KINDS = ("embed", "summarize", "replay", "backfill", "archive", "verify")
STATUSES = ("queued", "leased", "done", "dead", "cancelled")


def register(verbs: Verbs) -> None:
    """Add the verb of this file."""
    jobs = verbs.add("jobs", run_jobs, "list jobs, look at one, replay a dead one, or cancel one")
    jobs.add_argument("action", nargs="?", choices=ACTIONS, default="list", help="what to do (list)")
    jobs.add_argument("job_id", nargs="?", metavar="JOB", help="with show, replay and cancel: which one")
    jobs.add_argument("--kind", choices=KINDS, help="with list: only these")
    jobs.add_argument("--status", choices=STATUSES, help="with list: only these")
    jobs.add_argument("--limit", type=positive, default=50, metavar="N", help="with list: at most so many (50)")


def run_jobs(options: argparse.Namespace) -> int:
    """List jobs, or do something to one."""
    if (options.action == "list") != (options.job_id is None):
        refuse(PROGRAM, f"{options.action} takes {'no' if options.action == 'list' else 'a'} JOB")
    with Client(options.data, options.config) as client:
        result = _list(client, options) if options.action == "list" else _do(client, options)
    if options.json:
        say_json(result)
    elif options.action == "list":
        _print(result)
    elif options.action == "show":
        say(to_json(result, indent=2))
    else:
        say(f"{member(result, 'job_id')} is {member(result, 'status')}")
    return OK


def _list(client: Client, options: argparse.Namespace) -> object:
    params: dict[str, object] = {"limit": options.limit}
    for name in ("kind", "status"):
        if (value := getattr(options, name)) is not None:
            params[name] = value
    return ask(client, "job.list", params)


def _do(client: Client, options: argparse.Namespace) -> object:
    if options.action == "show":
        return ask(client, "job.get", {"job_id": options.job_id})
    return ask(client, f"job.{options.action}", {"job_id": options.job_id, "request_id": f"cli-{uuid.uuid4().hex}"})


def _print(result: object) -> None:
    jobs = members(result, "jobs")
    if not jobs:
        say("no jobs")
        return
    rows = [
        (
            each.get("job_id"),
            each.get("kind"),
            each.get("status"),
            f"{each.get('attempts')}/{each.get('attempts_max')}",
            when(each.get("created_at")),
            each.get("session_id") or "",
            _last_error(each),
        )
        for each in jobs
    ]
    headers = ("job", "kind", "status", "attempts", "added", "session", "last error")
    say(table(rows, headers, (None, None, None, None, None, 30, 40)))
    if member(result, "more"):
        say("… and older ones")


def _last_error(job: dict[str, object]) -> object:
    causes = members(job, "causes")
    return causes[-1].get("error") if causes else ""
