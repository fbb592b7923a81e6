"""What both systems are given: markdown notes, what is appended, what is asked. Deterministic.

Words are drawn with the frequencies of a natural text, English and Chinese. A section of a note is exactly one chunk
for the chunker of Bulkhead, which cuts the notes for both; so the number of chunks is as asked for, to the chunk.
"""

import random
from pathlib import Path

import msgspec

SEED = 4
WORDS_PER_SECTION = 96
CHINESE_PER_SECTION = 56
VOCABULARY = 20_000
CHINESE = (
    "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会"
    "可主发年动同工也能下过子说产种面而方后多定行学法所民得经"
)


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is; the defaults are those of the incident."""

    chunks: int = 17_395
    files: int = 1_020
    dimensions: int = 1_536

    def times(self, factor: int) -> "Sizes":
        """Return as many times the chunks and files, of the same dimensions."""
        return Sizes(chunks=self.chunks * factor, files=self.files * factor, dimensions=self.dimensions)


def write_notes(folder: Path, sizes: Sizes) -> None:
    """Write the notes; `sizes.chunks` sections spread evenly over `sizes.files` files."""
    rng = random.Random(SEED)
    folder.mkdir(parents=True)
    for number in range(sizes.files):
        first, last = (sizes.chunks * each // sizes.files for each in (number, number + 1))
        sections = [f"## Section {each}\n\n{words(rng)}\n" for each in range(first, last)]
        text = f"# Note {number}\n\n" + "\n".join(sections)
        (folder / f"note-{number:05}.md").write_text(text, encoding="utf-8")


def words(rng: random.Random) -> str:
    """Return the text of a section."""
    chosen = [word(rng) for _ in range(WORDS_PER_SECTION)]
    chosen += ["".join(rng.choices(CHINESE, k=4)) for _ in range(CHINESE_PER_SECTION // 4)]
    rng.shuffle(chosen)
    return " ".join(chosen)


def word(rng: random.Random) -> str:
    """Return a word: a few of them make up most of any text."""
    return f"w{min(int(rng.paretovariate(0.7)), VOCABULARY)}"


def message(number: int) -> str:
    """Return what is said in turn `number` of the conversation, about 400 bytes."""
    rng = random.Random(f"message {number}")
    return f"turn {number}: {words(rng)[:360]}"


def question(number: int) -> str:
    """Return question `number`: three words and two Chinese characters; no two need be alike."""
    rng = random.Random(f"question {number}")
    return " ".join([word(rng), word(rng), word(rng), "".join(rng.choices(CHINESE, k=2))])
