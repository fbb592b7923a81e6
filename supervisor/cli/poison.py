"""poison: what brought an actor down twice and is not tried again, and letting it be tried again."""

import argparse

from supervisor.cli.answers import OK, ask, members, number, say, say_json, table
from supervisor.cli.arguments import Verbs
from supervisor.client import Client


def register(verbs: Verbs) -> None:
    """Add the verb of this file."""
    poison = verbs.add("poison", run_poison, "list messages that brought an actor down twice, or let them go")
    poison.add_argument("action", nargs="?", choices=("list", "clear"), default="list", help="what to do (list)")
    poison.add_argument("key", nargs="?", help="with clear: which message; all of them without it")


def run_poison(options: argparse.Namespace) -> int:
    """List or clear."""
    with Client(options.data, options.config) as client:
        if options.action == "clear":
            result = ask(client, "poison.clear", {} if options.key is None else {"key": options.key})
        else:
            result = ask(client, "poison.list")
    if options.json:
        say_json(result)
    elif options.action == "clear":
        say(f"{number(result, 'cleared')} let go")
    else:
        _print(members(result, "messages"))
    return OK


def _print(messages: list[dict[str, object]]) -> None:
    if not messages:
        say("nothing is condemned")
        return
    rows = [(each.get("key"), each.get("actor"), each.get("kind"), each.get("at"), _last(each)) for each in messages]
    say(table(rows, ("key", "actor", "kind", "at", "last death"), (None, None, None, None, 60)))


def _last(message: dict[str, object]) -> object:
    causes = message.get("causes")
    return causes[-1] if isinstance(causes, list) and causes else None
