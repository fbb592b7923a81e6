"""docs/FAULT-CASES.md names a proof for each fault case, and each proof exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from chaos.scenarios import every_scenario

ROOT = Path(__file__).resolve().parent.parent.parent
IDS = (
    *("H1", "H2", "H3", "H4", "H7", "H8", "H9"),
    *("L1", "L2", "L4", "L6"),
    *("C1", "C2", "C3", "C5", "C7", "C9"),
    *("S1", "S2", "S4"),
    *("M1", "M2", "M4"),
    *("P1", "P2", "P3"),
    *("G1", "G3"),
    *("T1", "T2"),
    *("E1", "E2", "E4", "E5", "E6", "E8"),
    *("B1", "B3"),
    *("R1", "R4", "R7", "R8"),
    *("W2", "W4"),
)


def rows() -> dict[str, list[str]]:
    """Return the proofs of each case."""
    text = (ROOT / "docs" / "FAULT-CASES.md").read_text(encoding="utf-8")
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and re.fullmatch(r"[A-Z]\d+", cells[0]):
            assert cells[0] not in found, f"{cells[0]} stands twice in docs/FAULT-CASES.md"
            assert cells[1], f"{cells[0]} does not say what holds"
            found[cells[0]] = re.findall(r"`([^`]+)`", cells[2])
    return found


@cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


def test_every_case_has_a_row() -> None:
    assert tuple(rows()) == IDS


@pytest.mark.parametrize("case", IDS)
def test_every_proof_exists(case: str) -> None:
    proofs = rows()[case]
    assert proofs, f"{case} has no proof"
    for proof in proofs:
        if proof.startswith("chaos: "):
            assert proof.removeprefix("chaos: ") in every_scenario(), f"{case} names the scenario {proof!r}"
        else:
            path, _, name = proof.partition("::")
            assert (ROOT / path).is_file(), f"{case} names the file {path!r}"
            assert name in names_in(path), f"{case} names the test {proof!r}"
