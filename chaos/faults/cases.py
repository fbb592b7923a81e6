"""What the scenarios of the disk and of the mutations have in common."""

import re

from chaos.faults.disk import unavailable
from chaos.scenario import Run, Verdict

# The file of each truth, as a part of its path; transcript segments are numbered.
TRUTH = {"core_writer": "core.db", "transcript_appender": "transcript_appender/0"}
# Who notices when the disk of a truth fails.
OPERATIONS = {"core_writer": ("unit",), "transcript_appender": ("append", "history")}
DEADLINE_EXCEEDED, DISK_FULL = 1004, 1005
OVERLOADED, UNAVAILABLE, STORE_BROKEN, INTERRUPTED = 1001, 1010, 1012, 1018
# What has to work again before the next fault: searches are answered by keyword until LanceDB has started.
SERVED = ("append", "write", "read")


def without_disk(given: Run, name: str) -> Verdict | None:
    """Return the verdict of a scenario that can't run because this interpreter's SQLite is out of reach, else None."""
    reason = unavailable()
    if reason is None:
        return None
    return Verdict(scenario=name, seed=given.seed, tier=given.tier, violations=[], faults=0, skipped=reason)


def noticed(verdict: Verdict, expected: str) -> Verdict:
    """Judge a scenario that must fail: it may only fail for the reason that a pattern describes.

    What does not match becomes the fact `other_violations`. When nothing matches, the verdict passes: the run is red.
    """
    matching = [text for text in verdict.violations if re.search(expected, text)]
    others = [text for text in verdict.violations if not re.search(expected, text)]
    verdict.facts["noticed"] = len(matching)
    if others:
        verdict.facts["other_violations"] = others[:5]
    verdict.violations = matching
    return verdict
