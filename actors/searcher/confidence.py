"""Whether the best hits of a search are likely to be about the question at all. Pure.

A search always finds something nearest. Without a warning the reader of an off-topic question gets k hits that look
like all others. One of the first HITS_LOOKED_AT hits is convincing when its vector is near enough or when it holds
enough of the question's words; if none is, the reply is marked `low_confidence`. Nothing is left out because of it.

The limits were calibrated on 470 searches with a known answer and 360 off-topic ones (English and Chinese, within
and across the languages, in one person's memory and in all together). Judged wrong are, of the former and the latter:
with the default model 5 % and 4 %, with the small one 1 % and 3 %, by words alone 10 % and 6 % (where question and
text are in one language). Cosines of one model mean nothing for another, and those of the default one also depend on
whether question and text are written in the same script, hence the table.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from actors.text import analyse, analyse_query
from actors.text.scripts import UNSPACED

if TYPE_CHECKING:
    from actors.searcher.ranking import Ranked

HITS_LOOKED_AT = 5
CJK_SHARE = 0.2  # of a text's characters: from here on it counts as written in Chinese, Japanese or Korean

Scripts = Literal["alphabet", "cjk", "across"]

COSINE_MIN: dict[str, dict[Scripts, float]] = {
    "local-e5": {"alphabet": 0.825, "cjk": 0.866, "across": 0.795},
    "local-use": {"alphabet": 0.33, "cjk": 0.33, "across": 0.33},
}
"""How near a vector must be to convince, by provider. Other models: `LEAD_MIN`."""

LEAD_MIN = 0.25
"""For a model that was not calibrated: how far the best must stand out from the middle of the list, as a share of
the way from there to identity."""

COVERAGE_MIN: dict[Scripts, float] = {"alphabet": 0.5, "cjk": 0.3}
COVERAGE_MIN_ALONE: dict[Scripts, float] = {"alphabet": 0.34, "cjk": 0.22}
"""Share of the question's words that a convincing hit holds; in CJK the pairs of characters are the words.

Without any vector words are the only evidence, so fewer of them must do."""

_CJK = re.compile(f"[{UNSPACED}]")


def low_confidence(ranked: "Sequence[Ranked]", query: str, *, provider: str | None = None) -> bool:
    """Say whether no hit convinces (none at all: certainly). `provider` names the embedding model's provider."""
    asked = _words(analyse_query(query))
    cjk = _CJK.search(query) is not None
    cosines = sorted(hit.candidate.vector_score for hit in ranked if hit.candidate.vector_score is not None)
    coverage_min = (COVERAGE_MIN if cosines else COVERAGE_MIN_ALONE)["cjk" if cjk else "alphabet"]
    middle = cosines[len(cosines) // 2] if cosines else 1.0
    return not any(
        _covers(hit, asked) >= coverage_min or _near(hit, cjk, provider, middle) for hit in ranked[:HITS_LOOKED_AT]
    )


def _words(terms: Sequence[str]) -> set[str]:
    """Return the terms that say something: not single CJK characters, unless there is nothing else."""
    return {term for term in terms if len(term) > 1 or not _CJK.match(term)} or set(terms)


def _covers(hit: "Ranked", asked: set[str]) -> float:
    candidate = hit.candidate
    held = set(analyse(f"{candidate.heading or ''} {candidate.snippet}"))
    return len(asked & held) / len(asked) if asked else 0.0


def _near(hit: "Ranked", query_is_cjk: bool, provider: str | None, middle: float) -> bool:
    cosine = hit.candidate.vector_score
    if cosine is None:
        return False
    limits = COSINE_MIN.get(provider or "")
    if limits is None:
        return middle < 1.0 and (cosine - middle) / (1.0 - middle) >= LEAD_MIN
    return cosine >= limits[_scripts(hit.candidate.snippet, query_is_cjk)]


def _scripts(text: str, query_is_cjk: bool) -> Scripts:
    text_is_cjk = len(_CJK.findall(text)) > CJK_SHARE * len(text)
    if text_is_cjk != query_is_cjk:
        return "across"
    return "cjk" if query_is_cjk else "alphabet"
