"""Reading a sealed generation again, a piece at a time: what changed is found, and pieces may get lost."""

import shutil
from pathlib import Path

import pytest

from actors import generation as generations
from actors.errors import GenerationSuspect, Interrupted
from actors.generation import Manifest
from actors.generation_builder.scrub import Scrub
from actors.messages.builder_work import Scrubbed, ScrubSlice
from actors.messages.index import Covers

SIZES = {"a.lance/data/1": 70_000, "a.lance/empty": 0, "b.lance/data/2": 10, "z": 131_072}


@pytest.fixture
def index(tmp_path: Path) -> Path:
    folder = generations.generation_path(tmp_path, 1)
    for number, (name, size) in enumerate(SIZES.items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes((number + place) % 251 for place in range(size)))
    manifest = Manifest(
        format=generations.FORMAT,
        generation=1,
        delta=None,
        covers=Covers(),
        identity=None,
        rows={},
        vectors_have=0,
        vectors_want=0,
        lancedb_version="",
        table_versions={},
        built_at=0,
        skipped=[],
        held=[],
        sources=[],
        files=generations.fsync_tree(folder),
    )
    generations.write_manifest(folder, manifest)
    return tmp_path


def through(scrub: Scrub, piece_bytes: int, *, lose_after: int | None = None) -> int:
    """Read everything and return how many bytes that were; after so many pieces another process takes over."""
    place, total, pieces = None, 0, 0
    while True:
        read = ask(scrub, place, piece_bytes)
        total, pieces, place = total + read.bytes, pieces + 1, read.next
        if place is None:
            return total
        assert pieces < 1000
        if pieces == lose_after:
            scrub = Scrub(scrub._index)


def ask(scrub: Scrub, place: tuple[int, int] | None, piece_bytes: int) -> Scrubbed:
    piece = ScrubSlice(generation=1, delta=None, place=place, bytes_max=piece_bytes)
    return scrub.read(piece, lambda: None)


@pytest.mark.parametrize("piece_bytes", [1_000, 65_536, 70_000, 1_000_000])
def test_what_was_sealed_is_found_sound_whatever_the_pieces(index: Path, piece_bytes: int) -> None:
    assert through(Scrub(index), piece_bytes) == sum(SIZES.values())


def test_a_process_that_takes_over_begins_the_file_again(index: Path) -> None:
    assert through(Scrub(index), 30_000, lose_after=4) >= sum(SIZES.values())


@pytest.mark.parametrize("name", ["a.lance/data/1", "b.lance/data/2", "z"])
def test_a_flipped_bit_is_found(index: Path, name: str) -> None:
    path = generations.generation_path(index, 1) / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(GenerationSuspect, match=name):
        through(Scrub(index), 20_000)


def test_a_file_that_shrinks_on_the_way_and_one_that_goes_are_found(index: Path) -> None:
    scrub = Scrub(index)
    first = ask(scrub, None, 60_000)
    path = generations.generation_path(index, 1) / "a.lance/data/1"
    path.write_bytes(path.read_bytes()[:65_000])
    with pytest.raises(GenerationSuspect, match="ends at byte 65000"):
        ask(scrub, first.next, 60_000)
    shutil.rmtree(generations.generation_path(index, 1) / "b.lance")
    with pytest.raises(GenerationSuspect):
        ask(scrub, first.next, 60_000)


def test_a_piece_that_was_interrupted_is_not_taken_for_damage(index: Path) -> None:
    scrub = Scrub(index)
    first = ask(scrub, None, 10_000)
    calls = iter((False, True))

    def check() -> None:
        if next(calls):
            raise Interrupted("its time is up")

    with pytest.raises(Interrupted):
        piece = ScrubSlice(generation=1, delta=None, place=first.next, bytes_max=200_000)
        scrub.read(piece, check)
    place: tuple[int, int] | None = first.next
    while place is not None:
        place = ask(scrub, place, 50_000).next
