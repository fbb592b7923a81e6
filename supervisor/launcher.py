"""The entry of the `bulkhead` command, in the wheel and in the checkout: set the path, then go through the right door.

In the wheel the two packages lie inside a private one, so that they cannot collide with the distribution called
`supervisor`; here the folder that holds them is put first on the path, and from then on they have their short names.
This module is loaded under the long name, everything else under the short one, so it keeps no state.

`stdio` and `serve` are started by machines and must be quick: their few options are read here, and neither the
command line nor anything heavy is imported for them. What is not plain goes to the command line, which explains it.
"""
# ruff: noqa: PTH100, PTH120

import os
import sys


def main(argv: list[str] | None = None) -> int:
    """Run the command in `argv` (without the program's name); return the exit code."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not sys.path or sys.path[0] != root:
        sys.path.insert(0, root)
    refuse_foreign_packages(root)
    arguments = sys.argv[1:] if argv is None else argv
    plain = read_plain(arguments)
    if plain is not None and plain["verb"] == "stdio" and "stdio" not in plain:
        from supervisor import bridge, paths

        return bridge.main(
            paths.data_directory(plain.get("data")), paths.config_file(plain.get("config")), plain.get("token-file")
        )
    if plain is not None and plain["verb"] == "serve" and "token-file" not in plain:
        return serve(plain.get("data"), plain.get("config"), stdio="stdio" in plain)
    from supervisor.cli import main as command_line

    return command_line(arguments)


def serve(data: str | None, config: str | None, *, stdio: bool) -> int:
    """Be the daemon, in the foreground; return its exit code."""
    from pathlib import Path

    from supervisor import paths
    from supervisor.daemon import main as run_daemon

    file = paths.config_file(config)
    return run_daemon(Path(paths.data_directory(data)), None if file is None else Path(file), stdio)


def read_plain(arguments: list[str]) -> dict[str, str] | None:
    """Return `verb` and the options of a plain `stdio` or `serve` command; None when it is anything else."""
    found: dict[str, str] = {}
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name in ("--data", "--config", "--token-file"):
            given = value if equals else next(words, None)
            if not given or name[2:] in found:
                return None
            found[name[2:]] = given
        elif word in ("--stdio", "--json"):
            found[word[2:]] = ""
        elif word in ("stdio", "serve") and "verb" not in found:
            found["verb"] = word
        else:
            return None
    return found if "verb" in found else None


def refuse_foreign_packages(root: str) -> None:
    """Leave with a clear message when `supervisor` or `actors` is somebody else's package of that name."""
    import actors
    import supervisor

    for package in (supervisor, actors):
        place = os.path.dirname(os.path.dirname(os.path.abspath(package.__file__ or "")))
        if os.path.realpath(place) != os.path.realpath(root):
            sys.exit(
                f"bulkhead: package {package.__name__!r} was loaded from {place!r}, expected {root!r}; "
                "start the `bulkhead` command, or `python -m supervisor` from the checkout"
            )


if __name__ == "__main__":
    sys.exit(main())
