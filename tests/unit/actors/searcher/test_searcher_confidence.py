"""Off-topic questions are told from others (R8)."""

import pytest

from actors.messages.base import Candidate
from actors.searcher.ranking import Ranked, fuse, low_confidence


def answer(
    snippet: str, *, cosine: float | None = None, others: tuple[float, ...] = (), heading: str | None = None
) -> list[Ranked]:
    """One hit with this text and cosine, and further hits without any word in common."""
    best = Candidate(id="best", corpus="events", snippet=snippet, text_score=1.0, vector_score=cosine, heading=heading)
    rest = [Candidate(id=f"o{n}", corpus="events", snippet="…", vector_score=c) for n, c in enumerate(others)]
    return fuse([best], [best, *rest] if cosine is not None else [], weight=0.4)


def test_nothing_found_is_low_confidence() -> None:
    assert low_confidence([], "anything", provider="local-e5")


@pytest.mark.parametrize(
    ("query", "snippet", "cosine", "low"),
    [
        ("what do I paint", "User: I really enjoy watercolours", 0.86, False),
        ("melting point of tungsten", "User: I really enjoy watercolours", 0.80, True),
        ("我喜欢画什么", "用户: 我平时爱看科幻小说", 0.90, False),
        ("钨的熔点是多少", "用户: 我平时爱看科幻小说", 0.84, True),
        ("what do I read", "用户: 我平时爱看科幻小说", 0.82, False),
        ("我喜欢画什么", "User: I really enjoy watercolours", 0.77, True),
    ],
)
def test_the_default_model_convinces_by_nearness_that_depends_on_the_scripts(
    query: str, snippet: str, cosine: float, low: bool
) -> None:
    assert low_confidence(answer(snippet, cosine=cosine), query, provider="local-e5") == low


def test_words_convince_where_the_vector_does_not() -> None:
    found = answer("the BGP route reflector of the Juniper router", cosine=0.5)
    assert not low_confidence(found, "configure BGP route reflectors on Juniper", provider="local-e5")
    assert low_confidence(found, "configure kubernetes ingress on Juniper", provider="local-e5")


def test_words_in_the_heading_count() -> None:
    assert not low_confidence(answer("see below", heading="Juniper router"), "juniper router")


def test_single_chinese_characters_do_not_convince() -> None:
    found = answer("个哪是的说我人", cosine=0.5)
    assert low_confidence(found, "我说的是哪个人", provider="local-e5")
    assert not low_confidence(answer("人", cosine=0.5), "人", provider="local-e5")


def test_without_vectors_fewer_words_must_do() -> None:
    query, snippet = "quarterly revenue forecast", "the forecast for Friday is rain, revenue aside"
    assert not low_confidence(answer(snippet), query)
    assert low_confidence(answer("the forecast for Friday is rain"), query)
    assert low_confidence(answer("the forecast is rain", cosine=0.1, others=(0.1,) * 4), query, provider="local-use")


def test_the_small_model_has_limits_of_its_own() -> None:
    found = answer("unrelated words", cosine=0.45)
    assert not low_confidence(found, "some question", provider="local-use")
    assert low_confidence(found, "some question", provider="local-e5")


def test_of_an_unknown_model_the_best_must_stand_out() -> None:
    others = (0.50, 0.49, 0.48, 0.47)
    assert not low_confidence(answer("unrelated", cosine=0.70, others=others), "question", provider="their-model")
    assert low_confidence(answer("unrelated", cosine=0.55, others=others), "question", provider="their-model")
