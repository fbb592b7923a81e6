"""Preferences that are off by default: newer hits, hits that differ."""

import msgspec

from actors.messages.base import Candidate
from actors.searcher.preferences import DAY_US, prefer_different, prefer_recent
from actors.searcher.ranking import Ranked, fuse

NOW = 400 * DAY_US


def ranked(*hits: tuple[str, float, dict[str, object]], exact: tuple[str, ...] = ()) -> list[Ranked]:
    candidates = [
        msgspec.structs.replace(Candidate(id=id, corpus="events", text_score=score, snippet=id), **members)
        for id, score, members in hits
    ]
    return fuse(candidates, [], weight=0, exact=exact)


def ids(hits: list[Ranked]) -> list[str]:
    return [hit.candidate.id for hit in hits]


def test_a_newer_hit_passes_one_that_is_hardly_better() -> None:
    hits = ranked(("old", 10, {"ts": NOW - 300 * DAY_US}), ("new", 9.5, {"ts": NOW}), ("bad", 5, {"ts": NOW}))
    assert ids(hits) == ["old", "new", "bad"]
    assert ids(prefer_recent(hits, now_us=NOW)) == ["new", "old", "bad"]
    assert ids(prefer_recent(hits, now_us=NOW, share=0.01)) == ["old", "new", "bad"]


def test_age_takes_its_share_by_half_lives() -> None:
    hits = ranked(("a", 10, {"ts": NOW - 30 * DAY_US}))
    assert prefer_recent(hits, now_us=NOW, half_life_days=30, share=0.2)[0].score == 0.9
    assert prefer_recent(hits, now_us=0, share=0.2)[0].score == 1.0  # from the future: as new as can be
    assert prefer_recent(ranked(("b", 1, {"ts": 0})), now_us=NOW, share=0.2)[0].score == 0.8  # no time: as old


def test_a_hit_that_says_the_same_gives_way() -> None:
    hits = ranked(("a", 10, {"snippet": "same"}), ("b", 9.9, {"snippet": "same"}), ("c", 9.5, {"snippet": "different"}))
    assert ids(prefer_different(hits)) == ["a", "c", "b"]
    assert ids(prefer_different(hits, share=0.0)) == ["a", "b", "c"]


def test_pieces_of_one_note_give_way_to_another_note() -> None:
    hits = ranked(("a", 10, {"path": "n/x.md"}), ("b", 9.9, {"path": "n/x.md"}), ("c", 9.5, {"path": "n/y.md"}))
    assert ids(prefer_different(hits)) == ["a", "c", "b"]


def test_an_exact_hit_stays_among_the_first() -> None:
    new: dict[str, object] = {"ts": NOW}
    others = [(f"o{n}", 9.0, new) for n in range(6)]
    hits = ranked(("x", 9.5, {"ts": 0, "snippet": "user_id"}), *others, exact=("user_id",))
    assert ids(prefer_recent(hits, now_us=NOW, share=0.5))[2] == "x"
