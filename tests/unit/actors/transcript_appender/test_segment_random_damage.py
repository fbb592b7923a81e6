"""Random damage of a segment: no wrong content is ever served, nothing acknowledged anew collides, and it settles."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.child import StoreLost
from actors.errors import BulkheadError
from actors.messages.transcript_appender import SessionPage, SessionsSince
from tests.unit.actors.transcript_appender import segment_kit as kit
from tests.unit.actors.transcript_appender.segment_kit import (
    RoomClient,
    append,
    draft,
    everything,
    filled,
    found,
    room,
    settle,
    states,
    status,
)

EVENTS = 150
CASES = 24
STARTS_MAX = 4


def flip_bits(content: bytearray, generator: random.Random) -> None:
    for _ in range(generator.randint(1, 8)):
        content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)


def garble(content: bytearray, generator: random.Random) -> None:
    at = generator.randrange(len(content))
    content[at : at + 64] = generator.randbytes(len(content[at : at + 64]))


def zero_pages(content: bytearray, generator: random.Random) -> None:
    for _ in range(generator.randint(1, 3)):
        at = generator.randrange(len(content) // kit.PAGE) * kit.PAGE
        content[at : at + kit.PAGE] = bytes(kit.PAGE)


def cut(content: bytearray, generator: random.Random) -> None:
    del content[generator.randrange(len(content)) :]


def swap_pages(content: bytearray, generator: random.Random) -> None:
    one, other = (generator.randrange(len(content) // kit.PAGE) * kit.PAGE for _ in range(2))
    first, second = content[one : one + kit.PAGE], content[other : other + kit.PAGE]
    content[one : one + kit.PAGE], content[other : other + kit.PAGE] = second, first


DAMAGES: list[Callable[[bytearray, random.Random], None]] = [flip_bits, garble, zero_pages, cut, swap_pages]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, int]]:
    """Give a folder whose segment lies in the file, one where it lies in the WAL, and what was acknowledged."""
    in_wal = tmp_path_factory.mktemp("wal") / "room"
    seqs = filled(in_wal, EVENTS)
    in_file = tmp_path_factory.mktemp("file") / "room"
    shutil.copytree(in_wal, in_file)
    settle(in_file / "00000001.db")
    return in_file, in_wal, seqs


@pytest.mark.parametrize("in_file", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_random_damage_never_shows_wrong_content(
    template: tuple[Path, Path, dict[str, int]],
    tmp_path: Path,
    in_file: bool,
    damage: Callable[[bytearray, random.Random], None],
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    seqs = template[2]
    sealed = 0
    for case in range(CASES // len(DAMAGES)):
        folder = tmp_path / str(case)
        shutil.copytree(template[0] if in_file else template[1], folder)
        path = folder / "00000001.db" if in_file else kit.wal_of(folder / "00000001.db")
        content = bytearray(path.read_bytes())
        damage(content, generator)
        path.write_bytes(content)
        # An index page in the place of another one looks well to a quick check; only a full one compares them.
        sealed += look_until_it_settles(folder, seqs, indexes_whole=damage is not swap_pages)
    print(f"{sealed} of {CASES // len(DAMAGES)} were sealed")


def look_until_it_settles(folder: Path, seqs: dict[str, int], *, indexes_whole: bool = True) -> bool:
    """Start again after each loss of the store, as the supervisor does; return whether the segment was sealed."""
    known = dict(seqs)
    for start in range(STARTS_MAX):
        try:
            with room(folder, acknowledged=max(known.values())) as made:
                client = RoomClient(made)
                (new,) = append(client, draft(1000 + start))
                assert new > max(known.values())
                known[f"r{1000 + start}"] = new
                look(client, known)
                if indexes_whole:
                    repeat(client, known)
                return states(folder)[0] == "damaged"
        except StoreLost:
            continue
    raise AssertionError(f"it has not settled after {STARTS_MAX} starts")


def look(client: RoomClient, known: dict[str, int]) -> None:
    by_seq = {seq: int(request_id[1:]) for request_id, seq in known.items()}
    events = everything(client)
    for seq, row in events.items():
        assert row["content"] == draft(by_seq[seq]).content
    for number in (0, 77, EVENTS - 1):
        for hit in found(client, f"word{number}").found:
            assert hit.snippet in draft(by_seq[hit.seq]).content
    client.call(SessionsSince(cursor=0, limit=100), SessionPage)
    assert status(client)["seq"] == max(known.values())


def repeat(client: RoomClient, known: dict[str, int]) -> None:
    """What can be read is also found to be repeated."""
    events = everything(client)
    for number in range(0, EVENTS, 10):
        try:
            (again,) = append(client, draft(number))
        except BulkheadError as error:
            raise AssertionError(f"append refused: {error.message}") from error
        assert again == known[f"r{number}"] or known[f"r{number}"] not in events
