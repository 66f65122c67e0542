"""Texts inside other files: taken out whole and once, and never more of them than was asked for."""

import lzma
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nas.text_formats import UNPACK, text_from
from nas.texts import TextFile
from supernet.errors import UserError

CONTENT = os.urandom(1_000_003) + bytes(2_000_000)  # what compresses badly, then well: several pieces


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "par-search"


def zipped(path: Path, content: bytes = CONTENT, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("README", "not this")
        archive.writestr("big", content)
    return path


def xzed(path: Path, content: bytes = CONTENT) -> Path:
    path.write_bytes(lzma.compress(content, preset=0))
    return path


PACK = {".zip": zipped, ".xz": xzed}


def taken_out(path: Path, size: int = len(CONTENT)) -> bytes:
    return b"".join(UNPACK[path.suffix](path, "big", size))


@pytest.mark.parametrize("form", PACK)
def test_a_packed_text_comes_out_whole(tmp_path: Path, form: str) -> None:
    assert taken_out(PACK[form](tmp_path / f"any{form}")) == CONTENT


@pytest.mark.parametrize("form", PACK)
@pytest.mark.parametrize("size", [0, len(CONTENT) - 1, len(CONTENT) + 1])
def test_another_size_is_refused(tmp_path: Path, form: str, size: int) -> None:
    path = PACK[form](tmp_path / f"any{form}")
    with pytest.raises(UserError, match=rf"data\.path: .*any\{form} .*{size:,}"):
        taken_out(path, size)


@pytest.mark.parametrize("form", PACK)
def test_a_damaged_file_is_refused(tmp_path: Path, form: str) -> None:
    path = PACK[form](tmp_path / f"any{form}")
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[500_000] ^= 1
    for content in (bytes(changed), whole[:700_000], b"", b"no archive at all"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"data\.path: .*any\{form} (is damaged or no|ends too soon)"):
            taken_out(path)


def test_a_zip_that_holds_more_than_it_says_is_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "liar.zip")
    size, less = (number.to_bytes(4, "little") for number in (len(CONTENT), 1_000))
    assert path.read_bytes().count(size) == 2  # beside the member, and in the archive's list
    path.write_bytes(path.read_bytes().replace(size, less))
    with pytest.raises(UserError, match=r"liar\.zip is damaged"):
        taken_out(path, 1_000)


def test_a_zip_without_the_member_or_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("folder/big", CONTENT)
    with pytest.raises(UserError, match=r"data\.path: .*other\.zip holds no file named big"):
        taken_out(tmp_path / "other.zip")
    path = zipped(tmp_path / "locked.zip", method=zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    for start in (data.index(b"PK\3\4", 4) + 6, data.rindex(b"PK\1\2") + 8):  # the flag that says encrypted
        data[start] |= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"locked\.zip .*encrypted"):
        taken_out(path)


def test_a_text_is_taken_out_once_and_again_when_anything_changed(tmp_path: Path, own_cache: Path) -> None:
    calls = []
    source = tmp_path / "source"

    def take_out() -> Iterator[bytes]:
        calls.append(1)
        yield source.read_bytes()
        yield b" and more"

    def text(form: str = "form") -> TextFile:
        return text_from([source], form, "label", take_out)

    source.write_bytes(b"one")
    first, again = text(), text()
    assert len(calls) == 1 and first.path == again.path
    assert (first.read(0, first.size), first.label) == (b"one and more", "label")
    assert str(source) in first.place and first.known_sha256 == again.known_sha256
    source.write_bytes(b"two")
    assert text().read(0, 3) == b"two" and text("another").path != text().path and len(calls) == 3
    text().path.write_bytes(b"shorter")
    assert text().size == len(b"two and more") and len(calls) == 4
    assert sorted(path.suffix for path in own_cache.iterdir()) == [".bin"] * 3 + [".json"] * 3


def test_an_error_of_reading_is_told_as_one_and_leaves_nothing(tmp_path: Path, own_cache: Path) -> None:
    (tmp_path / "source").write_bytes(b"x")

    def take_out() -> Iterator[bytes]:
        yield b"the first piece"
        raise OSError(5, "Input/output error")

    with pytest.raises(UserError, match=r"data\.path: cannot read .*source: Input/output error"):
        text_from([tmp_path / "source"], "form", "label", take_out)
    assert list(own_cache.iterdir()) == []
