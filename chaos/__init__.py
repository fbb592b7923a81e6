"""Scenarios that hurt a real daemon under load, and check what must still hold. `python -m chaos list`."""
