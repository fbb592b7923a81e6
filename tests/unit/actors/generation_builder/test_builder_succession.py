"""Which model a build is for, and when the old generation is relieved."""

import msgspec
import pytest

from actors.actor import Board
from actors.embedding import resolve_identity
from actors.generation_builder.succession import (
    ALL_TRIED,
    IDENTITY_CHANGED,
    NEW_VECTORS,
    OUTGROWN,
    Succession,
)
from actors.messages.builder_work import ModelChange
from actors.messages.index import Covers, EmbeddingIdentity, GenerationRef
from actors.notices import BuilderNotice
from actors.settings import EmbeddingSettings, GenerationBuilderSettings

NEW = EmbeddingSettings(provider="openai-compatible", model="new", base_url="http://localhost/v1", dimensions=4)
OLD = msgspec.structs.replace(NEW, model="old", dimensions=8, query_prefix="q: ", document_prefix="it's: ")
LOCAL = EmbeddingSettings(provider="local-use")
NONE = EmbeddingSettings(provider="none")


def ref(number: int, settings: EmbeddingSettings, have: int = 100, want: int = 100) -> GenerationRef:
    return GenerationRef(
        generation=number,
        path=f"gen-{number}",
        covers=Covers(),
        rows={},
        vectors_have=have,
        vectors_want=want,
        identity=resolve_identity(settings),
        built_at=0,
    )


def succession(settings: EmbeddingSettings, *, percent: int = 95, **notice: object) -> Succession:
    notice.setdefault("base", notice.get("serving"))
    board = Board(msgspec.structs.replace(BuilderNotice(identity=resolve_identity(settings)), **notice))
    return Succession(board, GenerationBuilderSettings(model_change_coverage_percent=percent), settings)


def identity(settings: EmbeddingSettings) -> EmbeddingIdentity | None:
    return resolve_identity(settings)


def test_without_a_change_nothing_is_special() -> None:
    for serving in (None, ref(1, NEW)):
        asked = succession(NEW, serving=serving)
        assert asked.due() is None
        assert asked.choose(OUTGROWN) == (identity(NEW), None)
        assert asked.may_publish(ref(2, NEW, have=0), OUTGROWN)


@pytest.mark.parametrize("old", [OLD, LOCAL], ids=["the same endpoint", "a model of this machine"])
def test_the_old_generation_serves_until_the_new_one_is_embedded(old: EmbeddingSettings) -> None:
    first = succession(NEW, serving=ref(1, old))
    assert first.due() == IDENTITY_CHANGED
    assert first.choose(IDENTITY_CHANGED) == (identity(NEW), None)
    assert not first.may_publish(ref(2, NEW, have=0), IDENTITY_CHANGED)
    assert first.may_publish(ref(2, NEW, have=95), IDENTITY_CHANGED), "the cache may have it all"

    successor = ref(2, NEW, have=0)
    asked = succession(NEW, serving=ref(1, old), successor=successor)
    assert asked.due() is None
    assert asked.choose(OUTGROWN) == (identity(old), None), "what is new is found by its words, without a pause"
    assert asked.may_publish(ref(3, old, have=90), OUTGROWN)
    assert asked.choose(NEW_VECTORS) == (identity(NEW), successor)
    assert not asked.may_publish(ref(4, NEW, have=94), NEW_VECTORS)
    assert asked.may_publish(ref(4, NEW, have=95), NEW_VECTORS)
    assert asked.may_publish(ref(4, NEW, have=50), ALL_TRIED), "texts that nobody takes hold it up for ever else"


def test_what_has_come_since_does_not_hold_up_a_change_that_wants_everything() -> None:
    asked = succession(NEW, serving=ref(1, OLD), successor=ref(2, NEW, have=0, want=100), percent=100)
    assert not asked.may_publish(ref(3, NEW, have=99, want=110), NEW_VECTORS)
    assert asked.may_publish(ref(3, NEW, have=100, want=110), NEW_VECTORS)
    assert not asked.may_publish(ref(3, NEW, have=80, want=90), NEW_VECTORS), "what was removed is not wanted"
    assert asked.may_publish(ref(3, NEW, have=90, want=90), NEW_VECTORS)


@pytest.mark.parametrize(
    ("settings", "serving"),
    [
        (LOCAL, ref(1, OLD)),
        (NONE, ref(1, OLD)),
        (NEW, ref(1, NONE, have=0, want=0)),
        (NEW, ref(1, OLD, have=0)),
    ],
    ids=["endpoint gone", "switched off", "had none", "had none yet"],
)
def test_where_nothing_is_gained_by_waiting_the_new_generation_serves_at_once(
    settings: EmbeddingSettings, serving: GenerationRef
) -> None:
    asked = succession(settings, serving=serving)
    assert asked.due() == IDENTITY_CHANGED
    for reason in (IDENTITY_CHANGED, OUTGROWN):
        assert asked.choose(reason) == (identity(settings), None)
    assert asked.may_publish(ref(2, settings, have=0), IDENTITY_CHANGED)


def test_a_build_for_the_successor_that_failed_is_made_up_for() -> None:
    asked = succession(NEW, serving=ref(1, OLD), successor=ref(2, NEW, have=0))
    asked.failed(OUTGROWN)
    assert asked.due() is None
    asked.failed(ALL_TRIED)
    assert asked.due() == ALL_TRIED
    asked.built(ref(3, OLD))
    assert asked.due() == ALL_TRIED
    asked.built(ref(4, NEW))
    assert asked.due() is None


def test_a_model_that_was_rolled_back_from_is_left_alone() -> None:
    asked = succession(NEW, serving=ref(2, NEW), previous=(ref(1, OLD),))
    declined = asked.declined_by(ref(1, OLD))
    assert declined is not None and asked.declined_by(ref(1, NEW)) is None
    after = succession(NEW, serving=ref(1, OLD), declined=declined)
    assert after.due() is None
    assert after.choose(OUTGROWN) == (identity(OLD), None)
    third = msgspec.structs.replace(NEW, model="third")
    assert succession(third, serving=ref(1, OLD), declined=declined).due() == IDENTITY_CHANGED


def test_after_a_restart_a_change_goes_on_where_it_was() -> None:
    kept = ModelChange(successor=ref(2, NEW, have=50), declined="a key")
    assert succession(NEW).recalled(kept, ref(1, OLD)) == kept
    declined = ModelChange(declined="a key")
    third = msgspec.structs.replace(NEW, model="third")
    assert succession(third).recalled(kept, ref(1, OLD)) == declined, "another model is wanted by now"
    assert succession(NEW).recalled(kept, ref(2, NEW)) == declined, "it was published at the very end"
    assert succession(NEW).recalled(kept, None) == declined, "nothing serves, so nothing is relieved"


def test_what_the_incarnation_before_has_made_public_is_newer_than_what_was_kept() -> None:
    kept = ModelChange(successor=ref(2, NEW))
    public = ref(4, NEW)
    assert succession(NEW, serving=ref(1, OLD), successor=public).recalled(kept, ref(1, OLD)) == ModelChange(
        successor=public
    )


def test_the_last_generation_of_another_model_is_kept_behind_those_of_this_one() -> None:
    def kept(count: int, *behind: GenerationRef) -> list[int]:
        asked = succession(NEW, serving=behind[0], previous=behind[1:])
        return [each.generation for each in asked.kept_behind(ref(9, NEW), count)]

    assert kept(1, ref(8, NEW), ref(7, NEW), ref(6, OLD), ref(5, OLD)) == [8, 6]
    assert kept(1, ref(8, OLD), ref(7, OLD)) == [8]
    assert kept(2, ref(8, NEW), ref(7, OLD), ref(6, OLD)) == [8, 7]
    assert kept(1, ref(8, NEW), ref(7, OLD, have=0)) == [8], "it could answer nothing by meaning"
    assert kept(0, ref(8, OLD)) == []
    assert kept(1, ref(9, NEW), ref(8, NEW)) == [8]
