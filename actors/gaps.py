"""Seqs that no event has: between two segments of the transcript, or where events were lost. Pure.

A number of events is a difference of seqs only within a segment. Who counts how far something is behind the transcript
takes the gaps from the difference. They travel in the transcript's status as text, "165-2000000 2000070-2000090".
"""

from collections.abc import Iterable

Gap = tuple[int, int]


def encode_gaps(gaps: Iterable[Gap]) -> str:
    """Return the ranges (first, last) as text."""
    return " ".join(f"{first}-{last}" for first, last in gaps)


def decode_gaps(text: str) -> tuple[Gap, ...]:
    """Return the ranges that `encode_gaps` wrote."""
    pairs = (part.split("-") for part in text.split())
    return tuple((int(first), int(last)) for first, last in pairs)


def count_between(after: int, until: int, gaps: Iterable[Gap]) -> int:
    """Return how many seqs with after < seq <= until are in no gap."""
    missing = sum(max(0, min(last, until) - max(first, after + 1) + 1) for first, last in gaps)
    return max(0, until - after - missing)
