"""The configuration of a daemon that is to be hurt, and notes for it to index."""

import random
import tomllib
from pathlib import Path
from typing import Any

from chaos.load import sentence

# No model, quick builds, restarts without end: what is tested is the recovery, not the patience.
BASE = """
[chaos]
enabled = true
[embedding]
provider = "none"
[generation_builder]
nice = 5
idle_class = false
settle_ms = 100
build_every_ms = 500
duty_percent_max = 50
scan_every_ms = 2000
[supervision]
restarts_max = 1000000
backoff_ms_max = 100
builder_backoff_ms_min = 20
builder_backoff_ms_max = 200
"""
LAUNCHER = """
[chaos]
launcher = "chaos.faults.worker"
"""


def write_config(path: Path, extra: str, *, launcher: bool) -> None:
    """Write the configuration: the base, with what `extra` (TOML) says put over it key by key."""
    merged: dict[str, dict[str, Any]] = {}
    for text in (BASE, LAUNCHER if launcher else "", extra):
        for table, keys in tomllib.loads(text).items():
            merged.setdefault(table, {}).update(keys)
    lines = []
    for table, keys in merged.items():
        lines += [f"[{table}]", *(f"{key} = {_toml(value)}" for key, value in keys.items()), ""]
    path.write_text("\n".join(lines), encoding="utf-8")


def _toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
        case list():
            return f"[{', '.join(_toml(each) for each in value)}]"
        case _:
            raise TypeError(f"a configuration value of type {type(value).__name__} is not expected: {value!r}")


def write_notes(folder: Path, count: int, rng: random.Random) -> None:
    """Write so many markdown notes."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        body = "\n\n".join(sentence(rng) for _ in range(rng.randint(1, 4)))
        (folder / f"note-{number:04}.md").write_text(f"# Note {number}\n\n{body}\n", encoding="utf-8")
