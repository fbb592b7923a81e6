"""Opening a note and reading it as lines of text: which encodings are read, and what counts as a line.

For everybody who reads the files under a source root, so that a line number in a citation and the text behind it
mean the same everywhere. UTF-8 (with or without a byte order mark), UTF-16 and UTF-32 with one, and, because many
Chinese notes are older than UTF-8, GB18030 when it reads like Chinese. Everything else is refused, not guessed:
mojibake in an index is worse than a reported skip. A line ends at "\\n" (a "\\r" before it is dropped), nowhere else.

Opens files read-only, never waits for a FIFO, and reads in blocks: memory does not grow with the file.
"""

import codecs
import io
import os
import stat
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

BLOCK_BYTES = 1 << 20
HEAD_BYTES = 8 * 1024
SAMPLE_BYTES = 64 * 1024
SEGMENT_CHARS_MAX = 16 * 1024

# The order matters: the mark of UTF-32 begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Three hundred characters that make up more than half of any Chinese text.
_FREQUENT = frozenset(
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家种事"
    "成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日者意无力它与长把机十民第公此已"
    "工使情明性知全三又关点正业外将两高间由问很最重并物手应向头文体相见被利什二等产或新己制身果加月话合回特代内信表化老给"
    "位次度门任常先通教原提立及比员解水名真论处走义各入几口认条平系气题活更别打变四总何电数安少报才结反受目太量再感建务做"
    "接必场件计管期市直资命指统区保至形社便空决治展科基眼书非则听白却界达光放强即像难且权思完设式色路记品住告类求据程"
)
_HANZI_MIN_SHARE = 0.8
_FREQUENT_MIN_SHARE = 0.3


class NotText(Exception):
    """The file is not text that we read; `reason` is one of "binary" and "not_utf8"."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class Segment(NamedTuple):
    """A line, or a piece of a very long one: pieces share their `number`, counted from 1.

    `ends` says that a newline followed: false within a long line, and at the end of a file that has none there.
    """

    number: int
    text: str
    ends: bool


def open_note(path: str) -> BinaryIO:
    """Open a regular file for reading; the caller closes it. Raises OSError, IsADirectoryError for anything else.

    O_NONBLOCK: a FIFO that has taken the place of a note must not hang the reader.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise IsADirectoryError(f"{path!r} is not a regular file")
    return os.fdopen(fd, "rb")


def encoding_of(file: BinaryIO, check: Callable[[], None] = lambda: None) -> str:
    """Return the encoding in which the whole file decodes without an error, or raise NotText. Rewinds the file.

    `check` is called after every block and may raise to stop.
    """
    head = file.read(HEAD_BYTES)
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return _require(file, encoding, check)
    if b"\0" in head:
        raise NotText("binary", f"a NUL byte in its first {HEAD_BYTES} bytes")
    if (bad := _undecodable(file, "utf-8", check)) is None:
        return "utf-8"
    if _undecodable(file, "gb18030", check) is None and _reads_like_chinese(file):
        return "gb18030"
    raise NotText("not_utf8", f"not UTF-8 near byte {bad}; convert the file to UTF-8")


def segments(file: BinaryIO, encoding: str) -> Iterator[Segment]:
    """Yield the lines of an open file, very long ones in pieces of at most SEGMENT_CHARS_MAX characters.

    Raises UnicodeDecodeError when the file changed after its encoding was determined. Closes the file.
    """
    number = 1
    with io.TextIOWrapper(file, encoding, errors="strict", newline="\n") as text:
        carried = ""
        while piece := text.readline(SEGMENT_CHARS_MAX):
            piece, carried, ends = carried + piece, "", piece.endswith("\n")
            if ends:
                piece = piece[:-1].removesuffix("\r")
            elif piece.endswith("\r"):
                piece, carried = piece[:-1], "\r"  # its "\n" may be the next thing to come
            yield Segment(number, piece, ends)
            number += ends
        if carried:
            yield Segment(number, carried, False)


def _require(file: BinaryIO, encoding: str, check: Callable[[], None]) -> str:
    bad = _undecodable(file, encoding, check)
    if bad is not None:
        raise NotText("not_utf8", f"begins with the mark of {encoding} but is not valid near byte {bad}")
    return encoding


def _undecodable(file: BinaryIO, encoding: str, check: Callable[[], None]) -> int | None:
    """Return about where the file does not decode, None when all of it does; rewinds."""
    file.seek(0)
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    offset = 0
    try:
        while block := file.read(BLOCK_BYTES):
            check()
            decoder.decode(block)
            offset += len(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        return offset + error.start
    finally:
        file.seek(0)
    return None


def _reads_like_chinese(file: BinaryIO) -> bool:
    """Tell Chinese from what merely decodes as GB18030.

    Nearly any pair of high bytes is some Chinese character, so Korean in EUC-KR, Cyrillic in a Windows code page and
    French in Latin-1 can decode. They give characters without the frequencies of the language: more than half of a
    Chinese text is written with the 300 commonest characters, against a tenth of a text that was never Chinese.
    """
    sample = file.read(SAMPLE_BYTES).decode("gb18030", "ignore")
    file.seek(0)
    foreign = [char for char in sample if char > "\x7f" and char not in "“”‘’—…·，。、；：？！（）《》【】「」　"]
    hanzi = [char for char in foreign if "一" <= char <= "鿿"]
    frequent = sum(char in _FREQUENT for char in hanzi)
    controls = any(char < " " and char not in "\t\n\r\f" for char in sample)
    return (
        not controls
        and bool(hanzi)
        and len(hanzi) >= _HANZI_MIN_SHARE * len(foreign)
        and frequent >= _FREQUENT_MIN_SHARE * len(hanzi)
    )
