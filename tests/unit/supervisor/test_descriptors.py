"""The limit of open files: raised where it may be, and fewer clients where it is small."""

import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.config import ProtocolLimits
from supervisor.descriptors import OWN_DESCRIPTORS, Descriptors

ROOT = Path(__file__).resolve().parents[3]
CODE = """
import resource, sys
from supervisor.descriptors import Descriptors
soft, hard, wanted = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(Descriptors.raise_limit(wanted).limit, *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "after"),
    [
        (100, 400, 300, 300),
        (100, 400, 8192, 400),
        (256, 256, 8192, 256),
        (300, 400, 200, 300),  # never lowered
    ],
)
def test_the_soft_limit_is_raised_towards_the_hard_one(soft: int, hard: int, wanted: int, after: int) -> None:
    command = [sys.executable, "-c", CODE, str(soft), str(hard), str(wanted)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.split() == [str(after), str(after), str(hard)]


@pytest.mark.parametrize(
    ("limit", "clients"),
    [(8192, 256), (256 + OWN_DESCRIPTORS, 256), (255 + OWN_DESCRIPTORS, 255), (OWN_DESCRIPTORS, 1), (16, 1)],
)
def test_only_as_many_clients_are_let_in_as_there_are_descriptors(limit: int, clients: int) -> None:
    fitted = Descriptors(limit=limit).fit_clients(ProtocolLimits(clients_max=256))
    assert fitted.clients_max == clients
    assert fitted.in_flight_max == ProtocolLimits().in_flight_max
