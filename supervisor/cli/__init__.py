"""The command line: verbs for people and scripts, each a request or two to the daemon.

Owns nothing. Promises: results on stdout, everything else on stderr; the same exit codes for every verb
(`cli/answers.py`); an unknown verb or option is an error that names the nearest known one. One file a group of
verbs: `service` (init serve stop stdio status), `notes` (add), `memory` (search get append), `turns` (claim
approvals), `index`, `jobs`, `archives` (archive), `poison`, `truth` (restore), `backups` (backup), `exporting`
(export import), `forgetting` (forget), `principals`
(token), `logs`.
"""

import os
import sys

from supervisor import credentials
from supervisor.cli import (
    archives,
    backups,
    exporting,
    forgetting,
    index,
    jobs,
    logs,
    memory,
    notes,
    poison,
    principals,
    service,
    truth,
    turns,
)
from supervisor.cli.answers import BROKEN_PIPE, FAILED, INTERRUPTED, explain, note, prepare_output, quiet_stdout
from supervisor.cli.arguments import Verbs
from supervisor.client import DaemonUnavailable, RequestFailed

GROUPS = (
    *(service, notes, memory, turns, index, jobs, archives, poison, truth, backups, exporting, forgetting),
    *(principals, logs),
)


def main(arguments: list[str]) -> int:
    """Run one command; return its exit code. Leaves by SystemExit for `--help` and wrong usage (2)."""
    prepare_output()
    verbs = Verbs()
    for group in GROUPS:
        group.register(verbs)
    options = verbs.parse(arguments)
    if options.token_file:
        # What the environment says is what every connection of this process says.
        os.environ.pop(credentials.TOKEN, None)
        os.environ[credentials.TOKEN_FILE] = options.token_file
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except (RequestFailed, DaemonUnavailable) as error:
        return explain(error, as_json=options.json)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # `bulkhead search … | head` is no error.
        quiet_stdout()
        return BROKEN_PIPE
    except OSError as error:
        note(f"bulkhead: result not written: {error.strerror or error}")
        quiet_stdout()
        return FAILED
    return code
