"""Which files are text, in which encoding, and where their lines end."""

import io
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.errors import Interrupted
from actors.notes import SEGMENT_CHARS_MAX, NotText, Segment, encoding_of, open_note, segments

CHINESE = "# 笔记\n今天我们讨论了数据库的备份方案，决定每天晚上十二点自动备份一次，保留最近七天的文件。\n"


def read(content: bytes) -> list[Segment]:
    file = io.BytesIO(content)
    return list(segments(file, encoding_of(file)))


def lines(content: bytes) -> list[str]:
    """Put the segments of each line together again."""
    joined: dict[int, str] = {}
    for segment in read(content):
        joined[segment.number] = joined.get(segment.number, "") + segment.text
    return list(joined.values())


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        (b"", "utf-8"),
        (b"plain", "utf-8"),
        ("中文 café".encode(), "utf-8"),
        ("中文".encode("utf-8-sig"), "utf-8-sig"),
        ("中文\nab".encode("utf-16"), "utf-16"),
        (b"\xfe\xff" + "中文\nab".encode("utf-16-be"), "utf-16"),
        ("中文\nab".encode("utf-32"), "utf-32"),
        (CHINESE.encode("gb18030"), "gb18030"),
        ("安装配置：修改 /etc/nginx.conf，然后重启服务，参数 -p 用来指定端口。".encode("gbk"), "gb18030"),
    ],
)
def test_the_encoding_is_recognised(content: bytes, encoding: str) -> None:
    assert encoding_of(io.BytesIO(content)) == encoding
    assert "".join(lines(content)) == content.decode(encoding).replace("\n", "")


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Le café était fermé, nous avons déjeuné à l'hôtel près de la gare.", "latin-1"),
        ("Müller", "latin-1"),
        ("Привет мир, сегодня мы обсудили резервное копирование базы данных.", "cp1251"),
        ("ПриветмирсегодняПриветмирсего", "cp1251"),
        ("Привет мир, сегодня мы обсудили резервное копирование", "koi8-r"),
        ("오늘 우리는 데이터베이스 백업 방안을 논의했고 매일 밤 자동으로 백업하기로 결정했습니다.", "euc-kr"),
        ("今日はデータベースのバックアップについて議論し、毎晩自動でバックアップすることに決めました。", "euc-jp"),
        ("今日はデータベースのバックアップについて議論しました。", "shift-jis"),
        ("今天我們討論了資料庫的備份方案，決定每天晚上十二點自動備份一次。", "big5"),
    ],
)
def test_what_only_might_be_chinese_is_refused_not_guessed(text: str, encoding: str) -> None:
    with pytest.raises(NotText) as refused:
        encoding_of(io.BytesIO(text.encode(encoding)))
    assert refused.value.reason == "not_utf8" and "convert the file to UTF-8" in refused.value.detail


@pytest.mark.parametrize("content", [b"\0", b"text\0text", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"])
def test_binary_is_refused(content: bytes) -> None:
    with pytest.raises(NotText) as refused:
        encoding_of(io.BytesIO(content))
    assert refused.value.reason == "binary"


def test_a_bad_byte_far_down_is_found_before_anything_is_read() -> None:
    with pytest.raises(NotText, match="near byte 3000000"):
        encoding_of(io.BytesIO(b"a" * 3_000_000 + b"\xff" + b"a" * 100))
    with pytest.raises(NotText, match="mark of utf-16"):
        encoding_of(io.BytesIO(b"\xff\xfea"))


def test_a_nul_far_down_is_text() -> None:
    assert encoding_of(io.BytesIO(b"a" * 9000 + b"\0")) == "utf-8"


def test_a_line_ends_at_the_newline_and_nowhere_else() -> None:
    assert lines("a\r\nb\n\nc\rd\x0be\u2028f\x85g".encode()) == ["a", "b", "", "c\rd\x0be\u2028f\x85g"]
    assert [segment.ends for segment in read(b"a\nb")] == [True, False]
    assert read(b"") == []


@given(st.lists(st.sampled_from(["x", "\r", "\n", "x" * (SEGMENT_CHARS_MAX - 1), "y" * 100]), max_size=30).map("".join))
@settings(max_examples=60, deadline=None)
def test_long_lines_come_in_pieces_that_are_the_line(text: str) -> None:
    content = text.encode()
    *ended, last = text.split("\n")
    expected = [line.removesuffix("\r") for line in ended] + ([last] if last else [])
    assert lines(content) == expected
    assert all(len(segment.text) <= SEGMENT_CHARS_MAX + 1 for segment in read(content))


def test_reading_can_be_stopped() -> None:
    def stop() -> None:
        raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        encoding_of(io.BytesIO(b"text"), stop)


def test_a_fifo_in_the_place_of_a_note_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.md")
    with pytest.raises(IsADirectoryError, match="not a regular file"):
        open_note(str(tmp_path / "a.md"))
    with pytest.raises(FileNotFoundError):
        open_note(str(tmp_path / "b.md"))
