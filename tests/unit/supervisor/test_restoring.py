"""A data directory restored from a backup: to a new place, in place, refused when it must be, killed at any step."""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.errors import BulkheadError, Conflict, DiskFull, InvalidParams, Quarantined
from actors.messages.base import Candidates, Row, Rows
from actors.messages.core_writer import AllocateGeneration, GenerationNumber, GetUnit, SearchUnits
from actors.messages.transcript_appender import SessionHistory
from actors.sql.backup_folder import _Sealed, read_manifest
from supervisor import claim, restoring
from supervisor.claim import Claim, Refused
from supervisor.restoring import restore
from tests.unit.actors.backup_kit import decoded, fill, made, put, truth
from tests.unit.actors.room_kit import ask, found_seqs, rows_of, say


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Give a data directory with five units and events, a backup of it, and two more of each since."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "IDENTITY").write_text("mine\n")
    with truth(data) as (units, events):
        fill(units, events, 5)
        made(units, events)
        fill(units, events, 2, first=5)
    return data


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the start locks of the tests apart."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir(mode=0o700)


def backup_of(data: Path) -> Path:
    (found,) = (data / "backups").iterdir()
    return found


def held_by(data: Path) -> dict[str, Any]:
    """Return what the rooms of a directory hold: the units, the contents of the events, and the next seq."""
    with truth(data) as (_, events):
        page = ask(events, SessionHistory(session_id="s", limit=100), Rows)
        contents = [row["content"] for row in json.loads(page.rows)]
        core_rows = rows_of(data / "core_writer" / "core.db", "SELECT unit_id, text FROM units ORDER BY core_seq")
        return {"events": contents, "units": core_rows}


def everything(data: Path, count: int) -> bool:
    return held_by(data) == {
        "events": [f"content {number}" for number in range(count)],
        "units": [(f"u{number}", f"text {number}") for number in range(count)],
    }


def test_into_a_new_directory(data: Path, tmp_path: Path) -> None:
    new = tmp_path / "elsewhere" / "new"
    assert restore(backup_of(data), new, replace=False) is None
    assert (new / "IDENTITY").read_text() == "mine\n"
    assert sorted(path.name for path in new.iterdir()) == ["IDENTITY", "core_writer", "transcript_appender"]
    assert sorted(path.name for path in new.parent.iterdir()) == ["new"]
    assert everything(new, 5) and everything(data, 7)
    with truth(new) as (units, events):
        assert sorted(found_seqs(events, "content")) == [1, 2, 3, 4, 5]
        assert len(ask(units, SearchUnits(query="text"), Candidates).found) == 5


def test_numbers_never_go_back(data: Path, tmp_path: Path) -> None:
    with truth(data) as (units, _):
        before = ask(units, AllocateGeneration(), GenerationNumber).generation
    new = tmp_path / "new"
    restore(backup_of(data), new, replace=False)
    for _ in range(2):
        with truth(new) as (units, events):
            put(units, "another")
            assert decoded(ask(units, GetUnit(unit_id="another"), Row))["core_seq"] > 1_000_000
            (appended,) = say(events, "another").results
            assert appended.seq > 1_000_000
            assert ask(units, AllocateGeneration(), GenerationNumber).generation > before
    # A restored directory is backed up and restored like any other.
    with truth(new) as (units, events):
        told = made(units, events)
        assert (told["units"], told["events"]) == (7, 7)
    restore(new / "backups" / told["backup"], tmp_path / "third", replace=False)
    with truth(tmp_path / "third") as (_, events):
        (later,) = say(events, "later").results
        assert later.seq > appended.seq + 1_000_000


def test_in_place_the_old_directory_is_kept(data: Path) -> None:
    (data / "cache_manager").mkdir()
    (data / "generation_builder").mkdir()
    name = backup_of(data).name
    with pytest.raises(Conflict, match="--yes"):
        restore(Path(name), data, replace=False)
    aside = restore(Path(name), data, replace=True)
    assert aside is not None and aside.name.startswith("data.before-")
    assert everything(data, 5)
    assert (data / "backups" / name).is_dir() and (data / "cache_manager").is_dir()
    assert not (data / "generation_builder").exists() and not (data / "RESTORE.json").exists()
    assert everything(aside, 7)
    with truth(data) as (_, events):
        assert say(events, "new").results[0].seq > 1_000_007 - 7


def test_numbers_of_the_replaced_directory_count(data: Path) -> None:
    with truth(data) as (units, _):
        ask(units, AllocateGeneration(at_least=5_000_000), GenerationNumber)
    restore(Path(backup_of(data).name), data, replace=True)
    with truth(data) as (units, _):
        assert ask(units, AllocateGeneration(), GenerationNumber).generation > 5_000_000


def test_a_damaged_directory_can_be_replaced(data: Path) -> None:
    for name in ("core_writer/core.db", "transcript_appender/00000001.db", "transcript_appender/segments.json"):
        (data / name).write_bytes(b"\xff" * 10_000)
    restore(Path(backup_of(data).name), data, replace=True)
    assert everything(data, 5)


def test_a_damaged_backup_is_refused_with_nothing_changed(data: Path, tmp_path: Path) -> None:
    path = backup_of(data) / "transcript_appender" / "00000001.db"
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    for target in (data, tmp_path / "new"):
        with pytest.raises(Quarantined, match="does not match its hash"):
            restore(backup_of(data), target, replace=True)
    assert everything(data, 7)
    assert not list(tmp_path.glob("*.tmp")) and not list(tmp_path.glob("*.before-*"))


def test_what_is_refused(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "IDENTITY").write_text("another\n")
    with pytest.raises(Conflict, match="is of data directory 'mine'"):
        restore(backup_of(data), other, replace=True)
    with pytest.raises(InvalidParams, match=r"MANIFEST\.json"):
        restore(data, other, replace=True)
    with pytest.raises(InvalidParams):
        restore(Path("000009-20261201T000000Z"), data, replace=True)
    with monkeypatch.context() as patch:
        patch.setattr(restoring, "FREE_BYTES_MIN", 2**62)
        with pytest.raises(DiskFull):
            restore(backup_of(data), tmp_path / "new", replace=False)
    with monkeypatch.context() as patch:
        patch.setattr(restoring, "file_system_of", lambda path: "nfs4")
        with pytest.raises(InvalidParams, match="nfs4"):
            restore(backup_of(data), tmp_path / "new", replace=False)
    with monkeypatch.context() as patch:
        patch.setattr(restoring, "VERSION", "0.0.1")
        with pytest.raises(Quarantined, match="was made by bulkhead"):
            restore(backup_of(data), tmp_path / "new", replace=False)


def test_not_while_a_daemon_has_the_directory(data: Path) -> None:
    fd = os.open(data / "LOCK", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with pytest.raises(Conflict, match="a daemon runs on this directory"):
            restore(Path(backup_of(data).name), data, replace=True)
    finally:
        os.close(fd)
    assert everything(data, 7)


def test_a_manifest_leads_to_no_file_outside(data: Path, tmp_path: Path) -> None:
    import hashlib

    import msgspec

    backup = backup_of(data)
    manifest = read_manifest(backup)
    outside = msgspec.structs.replace(manifest.files[0], path="../../outside")
    raw = msgspec.json.encode(msgspec.structs.replace(manifest, files=(outside,)))
    sealed = _Sealed(sha256=hashlib.sha256(raw).hexdigest(), manifest=msgspec.Raw(raw))
    (backup / "MANIFEST.json").write_bytes(msgspec.json.encode(sealed))
    with pytest.raises(Quarantined, match="outside"):
        restore(backup, tmp_path / "new", replace=False)


class Killed(BaseException):
    """The process ends here."""


@contextlib.contextmanager
def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    left = step

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            nonlocal left
            left -= 1
            if left <= 0:
                raise Killed
            return real(*given)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", counted(os.fsync))
        patch.setattr(Path, "rename", counted(Path.rename))
        with contextlib.suppress(Killed):
            yield


@pytest.mark.parametrize("step", range(1, 26, 2))
def test_killed_at_any_step_the_next_restore_makes_it_whole(
    data: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    kept = shutil.copytree(backup_of(data), data.with_name("kept"))
    with killed_at(step, monkeypatch):
        restore(kept, data, replace=True)
    # A daemon that is started now has the old directory, or the new one, or is told to wait; never an empty one.
    if (claim.draft_of(data) / "RESTORE.json").exists():
        with pytest.raises(Refused, match="bulkhead restore"):
            Claim(data)
    else:
        assert everything(data, 7) or everything(data, 5)
    with contextlib.suppress(Conflict):  # it may have been complete
        restore(kept, data, replace=True)
    assert everything(data, 5)
    asides = list(data.parent.glob("data.before-*"))
    assert any(everything(aside, 7) for aside in asides), "the old memory is there"
    assert not claim.draft_of(data).exists() and not (data / "RESTORE.json").exists()


def test_an_interrupted_restore_is_said_to_be_done(data: Path) -> None:
    draft = claim.draft_of(data)
    shutil.copytree(data, draft)
    (draft / "RESTORE.json").write_text('{"aside": "data.before-then"}')
    with pytest.raises(BulkheadError, match="is done now"):
        restore(backup_of(data), data, replace=True)
    assert data.with_name("data.before-then").is_dir() and not draft.exists()


def test_the_catalogue_can_be_made_again_without_calling_the_gap_damage(data: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    restore(backup_of(data), new, replace=False)
    with truth(new) as (_, events):
        say(events, "content 5")
    (new / "transcript_appender" / "segments.json").unlink()
    with truth(new) as (_, events):
        assert events._book.catalogue.damaged() == ()
        assert len(found_seqs(events, "content")) == 6


def test_a_start_that_is_cut_short_goes_on_with_the_note(data: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    restore(backup_of(data), new, replace=False)
    notes = {room: (new / room / "RESTORED.json").read_bytes() for room in ("core_writer", "transcript_appender")}
    with truth(new) as (units, events):
        put(units, "u5", "text 5")
        first = say(events, "content 5").results[0].seq
    for room, note in notes.items():
        (new / room / "RESTORED.json").write_bytes(note)
    with truth(new) as (_, events):
        assert say(events, "content 6").results[0].seq == first + 1
        assert [segment.state for segment in events._book.catalogue.segments] == ["sealed", "active"]
