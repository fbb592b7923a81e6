"""The command's entry: the right door for every command line, and no foreign package under our names."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor import launcher
from tests.unit.supervisor.scripted_house import ScriptedHouse


@pytest.mark.parametrize(
    ("arguments", "plain"),
    [
        (["stdio"], {"verb": "stdio"}),
        (["stdio", "--data", "d"], {"verb": "stdio", "data": "d"}),
        (["--data=d", "stdio", "--config", "c", "--json"], {"verb": "stdio", "data": "d", "config": "c", "json": ""}),
        (["serve", "--stdio"], {"verb": "serve", "stdio": ""}),
        (["stdio", "--help"], None),
        (["stdio", "--dat", "d"], None),
        (["stdio", "--data"], None),
        (["stdio", "--data", "a", "--data", "b"], None),
        (["stdio", "serve"], None),
        (["status"], None),
        (["append", "stdio"], None),
        ([], None),
    ],
)
def test_only_plain_commands_take_the_short_way(arguments: list[str], plain: dict[str, str] | None) -> None:
    assert launcher.read_plain(arguments) == plain


def test_the_installed_layout_works_beside_another_package_called_supervisor(
    house: ScriptedHouse, tmp_path: Path
) -> None:
    # As in the wheel: both packages inside a private one, and somebody else's `supervisor` earlier on the path.
    site = tmp_path / "site"
    private = site / "bulkhead_memory"
    private.mkdir(parents=True)
    shutil.move(house.root / "supervisor", private / "supervisor")
    shutil.move(house.root / "actors", private / "actors")
    other = tmp_path / "other" / "supervisor"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise RuntimeError('supervisord was imported')\n")
    program = "import sys; from bulkhead_memory.supervisor.launcher import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, "append", "--session", "s", "--actor", "user", "text", "--json"],
        env={
            **os.environ,
            "PYTHONPATH": f"{other.parent}{os.pathsep}{site}",
            "BULKHEAD_DATA": str(house.data),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    # The daemon that it started found its own packages as well.
    assert (done.returncode, done.stderr) == (0, "")
    assert '"content": "text"' in done.stdout
    assert len(house.starts()) == 1


def test_a_foreign_package_under_our_name_is_named(house: ScriptedHouse, tmp_path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'other')!r}); import actors;"
        f"sys.path.insert(0, {str(house.root)!r}); from supervisor.launcher import main; sys.exit(main(['status']))"
    )
    (tmp_path / "other" / "actors").mkdir(parents=True)
    (tmp_path / "other" / "actors" / "__init__.py").touch()
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "package 'actors' was loaded from" in done.stderr
