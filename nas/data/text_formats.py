"""Texts that lie packed or wrapped in other files: taken out once, a piece at a time, into a plain file in the
cache."""

import hashlib
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from derive.strict_json import loads, read_json
from nas.data.texts import CHUNK, JoinedText, TextFile
from nas.data.token_cache import cache_key, find_cached, save_cached
from supernet.errors import SettingError, UserError

LONGEST_LINE = 64 * 2**20  # bytes of one JSON document
ROWS = 4096  # of Parquet taken at a time
XZ_MEMORY = 256 * 2**20  # bytes; the strongest usual setting, xz -9, unpacks with 65 MiB


def text_from(sources: list[Path], form: str, label: str, take_out: Callable[[], Iterator[bytes]]) -> TextFile:
    """The text that `take_out` yields from the source files, as a file in the cache, made once for this form and
    content.

    SettingError on data.path where a source cannot be read or is not what its form asks for.
    """
    place = ", ".join(map(str, sources))
    wholes = [JoinedText([TextFile(source)]) for source in sources]

    def write(file: BinaryIO) -> dict[str, Any]:
        digest, size = hashlib.sha256(), 0
        for piece in _told(take_out, place):
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        return {"bytes": size, "sha256": digest.hexdigest()}

    def read(stem: Path) -> TextFile | None:
        try:
            value = read_json(f"{stem}.json")
            text = TextFile(Path(f"{stem}.bin"), label=label, place=f"the text of {place}", sha256=value["sha256"])
            return text if text.size == value["bytes"] else None
        except (UserError, KeyError, TypeError):  # no such file, or not as this version writes it
            return None

    name = f"text-{cache_key(form, label, [(source.sha256, source.size) for source in wholes])}"
    return find_cached(name, read) or save_cached(name, write, read)


def unzip(path: Path, member: str, size: int) -> Iterator[bytes]:
    """The member of a zip archive, of exactly `size` bytes and with the archive's own checksum (CRC-32)."""
    try:
        with zipfile.ZipFile(path) as archive:
            if member not in archive.namelist():
                raise SettingError("data.path", f"{path} holds no file named {member}")
            found = archive.getinfo(member).file_size
            if found != size:
                raise SettingError("data.path", f"{member} in {path} has {found:,} bytes, not {size:,}")
            with archive.open(
                member
            ) as file:  # it gives no more bytes than the archive says, and checks their CRC-32 at the end
                while piece := file.read(CHUNK):
                    yield piece
    except (
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        EOFError,
        RuntimeError,
    ) as error:  # RuntimeError: encrypted, unknown method
        raise SettingError(
            "data.path", f"{path} is damaged or no zip archive that can be read: {str(error) or 'it ends too soon'}"
        ) from None


def unxz(path: Path, member: str, size: int) -> Iterator[bytes]:
    """The content of an xz file, of exactly `size` bytes and with the file's own checksum; it has no names for
    members."""
    decompressor = lzma.LZMADecompressor(memlimit=XZ_MEMORY)
    left = size
    with path.open("rb") as file:
        while not decompressor.eof:
            packed = file.read(CHUNK) if decompressor.needs_input else b""
            if decompressor.needs_input and not packed:
                raise SettingError("data.path", f"{path} ends too soon; start again once it is complete")
            try:
                piece = decompressor.decompress(packed, CHUNK)
            except lzma.LZMAError as error:
                raise SettingError("data.path", f"{path} is damaged or no xz file: {error}") from None
            left -= len(piece)
            if left < 0:
                break
            yield piece
    if left:
        raise SettingError("data.path", f"{path} holds {'more' if left < 0 else 'fewer'} than {size:,} bytes")


UNPACK: dict[str, Callable[[Path, str, int], Iterator[bytes]]] = {".zip": unzip, ".xz": unxz}


def json_lines_text(path: Path) -> TextFile:
    """The strings under `text` of a file of JSON lines, one document a line; each ends with a line end."""
    return text_from([path], "json lines", path.name, partial(_documents, path))


def parquet_text(files: list[Path], label: str, *, empty_row: str) -> TextFile:
    """The column `text` of Parquet files, one line a row, with `empty_row` in place of an empty one."""
    return text_from(files, f"parquet {empty_row!r}", label, partial(_rows, files, empty_row))


def _documents(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            where = f"{path} line {number}"
            if len(line) > LONGEST_LINE:
                raise SettingError(
                    "data.path", f"{where} is longer than {LONGEST_LINE:,} bytes; expected a document a line"
                )
            if not line.strip():
                continue
            try:
                text = loads(line.rstrip(b"\r\n"), where)["text"]
                yield _ended(text).encode()
            except UserError as error:
                raise SettingError("data.path", str(error).replace(" at line 1, column", " at column")) from None
            except UnicodeEncodeError:  # JSON can write half a surrogate pair
                raise SettingError("data.path", f"{where}: 'text' holds a code that is no character") from None
            except (KeyError, TypeError, AttributeError):
                raise SettingError("data.path", f"{where}: expected an object with a string under 'text'") from None


def _rows(files: list[Path], empty_row: str) -> Iterator[bytes]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise SettingError(
            "data.path", f"{files[0]} needs the package pyarrow: pip install par-search[parquet]"
        ) from None
    for path in files:
        try:
            with ParquetFile(path) as file:
                if "text" not in file.schema_arrow.names:
                    raise SettingError(
                        "data.path", f"{path} has no column 'text', only {', '.join(file.schema_arrow.names)}"
                    )
                for batch in file.iter_batches(batch_size=ROWS, columns=["text"]):
                    yield "".join(
                        _ended(empty_row if row == "" else row) for row in batch.column(0).to_pylist()
                    ).encode()
        except (
            ArrowException,
            UnicodeError,
            TypeError,
            AttributeError,
        ) as error:  # no Parquet, or a column of something else
            raise SettingError(
                "data.path", f"{path} is not a Parquet file with strings under 'text': {error}"
            ) from None


def _ended(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


def _told(take_out: Callable[[], Iterator[bytes]], place: str) -> Iterator[bytes]:
    """The pieces; an error of reading is told as one, not taken for one of writing into the cache."""
    try:
        yield from take_out()
    except OSError as error:
        raise SettingError("data.path", f"cannot read {place}: {error.strerror or error}") from None
