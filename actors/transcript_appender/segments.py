"""Which segment is appended to: found at the start, sealed when it is damaged, followed by a new one.

A damaged segment is sealed as it is: no checkpoint, no write, nothing removed; its WAL stays beside it. The next one
begins at a seq above everything that can have been given out, so that no two events ever have the same. Every step may
be cut short: the new file is made first and named in the catalogue when it is durable, and until then the old one is
the active one, which the next start finds damaged again.

Not in here: reading what is left of a damaged segment (salvage.py), putting a good copy in its place (restoring.py).
"""

import itertools
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from actors.errors import BulkheadError, Quarantined
from actors.sql import adopting, keywords, meta, swap
from actors.sql.database import (
    FileKind,
    NotOurs,
    Until,
    database_files,
    file_bytes,
    fsync_directory,
    open_writer,
    remove_database,
    transaction,
)
from actors.transcript_appender import store
from actors.transcript_appender.archiving import archive_of, remove_segment
from actors.transcript_appender.catalogue import (
    ARCHIVED,
    Book,
    Catalogue,
    Segment,
    segment_name,
    segment_numbers,
)
from actors.transcript_appender.examine import (
    Expected,
    Finding,
    Identified,
    claimed_first_seq,
    examine,
    given_out_max,
    identify,
)
from actors.transcript_appender.salvage import FOLDER

# A new segment after a damaged one begins so far above what can have been given out, at a number that shows it. What
# a lost WAL can have held is less: 16 MiB at 64 bytes an event are 262,144.
SPARE = 1_000_000
_CREATE_S = 5.0
_REASON_CHARS_MAX = 500


class Segments:
    """Finds or makes the segment to append to. `now_us` is the clock, `acknowledged` a seq that the daemon has given
    out in its life (0: none yet)."""

    def __init__(
        self, book: Book, kind: FileKind, *, identity: str, acknowledged: int, now_us: Callable[[], int]
    ) -> None:
        self._book = book
        self._kind = kind
        self._identity = identity
        self._acknowledged = acknowledged
        self._now_us = now_us
        self._known = False

    def open(self) -> Segment:
        """Return the segment to append to, after a look at it.

        Raises NotOurs when the files are not for us, and StoreBroken, StoreBusy or DiskFull as the disk has it.
        """
        self._known = self._book.load()
        if not self._known:
            self._rebuild()
        self._require_identity()
        self._finish_restoring()
        self._begin_behind_backup()
        self._look_at_sealed()
        self._look_at_active()
        self._book.change(lambda now: msgspec.structs.replace(now, identity=now.identity or self._identity))
        return self._book.catalogue.active

    # ------------------------------------------------------------ the catalogue

    def _rebuild(self) -> None:
        """Make the catalogue from the files: also the way of a data directory that never had one.

        It is written when the active segment has been looked at, so not when the files turn out to be another's.
        """
        numbers = sorted({*segment_numbers(self._book.folder), *segment_numbers(self._book.folder / ARCHIVED)})
        segments: list[Segment] = []
        for number in range(1, max(numbers, default=1)):
            segments.append(self._describe(number, segments))
        segments.append(self._describe_last(len(segments) + 1, segments))
        self._book.adopt(Catalogue(segments=_checked_for_gaps(segments, self._now_us)))

    def _describe_last(self, number: int, before: list[Segment]) -> Segment:
        expected_first = _next_after(before[-1]) if before else 1
        claimed = claimed_first_seq(self._book.folder / segment_name(number), self._kind)
        first_seq = expected_first if claimed is None else max(claimed, expected_first)
        return Segment(number=number, state="active", first_seq=first_seq)

    def _describe(self, number: int, before: list[Segment]) -> Segment:
        """Return what the file of a segment says of itself; one that can't be read begins where the last one ends."""
        expected_first = _next_after(before[-1]) if before else 1
        path = self._book.folder / segment_name(number)
        archive = archive_of(self._book.folder, path.name, self._kind)
        if archive is not None and archive.first_seq >= expected_first and not path.exists():
            return Segment(
                number=number,
                state="archived",
                first_seq=archive.first_seq,
                last_seq=archive.last_seq,
                at=self._now_us(),
                archive=archive,
            )
        try:
            said = identify(path, self._kind)
        except Quarantined as error:
            return _damaged(number, expected_first, error.message, self._now_us())
        if said.identity not in (None, self._identity) and self._identity:
            return _damaged(
                number, expected_first, f"{path.name} is of data directory {said.identity!r}", self._now_us()
            )
        if said.first_seq < expected_first:
            text = f"{path.name} begins at event {said.first_seq}, the segment before it reaches further"
            return _damaged(number, expected_first, text, self._now_us())
        return _sealed(number, said, self._now_us())

    def _require_identity(self) -> None:
        """Refuse a folder that was moved here; adopt the identity of ours when it has none yet."""
        stored = self._book.catalogue.identity
        if stored and self._identity and stored != self._identity:
            raise NotOurs(
                f"{str(self._book.path)!r} belongs to data directory {stored!r}, this is {self._identity!r}",
                hint="the folder was moved here from another data directory; put the right one back",
            )

    def _begin_behind_backup(self) -> None:
        """Begin a new segment when the files come from a backup: the seqs behind it may have been given out."""
        if (note := adopting.read_note(self._book.folder)) is None:
            return
        active, given_out = self._book.catalogue.active, note.given_out[store.SEQ]
        if active.first_seq <= given_out:
            said = mark_restored(self._book.path_of(active), self._kind)
            create_segment(
                self._book.folder,
                self._kind,
                active.number + 1,
                identity=self._identity,
                first_seq=given_out + 1,
                clock=self._book.catalogue.clock,
            )
            sealed = _sealed(active.number, said, self._now_us())
            self._book.change(lambda now: now.followed(sealed, self._following(active, given_out + 1)))
        adopting.remove_note(self._book.folder)

    def _following(self, segment: Segment, first_seq: int) -> Segment:
        return Segment(
            number=segment.number + 1,
            state="active",
            first_seq=first_seq,
            at=self._now_us(),
            schema=self._kind.user_version,
        )

    # ------------------------------------------------------------ earlier segments

    def _finish_restoring(self) -> None:
        """Note the end of an exchange of files that was cut short after it had begun."""
        for segment in self._book.catalogue.segments:
            if segment.kept is not None:
                self._finish_one(segment, segment.kept)

    def _finish_one(self, segment: Segment, kept: str) -> None:
        changed = msgspec.structs.replace(segment, kept=None)
        if (self._book.folder / kept).is_dir():  # made by the exchange, which has been completed by now
            try:
                said = identify(self._book.path_of(segment), self._kind)
                changed = _sealed(segment.number, said, self._now_us())
            except Quarantined as error:
                changed = msgspec.structs.replace(changed, reason=_short(error.message))
        self._book.change(lambda now: now.with_segment(changed))

    def _look_at_sealed(self) -> None:
        """Mark those sealed segments as damaged that are gone, or that are damaged as a process before suspected."""
        catalogue = self._book.catalogue
        suspicion = catalogue.suspicion
        for segment in catalogue.segments[:-1]:
            if segment.state == "archived":
                self._look_at_archived(segment)
                continue
            suspected = suspicion is not None and suspicion.number == segment.number
            if segment.state == "damaged":
                if suspected:  # what was met was met in its copy, which can be made again
                    remove_database(self._book.folder / FOLDER / segment.name)
                continue
            damage = self._look_at_one(segment, suspected=suspected)
            if damage is not None:
                self._mark_damaged(segment, damage)
            elif suspected:
                self._book.change(partial(Catalogue.acquitted, segment=segment))
        if suspicion is not None and suspicion.number != catalogue.active.number:
            self._book.change(lambda now: msgspec.structs.replace(now, suspicion=None))

    def _look_at_archived(self, segment: Segment) -> None:
        """Complete an archiving that was cut short after it had happened, and say when the list of events is lost."""
        if any(file.exists() for file in database_files(self._book.folder / segment.name)):
            remove_segment(self._book, segment)
        reason = None if file_bytes(self._book.path_of(segment)) else "the list of its events is lost"
        if segment.reason != reason:
            self._book.change(lambda now: now.with_segment(msgspec.structs.replace(segment, reason=reason)))

    def _look_at_one(self, segment: Segment, *, suspected: bool) -> str | None:
        path = self._book.path_of(segment)
        if file_bytes(path) == 0:
            return f"{path.name} is missing or empty"
        if not suspected:
            return None
        expected = self._expected(self._book.catalogue, segment, segment.last_seq or 0)
        return examine(path, self._kind, expected).damage

    def _mark_damaged(self, segment: Segment, damage: str) -> None:
        changed = msgspec.structs.replace(segment, state="damaged", reason=_short(damage), at=self._now_us())
        self._book.change(lambda now: now.with_segment(changed))

    # ------------------------------------------------------------ the active segment

    def _look_at_active(self) -> None:
        catalogue = self._book.catalogue
        active, path = catalogue.active, self._book.path_of(catalogue.active)
        floor = max(self._floor(catalogue), active.first_seq - 1)
        if not self._known and floor == 0 and not any(map(file_bytes, database_files(path))):
            create_segment(self._book.folder, self._kind, 1, identity=self._identity, first_seq=1, clock=0)
            return
        finding = examine(path, self._kind, self._expected(catalogue, active, floor))
        if finding.damage is not None:
            self._seal(active, finding, floor)
        elif catalogue.suspicion is not None:
            self._book.change(lambda now: now.acquitted(active))

    def _expected(self, catalogue: Catalogue, segment: Segment, floor: int) -> Expected:
        suspicion = catalogue.suspicion
        return Expected(
            identity=self._identity,
            first_seq=segment.first_seq,
            floor=floor,
            schema=segment.schema if self._known else None,
            ours=self._known and bool(self._identity) and catalogue.identity == self._identity,
            suspicion=suspicion if suspicion is not None and suspicion.number == segment.number else None,
            doubts=segment.doubts,
        )

    def _floor(self, catalogue: Catalogue) -> int:
        """Return the highest seq that is known to have been given out, whatever the files say.

        The keyword index only ever holds what was committed, with fsync, before.
        """
        return max(catalogue.floor, self._acknowledged, keywords.indexed_rows(self._book.folder / keywords.FILE_NAME))

    def _seal(self, active: Segment, finding: Finding, floor: int) -> None:
        """Begin a new segment behind a damaged one, then name both in the catalogue."""
        path = self._book.path_of(active)
        now_us = self._now_us()
        given_out = max(floor, active.first_seq, given_out_max(path, finding.last_seq, active.first_seq))
        first_seq = (given_out // SPARE + 2) * SPARE + 1
        create_segment(
            self._book.folder,
            self._kind,
            active.number + 1,
            identity=self._identity,
            first_seq=first_seq,
            clock=max(finding.clock, self._book.catalogue.clock),
        )
        assert finding.damage is not None
        sealed = msgspec.structs.replace(
            active,
            state="damaged",
            last_seq=max(floor, finding.last_seq or 0, active.first_seq - 1),
            reason=_short(finding.damage),
            at=now_us,
        )
        following = self._following(active, first_seq)
        self._book.change(
            lambda now: msgspec.structs.replace(
                now.followed(sealed, following), floor=max(now.floor, given_out), suspicion=None
            )
        )


def create_segment(folder: Path, kind: FileKind, number: int, *, identity: str, first_seq: int, clock: int) -> None:
    """Make the file of a segment; it is one closed, durable file on return.

    What an earlier attempt has left under its name is made anew; what holds an event is put aside.
    """
    path = folder / segment_name(number)
    _clear(path, kind)
    connection = open_writer(path, kind)
    try:
        with transaction(connection, Until.after(_CREATE_S)):
            if identity:
                meta.adopt_identity(connection, identity, repr(str(path)))
            meta.write(connection, store.FIRST_SEQ, first_seq)
            meta.write(connection, store.CLOCK, clock)
    finally:
        connection.close()  # the last connection copies the WAL into the file and removes it
    fsync_directory(folder)


def mark_restored(path: Path, kind: FileKind) -> Identified:
    """Note in a segment that the next one does not begin where it ends; return what it says of itself."""
    connection = open_writer(path, kind)
    try:
        with transaction(connection, Until.after(_CREATE_S)):
            meta.write(connection, store.RESTORED, 1)
    finally:
        connection.close()
    return identify(path, kind)


def _clear(path: Path, kind: FileKind) -> None:
    """Remove the remains of an attempt; nothing was ever acknowledged from a file that the catalogue doesn't name."""
    if not any(file.exists() for file in database_files(path)):
        return
    try:
        is_new = identify(path, kind).last_seq < identify(path, kind).first_seq
    except BulkheadError:
        is_new = False
    for file in database_files(path):
        if not file.exists():
            continue
        if is_new or file_bytes(file) == 0:
            file.unlink()
        else:
            file.rename(file.with_name(f"unknown-{swap.stamp()}-{file.name}"))


def _next_after(segment: Segment) -> int:
    return max(segment.first_seq, segment.last_seq or 0) + 1


def _checked_for_gaps(segments: list[Segment], now_us: Callable[[], int]) -> tuple[Segment, ...]:
    """Mark as damaged what ends before the next one begins: a segment that was full ends right there."""
    pairs = itertools.pairwise(segments)
    return (*(_checked_for_gap(segment, following, now_us) for segment, following in pairs), segments[-1])


def _checked_for_gap(segment: Segment, following: Segment, now_us: Callable[[], int]) -> Segment:
    if segment.state == "damaged" or segment.reason is not None or segment.last_seq == following.first_seq - 1:
        return segment
    text = f"{segment.name} ends at event {segment.last_seq}, the next segment begins at {following.first_seq}"
    return msgspec.structs.replace(segment, state="damaged", reason=text, at=now_us())


def _sealed(number: int, said: Identified, now_us: int) -> Segment:
    return Segment(
        number=number,
        state="sealed",
        first_seq=said.first_seq,
        last_seq=said.last_seq,
        reason="restored" if said.restored else None,
        at=now_us,
    )


def _damaged(number: int, first_seq: int, reason: str, now_us: int) -> Segment:
    return Segment(number=number, state="damaged", first_seq=first_seq, reason=_short(reason), at=now_us)


def _short(reason: str) -> str:
    return re.sub(r"\s+", " ", reason)[:_REASON_CHARS_MAX]
