"""The wheel: it carries everything, runs, and leaves the distribution called `supervisor` alone.

Installing our two folders under their own names would overwrite supervisord's files without a word. So the wheel
maps them into a private package; this test installs both side by side, uses both, and removes ours again.
"""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import msgspec
import pytest

from chaos.client import ROOT

FOLDERS = ("supervisor", "actors")


def run(*command: str | Path, **more: object) -> str:
    """Run a command in a clean environment and return what it prints; fail with all of it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "BULKHEAD"))}
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        **more,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the sources."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", out, source)
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.timeout(400)
def test_the_wheel_runs_beside_supervisord_and_goes_without_a_trace(
    wheel: Path, tmp_path: Path, data: Path, config: Path
) -> None:
    home = tmp_path / "env"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    run(python, "-m", "pip", "install", "-q", "supervisor")
    theirs = {path: path.read_bytes() for path in (packages / "supervisor").rglob("*.py")}
    run(python, "-m", "pip", "install", "-q", "--no-deps", wheel)
    # Our dependencies are borrowed from the environment of this test; their editable hooks are not processed here.
    borrowed = Path(msgspec.__file__).parent.parent
    (packages / "borrowed.pth").write_text(f"{borrowed}\n")
    command = home / "bin" / "bulkhead"
    options = ("--data", data, "--config", config, "--json")
    run(command, "append", "--session", "s", "--actor", "user", "the wheel turns 轮子", *options)
    found = json.loads(run(command, "search", "轮子", *options))
    assert found["hits"][0]["session_id"] == "s"
    run(command, "stop", *options)
    assert {path: path.read_bytes() for path in (packages / "supervisor").rglob("*.py")} == theirs
    assert "supervisord" in run(home / "bin" / "supervisord", "--help")
    run(python, "-m", "pip", "uninstall", "-q", "-y", "bulkhead-memory")
    left = [path for path in packages.glob("bulkhead*/**/*") if path.is_file()]
    assert not left
    assert {path: path.read_bytes() for path in (packages / "supervisor").rglob("*.py")} == theirs
    run(home / "bin" / "supervisord", "--version")


def test_the_wheel_holds_every_module_and_schema(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"bulkhead_memory/{path.relative_to(ROOT)}"
        for folder in FOLDERS
        for pattern in ("*.py", "*.sql")
        for path in (ROOT / folder).rglob(pattern)
    }
    assert expected <= names
    assert not [name for name in names if name.startswith(("tests", "chaos", "bench", "supervisor/", "actors/"))]
