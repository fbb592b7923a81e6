"""The unsynced state of a file, against a model: what its process sees, and what a power cut leaves."""

import random

import pytest

from chaos.faults.overlay import BLOCK, Overlay

SEEDS = range(40)


class Bytes:
    """A file in memory."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.content[offset : offset + length]).ljust(length, b"\0")

    def write(self, offset: int, data: bytes) -> None:
        self.content.extend(bytes(max(0, offset + len(data) - len(self.content))))
        self.content[offset : offset + len(data)] = data

    def truncate(self, size: int) -> None:
        del self.content[size:]
        self.content.extend(bytes(size - len(self.content)))

    def size(self) -> int:
        return len(self.content)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_process_sees_its_writes_and_the_file_only_what_was_flushed(seed: int) -> None:
    rng = random.Random(seed)
    start = rng.randbytes(rng.randint(0, 3 * BLOCK))
    file, seen, overlay = Bytes(start), Bytes(start), Overlay()
    synced = start
    for _ in range(60):
        match rng.choice(("write", "write", "write", "truncate", "flush")):
            case "write":
                offset, data = rng.randint(0, 4 * BLOCK), rng.randbytes(rng.choice((1, 24, BLOCK, 9000)))
                overlay.write(file, offset, data)
                seen.write(offset, data)
            case "truncate":
                size = rng.randint(0, 5 * BLOCK)
                overlay.truncate(file, size)
                seen.truncate(size)
            case "flush":
                overlay.flush(file)
                synced = bytes(seen.content)
                assert overlay.unsynced_bytes == 0
        assert bytes(file.content) == synced, f"seed {seed}"
        assert overlay.size(file) == seen.size(), f"seed {seed}"
        offset, length = rng.randint(0, 5 * BLOCK), rng.randint(1, 2 * BLOCK)
        assert overlay.read(file, offset, length) == seen.read(offset, length), f"seed {seed}"


def test_what_a_failed_sync_held_is_still_seen_and_never_written() -> None:
    file, overlay = Bytes(b"old"), Overlay()
    overlay.write(file, 0, b"new")
    overlay.condemn()
    overlay.write(file, 2 * BLOCK, b"later")
    overlay.flush(file)
    assert overlay.read(file, 0, 3) == b"new"
    assert file.read(0, 3) == b"old"
    assert file.read(2 * BLOCK, 5) == b"later"


def test_a_leaking_disk_writes_some_blocks_before_the_sync() -> None:
    file, overlay = Bytes(), Overlay(leak=0.5, rng=random.Random(1))
    for number in range(64):
        overlay.write(file, number * BLOCK, bytes([number + 1]) * BLOCK)
    there = sum(file.read(number * BLOCK, 1) != b"\0" for number in range(64))
    assert 0 < there < 64
    assert all(overlay.read(file, number * BLOCK, 1) == bytes([number + 1]) for number in range(64))
    overlay.flush(file)
    assert all(file.read(number * BLOCK, 1) == bytes([number + 1]) for number in range(64))
