"""From two lists to one order: scale, weight, pieces, exact names, ties, the rows newer than a generation."""

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.messages.base import CORPORA, Candidate
from actors.searcher.ranking import (
    EXACT_IN_TOP,
    LIST_MAX,
    Ranked,
    at_least,
    explain,
    fuse,
    identifiers,
    mask,
    merge_overlay,
    weight_for,
)
from actors.settings import SearcherSettings

LIMITS = SearcherSettings()


def hit(id: str, *, text: float | None = None, vector: float | None = None, **members: object) -> Candidate:
    base = Candidate(id=id, corpus="events", text_score=text, vector_score=vector)
    return msgspec.structs.replace(base, **members)


def ids(ranked: list[Ranked]) -> list[str]:
    return [one.candidate.id for one in ranked]


def scores(ranked: list[Ranked]) -> dict[str, float]:
    return {one.candidate.id: round(one.score, 6) for one in ranked}


# ------------------------------------------------------------------ the sum


def test_a_short_keyword_list_counts_down_to_zero_and_vectors_to_their_last() -> None:
    text = [hit("a", text=8), hit("b", text=4)]
    vector = [hit("b", vector=0.9), hit("c", vector=0.8), hit("d", vector=0.7)]
    ranked = fuse(text, vector, weight=0.4)
    assert scores(ranked) == {"a": 0.6, "b": 0.7, "c": 0.2, "d": 0.0}
    assert ids(ranked) == ["b", "a", "c", "d"]
    assert (ranked[0].text_part, ranked[0].vector_part, ranked[0].weight) == (0.5, 1.0, 0.4)
    assert (ranked[0].candidate.text_score, ranked[0].candidate.vector_score) == (4, 0.9)


def test_a_single_keyword_hit_keeps_its_full_score() -> None:
    """The issue number: normalised by its own minimum it would count nothing and be lost."""
    ranked = fuse([hit("issue", text=7)], [hit(f"v{n}", vector=1 - n / 50) for n in range(50)], weight=0.15)
    assert ids(ranked)[0] == "issue" and ranked[0].score == pytest.approx(0.85)


def test_a_full_keyword_list_counts_from_its_last() -> None:
    text = [hit(f"t{n}", text=200.0 - n) for n in range(LIST_MAX)]
    parts = {one.candidate.id: one.text_part for one in fuse(text, [], weight=0)}
    assert parts["t0"] == 1 and parts[f"t{LIST_MAX - 1}"] == 0 and parts["t50"] == pytest.approx(49 / 99)


def test_only_the_best_of_a_long_list_counts() -> None:
    text = [hit(f"t{n}", text=float(n)) for n in range(LIST_MAX + 30)]
    ranked = fuse(text, [], weight=0)
    assert len(ranked) == LIST_MAX and ids(ranked)[0] == "t129" and ids(ranked)[-1] == "t30"
    assert len(fuse(text, [], weight=0, list_max=len(text))) == len(text)


def test_equal_scores_all_count_in_full() -> None:
    assert scores(fuse([], [hit("a", vector=0.5), hit("b", vector=0.5)], weight=1)) == {"a": 1, "b": 1}


@pytest.mark.parametrize(("text", "vector"), [([], []), ([hit("a", text=0.0)], []), ([hit("a", text=-1.0)], [])])
def test_degenerate_lists_are_no_error(text: list[Candidate], vector: list[Candidate]) -> None:
    assert all(0 <= one.score <= 1 for one in fuse(text, vector, weight=0.4))


def test_of_an_id_the_best_piece_stays() -> None:
    text = [hit("long", text=5, part=2, snippet="second"), hit("long", text=9, part=7, snippet="seventh")]
    ranked = fuse([*text, hit("other", text=1)], [hit("long", vector=0.9, part=7)], weight=0.4)
    assert ids(ranked) == ["long", "other"] and ranked[0].candidate.snippet == "seventh"


def test_the_same_id_in_two_corpora_is_two_hits() -> None:
    ranked = fuse([hit("x", text=2), hit("x", text=1, corpus="units")], [], weight=0)
    assert [(one.candidate.corpus, one.candidate.id) for one in ranked] == [("events", "x"), ("units", "x")]


def test_equal_scores_are_ordered_by_time_then_by_name() -> None:
    text = [
        hit("b", text=1, ts=5),
        hit("a", text=1, ts=5),
        hit("z", text=1, ts=9),
        hit("a", text=1, ts=5, corpus="units"),
    ]
    ranked = fuse(text, [], weight=0)
    assert [(one.candidate.id, one.candidate.corpus) for one in ranked] == [
        ("z", "events"),
        ("a", "events"),
        ("b", "events"),
        ("a", "units"),
    ]


candidates = st.lists(
    st.builds(
        Candidate,
        id=st.sampled_from("abcdefgh"),
        corpus=st.sampled_from(CORPORA),
        part=st.integers(0, 2),
        ts=st.integers(0, 2),
        text_score=st.one_of(st.none(), st.floats(0, 40).map(lambda x: round(x, 1))),
        vector_score=st.one_of(st.none(), st.floats(-1, 1).map(lambda x: round(x, 1))),
        snippet=st.sampled_from(["", "user_id", "my user_id is 7", "user_identity"]),
    ),
    max_size=20,
    unique_by=lambda c: (c.corpus, c.id, c.part),
)


@given(candidates, candidates, st.floats(0, 1), st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_the_order_of_the_lists(
    text: list[Candidate], vector: list[Candidate], weight: float, shuffler: random.Random
) -> None:
    ranked = fuse(text, vector, weight=weight, exact=("user_id",))
    shuffler.shuffle(text)
    shuffler.shuffle(vector)
    assert fuse(text, vector, weight=weight, exact=("user_id",)) == ranked
    values = [one.score for one in ranked]
    assert values == sorted(values, reverse=True) and all(0 <= value <= 1 + 1e-9 for value in values)
    keys = [(one.candidate.corpus, one.candidate.id) for one in ranked]
    assert len(keys) == len(set(keys))
    asked = {(c.corpus, c.id) for c in text if c.text_score is not None}
    asked |= {(c.corpus, c.id) for c in vector if c.vector_score is not None}
    assert set(keys) == asked


# ------------------------------------------------------------------ exact names (R1)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("POL-358", ("pol-358",)),
        ("what is user_id in auth_middleware.py?", ("user_id", "auth_middleware.py")),
        ('"ask-codex"', ("ask-codex",)),
        ("how to use --flag", ("--flag",)),
        ("frobnicate", ("frobnicate",)),
        ("用户身份", ("用户身份",)),
        ("plain words only", ()),
        ("", ()),
        ("??? !!!", ()),
    ],
)
def test_what_a_question_names_exactly(query: str, names: tuple[str, ...]) -> None:
    assert identifiers(query) == names


@pytest.mark.parametrize("weight", [0.0, 0.15, 0.45, 0.7, 1.0])
def test_a_perfect_keyword_hit_is_among_the_first_whatever_the_vectors_say(weight: float) -> None:
    """An incident elsewhere: 0.7·0 + 0.3·1 = 0.30 < 0.35, dropped."""
    text = [hit(f"t{n}", text=9.9 - n / 100, snippet="POL358") for n in range(20)]
    text.append(hit("right", text=5.0, snippet="closed as POL-358, see there"))
    vector = [hit(f"t{n}", vector=0.95) for n in range(20)] + [hit("right", vector=-1.0)]
    ranked = fuse(text, vector, weight=weight, exact=identifiers("POL-358"))
    assert "right" in ids(ranked)[:EXACT_IN_TOP]
    assert len(ranked) == 21
    assert "right" in ids(at_least(ranked, 0.99))
    assert "right" not in ids(fuse(text, vector, weight=weight))[:EXACT_IN_TOP]  # or the test would prove nothing


def test_the_hit_that_holds_most_of_what_was_named_is_the_one_that_is_lifted() -> None:
    text = [hit(f"t{n}", text=9.0, snippet="has user_id") for n in range(5)]
    text.append(hit("both", text=1.0, snippet="user_id in auth.py"))
    assert ids(fuse(text, [], weight=0, exact=("user_id", "auth.py")))[2] == "both"


@pytest.mark.parametrize(
    ("snippet", "holds"),
    [
        ("set user_id first", True),
        ("USER_ID", True),
        ("user_ids", False),
        ("my_user_id", False),
        ("记录user_id字段", True),
        ("user id", False),
    ],
)
def test_a_name_is_held_only_as_a_word_of_its_own(snippet: str, holds: bool) -> None:
    assert bool(fuse([hit("a", text=1, snippet=snippet)], [], weight=0, exact=("user_id",))[0].exact) == holds


def test_a_name_may_stand_in_the_heading_the_path_or_be_the_id() -> None:
    for member in ({"heading": "The user_id"}, {"path": "n/user_id.md"}, {"id": "user_id"}):
        one = msgspec.structs.replace(hit("a", text=1), **member)
        assert fuse([one], [], weight=0, exact=("user_id",))[0].exact == 1


def test_a_vector_hit_alone_is_never_lifted() -> None:
    """Its snippet may hold the name, but the keyword search, which would have found it, did not rank it."""
    text = [hit(f"t{n}", text=9.0) for n in range(4)]
    vector = [hit("v", vector=0.1, snippet="user_id"), hit("w", vector=0.2)]
    assert ids(fuse(text, vector, weight=0.2, exact=("user_id",)))[-1] in ("v", "w")


def test_hits_below_the_least_score_are_left_out() -> None:
    ranked = fuse([hit("a", text=10), hit("b", text=4)], [], weight=0)
    assert ids(at_least(ranked, 0.5)) == ["a"] and ids(at_least(ranked, None)) == ["a", "b"]
    assert at_least(ranked, 1.1) == []


# ------------------------------------------------------------------ weight, overlay, explain


@pytest.mark.parametrize(
    ("query", "mode", "provider", "weight"),
    [
        ("what did we eat", "hybrid", "local-e5", 0.45),
        ("what did we eat", "hybrid", None, 0.45),
        ("what did we eat", "hybrid", "local-use", 0.25),
        ("what did we eat", "hybrid", "openai-compatible", 0.5),
        ("where is user_id set", "hybrid", "openai-compatible", 0.15),
        ("where is user_id set", "keyword", "local-e5", 0.0),
        ("where is user_id set", "vector", "local-e5", 1.0),
    ],
)
def test_the_weight_follows_the_question_the_model_and_what_there_is(
    query: str, mode: str, provider: str | None, weight: float
) -> None:
    assert weight_for(query, LIMITS, mode=mode, provider=provider) == weight  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("query", "weight"),
    [
        ("部署失败怎么办", 0.55),
        ("部署失败 fail 怎么办", 0.55),
        ("deploy 失败", 0.45),
        ("カレーの作り方", 0.55),
        ("123", 0.45),
    ],
)
def test_scripts_without_spaces_give_meaning_more_weight(query: str, weight: float) -> None:
    settings = SearcherSettings(vector_weight_code=0.45)
    assert weight_for(query, settings, mode="hybrid", provider="local-e5") == weight


def test_a_weight_that_the_user_set_applies_to_every_model() -> None:
    limits = SearcherSettings(vector_weight=0.6, vector_weight_code=0.3)
    for provider in ("local-e5", "local-use", "openai-compatible"):
        assert weight_for("plain words", limits, mode="hybrid", provider=provider) == 0.6
        assert weight_for("user_id", limits, mode="hybrid", provider=provider) == 0.3


def test_newer_rows_join_the_keyword_list_and_changed_units_leave_it() -> None:
    generation = [
        hit("e1", text=5),
        hit("u1", text=9, corpus="units", version=1),
        hit("u2", text=3, corpus="units"),
        hit("u1", text=2),  # an event that happens to have the same id
    ]
    overlay = [hit("e2", text=4), hit("u1", text=6, corpus="units", version=2), hit("e1", text=5, snippet="again")]
    merged = merge_overlay(generation, overlay, masked=("u1",))
    assert [(c.corpus, c.id, c.version, c.snippet) for c in merged] == [
        ("units", "u1", 2, ""),
        ("events", "e1", 0, "again"),
        ("events", "e2", 0, ""),
        ("units", "u2", 0, ""),
        ("events", "u1", 0, ""),
    ]


def test_a_changed_unit_that_no_longer_matches_is_gone_from_both_lists() -> None:
    assert merge_overlay([hit("u1", text=9, corpus="units")], [], masked=("u1",)) == []
    assert mask([hit("u1", vector=0.9, corpus="units"), hit("e", vector=0.1)], ("u1",)) == [hit("e", vector=0.1)]


def test_an_answer_can_be_explained() -> None:
    ranked = fuse([hit("a", text=3, snippet="x_y")], [hit("a", vector=0.5)], weight=0.25, exact=("x_y",))
    assert explain(ranked[0]) == {
        "text_score": 3,
        "vector_score": 0.5,
        "text_part": 1.0,
        "vector_part": 1.0,
        "vector_weight": 0.25,
        "exact": 1,
    }
    assert math.isclose(ranked[0].score, 1.0)
