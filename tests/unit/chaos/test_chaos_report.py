"""The report: well-formed, complete, nothing on top of something else."""

import random
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

from chaos.figure import CHAR, DOTS_MAX, LABEL_GAP, LEFT, RIGHT, SLOWEST, clock, draw, label_rows, thin, turned
from chaos.report import write_report
from chaos.runner import Result
from chaos.scenario import Verdict
from chaos.timeline import Mark, Move, Op, Span, Timeline

SVG = "{http://www.w3.org/2000/svg}"


def operations(count: int, *, bad: int = 0) -> list[Op]:
    rng = random.Random(1)
    kinds = ("append", "unit", "history", "search", "strange")
    good = [Op(at=rng.random() * 30, name=rng.choice(kinds), seconds=rng.lognormvariate(-4, 1)) for _ in range(count)]
    return good + [Op(at=n / 10, name="append", seconds=6.0, outcome="1002", detail='<&"') for n in range(bad)]


def timeline(*, ops: list[Op] | None = None, marks: int = 12) -> Timeline:
    states = ("starting", "ready", "failed", "backoff", "starting", "ready")
    moves = [
        Move(at=n * 3.0 - 2, life=1, actor="core_writer", epoch=1, before="new", after=state, cause="a <cause>")
        for n, state in enumerate(states)
    ]
    return Timeline(
        scenario="s",
        seconds=30.0,
        ops=operations(300, bad=5) if ops is None else ops,
        marks=[Mark(at=1 + n * 0.4, name=f"fault{n}", target="core_writer") for n in range(marks)],
        moves=moves,
        lives=[Span(name="1", begin=-2, end=14), Span(name="2", begin=15, end=90)],
        windows=[Span(name="idle", begin=20, end=25)],
    )


def texts(root: ET.Element, kind: str) -> list[ET.Element]:
    return [each for each in root.iter(f"{SVG}text") if each.get("class") == kind]


def test_the_picture_is_well_formed_and_inside_its_frame() -> None:
    root = ET.fromstring(draw(timeline()))
    width, height = (float(each) for each in root.attrib["viewBox"].split()[2:])
    for each in root.iter(f"{SVG}rect"):
        left, top = float(each.attrib["x"]), float(each.attrib["y"])
        assert left >= LEFT and left + float(each.attrib["width"]) <= RIGHT + 2 <= width
        assert top >= 0 and top + float(each.attrib["height"]) <= height
    for each in root.iter(f"{SVG}path"):
        for x, y in re.findall(r"M([-\d.]+) ([-\d.]+)", each.attrib["d"]):
            assert LEFT - 4 <= float(x) <= RIGHT + 4 and 0 <= float(y) <= height
    assert len([each for each in root.iter(f"{SVG}path") if each.get("class") == "cross"]) == 5
    assert len([each for each in root.iter(f"{SVG}path") if each.get("class") == "fault"]) == 12


def test_an_empty_scenario_has_a_picture_too() -> None:
    empty = Timeline(scenario="s", seconds=0.0, ops=[], marks=[], moves=[], lives=[], windows=[])
    assert ET.fromstring(draw(empty)).tag == f"{SVG}svg"


def test_labels_of_faults_never_overlap() -> None:
    rng = random.Random(2)
    for _ in range(50):
        labels = sorted((rng.uniform(LEFT, RIGHT), "x" * rng.randint(3, 40)) for _ in range(40))
        taken: dict[int, list[tuple[float, float]]] = {}
        for (at, text), row in zip(labels, label_rows(labels), strict=True):
            if row is None:
                continue
            width = len(text) * CHAR
            left, right = (at - width, at) if turned(at, text) else (at, at + width)
            assert right <= RIGHT + 4
            assert all(right < begin or end < left for begin, end in taken.get(row, []))
            taken.setdefault(row, []).append((left, right))
    assert LABEL_GAP > 0


def test_faults_of_a_kind_in_a_row_share_a_label() -> None:
    line = timeline()
    line.marks = [Mark(at=n * 0.3, name="SIGKILL", target="core_writer") for n in range(6)]
    flags = texts(ET.fromstring(draw(line)), "flag")
    assert [each.text for each in flags] == ["SIGKILL core × 6"]


def test_thinning_keeps_the_slowest() -> None:
    ops = operations(20_000)
    kept = thin(ops)
    assert len(kept) <= DOTS_MAX + 2
    slowest = sorted(ops, key=lambda op: op.seconds)[-SLOWEST:]
    assert {op.seconds for op in slowest} <= {op.seconds for op in kept}
    assert thin(ops[:10]) == ops[:10]


def test_times_read_well() -> None:
    assert [clock(0.5, 0.5), clock(90, 30), clock(90, 60), clock(7200, 3600)] == ["0.5 s", "90 s", "1:30", "2.0 h"]


class Tags(HTMLParser):
    """Counts what stays open."""

    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def result(name: str, **given: object) -> Result:
    verdict = Verdict(
        scenario=name, seed=1, violations=[], faults=3, facts={"ops": {"append": {"count": 7, "p99_ms": 5}}}
    )
    fields = {"purpose": "a <purpose>", "must_fail": False, "faults": ("SIGKILL × core",), "expect": ()}
    return Result(scenario=name, verdict=verdict, timelines=[timeline()], **{**fields, **given})  # type: ignore[arg-type]


def test_the_page_holds_every_scenario_and_loads_nothing(tmp_path: Path) -> None:
    failed = result("failed")
    failed.verdict.violations.append("I1: <script>alert(1)</script> lost")
    skipped = result("skipped")
    skipped.verdict.skipped = "no root"
    page = write_report(tmp_path / "out", [result("good"), failed, skipped], seed=5, tier="ci").read_text()
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert page.count("<section") == 3 and page.count("<svg") == 3
    assert "<script" not in page and "no root" in page
    without_names = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"(https?:|src=|@import|url\()", without_names)
