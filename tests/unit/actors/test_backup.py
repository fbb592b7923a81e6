"""Backups of both rooms: consistent while they are written to, never half, cheap for what has not changed."""

import contextlib
import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from actors.errors import BulkheadError, DiskFull, Interrupted, InvalidParams, NotFound, Quarantined
from actors.messages.backup import BackedUp, BackUp, BackupBegun, BeginBackup, DropBackup, FinishBackup, StopBackUp
from actors.messages.base import Done, Row
from actors.messages.core_writer import RestoreTruth
from actors.sql import backup_files
from actors.sql.backup_folder import BackupFolder, Manifest, read_manifest
from tests.unit.actors.backup_kit import copied, decoded, fill, listed, made, put, truth, verified
from tests.unit.actors.room_kit import ask, call_within, rows_of, say, transcript


def test_a_backup_has_the_shape_of_a_data_directory_and_says_what_it_holds(tmp_path: Path) -> None:
    with truth(tmp_path) as (units, events):
        fill(units, events, 5)
        told = made(units, events)
        assert (told["units"], told["events"], told["core_seq"], told["event_seq"]) == (5, 5, 5, 5)
        assert verified(units, told["backup"])["verified"]
        assert [row["backup"] for row in listed(units)] == [told["backup"]]
    backup = tmp_path / "backups" / told["backup"]
    assert (backup / "IDENTITY").read_text() == "mine\n"
    manifest = read_manifest(backup)
    assert [file.path for file in manifest.files] == [
        "core_writer/core.db",
        "transcript_appender/00000001.db",
        "transcript_appender/segments.json",
    ]
    for file in manifest.files:
        content = (backup / file.path).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file.bytes, file.sha256)
    assert rows_of(backup / "core_writer" / "core.db", "SELECT count(*) FROM units") == [(5,)]
    assert rows_of(backup / "transcript_appender" / "00000001.db", "SELECT max(seq) FROM events") == [(5,)]


def test_what_is_written_meanwhile_is_in_the_copy_or_not_but_never_half(tmp_path: Path) -> None:
    with truth(tmp_path) as (units, events):
        fill(units, events, 50)
        for _ in range(20):
            say(events, *("x" * 50_000 for _ in range(4)))
        name = ask(units, BeginBackup(), BackupBegun).backup
        core_part = ask(units, BackUp(backup=name), BackedUp)
        found: list[BackedUp] = []
        copying = threading.Thread(target=lambda: found.append(ask(events, BackUp(backup=name), BackedUp)))
        copying.start()
        written = 0
        while copying.is_alive():
            say(events, "meanwhile", "together")
            written += 2
        copying.join()
        assert written > 0
        (part,) = found
        (segment, _) = part.files
        assert 130 <= segment.rows["events"] <= 130 + written
        assert segment.rows["events"] % 2 == 0 and part.event_seq == segment.rows["events"]
        order = FinishBackup(backup=name, parts=(core_part, part), program="1", kept=7)
        assert verified(units, decoded(ask(units, order, Row))["backup"])["events"] == segment.rows["events"]


def test_a_backup_that_is_not_finished_is_no_backup(tmp_path: Path) -> None:
    with truth(tmp_path) as (units, events):
        fill(units, events, 1)
        name = ask(units, BeginBackup(), BackupBegun).backup
        assert listed(units) == []
        with pytest.raises(NotFound):
            verified(units, name)
        copied(units, events, name)
        assert listed(units) == []
        # The next one finds what a killed process has left, removes it and takes its number.
        again = ask(units, BeginBackup(), BackupBegun).backup
        assert again[:6] == name[:6] == "000001"
        assert [path.name for path in (tmp_path / "backups").iterdir()] == [f"{again}.tmp"]
        ask(units, DropBackup(backup=again), Done)
        assert list((tmp_path / "backups").iterdir()) == []
        with pytest.raises(NotFound, match="given up"):
            ask(units, BackUp(backup=again), BackedUp)


def test_a_sealed_segment_is_copied_once(tmp_path: Path) -> None:
    with truth(tmp_path) as (units, events):
        fill(units, events, 3)
    seal_first_segment(tmp_path)
    with truth(tmp_path) as (units, events):
        say(events, "in the second segment")
        first = made(units, events)
        say(events, "and another")
        second = made(units, events)
        assert (first["linked"], second["linked"]) == (0, 1)
        assert (first["events"], second["events"]) == (4, 5)
        segments = [tmp_path / "backups" / each["backup"] / SEGMENT for each in (first, second)]
        assert segments[0].samefile(segments[1])
        assert not segments[0].samefile(tmp_path / SEGMENT), "damage of the truth must not reach its backup"
        # One that was changed since is copied again.
        os.utime(tmp_path / SEGMENT, ns=(1, 1))
        third = made(units, events)
        assert third["linked"] == 0
        for each in (first, second, third):
            assert verified(units, each["backup"])["verified"]


def test_without_hard_links_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError("no hard links here")

    with truth(tmp_path) as (units, events):
        fill(units, events, 3)
    seal_first_segment(tmp_path)
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with truth(tmp_path) as (units, events):
        made(units, events)
        told = made(units, events)
        assert told["linked"] == 0 and verified(units, told["backup"])["events"] == 3


def test_only_the_newest_are_kept_and_the_number_goes_on(tmp_path: Path) -> None:
    with truth(tmp_path) as (units, events):
        names = []
        for number in range(4):
            put(units, f"u{number}")
            told = made(units, events, kept=2)
            names.append(told["backup"])
        assert told["removed"] == [names[1]]
        assert [row["backup"] for row in listed(units)] == [names[3], names[2]]
        assert [name[:6] for name in names] == ["000001", "000002", "000003", "000004"]
        assert [row["backup"] for row in listed(units, before=names[3])] == [names[2]]
        assert [row["backup"] for row in listed(units, limit=1)] == [names[3]]


def test_a_request_that_is_repeated_makes_one_backup(tmp_path: Path) -> None:
    with truth(tmp_path) as (units, events):
        told = made(units, events, request_id="r1")
        again = ask(units, BeginBackup(request_id="r1"), BackupBegun)
        assert again.backup == told["backup"] and again.finished is not None
        assert ask(units, BeginBackup(request_id="r2"), BackupBegun).finished is None


@pytest.mark.parametrize("name", ["core_writer/core.db", "transcript_appender/00000001.db", "MANIFEST.json"])
@pytest.mark.parametrize("how", ["flip", "cut", "gone"])
def test_every_byte_of_a_backup_is_looked_at(tmp_path: Path, name: str, how: str) -> None:
    with truth(tmp_path) as (units, events):
        fill(units, events, 2)
        told = made(units, events)
        path = tmp_path / "backups" / told["backup"] / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes({"flip": bytes(content), "cut": content[:-1], "gone": b""}[how])
        if how == "gone":
            path.unlink()
        with pytest.raises(Quarantined):
            verified(units, told["backup"])
        (row,) = listed(units)
        assert row["state"] == ("damaged" if name == "MANIFEST.json" else "finished")


def test_a_damaged_manifest_is_never_pruned_and_counts_for_nothing(tmp_path: Path) -> None:
    with truth(tmp_path) as (units, events):
        first = made(units, events)
        (tmp_path / "backups" / first["backup"] / "MANIFEST.json").write_bytes(b"{}")
        second = made(units, events, kept=1)
        assert [row["backup"] for row in listed(units)] == [second["backup"], first["backup"]]


def test_a_manifest_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    folder = BackupFolder(tmp_path)
    manifest = Manifest(
        backup=folder.begin(datetime.now(UTC)),
        identity="mine",
        program="9",
        created_at="",
        core_seq=0,
        event_seq=0,
        files=(),
        format=2,
    )
    folder.finish(manifest)
    with pytest.raises(Quarantined, match="has format 2, this program knows up to 1"):
        read_manifest(tmp_path / manifest.backup)


@pytest.mark.parametrize(
    "name", ["../core_writer", "000001-x", "", "/", "000001-2026/..", "000001-20261201T000000Z.tmp"]
)
def test_a_name_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    with truth(tmp_path) as (units, _events), pytest.raises(InvalidParams):
        verified(units, name)


def test_a_damaged_truth_does_not_push_good_backups_out(tmp_path: Path) -> None:
    with truth(tmp_path) as (units, events):
        fill(units, events, 300)
        good = made(units, events, kept=1)
        units._databases["write"].connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with (tmp_path / "core_writer" / "core.db").open("r+b") as file:
            file.seek(8 * 4096)
            file.write(b"\xff" * 4096)
        name = ask(units, BeginBackup(), BackupBegun).backup
        with pytest.raises(BulkheadError, match="damaged"):
            ask(units, BackUp(backup=name), BackedUp)
        assert [row["backup"] for row in listed(units)] == [good["backup"]]


def test_no_backup_without_room(tmp_path: Path) -> None:
    with truth(tmp_path) as (units, _events):
        units._backup._free_bytes_min = 2**60
        name = ask(units, BeginBackup(), BackupBegun).backup
        with pytest.raises(DiskFull, match=r"backup\.free_bytes_min"):
            ask(units, BackUp(backup=name), BackedUp)


def test_a_copy_ends_when_the_daemon_goes_down(tmp_path: Path) -> None:
    with truth(tmp_path) as (units, events):
        fill(units, events, 3)
        name = ask(units, BeginBackup(), BackupBegun).backup
        ask(events, StopBackUp(), Done)
        with pytest.raises(Interrupted, match="goes down"):
            ask(events, BackUp(backup=name), BackedUp)


def test_a_copy_ends_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_files, "_REST_S_MAX", 0.05)
    monkeypatch.setattr(backup_files, "_RESTS", 1000.0)
    with truth(tmp_path) as (units, events):
        say(events, *("x" * 1_000_000 for _ in range(8)))
        name = ask(units, BeginBackup(), BackupBegun).backup
        with pytest.raises(Interrupted):
            events.handle(BackUp(backup=name), call_within(0.1))


def test_backups_may_be_kept_elsewhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "other disk"
    with truth(tmp_path / "data", directory=str(elsewhere)) as (units, events):
        told = made(units, events)
        assert (elsewhere / "mine" / told["backup"] / "MANIFEST.json").is_file()
        assert not (tmp_path / "data" / "backups").exists()


SEGMENT = Path("transcript_appender", "00000001.db")


def seal_first_segment(data: Path) -> None:
    """Let the first segment be one that was put in the place of a damaged one: sealed, with another behind it."""
    folder = data / "transcript_appender"
    shutil.copy(data / SEGMENT, data / "good.db")
    with (data / SEGMENT).open("r+b") as file:
        file.write(b"\xff" * 100)
    with transcript(folder, identity="mine") as room:
        ask(room, RestoreTruth(path=str(data / "good.db")), Row)


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", range(1, 25, 3))
def test_killed_at_any_step_there_is_a_whole_backup_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Every step that matters ends with a sync or a rename; the process is killed at each of them in turn."""
    left = step

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object) -> object:
            nonlocal left
            left -= 1
            if left <= 0:
                raise Killed
            return real(*given)

        return call

    with truth(tmp_path) as (units, events):
        fill(units, events, 3)
        good = made(units, events, kept=1)
        put(units, "more")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", counted(os.fsync))
            patch.setattr(Path, "rename", counted(Path.rename))
            with contextlib.suppress(Killed):
                made(units, events, kept=1)
        assert left <= 0 or step > 12
    with truth(tmp_path) as (units, events):
        assert not units.idle("backup")
        names = [row["backup"] for row in listed(units)]
        assert names and (good["backup"] in names or names[0] > good["backup"])
        for name in names:
            assert verified(units, name)["units"] == (3 if name == good["backup"] else 4)
        assert sorted(path.name for path in (tmp_path / "backups").iterdir()) == sorted(names)
        assert verified(units, made(units, events)["backup"])["units"] == 4
