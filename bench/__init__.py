"""Benchmarks: they print numbers with their method, and assert nothing. `python -m bench list`."""
