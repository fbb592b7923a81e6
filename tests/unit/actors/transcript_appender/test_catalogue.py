"""The catalogue of segments: what is believed, what is refused, and what the actor tells its worker."""

import hashlib
import re
from pathlib import Path

import msgspec
import pytest

from actors.errors import Quarantined
from actors.messages.transcript_appender import Appended, AppendResult
from actors.settings import RoomSetup, TranscriptAppenderSettings
from actors.sql.database import database_files, open_writer
from actors.transcript_appender.actor import Acknowledged, knowing
from actors.transcript_appender.catalogue import FORMAT, Book, Catalogue, Segment, segment_name, segment_numbers
from actors.transcript_appender.examine import EVENT_BYTES_MIN, Expected, examine, given_out_max
from actors.transcript_appender.layout import expected_layout
from actors.transcript_appender.segments import create_segment
from actors.transcript_appender.store import COLUMNS, file_kind
from actors.worker import WorkerSpec
from tests.unit.actors.room_kit import killed
from tests.unit.actors.transcript_appender import segment_kit as kit

TWO = Catalogue(
    segments=(
        Segment(number=1, state="damaged", first_seq=1, last_seq=60, reason="gone", at=5),
        Segment(number=2, state="active", first_seq=2_000_001),
    ),
    identity="d1",
    floor=60,
)


def written(folder: Path, catalogue: Catalogue) -> Book:
    book = Book(folder)
    book.change(lambda _: catalogue)
    return book


def test_it_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written(tmp_path, TWO)
    book = Book(tmp_path)
    assert book.load()
    assert book.catalogue == TWO
    assert [book.catalogue.until(each) for each in TWO.segments] == [2_000_000, 2**63 - 1]
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("damage", [b"", b"{", b'{"sha256":"", "catalogue":{}}', b"\xff\xfe"])
def test_what_was_not_written_is_not_believed(tmp_path: Path, damage: bytes) -> None:
    written(tmp_path, TWO)
    (tmp_path / "segments.json").write_bytes(damage)
    assert not Book(tmp_path).load()


def test_every_changed_letter_is_noticed(tmp_path: Path) -> None:
    written(tmp_path, TWO)
    content = (tmp_path / "segments.json").read_bytes()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1
        (tmp_path / "segments.json").write_bytes(changed)
        book = Book(tmp_path)
        try:
            assert not book.load() or book.catalogue == TWO
        except Quarantined:
            pytest.fail(f"byte {at}: garbage was taken for a newer version")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    raw = msgspec.json.encode({"format": FORMAT + 1, "segments": "of another kind"})
    content = {"sha256": hashlib.sha256(raw).hexdigest(), "catalogue": msgspec.Raw(raw)}
    (tmp_path / "segments.json").write_bytes(msgspec.json.encode(content))
    with pytest.raises(Quarantined, match=f"has format {FORMAT + 1}, this program knows up to {FORMAT}"):
        Book(tmp_path).load()


def test_only_what_changes_is_written(tmp_path: Path) -> None:
    book = written(tmp_path, TWO)
    before = (tmp_path / "segments.json").stat().st_ino
    book.change(lambda now: now)
    book.raise_floor(60)
    assert (tmp_path / "segments.json").stat().st_ino == before
    book.raise_floor(61, clock=7)
    assert (book.catalogue.floor, book.catalogue.clock) == (61, 7)
    assert (tmp_path / "segments.json").stat().st_ino != before


def test_only_numbers_are_segments(tmp_path: Path) -> None:
    for name in ("00000002.db", "00000010.db", "keywords.db", "1.db", "00000003.db-wal", "unknown-00000004.db"):
        (tmp_path / name).touch()
    assert segment_numbers(tmp_path) == [2, 10]
    assert segment_name(12) == "00000012.db"


def test_the_remains_of_a_segment_that_was_never_named_are_replaced_and_events_put_aside(tmp_path: Path) -> None:
    kind = file_kind(TranscriptAppenderSettings())
    path = tmp_path / segment_name(2)
    for content in (b"", b"half a header"):
        path.write_bytes(content)
        create_segment(tmp_path, kind, 2, identity="d1", first_seq=100, clock=5)
        assert path.read_bytes().startswith(b"SQLite format 3")
    assert not any(file.exists() for file in database_files(path)[1:])
    assert [file.read_bytes() for file in tmp_path.glob("unknown-*")] == [b"half a header"]


def test_the_size_of_a_file_bounds_what_it_can_have_held(tmp_path: Path) -> None:
    """No event is smaller than the divisor, however short a client makes it."""
    client = kit.worker(tmp_path)
    drafts = [kit.draft(number, content="", request_id=None, session_id="s", tags=()) for number in range(500)]
    last = kit.append(client, *drafts)[-1]
    killed(client)
    path = tmp_path / segment_name(1)
    assert given_out_max(path, None, 1) >= last
    kit.settle(path)
    assert given_out_max(path, None, 1) >= last
    print(f"{path.stat().st_size / last:.0f} bytes an event, the divisor is {EVENT_BYTES_MIN}")
    full = given_out_max(path, None, 1)
    kit.truncate(path)
    assert given_out_max(path, None, 1) == full, "the header still says how long it was"


def test_the_schema_of_version_1_stays_as_it_is() -> None:
    """Files of this version are there: with another schema every one of them would be taken for damaged."""
    kind = file_kind(TranscriptAppenderSettings())
    assert kind.user_version == 1
    definitions = sorted(expected_layout(kind.schema).definitions.items())
    assert (
        hashlib.sha256(repr(definitions).encode()).hexdigest()
        == "ef11b99947219fb9f58ab2ff981c3b11a653de1b08720f5948d5ed86eaf31201"
    )


def test_comments_and_spaces_are_no_part_of_the_layout() -> None:
    schema = file_kind(TranscriptAppenderSettings()).schema
    assert expected_layout(re.sub(r"--[^\n]*", "", schema).replace("    ", "\t")) == expected_layout(schema)


@pytest.mark.parametrize("letter", range(0, 4000, 37))
def test_a_changed_letter_in_the_schema_is_found_or_means_nothing(tmp_path: Path, letter: int) -> None:
    kind = file_kind(TranscriptAppenderSettings())
    path = tmp_path / segment_name(1)
    create_segment(tmp_path, kind, 1, identity="d1", first_seq=1, clock=0)
    content = bytearray(path.read_bytes())
    written = [at for at in range(100, kit.PAGE) if content[at]]
    content[written[letter % len(written)]] ^= 1
    path.write_bytes(content)
    finding = examine(path, kind, Expected(identity="d1", first_seq=1, floor=0))
    if finding.damage is None:
        connection = open_writer(path, kind)
        connection.execute(f"SELECT {COLUMNS} FROM events").fetchall()
        connection.close()


def test_a_new_worker_is_told_what_was_acknowledged() -> None:
    acknowledged = Acknowledged()
    for seqs in ((3, 4), (), (2,)):
        acknowledged.note(AppendResult(results=[Appended(event_id="e", seq=seq) for seq in seqs]))
    assert acknowledged.seq == 4
    settings = msgspec.Raw(msgspec.msgpack.encode(RoomSetup(directory="d", identity="i")))
    spec = knowing(WorkerSpec(name="t", module="m", settings=settings), acknowledged.seq)
    told = msgspec.msgpack.decode(spec.settings, type=RoomSetup)
    assert (told.directory, told.identity, told.acknowledged) == ("d", "i", 4)
