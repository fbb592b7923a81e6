"""docs/OPERATIONS.md has a row for every fault and actor that a scenario covers, and no blank cell."""

import re
from pathlib import Path

from chaos.matrix import rows
from chaos.scenarios import every_scenario

PAGE = Path(__file__).resolve().parents[2] / "docs" / "OPERATIONS.md"


def cells() -> list[list[str]]:
    """Return the cells of the table on the page, row by row."""
    table = PAGE.read_text(encoding="utf-8").split("<!-- faults: begin -->")[1].split("<!-- faults: end -->")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def test_every_cell_of_the_matrix_has_its_row() -> None:
    """`python -m chaos table DIR` prints the table anew."""
    wanted = [(row.fault, row.actor, set(row.scenarios)) for row in rows(every_scenario().values())]
    found = [(row[0], row[1], set(re.findall(r"`(\w+)`", row[5]))) for row in cells()]
    assert found == wanted


def test_no_cell_is_blank() -> None:
    assert all(len(row) == 6 and all(row) for row in cells())
