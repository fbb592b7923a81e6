"""What is read from the daemon's metrics about a worker that was hurt."""

from typing import Any

import pytest

from chaos.deaths import IN_HAND_STEPS_MS, Death, Watch, phase, phases, summary_ms


def status(name: str, *, state: str = "ready", epoch: int = 1, ready: bool = True, **mailbox: float) -> dict[str, Any]:
    """Make the metrics of an actor with one worker of its own and another beside it."""
    workers = [
        {"name": "beside", "pid": 8, "ready": True, "silent_ms": 0.0},
        {"name": name, "pid": 7, "ready": ready, "silent_ms": 3.0},
    ]
    return {
        "state": state,
        "epoch": epoch,
        "workers": workers,
        "mailbox": {"in_hand": 0, "in_hand_ms": 0.0, **mailbox},
    }


def seen(transitions: list[dict[str, Any]], **actors: dict[str, Any]) -> Watch:
    """Return a watch that has polled once, at 10 s."""
    watch = Watch("unused")
    watch._take({"searcher": {}, "actors": actors, "transitions": transitions}, 9.9, 10.0)
    return watch


def test_a_row_is_about_the_actors_own_worker() -> None:
    row = seen([], core_writer=status("core_writer")).rows["core_writer"]
    assert (row.pid, row.pids, row.up, row.silent_ms) == (7, (8, 7), True, 3.0)


@pytest.mark.parametrize(("state", "ready"), [("starting", True), ("ready", False), ("backoff", False)])
def test_an_actor_without_a_ready_worker_is_not_up(state: str, ready: bool) -> None:
    watch = seen([], core_writer=status("core_writer", state=state, ready=ready))
    assert not watch.rows["core_writer"].up


def test_a_change_of_state_is_dated_when_it_was_first_seen() -> None:
    entry = {"actor": "core_writer", "epoch": 3, "after": "failed", "ago_ms": 500}
    watch = seen([entry], core_writer=status("core_writer"))
    watch._take({"searcher": {}, "actors": {}, "transitions": [{**entry, "ago_ms": 700}]}, 10.1, 10.3)
    assert watch.change("core_writer", 3, "failed") == pytest.approx(9.5)
    assert watch.change("core_writer", 4, "failed") is None
    assert watch.change("core_writer", 3, "ready", "failed") == pytest.approx(9.5)


@pytest.mark.parametrize(
    ("ready", "in_hand", "in_hand_ms", "name"),
    [
        (False, 1, 3.0, "starting"),
        (True, 0, 0.0, "idle"),
        (True, 2, IN_HAND_STEPS_MS[0] / 2, f"in hand < {IN_HAND_STEPS_MS[0]:g} ms"),
        (True, 2, IN_HAND_STEPS_MS[1], f"in hand < {IN_HAND_STEPS_MS[2]:g} ms"),
        (True, 2, 1e6, f"in hand ≥ {IN_HAND_STEPS_MS[-1]:g} ms"),
    ],
)
def test_the_phase_of_a_death_is_what_was_in_hand(ready: bool, in_hand: int, in_hand_ms: float, name: str) -> None:
    watch = seen([], core_writer=status("core_writer", ready=ready, in_hand=in_hand, in_hand_ms=in_hand_ms))
    assert phase(watch.rows["core_writer"]) == name


def test_deaths_are_counted_by_phase() -> None:
    deaths = [
        Death(actor="a", pid=1, epoch=1, at=0.0, phase=name, noticed_s=None, ready_s=0.1)
        for name in ("idle", "starting", "idle")
    ]
    assert phases(deaths) == {"idle": 2, "starting": 1}


def test_a_summary_of_nothing_is_zero() -> None:
    assert summary_ms([]) == {"count": 0, "p50": 0.0, "p99": 0.0, "max": 0.0}
    assert summary_ms([0.001, 0.002, 0.004]) == {"count": 3, "p50": 2.0, "p99": 4.0, "max": 4.0}
