"""claim, approvals: whose turn a session is; what waits for a decision, and deciding it."""

import argparse

from supervisor.cli.answers import OK, ask, cut, member, members, say, say_json, table, when
from supervisor.cli.arguments import Verbs, positive, refuse
from supervisor.client import Client

SHOWN_COLUMNS = 60


def register(verbs: Verbs) -> None:
    """Add the verbs of this file."""
    claim = verbs.add("claim", run_claim, "say whose turn a session is; end a claim that nobody will release")
    claim.add_argument("session", metavar="SESSION", help="the session")
    claim.add_argument("--revoke", action="store_true", help="end the claim, whoever holds it")
    claim.add_argument("--yes", action="store_true", help="with --revoke: really do it")
    approvals = verbs.add("approvals", run_approvals, "list what waits for a decision; approve or deny it")
    approvals.add_argument("action", nargs="?", choices=("list", "approve", "deny"), default="list", help="(list)")
    approvals.add_argument("id", nargs="?", metavar="ID", help="with approve and deny: of which approval")
    approvals.add_argument("--reason", metavar="TEXT", help="with approve and deny: why")
    approvals.add_argument("--by", metavar="NAME", help="with approve and deny: who decides")
    approvals.add_argument("--all", action="store_true", help="with list: also what is decided or has expired")
    approvals.add_argument("--limit", type=positive, default=50, metavar="N", help="with list: so many at most (50)")


def run_claim(options: argparse.Namespace) -> int:
    """Show the claim on a session, or end it."""
    if options.revoke and not options.yes:
        refuse("bulkhead claim", "whoever holds the session may still be working on it; add --yes if you mean it")
    with Client(options.data, options.config) as client:
        result = ask(client, "claim.revoke" if options.revoke else "claim.get", {"session_id": options.session})
    if options.json:
        say_json(result)
    elif options.revoke:
        say("the claim is ended" if member(result, "released") else "nobody holds the session")
    elif (claim := member(result, "claim")) is None:
        say("nobody holds the session")
    else:
        rows = [(name, member(claim, name)) for name in ("holder", "claim_id", "token")]
        rows += [(name, when(member(claim, name))) for name in ("granted_at", "expires_at")]
        say(table(rows, ("claim", "")))
    return OK


def run_approvals(options: argparse.Namespace) -> int:
    """List, or decide."""
    if options.action != "list" and options.id is None:
        refuse("bulkhead approvals", f"{options.action} needs the ID of an approval")
    with Client(options.data, options.config) as client:
        if options.action == "list":
            given: dict[str, object] = {"limit": options.limit}
            result = ask(client, "approval.list", given if options.all else {**given, "status": "pending"})
        else:
            decision = "approved" if options.action == "approve" else "denied"
            params = {"approval_id": options.id, "decision": decision, "by": options.by, "reason": options.reason}
            result = ask(
                client, "approval.decide", {name: value for name, value in params.items() if value is not None}
            )
    if options.json:
        say_json(result)
    elif options.action == "list":
        _print(members(result, "approvals"))
    else:
        say(f"{options.id} is {member(result, 'status')}")
    return OK


def _print(approvals: list[dict[str, object]]) -> None:
    if not approvals:
        say("nothing waits for a decision")
        return
    rows = [
        (
            each.get("approval_id"),
            each.get("status"),
            cut(str(each.get("action")), SHOWN_COLUMNS),
            each.get("session_id") or "",
            when(each.get("requested_at")),
            when(each.get("expires_at")) if each.get("expires_at") else "",
        )
        for each in approvals
    ]
    say(table(rows, ("approval", "status", "action", "session", "requested", "expires")))
