"""Text as it lies on disk: files joined in order and read piece by piece, so that no corpus has to fit into memory."""

import codecs
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from supernet.errors import SettingError

CHUNK = 2**20  # bytes read at a time
LONGEST_WORD = 64 * CHUNK  # bytes that are read in search of white space, before a text is taken to have none
COARSEST_CLOCK = 2.0  # seconds, of a file system's times
SPACES = b" \n\r\t\v\f"
_SPACE = re.compile(rb"[ \n\r\t\v\f]")
_digests: dict[tuple, str] = {}  # of texts read before, by their files' versions


class TextFile:
    """A file on disk, read piecewise; SettingError on data.path where it cannot be read.

    `label` is how data.json names it, `place` how errors do (both by default from the path), `sha256` its digest where
    known.
    """

    def __init__(self, path: Path, *, label: str = "", place: str = "", sha256: str | None = None):
        self.path: Path | None = path
        self.label = label or path.name
        self.place = place or str(path)
        self.known_sha256 = sha256
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise SettingError("data.path", f"{path} is not a regular file; expected a file of text")
            with path.open("rb") as file:
                self.size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise SettingError("data.path", f"cannot read {path}: {error.strerror or error}") from None

    def version(self) -> tuple | None:
        """What stands for the content as it is now; None where it was written so lately that it may change while its
        times do not."""
        if self.known_sha256:
            return (self.known_sha256,)
        found = os.stat(self.path)
        if time.time() - max(found.st_mtime, found.st_ctime) < COARSEST_CLOCK:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def read(self, start: int, end: int) -> bytes:
        """Bytes [start, end) of the file."""
        with open(self.path or self.place, "rb") as file:
            file.seek(start)
            data = file.read(end - start)
        if len(data) != end - start:
            raise SettingError(
                "data.path", f"{self.place} became shorter while it was read; start again once it is complete"
            )
        return data

    def characters(self, start: int, end: int, *, whole_words: bool) -> Iterator[str]:
        """Bytes [start, end) as pieces of strict UTF-8, about CHUNK bytes each; `whole_words`: cut only before spaces.

        Line ends, byte order marks and NULs stay as they are. SettingError names file and byte where the bytes are not
        UTF-8.
        """
        size = CHUNK
        while start < end:
            data = self.read(start, min(start + size, end))
            last = start + len(data) == end
            if whole_words and not last:
                data = data[: _last_word_end(data)]
                if not data:
                    size *= 2
                    if size > LONGEST_WORD:
                        raise SettingError(
                            "data.path",
                            f"{self.place} has no white space in {size // 2:,} bytes from byte {start} on; use "
                            "data.tokens "
                            "bytes or chars",
                        )
                    continue
            try:
                piece, used = codecs.utf_8_decode(data, "strict", last)
            except UnicodeDecodeError as error:
                raise self._not_utf8(data, start, error) from None
            yield piece
            start += used
            size = CHUNK

    def _not_utf8(self, data: bytes, start: int, error: UnicodeDecodeError) -> SettingError:
        where = f"{self.place} is not UTF-8 at byte {start + error.start} (0x{data[error.start]:02x}, {error.reason})"
        return SettingError(
            "data.path", f"{where}; convert the file to UTF-8, or use data.tokens bytes, which takes any file"
        )


class PackedText(TextFile):
    """A text inside the package, of known size and sha256, unpacked into memory only when it is read."""

    def __init__(self, label: str, size: int, sha256: str, unpack: Callable[[], bytes]):
        self.path = None
        self.label = self.place = label
        self.size = size
        self.known_sha256 = sha256
        self._unpack = unpack

    @cached_property
    def _content(self) -> bytes:
        content = self._unpack()
        if hashlib.sha256(content).hexdigest() != self.known_sha256:
            raise SettingError("data.name", f"the built-in {self.label} is damaged; install the package again")
        return content

    def read(self, start: int, end: int) -> bytes:
        """Bytes [start, end) of the unpacked text."""
        return self._content[start:end]


class JoinedText:
    """Text files joined in order; offsets count bytes from the start of the first. `label` names them all in
    data.json."""

    def __init__(self, files: list[TextFile], label: str = ""):
        self.files = files
        self.size = sum(file.size for file in files)
        self.label = label or ", ".join(file.label for file in files)

    @cached_property
    def sha256(self) -> str:
        """Digest of all the bytes in hexadecimal, read through a small buffer, and once in a process."""
        if len(self.files) == 1 and self.files[0].known_sha256:
            return self.files[0].known_sha256
        versions = self._versions()
        if versions in _digests:
            return _digests[versions]
        digest = hashlib.sha256()
        for _, data in self.blocks(0, self.size):
            digest.update(data)
        if versions is not None and versions == self._versions():
            _digests[versions] = digest.hexdigest()
        return digest.hexdigest()

    def _versions(self) -> tuple | None:
        try:
            versions = tuple(file.version() for file in self.files)
        except OSError:  # reading will say so
            return None
        return None if None in versions else versions

    def pieces(self, start: int, end: int) -> Iterator[tuple[TextFile, int, int]]:
        """The files that bytes [start, end) lie in, with the range inside each."""
        before = 0
        for file in self.files:
            low, high = max(start - before, 0), min(end - before, file.size)
            if low < high:
                yield file, low, high
            before += file.size

    def blocks(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Bytes [start, end) as blocks of at most CHUNK bytes, each with its offset."""
        for file, low, high in self.pieces(start, end):
            for position in range(low, high, CHUNK):
                data = file.read(position, min(position + CHUNK, high))
                yield start, data
                start += len(data)

    def count_characters(self, start: int, end: int) -> int:
        """Characters that start in bytes [start, end), if they are UTF-8: every byte that is no continuation byte."""
        return sum(int(np.count_nonzero(_starts(data))) for _, data in self.blocks(start, end))

    def byte_of_character(self, number: int) -> int:
        """Offset at which character `number` (from 0) starts; the size of the text where it has no more than
        `number`."""
        for offset, data in self.blocks(0, self.size):
            places = np.flatnonzero(_starts(data))
            if number < len(places):
                return offset + int(places[number])
            number -= len(places)
        return self.size

    def character_start(self, offset: int) -> int:
        """The first offset from `offset` on at which a character starts."""
        while 0 < offset < self.size and next(self.blocks(offset, offset + 1))[1][0] & 0xC0 == 0x80:
            offset += 1
        return offset

    def word_end(self, offset: int) -> int:
        """The first offset from `offset` on that cuts no word in two: beside white space or between files."""
        before = 0
        for file in self.files:
            after = before + file.size
            if before < offset < after:
                for start in range(offset - 1 - before, file.size, CHUNK):
                    space = _SPACE.search(file.read(start, min(start + CHUNK, file.size)))
                    if space:
                        return max(before + start + space.start(), offset)
                return after
            before = after
        return min(offset, self.size)


class DataSettings(Protocol):
    """What the readers need of the configuration's section `data`."""

    name: str
    path: str | Path | None
    tokens: str
    seq_len: int


class TextCounter:
    """Characters and words of a text that comes in pieces; a word stands between white space, and each line end is one
    more."""

    def __init__(self) -> None:
        self.characters = 0
        self.words = 0
        self._after_space = True

    def add(self, piece: str) -> None:
        """Count the next piece, which may go on with the last one's last word."""
        if piece:
            self.characters += len(piece)
            self.words += len(piece.split()) + piece.count("\n") - (not self._after_space and not piece[0].isspace())
            self._after_space = piece[-1].isspace()


@dataclass(frozen=True)
class Source:
    """A data set before it is tokenised: its text, and the bytes at which held-out and test text start.

    Without `cuts` the first 90 % are for training, 5 % are held out and 5 % are for the test. `check` raises
    SettingError where the text is not the whole published one; it reads everything, so it runs only before tokens are
    made.
    """

    name: str
    text: JoinedText
    cuts: tuple[int, int] | None = None
    check: Callable[[], None] | None = None


def count_words(file: TextFile) -> int:
    """Words between white space and line ends of a whole file; an unfinished last line counts as ended."""
    count, piece = 0, "\n"
    for piece in file.characters(0, file.size, whole_words=True):
        count += len(piece.split()) + piece.count("\n")
    return count + (not piece.endswith("\n"))


def _starts(data: bytes) -> np.ndarray:
    return (np.frombuffer(data, np.uint8) & 0xC0) != 0x80


def _last_word_end(data: bytes) -> int:
    """Where the last run of white space starts; 0 where there is none, or nothing before it."""
    return len(data[: max(data.rfind(bytes([space])) for space in SPACES) + 1].rstrip(SPACES))
