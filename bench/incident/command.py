"""The command: `python -m bench incident [options]`. Progress goes to stderr, tables to stdout."""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench.incident.results import Results
from bench.incident.work import Sizes, write_notes

DEFAULTS = Sizes()
TEN = 10


def main(arguments: list[str]) -> None:
    """Measure, or read what was measured, and print, draw and write what is asked for."""
    given = parsed(arguments)
    results = read(given.results) if given.results else measured(given)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_bytes(msgspec.json.encode(results))
    publish(results, given)


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Return the options."""
    import bench.incident

    parser = argparse.ArgumentParser(
        prog="python -m bench incident",
        description=bench.incident.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--chunks", type=int, default=DEFAULTS.chunks)
    parser.add_argument("--files", type=int, default=DEFAULTS.files)
    parser.add_argument("--dimensions", type=int, default=DEFAULTS.dimensions)
    parser.add_argument("--rounds", type=int, default=3, help="how often the systems take turns (default 3)")
    parser.add_argument("--seconds", type=float, default=30.0, help="least length of a window (default 30)")
    parser.add_argument("--times-ten", action="store_true", help="Bulkhead alone, ten times the chunks and files")
    parser.add_argument(
        "--stored",
        choices=("json", "blob"),
        default="json",
        help="how the one file stores vectors beside its vector table: as JSON text, as in the incident, or as float64",
    )
    parser.add_argument("--results", type=Path, help="read the raw results of an earlier run instead of measuring")
    parser.add_argument("--out", type=Path, help="write the raw results here, as JSON")
    parser.add_argument("--picture", type=Path, help="draw both time lines into this SVG file")
    parser.add_argument("--readme", type=Path, help="replace the ratio table in this document")
    parser.add_argument("--measurements", type=Path, help="replace the full tables in this document")
    given = parser.parse_args(arguments)
    if given.times_ten and (given.picture or given.readme):
        parser.error("--times-ten runs Bulkhead alone; --picture and --readme need both sides")
    if given.files < 1 or given.chunks < given.files:
        parser.error(f"every note needs a chunk: --chunks {given.chunks}, --files {given.files}")
    return given


def read(path: Path) -> Results:
    """Return the results of an earlier run."""
    return msgspec.json.decode(path.read_bytes(), type=Results)


def measured(given: argparse.Namespace) -> Results:
    """Set everything up, measure, and take everything away."""
    from bench.incident.bulkhead import Bulkhead
    from bench.incident.windows import System, run
    from chaos.daemon import data_directory
    from chaos.endpoint import endpoint

    sizes = Sizes(chunks=given.chunks, files=given.files, dimensions=given.dimensions)
    if given.times_ten:
        sizes = sizes.times(TEN)
    with ExitStack() as stack:
        place = stack.enter_context(data_directory()).parent
        port = stack.enter_context(endpoint(sizes.dimensions))
        notes = place / "notes"
        write_notes(notes, sizes)
        systems: list[System] = [Bulkhead(place, notes, sizes, port)]
        if not given.times_ten:
            from bench.incident.monolith import Monolith

            # First, as it takes longer: the other is then under rebuild for as long.
            systems.insert(0, Monolith(place, notes, sizes, port, stored=given.stored))
        return run(systems, sizes, rounds=given.rounds, seconds=given.seconds)


def publish(results: Results, given: argparse.Namespace) -> None:
    """Print the tables; draw the picture and renew the documents that were named."""
    from bench.incident.figure import draw
    from bench.incident.table import full_table, ratio_table, replace_between

    sizes = results.sizes
    print(f"\n# incident: {sizes.chunks:,} chunks × {sizes.dimensions:,} dimensions, {sizes.files:,} notes\n")
    print(full_table(results))
    if given.picture:
        given.picture.write_text(draw(results), encoding="utf-8")
    for document, block in ((given.readme, ratio_table), (given.measurements, full_table)):
        if document:
            text = document.read_text(encoding="utf-8")
            document.write_text(replace_between(text, block(results)), encoding="utf-8")
            print(f"renewed the table in {document}", file=sys.stderr)
