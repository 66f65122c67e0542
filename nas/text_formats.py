"""Texts that lie packed or wrapped in other files: taken out once, a piece at a time, into a plain file in the cache."""

import hashlib
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from derive.strict_json import read_json
from nas.texts import CHUNK, JoinedText, TextFile
from nas.token_cache import cache_key, find_cached, save_cached
from supernet.errors import SettingError, UserError

XZ_MEMORY = 256 * 2**20  # bytes; the strongest usual setting, xz -9, unpacks with 65 MiB


def text_from(sources: list[Path], form: str, label: str, take_out: Callable[[], Iterator[bytes]]) -> TextFile:
    """The text that `take_out` yields from the source files, as a file in the cache, made once for this form and content.

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
            with archive.open(member) as file:  # it gives no more bytes than the archive says, and checks their CRC-32 at the end
                while piece := file.read(CHUNK):
                    yield piece
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:  # RuntimeError: encrypted, unknown method
        raise SettingError("data.path", f"{path} is damaged or no zip archive that can be read: {str(error) or 'it ends too soon'}") from None


def unxz(path: Path, member: str, size: int) -> Iterator[bytes]:
    """The content of an xz file, of exactly `size` bytes and with the file's own checksum; it has no names for members."""
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


def _told(take_out: Callable[[], Iterator[bytes]], place: str) -> Iterator[bytes]:
    """The pieces; an error of reading is told as one, not taken for one of writing into the cache."""
    try:
        yield from take_out()
    except OSError as error:
        raise SettingError("data.path", f"cannot read {place}: {error.strerror or error}") from None
