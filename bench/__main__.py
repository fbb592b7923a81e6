"""Run a benchmark by name: `python -m bench NAME [options]`, `python -m bench list`."""

import importlib
import sys
from pathlib import Path

NAMES = ("start", "append", "search", "freshness", "scale", "vectors", "retrieval", "incident")
QUICK = ("start", "append", "search")


def main(arguments: list[str]) -> None:
    """Run one benchmark, or all that need nothing but the project."""
    name, rest = (arguments[0], arguments[1:]) if arguments else ("list", [])
    if name == "list":
        for each in NAMES:
            first = (importlib.import_module(f"bench.{each}").__doc__ or "").splitlines()[0]
            print(f"{each:12} {first}")
    elif name == "all":
        for each in QUICK:
            importlib.import_module(f"bench.{each}").main(rest)
    elif name in NAMES:
        importlib.import_module(f"bench.{name}").main(rest)
    else:
        sys.exit(f"unknown benchmark {name!r}; known are {', '.join(NAMES)}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main(sys.argv[1:])
