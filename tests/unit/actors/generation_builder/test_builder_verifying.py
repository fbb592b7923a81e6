"""What a verification makes of the answers: sound, not searched, or put aside although every hash is right."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from actors.errors import ActorUnavailable, BulkheadError, GenerationSuspect
from actors.generation_builder.desk import Desk
from actors.generation_builder.publishing import Publisher
from actors.generation_builder.verifying import Verifier
from actors.messages.base import Message
from actors.messages.builder_work import SampleView, VerifyGeneration
from actors.messages.index import Covers, GenerationRef, VectorProbe, ViewSample, WordProbe
from actors.messages.searcher import FoundRow, Tried
from actors.notices import BuilderNotice

VIEW = GenerationRef(
    generation=5,
    path="",
    covers=Covers(),
    rows={"events": 1},
    vectors_have=1,
    vectors_want=1,
    identity=None,
    built_at=0,
    bytes=10,
)
SAMPLE = ViewSample(
    words=[WordProbe(corpus="events", id="e1", part=0, tenant="default", query="rare")],
    vectors=[VectorProbe(tenant="default", vector=b"", distances=[0.1, 0.2])],
)


def row(name: str, score: float) -> FoundRow:
    return FoundRow(corpus="events", id=name, part=0, score=score)


SOUND = Tried(words=[[row("e1", 3)]], vectors=[[row("e1", 0.9), row("e2", 0.8)]], recent=2, recent_answered=1)


class Index:
    """A desk and a publisher over one view, with a searcher that answers as it is told."""

    def __init__(self, tried: Tried | BulkheadError, *, files: GenerationSuspect | None = None) -> None:
        self.tried = tried
        self.files = files
        self.pinned_now = 0
        self.fallen: list[int | None] = []
        desk = SimpleNamespace(notice=BuilderNotice(serving=VIEW), seat=self, house=self)
        self.verifier = Verifier(cast(Desk, desk), cast(Publisher, self))

    async def call(self, message: Message, answer: type[msgspec.Struct], **_: object) -> object:
        assert self.pinned_now, "its files may be deleted meanwhile"
        if isinstance(message, VerifyGeneration) and self.files is not None:
            raise self.files
        return SAMPLE if isinstance(message, SampleView) else VIEW

    async def ask(self, actor: str, message: Message, answer: type[msgspec.Struct], **_: object) -> object:
        assert actor == "searcher" and self.pinned_now
        if isinstance(self.tried, BulkheadError):
            raise self.tried
        return self.tried

    @contextmanager
    def pinned(self, view: GenerationRef) -> Iterator[None]:
        self.pinned_now += 1
        try:
            yield
        finally:
            self.pinned_now -= 1

    async def fall_back(self, error: BulkheadError, *, distrusted: int | None = None) -> None:
        self.fallen.append(distrusted)

    async def verify(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((await self.verifier.verify(0)).row)
        return found


async def test_a_view_that_answers_as_it_should_is_verified_with_numbers() -> None:
    index = Index(SOUND)
    found = await index.verify()
    assert found["verified"] and found["recall"]["value"] == 1.0 and found["not_searched"] is None
    assert (found["queries"]["found"], found["queries"]["recent"], found["queries"]["recent_answered"]) == (1, 2, 1)
    assert index.fallen == [] and not index.pinned_now


@pytest.mark.parametrize(
    ("tried", "said"),
    [
        (msgspec.structs.replace(SOUND, vectors=[[row("e1", 0.9)]]), "its recall is 0.5, at least 0.95"),
        (msgspec.structs.replace(SOUND, words=[[row("e2", 3)]]), "events/e1 is not found by its own words"),
    ],
)
async def test_a_view_that_does_not_is_put_aside_although_its_files_are_sound(tried: Tried, said: str) -> None:
    index = Index(tried)
    with pytest.raises(GenerationSuspect, match=said):
        await index.verify()
    assert index.fallen == [VIEW.generation]


async def test_damaged_files_and_a_searcher_that_cannot_read_them_lead_to_the_same() -> None:
    damaged = Index(SOUND, files=GenerationSuspect("file 'x' is not what was sealed"))
    unreadable = Index(GenerationSuspect("keyword search failed"))
    for index in (damaged, unreadable):
        with pytest.raises(GenerationSuspect):
            await index.verify()
        assert index.fallen == [None]


async def test_a_searcher_that_is_away_is_no_damage_and_is_said() -> None:
    index = Index(ActorUnavailable("no search worker is up"))
    found = await index.verify()
    assert found["verified"] and found["recall"] is None and found["not_searched"] == "no search worker is up"
    assert index.fallen == []
