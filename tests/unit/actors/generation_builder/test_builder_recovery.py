"""After a kill, a flipped bit, a deletion: what is current stays current or gives way to the best that verifies."""

import os
import resource
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from actors import generation as generations
from actors.errors import BuildFailed, DiskFull, GenerationSuspect, StoreBusy
from actors.generation import Pointer, generation_path, read_current, sealed_numbers, verify, verify_shape
from actors.generation_builder import shelf
from actors.generation_builder.index_lock import IndexLock
from actors.messages.base import CORPORA, Done, Message
from actors.messages.builder_work import (
    IndexState,
    IndexTable,
    ProbeIndex,
    RecoverIndex,
    RetireGenerations,
    ScanResult,
    ScanSources,
    SealGeneration,
    StageEvents,
    StageUnits,
    TestGeneration,
    WriteTable,
)
from tests.unit.actors.generation_builder.builder_kit import (
    EVENTS,
    MODULE,
    UNITS,
    Builder,
    settings,
    write_notes,
)
from tests.worker_client import WorkerClient


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with the generations 1 and 2, CURRENT naming 2. Tests work on copies of it."""
    index = tmp_path_factory.mktemp("original") / "index"
    with Builder(index) as builder:
        first = builder.build(1)
        builder.build(2, previous=first, sources=[write_notes(index.parent / "notes")])
    return index


@pytest.fixture
def index(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "index"))


def recover(index: Path) -> IndexState:
    return shelf.recover(index, [], lambda: None)


def served(state: IndexState) -> int | None:
    return None if state.current is None else state.current.generation


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# ---------------------------------------------------------------- kills

STEPS: list[Message] = [
    StageEvents(rows=msgspec.msgpack.encode(EVENTS)),
    StageUnits(rows=msgspec.msgpack.encode(UNITS)),
    *(WriteTable(corpus=corpus) for corpus in CORPORA),
    *(IndexTable(corpus=corpus) for corpus in CORPORA),
    TestGeneration(),
    SealGeneration(),
]


@pytest.mark.parametrize("stage", ["begun", "staged", "written", "indexed", "tested", "sealed", "during the write"])
def test_a_kill_at_any_stage_leaves_current_as_it_was_and_no_file_behind(index: Path, stage: str) -> None:
    """A8."""
    done = {"begun": 0, "staged": 2, "written": 5, "indexed": 8, "tested": 9, "sealed": 10, "during the write": 2}[
        stage
    ]
    with Builder(index) as builder:
        builder.begin(3)
        for step in STEPS[:done]:
            builder.worker.call(step, msgspec.Struct)
        if stage == "during the write":
            builder.worker.begin(STEPS[done])
        builder.worker.kill()
    assert read_current(index) == Pointer(generation=2)
    state = recover(index)
    assert served(state) == 2
    assert [ref.generation for ref in state.previous] == [1]
    assert state.highest == (3 if stage == "sealed" else 2), "a number that was used is never used again"
    assert not list(index.glob("*.tmp")) and not state.suspects


def test_recovery_answers_without_loading_lancedb(index: Path, tmp_path: Path) -> None:
    root = write_notes(tmp_path / "notes")
    with WorkerClient(MODULE, settings(index)) as worker:
        worker.call(RecoverIndex(), IndexState)
        worker.call(ScanSources(sources=[root]), ScanResult)
        worker.call(ProbeIndex(generation=2), Done)
        if sys.platform == "linux":
            maps = Path(f"/proc/{worker.process.pid}/maps").read_text()
            assert "lancedb" not in maps and "pyarrow" not in maps


def test_recovery_spares_the_build_that_is_under_way(index: Path) -> None:
    """The searcher may report a suspect at any time, also during a build."""
    (index / "gen-000009.tmp").mkdir()
    with Builder(index) as builder:
        builder.begin(3)
        builder.stage(events=EVENTS)
        assert served(builder.worker.call(RecoverIndex(), IndexState)) == 2
        builder.do(RetireGenerations(keep=[]))
        assert not (index / "gen-000009.tmp").exists()
        assert builder.finish().rows["events"] == 5


# ---------------------------------------------------------------- damage


def test_a_flipped_bit_in_any_file_is_detected(index: Path) -> None:
    folder = generation_path(index, 2)
    files = files_of(folder)
    assert len(files) > 20
    for path in files:
        content = path.read_bytes()
        for place in {0, len(content) // 2, len(content) - 1} if content else ():
            damaged = bytearray(content)
            damaged[place] ^= 0x10
            path.write_bytes(damaged)
            if path.name == generations.MANIFEST and _reads_the_same(content, bytes(damaged)):
                continue
            with pytest.raises(GenerationSuspect):
                verify(folder)
        path.write_bytes(content)
    verify(folder)


def _reads_the_same(before: bytes, after: bytes) -> bool:
    """A flipped bit in the white space of the manifest changes nothing."""
    try:
        return bool(msgspec.json.decode(before) == msgspec.json.decode(after))
    except msgspec.DecodeError:
        return False


@pytest.mark.parametrize("damage", ["truncate", "zero", "delete", "grow"])
def test_a_file_that_is_cut_or_gone_is_detected_by_its_size_alone(index: Path, damage: str) -> None:
    """C1: a reset of the machine left a zero-byte manifest of LanceDB, and every command failed for ever."""
    folder = generation_path(index, 2)
    for path in files_of(folder):
        content = path.read_bytes()
        if not content and damage != "grow":
            continue
        if damage == "delete":
            path.unlink()
        else:
            path.write_bytes({"truncate": content[:-1], "zero": b"", "grow": content + b"x"}[damage])
        with pytest.raises(GenerationSuspect):
            verify_shape(folder)
        with pytest.raises(GenerationSuspect):
            verify(folder)
        path.write_bytes(content)
    verify_shape(folder)


def test_a_file_too_many_is_detected(index: Path) -> None:
    (generation_path(index, 2) / "events.lance" / "extra").touch()
    with pytest.raises(GenerationSuspect, match=r"0 files missing, 1 unexpected: 'events\.lance/extra'"):
        verify_shape(generation_path(index, 2))


def test_a_generation_under_another_number_is_suspect(index: Path) -> None:
    generation_path(index, 2).rename(generation_path(index, 7))
    with pytest.raises(GenerationSuspect, match="its manifest is that of gen-000002"):
        verify(generation_path(index, 7))


def test_a_damaged_generation_gives_way_to_the_one_before(index: Path) -> None:
    data = next(generation_path(index, 2).glob("events.lance/data/*"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    state = recover(index)
    assert served(state) == 1
    assert [(Path(suspect.path).name, suspect.reason) for suspect in state.suspects] == [("gen-000002", "suspect")]
    assert data.name in state.suspects[0].detail
    assert state.highest == 2
    assert read_current(index) == Pointer(generation=1), "a restart does not decide anew"
    assert generation_path(index, 2).exists(), "kept to be looked at"
    assert served(recover(index)) == 1
    shelf.retire(index, [1], [])
    assert sealed_numbers(index) == [1]


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"generation": 77}', b'{"generation": "2"}', b"\x00" * 40])
def test_without_a_usable_pointer_the_highest_that_verifies_is_served(index: Path, content: bytes | None) -> None:
    if content is None:
        (index / "CURRENT").unlink()
    else:
        (index / "CURRENT").write_bytes(content)
    assert served(recover(index)) == 2
    assert read_current(index) == Pointer(generation=2)


def test_with_nothing_sound_there_is_nothing_to_serve(index: Path) -> None:
    for number in (1, 2):
        (generation_path(index, number) / "MANIFEST.json").write_bytes(b"")
    state = recover(index)
    assert (state.current, state.previous, state.highest) == (None, [], 2)
    assert {Path(suspect.path).name for suspect in state.suspects} == {"gen-000001", "gen-000002"}
    assert read_current(index) is None


def test_a_generation_that_does_not_answer_as_it_should_is_put_aside_like_a_damaged_one(index: Path) -> None:
    state = shelf.recover(index, [], lambda: None, {2: "its recall is 0.1"})
    assert (served(state), state.previous) == (1, [])
    assert [(Path(each.path).name, each.detail) for each in state.suspects] == [("gen-000002", "its recall is 0.1")]
    assert read_current(index) == Pointer(generation=1)
    shelf.retire(index, [1], [])
    assert sealed_numbers(index) == [1]


def test_what_is_sealed_of_a_generation_on_its_way_is_not_deleted(index: Path) -> None:
    shelf.flip(index, 1)
    shelf.retire(index, [1], [], building=2)
    assert sealed_numbers(index) == [1, 2]
    shelf.retire(index, [1], [])
    assert sealed_numbers(index) == [1]


def test_an_earlier_one_that_is_damaged_is_not_offered(index: Path) -> None:
    next(generation_path(index, 1).glob("units.lance/data/*")).unlink()
    state = recover(index)
    assert (served(state), state.previous) == (2, [])
    assert [Path(suspect.path).name for suspect in state.suspects] == ["gen-000001"]


def test_the_pointer_decides_also_after_a_rollback(index: Path) -> None:
    shelf.flip(index, 1)
    state = recover(index)
    assert (served(state), state.previous, state.highest) == (1, [], 2)


def test_an_index_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    state = recover(tmp_path / "never made")
    assert (state.current, state.previous, state.highest, state.suspects) == (None, [], 0, [])


def test_the_remains_of_a_crash_are_removed(index: Path) -> None:
    (index / "CURRENT.tmp").write_bytes(b"half")
    (index / "gen-000003.tmp" / "staging").mkdir(parents=True)
    (index / "gen-000001.gone.tmp").mkdir()
    (index / "scratch.tmp").mkdir()
    outside = index.parent / "outside"
    outside.mkdir()
    (outside / "file").touch()
    (index / "link.tmp").symlink_to(outside)
    recover(index)
    assert not list(index.glob("*.tmp"))
    assert (outside / "file").exists()


# ---------------------------------------------------------------- pointing and retiring


def test_a_generation_whose_files_are_gone_is_not_pointed_at(index: Path) -> None:
    shutil.rmtree(generation_path(index, 1))
    with pytest.raises(GenerationSuspect):
        shelf.flip(index, 1)
    assert read_current(index) == Pointer(generation=2)


def test_what_current_names_is_never_retired(index: Path) -> None:
    shelf.retire(index, [], [])
    assert sealed_numbers(index) == [2]
    assert served(recover(index)) == 2


def test_those_to_be_kept_are_kept(index: Path) -> None:
    (index / "gen-000001.gone.tmp").mkdir()  # left by a kill during an earlier deletion
    (index / "gen-000001.gone.tmp" / "file").touch()
    shelf.retire(index, [1], [])
    assert sealed_numbers(index) == [1, 2]
    shelf.retire(index, [2], [])
    assert sealed_numbers(index) == [2] and not list(index.glob("*.tmp"))


def test_a_probe_notices_that_the_index_was_deleted(index: Path) -> None:
    shelf.probe(index, 2)
    with pytest.raises(GenerationSuspect, match="names gen-000002, expected gen-000001"):
        shelf.probe(index, 1)
    shutil.rmtree(generation_path(index, 2) / "units.lance")
    with pytest.raises(GenerationSuspect, match="files missing"):
        shelf.probe(index, 2)
    shutil.rmtree(index)
    with pytest.raises(GenerationSuspect, match="cannot be read"):
        shelf.probe(index, 2)


# ---------------------------------------------------------------- one builder


class RefusedWorker(WorkerClient):
    """A worker that does not become ready; `error` says why."""

    def __init__(self, index: Path) -> None:
        try:
            super().__init__(MODULE, settings(index))
        except AssertionError as error:
            self.error = str(error)


def test_a_second_builder_on_the_same_folder_does_not_start(index: Path) -> None:
    lock = IndexLock(index)
    lock.hold()
    worker = RefusedWorker(index)
    with worker:
        assert "held by another builder process" in worker.error
    lock.release()


def test_the_lock_of_a_killed_builder_is_free(index: Path) -> None:
    with WorkerClient(MODULE, settings(index)) as worker:
        os.kill(worker.process.pid, signal.SIGSTOP)
        with pytest.raises(StoreBusy, match="held by another builder process"):
            IndexLock(index).hold()
        worker.kill()
        lock = IndexLock(index)
        lock.hold()
        lock.release()


def test_a_lock_whose_file_was_deleted_is_taken_anew(tmp_path: Path) -> None:
    index = tmp_path / "index"
    first, second = IndexLock(index), IndexLock(index)
    first.hold()
    shutil.rmtree(index)
    second.hold()
    with pytest.raises(StoreBusy, match="held by another builder process"):
        first.hold()
    second.release()
    first.hold()
    first.release()


# ---------------------------------------------------------------- a full disk


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process can be set on Linux only")
def test_a_full_disk_ends_the_build_and_leaves_room(index: Path) -> None:
    """A limit on file sizes stands in for a full disk: the same kind of error, on the same calls."""
    events = [{**EVENTS[0], "seq": seq, "event_id": f"e{seq}", "content": f"w{seq} " * 40} for seq in range(1, 300)]
    stage = StageEvents(rows=msgspec.msgpack.encode(events))
    write, build_index = WriteTable(corpus="events"), IndexTable(corpus="events")
    with Builder(index) as builder:
        for before, step, limit in (
            ([], stage, 16 * 1024),
            ([stage], write, 64 * 1024),
            ([stage, write], build_index, 8 * 1024),
        ):
            builder.begin(3, identity=None)
            for earlier in before:
                builder.worker.call(earlier, msgspec.Struct)
            with (
                file_size_limit(builder.worker.process.pid, limit),
                pytest.raises(DiskFull, match="no room on the disk"),
            ):
                builder.worker.call(step, msgspec.Struct)
            assert not list(index.glob("*.tmp")), "the room is given back at once"
            with pytest.raises(BuildFailed, match="no build is under way"):
                builder.worker.call(step, msgspec.Struct)
        assert builder.build(3).rows["events"] == 5
    assert served(recover(index)) == 3


@contextmanager
def file_size_limit(pid: int, size: int) -> Iterator[None]:
    """Let a process write no file longer than this."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
