"""The sealed generations on disk: recover after a crash, point at one, retire the others. LanceDB is not needed.

The rules:
* CURRENT is believed when the generation it names verifies byte for byte. Otherwise the highest one that does takes
  its place and CURRENT is put right; with none, CURRENT is removed.
* A generation that fails is a *suspect*. It is never served and stays where it is, to be looked at, until the next
  `retire`: the truth is elsewhere, so nothing is lost with it.
* What lies above CURRENT and is sound was sealed and not published, or rolled back. Its number is not used again.
* A generation is renamed before it is deleted, so that half of one is never taken for one.
* A delta belongs to its generation: it is served as CURRENT names both, and when it fails the generation is served
  without it. What it held is found by its words meanwhile, and a new one is made.
"""

import shutil
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from actors import generation as generations
from actors.errors import GenerationSuspect
from actors.generation import (
    Manifest,
    Pointer,
    delta_path,
    doomed_path,
    folder_name,
    generation_path,
    sealed_deltas,
    sealed_path,
)
from actors.generation_builder.faults import storage_errors
from actors.messages.builder_work import IndexState
from actors.messages.index import GenerationRef, Skip, split_view, view_number

SUSPECT = "suspect"


def recover(
    index: Path, spared: Collection[Path], check: Callable[[], None], distrusted: Mapping[int, str] = {}
) -> IndexState:
    """Remove the remains of a crash, verify what CURRENT names, fall back when that is damaged.

    `spared` are the folders of a build that is under way; `distrusted` generations count as damaged, for the reason
    given. Those behind the current one are only looked at (names and sizes): whoever serves one verifies it first.
    """
    remove_temporary(index, spared)
    numbers = generations.sealed_numbers(index)
    suspects = {
        number: Skip(path=str(generation_path(index, number)), reason=SUSPECT, detail=why)
        for number, why in distrusted.items()
    }
    pointed = generations.read_current(index)
    candidates = [number for number in _candidates(numbers, pointed) if number not in distrusted]
    base = _first_sound(index, candidates, suspects, check)
    current = _with_delta(index, pointed, base, suspects, check)
    _put_right(index, pointed, current)
    behind = [number for number in reversed(numbers) if current is not None and number < current.generation]
    previous = _whole(index, [number for number in behind if number not in suspects], suspects)
    return IndexState(
        current=current,
        base=base,
        deltas_highest=max((delta for _, delta in sealed_deltas(index)), default=0),
        previous=previous,
        highest=max(numbers, default=0),
        suspects=list(suspects.values()),
    )


def current_manifest(index: Path) -> Manifest | None:
    """Return the manifest of what CURRENT names (of the delta, if there is one); None when it cannot be read."""
    pointer = generations.read_current(index)
    return None if pointer is None else manifest_or_none(sealed_path(index, pointer.generation, pointer.delta))


def manifest_or_none(folder: Path) -> Manifest | None:
    """Return the manifest of a generation; None when it cannot be read."""
    try:
        return generations.read_manifest(folder)
    except GenerationSuspect:
        return None


def flip(index: Path, number: int, delta: int | None = None) -> None:
    """Point CURRENT at a sealed generation, atomically and durably, or at a delta over it.

    Raises GenerationSuspect when their files are not there.
    """
    _verify_shapes(index, number, delta)
    with storage_errors(f"publishing {folder_name(number, delta)}"):
        generations.write_current(index, Pointer(generation=number, delta=delta))


def probe(index: Path, number: int, delta: int | None = None) -> None:
    """Check that CURRENT names this generation and delta and that their files are there, or raise GenerationSuspect."""
    pointer = generations.read_current(index)
    if pointer != Pointer(generation=number, delta=delta):
        found = "cannot be read" if pointer is None else f"names {folder_name(pointer.generation, pointer.delta)}"
        raise GenerationSuspect(f"{generations.CURRENT} {found}, expected {folder_name(number, delta)}")
    _verify_shapes(index, number, delta)


def _verify_shapes(index: Path, number: int, delta: int | None) -> None:
    generations.verify_shape(generation_path(index, number))
    if delta is not None:
        generations.verify_shape(delta_path(index, number, delta))


def retire(index: Path, keep: Collection[int], spared: Collection[Path], building: int | None = None) -> None:
    """Delete the sealed generations and deltas that belong to none of the views in `keep` and are not current, and
    every temporary folder that is not spared. What is sealed of the generation `building` stays: it is on its way.
    """
    pointer = generations.read_current(index)
    views = {*keep} if pointer is None else {*keep, view_number(pointer.generation, pointer.delta)}
    kept = {split_view(view) for view in views} | {(split_view(view)[0], None) for view in views}
    remove_temporary(index, spared)
    with storage_errors("retiring generations"):
        sealed = [*((number, None) for number in generations.sealed_numbers(index)), *sealed_deltas(index)]
        for number, delta in sealed:
            if number != building and (number, delta) not in kept:
                sealed_path(index, number, delta).rename(doomed_path(index, number, delta))
    remove_temporary(index, spared)


def remove_temporary(index: Path, spared: Collection[Path]) -> None:
    """Delete builds that were not finished, generations that were being deleted, a pointer that was being written."""
    for path in index.glob(f"*{generations.TEMPORARY}"):
        if path in spared:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _candidates(numbers: list[int], pointed: Pointer | None) -> list[int]:
    """Return the generations in the order in which they may be served: the one CURRENT names, then the highest."""
    falling = sorted(numbers, reverse=True)
    if pointed is None:
        return falling
    return [pointed.generation, *(number for number in falling if number != pointed.generation)]


def _first_sound(
    index: Path, candidates: list[int], suspects: dict[int, Skip], check: Callable[[], None]
) -> GenerationRef | None:
    for number in candidates:
        folder = generation_path(index, number)
        try:
            return generations.reference(folder, generations.verify(folder, check))
        except GenerationSuspect as error:
            suspects[number] = _suspect(folder, error)
    return None


def _with_delta(
    index: Path,
    pointed: Pointer | None,
    current: GenerationRef | None,
    suspects: dict[int, Skip],
    check: Callable[[], None],
) -> GenerationRef | None:
    """Add the delta that CURRENT names, when it is sound and belongs to what will be served."""
    if current is None or pointed is None or pointed.delta is None or pointed.generation != current.generation:
        return current
    folder = delta_path(index, pointed.generation, pointed.delta)
    try:
        return generations.with_delta(current, folder, generations.verify(folder, check))
    except GenerationSuspect as error:
        suspects[view_number(pointed.generation, pointed.delta)] = _suspect(folder, error)
        return current


def _whole(index: Path, numbers: list[int], suspects: dict[int, Skip]) -> list[GenerationRef]:
    """Return those whose files are there and have their sizes."""
    whole = []
    for number in numbers:
        folder = generation_path(index, number)
        try:
            whole.append(generations.reference(folder, generations.verify_shape(folder)))
        except GenerationSuspect as error:
            suspects[number] = _suspect(folder, error)
    return whole


def _suspect(folder: Path, error: GenerationSuspect) -> Skip:
    return Skip(path=str(folder), reason=SUSPECT, detail=error.message)


def _put_right(index: Path, pointed: Pointer | None, current: GenerationRef | None) -> None:
    """Make CURRENT say what is served, so that a restart does not decide anew.

    On a full disk it cannot, and a restart has to: that is no reason to serve nothing now.
    """
    try:
        if current is None:
            (index / generations.CURRENT).unlink(missing_ok=True)
        elif pointed != Pointer(generation=current.generation, delta=current.delta):
            generations.write_current(index, Pointer(generation=current.generation, delta=current.delta))
    except OSError as error:
        print(f"{generations.CURRENT} not put right: {error}", file=sys.stderr)
