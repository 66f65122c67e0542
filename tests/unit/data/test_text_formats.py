"""Texts inside other files: taken out whole and once, and never more of them than was asked for."""

import lzma
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nas.data import text_formats
from nas.data.text_formats import UNPACK, json_lines_text, parquet_text, text_from
from nas.data.texts import TextFile
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


def test_json_lines_give_a_document_a_line(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(
        '{"text": "one\\ntwo", "id": 1}\n\n{"id": 2, "text": "drei \\u00e4\\n"}\r\n{"text": ""}\n{"text": "last"}',
        "utf-8",
    )
    text = json_lines_text(path)
    assert text.read(0, text.size).decode() == "one\ntwo\ndrei ä\n\nlast\n"
    assert text.label == "set.jsonl"


@pytest.mark.parametrize(
    "line, reason",
    [
        ('{"text": "a"', "not JSON: .* at column 13"),
        ("plain text", "not JSON"),
        ('{"tex": "a"}', "a string under 'text'"),
        ('{"text": 3}', "a string under 'text'"),
        ('["text"]', "a string under 'text'"),
        ("null", "a string under 'text'"),
        ('{"text": "a", "text": "b"}', "stands twice"),
        ('{"text": "\\ud800"}', "no character"),
        ('{"text": "\udcff"}', "not UTF-8"),
        ('{"text": "' + "x" * 200 + '"}', "longer than 100 bytes"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, reason: str) -> None:
    monkeypatch.setattr(text_formats, "LONGEST_LINE", 100)
    (tmp_path / "set.jsonl").write_bytes(b'{"text": "fine"}\n' + line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(UserError, match=rf"^data\.path: .*set\.jsonl line 2.*{reason}") as caught:
        json_lines_text(tmp_path / "set.jsonl")
    assert "\n" not in str(caught.value)


def test_parquet_rows_are_lines(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    paths = [tmp_path / name for name in ("a.parquet", "b.parquet", "c.parquet")]
    for path, table in zip(
        paths, ({"n": [1, 2], "text": ["", "eins\n"]}, {"text": ["zwei"] * 9000}, {"other": ["x"]}), strict=True
    ):
        parquet.write_table(pyarrow.table(table), path)
    text = parquet_text(paths[:2], "label", empty_row=" ")
    assert text.read(0, text.size).decode() == " \neins\n" + "zwei\n" * 9000
    with pytest.raises(UserError, match=r"data\.path: .*c\.parquet has no column 'text', only other"):
        parquet_text(paths[2:], "label", empty_row=" ")
    for content in ([1, 2], [None]):
        parquet.write_table(pyarrow.table({"text": content}), paths[2])
        with pytest.raises(UserError, match=r"data\.path: .*c\.parquet is not a Parquet file with strings"):
            parquet_text(paths[2:], "label", empty_row=" ")
    paths[2].write_bytes(paths[1].read_bytes()[:-50])
    with pytest.raises(UserError, match=r"data\.path: .*c\.parquet"):
        parquet_text(paths[2:], "label", empty_row=" ")


def test_parquet_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        UserError, match=r"data\.path: .*a\.parquet needs the package pyarrow: pip install par-search\[parquet\]"
    ):
        parquet_text([tmp_path / "a.parquet"], "label", empty_row=" ")
