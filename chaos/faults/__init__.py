"""Faults inside worker processes: a launcher, a control door, a faulty disk, and mutations of single promises.

The daemon starts its workers through `chaos.faults.worker` when its configuration says so. Nothing of production
imports this package; without a fault, a worker that was started so behaves like one that was not.

    kinds.py      pure: what can be asked for
    control.py    the scenario's side: inject, clear, what has fired
    worker.py     the worker's side: the launcher; room.py, door.py: what it puts around the room
    disk.py       the SQLite VFS; disk_plan.py, overlay.py: what it does with each call
    mutations.py  promises that can be switched off
"""
