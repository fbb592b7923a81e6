"""Character classes of the analyser: what is written without spaces, what joins a word, what is nothing at all.

Ranges are written as the inside of a regular expression's set. They are code points of Unicode blocks, not the
property tables of the running Python, so that two versions of Python cut a text into the same terms.
"""

import re

# Written without spaces, or (hangul) with endings glued on: Han, kana, hangul, bopomofo, Thai, Lao, Myanmar, Khmer.
# Halfwidth kana and compatibility ideographs are gone after NFKC.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff"
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u3105-\u312f\u3131-\u318e\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\ua960-\ua97c\uac00-\ud7fb\uf900-\ufaff\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)

# Signs inside words that `\w` leaves out: combining accents, Hebrew and Arabic points, the vowel signs of India.
MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed"
    "\u0900-\u0963\u0966-\u0dff\u0f00-\u0fff"
)

# Control characters and the zero-width space end a word. (Whitespace does too; `\s` covers it.)
CONTROLS = "\x00-\x1f\x7f-\x9f\u200b"

# Marks of layout and emoji style, without a meaning that anybody would search for.
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180f\u200c-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb"
    "\U0001f3fb-\U0001f3ff\U000e0000-\U000e0fff]"
)

UNSPACED_RUN = re.compile(f"([{UNSPACED}]+)")
_WORD = re.compile(r"\w")


def is_mostly_unspaced(text: str) -> bool:
    """Say whether at least half of a text's letters and digits belong to a script without spaces."""
    unspaced = sum(map(len, UNSPACED_RUN.findall(text)))
    return unspaced > 0 and 2 * unspaced >= len(_WORD.findall(text))
