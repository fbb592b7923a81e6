"""The incident's report: what it counts, what it draws. On a made-up run that has the shape of the incident."""

import random
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from actors.generation_builder.chunk import ChunkLimits, chunk_markdown
from actors.notes import encoding_of, open_note, segments
from actors.settings import GenerationBuilderSettings
from bench.incident.command import main
from bench.incident.figure import DOTS_MAX, LEFT, RIGHT, SLOWEST, draw, message, thin, windows_shown
from bench.incident.measure import longest_wait_s, numbers, percentile, waits
from bench.incident.results import (
    BULKHEAD,
    IDLE,
    LATE,
    LOCKED,
    MONOLITH,
    OK,
    PACE_S,
    REBUILD,
    REPLAYED,
    Op,
    Rebuild,
    Results,
    Usage,
    Window,
)
from bench.incident.table import BEGIN, END, duration, full_table, ratio, ratio_table, replace_between
from bench.incident.work import Sizes, question, write_notes
from bench.incident.work import message as turn

ROOT = Path(__file__).resolve().parent.parent.parent.parent
SVG = "{http://www.w3.org/2000/svg}"
START = 1000.0
MEDIAN_MS = {"append": 1.5, "approval": 1.4, "search": 60.0}


def quiet(kind: str, begin: float, end: float, rng: random.Random) -> list[Op]:
    """Return operations of a kind that all succeed soon."""
    count = int((end - begin) / PACE_S[kind])
    return [
        Op(
            kind=kind,
            at=begin + number * PACE_S[kind],
            seconds=MEDIAN_MS[kind] / 1000 * rng.lognormvariate(0, 0.3),
        )
        for number in range(count)
    ]


def window(system: str, phase: str, *, lead: float = 8.0, seconds: float = 30.0) -> Window:
    """Return a window in which nothing goes wrong."""
    rng = random.Random(f"{system} {phase}")
    ops = [op for kind in PACE_S for op in quiet(kind, START - lead, START + seconds, rng)]
    return Window(system=system, phase=phase, begin=START, end=START + seconds, ops=ops)


def locked_window(build_s: float, publish_s: float) -> Window:
    """Return a window of the one file: all well until the publication, then the lock, the deadline and the replay."""
    begin, end = START + build_s, START + build_s + publish_s
    rng = random.Random(4)
    ops = []
    for kind in PACE_S:
        ops += quiet(kind, START - 8.0, begin, rng)
        at, resume = begin, end
        if kind == "search":
            ops.append(Op(kind=kind, at=begin, seconds=15.0, outcome=LATE))
            at, resume = begin + 15.0, max(end, begin + 75.0)
            while at < resume:
                ops.append(Op(kind=kind, at=at, seconds=0.0001, outcome=REPLAYED))
                at += PACE_S[kind]
        while kind != "search" and at + 5.0 < end:
            ops.append(Op(kind=kind, at=at, seconds=5.0, outcome=LOCKED))
            at += 5.0
        if kind != "search":
            ops.append(Op(kind=kind, at=at, seconds=end - at))
        ops += quiet(kind, resume + 0.01, begin + 80.0, rng)
    rebuild = Rebuild(begin=START, end=end, publish_s=publish_s)
    return Window(system=MONOLITH, phase=REBUILD, begin=START, end=begin + 77.0, ops=ops, rebuilds=[rebuild])


def incident(publish_s: float = 43.5) -> Results:
    """Return a whole run."""
    lasted = 60.0 + 77.0
    rebuilds = [
        Rebuild(begin=START + 28.0 * number, end=START + 28.0 * number + 27.6, publish_s=0.006) for number in range(5)
    ]
    felt = msgspec.structs.replace(window(BULKHEAD, REBUILD, seconds=lasted + 3), rebuilds=rebuilds)
    return Results(
        sizes=Sizes(),
        windows=[window(MONOLITH, IDLE), locked_window(60.0, publish_s), window(BULKHEAD, IDLE), felt],
        usage={MONOLITH: Usage(rss_bytes=3 * 10**8, disk_bytes=25 * 10**8), BULKHEAD: Usage(rss_bytes=10**9)},
        first_index_s={MONOLITH: 80.0, BULKHEAD: 90.0},
    )


def test_a_percentile_is_the_nearest_rank() -> None:
    assert [percentile(range(1, 101), share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([], 0.5) == 0.0


def test_a_blocked_client_is_counted_for_every_turn_that_it_missed() -> None:
    """Three attempts, of which one takes ten turns: by attempts its p50 would be 10 ms."""
    pace = PACE_S["append"]
    ops = [
        Op(kind="append", at=0.0, seconds=0.01),
        Op(kind="append", at=pace, seconds=pace * 10.5),
        Op(kind="append", at=pace * 12, seconds=0.01),
    ]
    waited = waits(Window(system=MONOLITH, phase=IDLE, begin=0.0, end=1.0, ops=ops), "append")
    assert len(waited) == 13
    assert max(waited) == pytest.approx(pace * 10.5)
    assert percentile(waited, 0.5) > 5 * 0.01


def test_a_failure_lasts_until_something_succeeds() -> None:
    ops = [
        Op(kind="search", at=0.0, seconds=15.0, outcome=LATE),
        *(Op(kind="search", at=15.0 + n * 0.25, seconds=0.0001, outcome=REPLAYED) for n in range(240)),
        Op(kind="search", at=75.0, seconds=0.5),
    ]
    seen = Window(system=MONOLITH, phase=REBUILD, begin=0.0, end=80.0, ops=ops)
    assert max(waits(seen, "search")) == pytest.approx(75.5)
    found = numbers([seen], "search")
    assert found.failed == {LATE: 1, REPLAYED: 240}
    assert found.errors == 241
    never = msgspec.structs.replace(seen, ops=ops[:-1])
    assert max(waits(never, "search")) == pytest.approx(80.0), "what never succeeds has waited until the end"


def test_only_what_began_while_it_was_measured_counts() -> None:
    seen = window(BULKHEAD, IDLE, lead=8.0, seconds=30.0)
    assert numbers([seen], "append").attempts == 600
    assert len([op for op in seen.ops if op.kind == "append"]) == 760


def test_the_tables_tell_the_incident() -> None:
    results = incident()
    assert longest_wait_s(results.of(MONOLITH, REBUILD)) == pytest.approx(43.5)
    full, short = full_table(results), ratio_table(results)
    assert "| longest wait for a write, rebuild | 43.5 s | " in full
    assert re.search(r"\| append failed \| 0 of 600 \| 8 of [\d,]+ \(8 locked\) \| +\|", full)
    assert re.search(r"\(1 late, \d+ replayed\)", full)
    for table in (full, short):
        for block in table.split("\n\n"):
            assert len({line.count("|") for line in block.splitlines()}) == 1, block
    assert "| writes failed | 16 of 2,3" in short
    assert re.search(r"\| publication of the new index \| 43.5 s \| 6.00 ms \|", short)


def test_numbers_read_well() -> None:
    assert [duration(seconds) for seconds in (0.0042, 0.0421, 0.421, 4.21, 421.0)] == [
        "4.20 ms",
        "42.1 ms",
        "421 ms",
        "4.2 s",
        "421 s",
    ]
    assert [ratio(value, 2.0) for value in (2.2, 44.0, 4400.0)] == ["× 1.10", "× 22.0", "× 2,200"]
    assert ratio(1.0, 0.0) == "–"


def test_a_document_keeps_everything_but_its_table() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert replace_between(text, "new") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    with pytest.raises(ValueError, match="no place for the table"):
        replace_between("no marks", "new")


def test_the_picture_is_well_formed_and_inside_its_frame() -> None:
    root = ET.fromstring(draw(incident()))
    width, height = (float(each) for each in root.attrib["viewBox"].split()[2:])
    for each in root.iter(f"{SVG}rect"):
        left, top = float(each.attrib["x"]), float(each.attrib["y"])
        assert left >= 0 and left + float(each.attrib["width"]) <= width
        assert top >= 0 and top + float(each.attrib["height"]) <= height
    for each in root.iter(f"{SVG}path"):
        for x, y in re.findall(r"M([-\d.]+) ([-\d.]+)", each.attrib["d"]):
            assert 0 <= float(x) <= RIGHT + 4 and 0 <= float(y) <= height
            assert float(x) >= LEFT - 4 or float(y) < 90, "only the legend is left of the plots"


def test_the_picture_shows_each_failure_and_says_what_happened() -> None:
    results = incident()
    root = ET.fromstring(draw(results))
    told = [each.text for each in root.iter(f"{SVG}tspan")]
    monolith, bulkhead = windows_shown(results)
    assert told == ["One SQLite file", message(monolith), "Bulkhead", message(bulkhead)]
    assert message(bulkhead).startswith("nothing failed")
    kinds = Counter(each.get("class") for each in root.iter(f"{SVG}rect"))
    assert (kinds["rebuild"], kinds["publish"]) == (1 + 1 + 5, 1 + 1), "one of each is in the legend"
    crosses = [each.attrib["d"] for each in root.iter(f"{SVG}path") if each.get("class") == "cross fail"]
    slow = sum(1 for op in monolith.ops if op.outcome not in (OK, REPLAYED))
    assert [each.count("M") for each in crosses] == [1, slow], "the legend's, and those of the one file that took time"
    (failed,) = [each for each in root.iter(f"{SVG}rect") if each.get("class") == "failed"]
    share = float(failed.attrib["width"]) / (RIGHT - LEFT)
    assert share == pytest.approx(75 / 148, abs=0.01), "from the publication until the old error is forgotten"


def test_many_operations_are_thinned_but_the_slowest_stay() -> None:
    rng = random.Random(1)
    ops = [Op(kind="append", at=n * 0.05, seconds=rng.lognormvariate(-6, 1)) for n in range(20 * DOTS_MAX)]
    kept = thin(ops)
    assert DOTS_MAX * 0.8 < len(kept) <= DOTS_MAX + 1
    slowest = sorted(ops, key=lambda op: op.seconds)[-SLOWEST:]
    assert set(slowest) <= set(kept)


def test_the_command_draws_from_stored_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored, picture, readme = tmp_path / "results.json", tmp_path / "incident.svg", tmp_path / "README.md"
    stored.write_bytes(msgspec.json.encode(incident()))
    readme.write_text(f"# Title\n\n{BEGIN}\n{END}\n\nend\n", encoding="utf-8")
    main(["--results", str(stored), "--picture", str(picture), "--readme", str(readme)])
    assert "| longest wait for a write, rebuild | 43.5 s |" in capsys.readouterr().out
    assert ET.parse(picture).getroot().tag == f"{SVG}svg"
    text = readme.read_text(encoding="utf-8")
    assert ratio_table(incident()) in text and text.endswith("end\n")
    with pytest.raises(SystemExit):
        main(["--times-ten", "--picture", str(picture)])


def test_the_notes_give_exactly_the_chunks_asked_for(tmp_path: Path) -> None:
    sizes = Sizes(chunks=45, files=7, dimensions=8)
    write_notes(tmp_path / "notes", sizes)
    settings = GenerationBuilderSettings()
    limits = ChunkLimits(settings.chunk_tokens, settings.chunk_tokens_max)
    texts = []
    for path in sorted((tmp_path / "notes").iterdir()):
        with open_note(str(path)) as file:
            texts += [chunk.text for chunk in chunk_markdown(segments(file, encoding_of(file, lambda: None)), limits)]
    assert len(texts) == 45 == len(set(texts))
    assert len(list((tmp_path / "notes").iterdir())) == 7
    assert turn(3) == turn(3) != turn(4)
    assert question(3) == question(3)


@pytest.mark.parametrize("document", ["README.md", "docs/MEASUREMENTS.md"])
def test_the_documents_have_a_place_for_the_tables(document: str) -> None:
    assert replace_between((ROOT / document).read_text(encoding="utf-8"), "new").count("new") >= 1
