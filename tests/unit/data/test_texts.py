"""Pieces of text: cut anywhere, joined again exactly, and a wrong byte named by its place in the file."""

import hashlib
import os
import time
from pathlib import Path

import pytest

from nas.data import texts
from nas.data.texts import JoinedText, TextFile
from supernet.errors import UserError

ODD = "\ufeffα b\r\n\0 日本語\u3000x  \n\n🙂🙂y\rz\t end"


def written(path: Path, content: bytes) -> TextFile:
    path.write_bytes(content)
    return TextFile(path)


@pytest.mark.parametrize("chunk", [4, 5, 7, 11, 64])
@pytest.mark.parametrize("whole_words", [False, True])
def test_pieces_join_to_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, whole_words: bool
) -> None:
    monkeypatch.setattr(texts, "CHUNK", chunk)
    text = ODD * 5
    file = written(tmp_path / "odd.txt", text.encode())
    pieces = list(file.characters(0, file.size, whole_words=whole_words))
    assert "".join(pieces) == text
    assert len(pieces) > 1
    if whole_words:
        assert [word for piece in pieces for word in piece.split()] == text.split()


@pytest.mark.parametrize("chunk", [5, 64])
@pytest.mark.parametrize("position", [0, 1, 4, 5, 6, 17, 29])
def test_a_wrong_byte_is_named_by_file_and_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, position: int
) -> None:
    monkeypatch.setattr(texts, "CHUNK", chunk)
    content = bytearray(b"some plain words and some more")
    content[position] = 0xFF
    file = written(tmp_path / "broken.txt", bytes(content))
    for whole_words in (False, True):
        with pytest.raises(UserError, match=rf"broken\.txt is not UTF-8 at byte {position} \(0xff") as caught:
            list(file.characters(0, file.size, whole_words=whole_words))
        assert "data.tokens bytes" in str(caught.value)


def test_a_character_cut_off_at_the_end_is_named(tmp_path: Path) -> None:
    file = written(tmp_path / "cut.txt", b"abc" + "é".encode()[:1])
    with pytest.raises(UserError, match=r"cut\.txt is not UTF-8 at byte 3 \(0xc3"):
        list(file.characters(0, file.size, whole_words=False))


def test_offsets_agree_with_counting_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "CHUNK", 7)
    first, second = ODD.encode(), "naïve\n".encode()
    text = JoinedText([written(tmp_path / "first", first), written(tmp_path / "second", second)])
    whole = (first + second).decode()
    starts = [len(whole[:number].encode()) for number in range(len(whole) + 1)]
    assert [text.byte_of_character(number) for number in range(len(whole) + 1)] == starts
    assert text.byte_of_character(len(whole) + 9) == text.size
    for offset in range(text.size + 1):
        assert text.character_start(offset) == min(start for start in starts if start >= offset)
        assert text.count_characters(0, offset) == sum(start < offset for start in starts[:-1])


def test_word_end_stops_beside_white_space_and_between_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "CHUNK", 3)
    text = JoinedText([written(tmp_path / "first", b"one threefour"), written(tmp_path / "second", b"five six")])
    ends = [text.word_end(offset) for offset in range(text.size + 1)]
    assert ends == [0, 3, 3, 3, 4, 13, 13, 13, 13, 13, 13, 13, 13, 13, 17, 17, 17, 17, 18, 21, 21, 21]


def test_joined_files_read_as_one(tmp_path: Path) -> None:
    contents = {"first": b"abc", "second": b"", "third": b"de"}
    text = JoinedText([written(tmp_path / name, content) for name, content in contents.items()])
    assert (text.label, text.size) == ("first, second, third", 5)
    assert b"".join(data for _, data in text.blocks(1, 5)) == b"bcde"
    assert [(file.label, low, high) for file, low, high in text.pieces(2, 4)] == [("first", 2, 3), ("third", 0, 1)]
    assert text.sha256 == "36bbe50ed96841d10443bcb670d6554f0a34b761be67ec9c4a8ad2c0c44ca42c"  # of b"abcde"


def test_a_text_is_digested_once_when_it_has_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, reads = TextFile.read, []
    monkeypatch.setattr(TextFile, "read", lambda file, start, end: reads.append(start) or read(file, start, end))
    text = written(tmp_path / "text", b"one")
    digests = {JoinedText([TextFile(text.path)]).sha256 for _ in range(2)}
    assert digests == {hashlib.sha256(b"one").hexdigest()} and len(reads) == 2
    later = time.time() + 60
    monkeypatch.setattr(texts.time, "time", lambda: later)
    digests = {JoinedText([TextFile(text.path)]).sha256 for _ in range(3)}
    assert digests == {hashlib.sha256(b"one").hexdigest()} and len(reads) == 3
    two = written(tmp_path / "two", b"one")
    both = {JoinedText([TextFile(text.path), TextFile(two.path)]).sha256 for _ in range(2)}
    assert both == {hashlib.sha256(b"oneone").hexdigest()} and len(reads) == 5


def test_no_digest_of_another_content_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same size and same times of writing: in place, by another file of that name, by a link that turns, while it is
    digested."""
    monkeypatch.setattr(texts, "COARSEST_CLOCK", -1.0)
    path, link = tmp_path / "text", tmp_path / "link"

    def put(content: bytes) -> TextFile:
        time.sleep(0.02)  # a tick of the file system's clock
        file = written(path, content)
        os.utime(path, (1e9, 1e9))
        return file

    def digest() -> bool:
        return JoinedText([TextFile(path)]).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()

    put(b"one")
    assert digest() and put(b"two") and digest()
    path.unlink()
    assert put(b"six") and digest()
    link.symlink_to(path)
    opened = TextFile(link)
    written(tmp_path / "other", b"ten")
    link.unlink()
    link.symlink_to(tmp_path / "other")
    assert JoinedText([opened]).sha256 == hashlib.sha256(b"ten").hexdigest() and digest()
    link.unlink()
    link.symlink_to(path)
    put(b"red")
    read = TextFile.read

    def turned(file: TextFile, start: int, end: int) -> bytes:
        link.unlink()
        link.symlink_to(tmp_path / "other")
        return read(file, start, end)

    with monkeypatch.context() as within:
        within.setattr(TextFile, "read", turned)
        assert JoinedText([TextFile(link)]).sha256 == hashlib.sha256(b"ten").hexdigest()
    assert digest()


def test_what_is_no_readable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="data.path: .*not a regular file"):
        TextFile(tmp_path)
    with pytest.raises(UserError, match="data.path: cannot read .*absent"):
        TextFile(tmp_path / "absent")


def test_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    file = written(tmp_path / "log.txt", b"a b c d")
    (tmp_path / "log.txt").write_bytes(b"a b")
    with pytest.raises(UserError, match="became shorter"):
        list(file.characters(0, file.size, whole_words=True))


def test_a_text_without_white_space_is_not_read_whole_in_search_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "CHUNK", 8)
    monkeypatch.setattr(texts, "LONGEST_WORD", 64)
    file = written(tmp_path / "long.txt", b"a " + b"x" * 60 + b" " + b"y" * 70)
    with pytest.raises(
        UserError,
        match=r"data\.path: .*long\.txt has no white space in 64 bytes from byte \d+ on; use data\.tokens bytes",
    ):
        list(file.characters(0, file.size, whole_words=True))
    assert "".join(file.characters(0, file.size, whole_words=False)).endswith("y")
