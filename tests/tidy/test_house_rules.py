"""The rules of the house that a machine can check. A failure says which rule, where, and where the thing should go."""

import ast
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from actors import messages
from actors.messages.base import Message
from supervisor.config import Config
from supervisor.logs import FIELDS
from supervisor.routes.table import METHODS
from supervisor.version import VERSION

ROOT = Path(__file__).resolve().parent.parent.parent
ROOMS = ("core_writer", "transcript_appender", "cache_manager", "generation_builder", "searcher")
PURE = (
    "actors/frames.py",
    "actors/core_writer/job_checks.py",
    "actors/core_writer/job_rules.py",
    "actors/core_writer/summary_rules.py",
    "actors/sql/filters.py",
    "actors/sql/limits.py",
    "actors/sql/rows.py",
    "actors/terms.py",
    "actors/searcher/ranking.py",
    "actors/searcher/confidence.py",
    "actors/searcher/comparing.py",
    "actors/searcher/preferences.py",
    "actors/searcher/leases.py",
    "actors/searcher/masking.py",
    "actors/searcher/bm25.py",
    "actors/searcher/reply.py",
    "actors/searcher/lance_filters.py",
    "actors/generation_builder/changes.py",
    "actors/searcher/vector_index.py",
    "actors/generation_builder/chunk.py",
    "actors/generation_builder/index_policy.py",
    "actors/generation_builder/pace.py",
    "actors/generation_builder/deferring.py",
    "actors/generation_builder/rounds.py",
    "actors/generation_builder/watch_mode.py",
    "supervisor/disk_level.py",
    "supervisor/lifecycle.py",
    "supervisor/rpc.py",
    "supervisor/mcp.py",
    "supervisor/times.py",
    "supervisor/params.py",
)
IMPURE = {"trio", "sqlite3", "lancedb", "pyarrow", "time", "random", "os", "subprocess", "socket", "threading"}
SQLITE_PLACES = ("actors/sql/", "actors/core_writer/", "actors/transcript_appender/", "actors/cache_manager/")
LANCE_PLACES = (
    "actors/generation_builder/",
    "actors/searcher/lance_queries.py",
    "actors/searcher/lance_tables.py",
    "actors/searcher/store.py",
    "actors/term_counts.py",
)


def sources(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_actors_never_import_the_supervisor() -> None:
    for path, tree in sources("actors"):
        assert not [name for name in imported(tree) if name.split(".")[0] == "supervisor"], path


def test_no_room_imports_another_room() -> None:
    for path, tree in sources("actors"):
        parts = path.split("/")
        room = parts[1] if parts[1] in ROOMS else None
        for name in imported(tree):
            pieces = name.split(".")
            if pieces[0] == "actors" and len(pieces) > 1 and pieces[1] in ROOMS:
                assert pieces[1] == room, f"{path} imports {name}: rooms talk through mailboxes only"


def test_only_the_roster_knows_the_rooms() -> None:
    for path, tree in sources("supervisor"):
        if path != "supervisor/roster.py":
            rooms = [name for name in imported(tree) if name.startswith("actors.") and name.split(".")[1] in ROOMS]
            assert not rooms, f"{path} imports {rooms}: only supervisor/roster.py knows the rooms"


@pytest.mark.parametrize("path", PURE)
def test_pure_modules_are_pure(path: str) -> None:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert not IMPURE & {name.split(".")[0] for name in imported(tree)}, f"{path} must stay free of I/O and clocks"


def test_storage_libraries_are_imported_in_their_places_only() -> None:
    for path, tree in sources("actors", "supervisor"):
        names = {name.split(".")[0] for name in imported(tree)}
        if "sqlite3" in names:
            assert path.startswith(SQLITE_PLACES), f"{path} imports sqlite3: SQL lives with its owner's store"
        if names & {"lancedb", "pyarrow"}:
            assert path.startswith(LANCE_PLACES), f"{path} imports LanceDB: it lives in the stores"


def test_workers_do_not_import_trio() -> None:
    for path, tree in sources("actors"):
        if (
            path.endswith(("worker.py", "store.py", "embedder.py", "watcher.py", "child.py"))
            and path != "actors/worker.py"
        ):
            assert "trio" not in {name.split(".")[0] for name in imported(tree)}, path


def test_nothing_but_the_command_line_prints_to_stdout() -> None:
    for path, tree in sources("actors", "supervisor"):
        if path.startswith("supervisor/cli/"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                assert any(word.arg == "file" for word in node.keywords), f"{path}:{node.lineno} prints to stdout"


def test_every_message_has_a_recipient_and_an_answer() -> None:
    rooms = [import_module(f"{messages.__name__}.{found.name}") for found in pkgutil.iter_modules(messages.__path__)]
    takers = {name: getattr(room, name) for room in rooms for name in dir(room) if name.endswith(("Message", "Work"))}
    del takers["Message"]
    known = {kind for taken in takers.values() for kind in get_args(taken) or (taken,)}
    defined = {kind for kind in Message.__subclasses__() if kind.__module__.startswith(f"{messages.__name__}.")}
    assert defined == known
    for kind in defined:
        assert issubclass(kind.answer, msgspec.Struct), kind


def protocol_sections() -> dict[str, str]:
    text = (ROOT / "docs" / "PROTOCOL.md").read_text(encoding="utf-8")
    parts = re.split(r"^### `([a-z_.]+)`$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_method_and_parameter_is_documented() -> None:
    sections = protocol_sections()
    assert set(sections) == set(METHODS), "docs/PROTOCOL.md must have one section for each native method"
    for name, method in METHODS.items():
        for field in method.params.__struct_encode_fields__:
            if field != "deadline_ms":
                assert f"| `{field}` |" in sections[name], f"docs/PROTOCOL.md: {name} lacks parameter {field!r}"
        documented = set(re.findall(r"^\| `([a-z_]+)` \|", sections[name], flags=re.MULTILINE))
        known = set(method.params.__struct_encode_fields__)
        assert documented <= known, f"{name}: {documented} holds unknown parameters"
        assert "→" in sections[name], f"docs/PROTOCOL.md: {name} does not say what it returns"


def test_every_error_code_is_documented() -> None:
    from actors.errors import ERRORS

    text = (ROOT / "docs" / "PROTOCOL.md").read_text(encoding="utf-8")
    for code, kind in ERRORS.items():
        assert f"| {code} | `{kind.__name__}` |" in text, f"docs/PROTOCOL.md lacks error {code} {kind.__name__}"


def flatten(struct: msgspec.Struct, prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if isinstance(value, msgspec.Struct):
            found.update(flatten(value, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return found


def test_the_configuration_file_says_what_the_code_does() -> None:
    text = (ROOT / "config.toml").read_text(encoding="utf-8")
    raw = tomllib.loads(text)
    written = {f"{table}.{key}": value for table, keys in raw.items() for key, value in keys.items()}
    defaults = flatten(Config())
    optional = {key for key, value in defaults.items() if value is None}
    assert written == {key: value for key, value in defaults.items() if key not in optional}
    for key in optional:
        assert f"# {key.split('.')[1]} = " in text, f"config.toml does not mention {key}"


def test_every_configuration_key_is_used() -> None:
    code = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "actors").rglob("*.py") if path.name != "settings.py"
    )
    code += "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "supervisor").rglob("*.py") if path.name != "config.py"
    )
    for key in flatten(Config()):
        assert re.search(rf"\.{key.split('.')[1]}\b", code), f"configuration key {key} is used nowhere"


def test_the_package_list_is_complete() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    folders = {
        "bulkhead_memory." + ".".join(path.parent.relative_to(ROOT).parts)
        for top in ("supervisor", "actors")
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert set(listed) == folders
    for top in ("supervisor", "actors"):
        for folder in {path.parent for path in (ROOT / top).rglob("*.py")}:
            assert (folder / "__init__.py").exists(), f"{folder} has no __init__.py and would be missing from the wheel"


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == VERSION
    assert f"## {VERSION}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_log_fields_come_from_one_list() -> None:
    for path, tree in sources("actors", "supervisor"):
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "extra" and isinstance(node.value, ast.Dict):
                names = {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
                assert names <= set(FIELDS), f"{path}:{node.value.lineno}: {names - set(FIELDS)} not in logs.FIELDS"


def test_every_module_says_what_it_is_for() -> None:
    for path, tree in sources("actors", "supervisor", "chaos", "bench"):
        assert ast.get_docstring(tree), f"{path} has no docstring"


def test_no_unfinished_marks_and_no_paths_of_a_machine() -> None:
    marks = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "/wo" + "rk/", "/ro" + "ot/")))
    kinds = ("*.py", "*.md", "*.toml", "*.sql", "Makefile", "run")
    for folder in ("actors", "supervisor", "tests", "chaos", "bench", "docs", ".ci"):
        for kind in kinds:
            for path in (ROOT / folder).rglob(kind):
                found = marks.search(path.read_text(encoding="utf-8"))
                assert found is None, f"{path.relative_to(ROOT)} holds {found[0] if found else ''!r}"
