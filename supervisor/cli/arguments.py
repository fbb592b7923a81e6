"""The options that every verb has, and argparse with errors that help.

`--data`, `--config` and `--json` are accepted before and after the verb. An abbreviated option is not accepted: a
script that relied on one would break with the next option that begins the same way.
"""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from supervisor.version import VERSION

USAGE = 2
_RELATIVE = re.compile(r"^(\d{1,6})(m|h|d|w)$")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_WITH_VALUE = ("--data", "--config", "--token-file")

Run = Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """argparse, with one line for an error instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where to read on; exit with 2."""
        refuse(self.prog, message)


class Verbs:
    """The parser of the whole command line; each group of verbs adds its own."""

    def __init__(self) -> None:
        self._parser = Parser(
            prog="bulkhead",
            description="Keep an AI agent's memory, and find things in it.",
            epilog="Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 69 no daemon, 75 try again later.",
            allow_abbrev=False,
        )
        _add_common(self._parser, suppress=False)
        self._parser.add_argument("--version", action="version", version=f"bulkhead {VERSION}")
        self._parsers: dict[str, Parser] = {}
        self._verbs = self._parser.add_subparsers(metavar="VERB", required=True, dest="verb", parser_class=Parser)

    def add(self, name: str, run: Run, summary: str) -> argparse.ArgumentParser:
        """Add a verb; return its parser, for its own options."""
        parser = self._verbs.add_parser(
            name, help=summary, description=summary[:1].upper() + summary[1:] + ".", allow_abbrev=False
        )
        _add_common(parser, suppress=True)
        parser.set_defaults(run=run)
        self._parsers[name] = parser
        return parser

    def parse(self, arguments: list[str]) -> argparse.Namespace:
        """Return the options of the command; exit with 2 and the nearest known name when something is not known."""
        arguments = [readable(argument) for argument in arguments]
        verb = _first_word(arguments)
        if verb is not None and verb not in self._parsers:
            refuse("bulkhead", f"unknown command {verb!r}{nearest(verb, self._parsers)}")
        options, unknown = self._parser.parse_known_args(arguments)
        if unknown:
            self._refuse_unknown(options.verb, unknown[0])
        return options

    def _refuse_unknown(self, verb: str, word: str) -> NoReturn:
        program = f"bulkhead {verb}"
        if not word.startswith("-"):
            refuse(program, f"unexpected {word!r}: write it before the options, or in quotes")
        known = [name for name in self._parsers[verb]._option_string_actions if name.startswith("--")]
        name = word.partition("=")[0]
        refuse(program, f"unknown option {name!r}{nearest(name, known)}; text that begins with a dash goes after --")


def refuse(program: str, message: str) -> NoReturn:
    """Exit with 2 because the command cannot be understood."""
    sys.stderr.write(f"{program}: {message}\nsee: {program} --help\n")
    sys.exit(USAGE)


def nearest(word: str, known: "dict[str, Parser] | list[str]") -> str:
    """Return a phrase that names the known word that was probably meant."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"


def readable(argument: str) -> str:
    """Return an argument as text: its bytes are UTF-8 whatever the locale says; exit with 2 when they are not."""
    try:
        return os.fsencode(argument).decode("utf-8") if not argument.isascii() and _escaped(argument) else argument
    except UnicodeDecodeError as error:
        shown = os.fsencode(argument)[:40]
        refuse("bulkhead", f"argument {shown!r} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}")


def moment(text: str) -> int:
    """Return µs since the epoch for a date, a date with a time, or an age such as 90m, 12h, 7d, 2w.

    Without an offset it is local time. For argparse: raises ArgumentTypeError.
    """
    if (age := _RELATIVE.match(text)) is not None:
        at = datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})
    else:
        try:
            at = datetime.fromisoformat(text).astimezone(UTC)
        except (ValueError, OverflowError):
            raise argparse.ArgumentTypeError(
                f"{text!r} is no time; examples: 2026-05-01, 2026-05-01T09:30, 2026-05-01T09:30:00+08:00, 12h, 7d"
            ) from None
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def positive(text: str) -> int:
    """Return a whole number of at least 1. For argparse: raises ArgumentTypeError."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _add_common(parser: argparse.ArgumentParser, *, suppress: bool) -> None:
    # Suppressed below the verb, so that what was given before the verb is not overwritten with a default.
    absent = argparse.SUPPRESS if suppress else None
    parser.add_argument("--data", metavar="DIR", default=absent, help="data directory (BULKHEAD_DATA)")
    parser.add_argument("--config", metavar="FILE", default=absent, help="configuration file (BULKHEAD_CONFIG)")
    parser.add_argument(
        "--token-file", metavar="FILE", default=absent, help="the token of a principal (BULKHEAD_TOKEN_FILE)"
    )
    parser.add_argument("--json", action="store_true", default=absent or False, help="print the result as JSON")


def _first_word(arguments: list[str]) -> str | None:
    """Return the verb: the first word that is neither an option nor the value of one."""
    words = iter(arguments)
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word
    return None


def _escaped(argument: str) -> bool:
    return any("\udc80" <= character <= "\udcff" for character in argument)
