"""The data sets that have a name: which files they are made of, how they are split and how to tell that they are whole."""

import importlib.resources
import lzma
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from nas.text_formats import UNPACK, text_from
from nas.texts import JoinedText, PackedText, TextFile
from supernet.errors import SettingError, did_you_mean

SOTU_BYTES = 12_186_249
SOTU_SHA256 = "8eaec349551f3d7e4d6a4ae6c91b0ee231f63c2147ba941fe4e7c8776518ad8c"
SOTU_HELD_OUT = 10_930_474  # where Reagan's address of 1986 starts
SOTU_TEST = 11_495_853  # where Bush's address of 2006 starts

HUNDRED_MILLION = 100_000_000
WIKIPEDIA_CUTS = (90_000_000, 95_000_000)  # the split of every paper on enwik8 and text8
SINGLE_FILES = {
    "enwik8": "http://mattmahoney.net/dc/enwik8.zip (enwik8 itself has md5 a1fa5ffddb56f4953e226637dabbb36a)",
    "text8": "http://mattmahoney.net/dc/text8.zip (text8 itself has md5 3bea1919949baf155f99411df5fada7e)",
}

WIKITEXT_FILES = ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens")
WIKITEXT_ARCHIVES = {
    "wikitext-103": "https://wikitext.smerity.com/wikitext-103-v1.zip (md5 9ddaacaf6af0710eda8c456decff7832)",
    "wikitext-2": "https://wikitext.smerity.com/wikitext-2-v1.zip (md5 542ccefacc6c27f945fb54453812b3cd)",
}
WIKITEXT_TOKENS = {  # words and one <eos> a line, as published
    "wikitext-103": (103_227_021, 217_646, 245_569),
    "wikitext-2": (2_088_628, 217_646, 245_569),
}


class DataSettings(Protocol):
    """What the readers need of the configuration's section `data`."""

    name: str
    path: str | Path | None
    tokens: str
    seq_len: int


@dataclass(frozen=True)
class Source:
    """A data set before it is tokenised: its text, and the bytes at which held-out and test text start.

    Without `cuts` the first 90 % are for training, 5 % are held out and 5 % are for the test. `check` raises SettingError
    where the text is not the whole published one; it reads everything, so it runs only before tokens are made.
    """

    name: str
    text: JoinedText
    cuts: tuple[int, int] | None = None
    check: Callable[[], None] | None = None


def find_source(data: DataSettings) -> Source:
    """The data set that `data.name` and `data.path` mean. SettingError, naming the key, where there is no such thing."""
    if data.name not in SOURCES:
        raise SettingError("data.name", f"unknown data set {data.name!r}{did_you_mean(data.name, SOURCES)}")
    path = None if data.path in (None, "") else Path(os.path.expanduser(data.path))
    try:
        return SOURCES[data.name](data.name, path)
    except OSError as error:  # a folder that may not be entered, a name too long
        raise SettingError("data.path", f"cannot read {path}: {error.strerror or error}") from None


def _sotu(name: str, path: Path | None) -> Source:
    if path is not None:
        raise SettingError("data.path", f"the data set {name!r} is built in and takes no path; for {path} use data.name text")
    text = JoinedText([PackedText("sotu.txt", SOTU_BYTES, SOTU_SHA256, _unpack_sotu)])
    return Source(name, text, (SOTU_HELD_OUT, SOTU_TEST))


def _unpack_sotu() -> bytes:
    packed = importlib.resources.files("nas") / "corpus" / "sotu.txt.xz"
    return lzma.decompress(packed.read_bytes())


def _single_file(name: str, path: Path | None) -> Source:
    wanted = (
        f"the file {name} of exactly {HUNDRED_MILLION:,} bytes, {name}.zip or {name}.xz with it, or the folder it lies in, "
        f"from {SINGLE_FILES[name]}"
    )
    if path is None:
        raise SettingError("data.path", f"the data set {name!r} needs a path: expected {wanted}")
    if path.is_dir():
        path = next((path / (name + form) for form in ("", *UNPACK) if (path / (name + form)).exists()), path / name)
    if not path.exists():
        raise SettingError("data.path", f"{path} does not exist; expected {wanted}")
    if path.suffix in UNPACK:
        take_out = partial(UNPACK[path.suffix], path, name, HUNDRED_MILLION)
        try:
            file = text_from([path], path.suffix, name, take_out)
        except SettingError as error:
            raise SettingError("data.path", f"{str(error).removeprefix('data.path: ')}; expected {wanted}") from None
    else:
        file = TextFile(path)
    if file.size != HUNDRED_MILLION:
        raise SettingError("data.path", f"{path} has {file.size:,} bytes; expected {wanted}. For another text use data.name text")
    return Source(name, JoinedText([file]), WIKIPEDIA_CUTS)


def _wikitext(name: str, path: Path | None) -> Source:
    wanted = f"a folder with {', '.join(WIKITEXT_FILES)} from {WIKITEXT_ARCHIVES[name]}"
    if path is None:
        raise SettingError("data.path", f"the data set {name!r} needs a path: expected {wanted}")
    if not path.is_dir():
        raise SettingError("data.path", f"{path} is {'not a folder' if path.exists() else 'missing'}; expected {wanted}")
    for file_name in WIKITEXT_FILES:
        if not (path / file_name).exists():
            raise SettingError("data.path", f"{path / file_name} does not exist; expected {wanted}")
    train, valid, test = (TextFile(path / file_name) for file_name in WIKITEXT_FILES)
    text = JoinedText([train, valid, test])

    def check() -> None:
        for file, expected in sorted(zip(text.files, WIKITEXT_TOKENS[name]), key=lambda pair: pair[1]):  # the small ones first
            found = count_words(file)
            if found != expected:
                raise SettingError(
                    "data.path",
                    f"{file.place} has {found:,} tokens; expected {expected:,} words and line ends in this file of {name}, "
                    f"from {WIKITEXT_ARCHIVES[name]}. For another text use data.name text",
                )

    return Source(name, text, (train.size, train.size + valid.size), check)


def _text(name: str, path: Path | None) -> Source:
    if path is None:
        raise SettingError("data.path", f"the data set {name!r} needs a path: expected a text file of your own")
    if path.is_dir():
        raise SettingError("data.path", f"{path} is a folder; expected a text file")
    if not path.exists():
        raise SettingError("data.path", f"{path} does not exist; expected a text file")
    return Source(name, JoinedText([TextFile(path)]))


def count_words(file: TextFile) -> int:
    """Words between white space and line ends of a whole file; an unfinished last line counts as ended."""
    count, piece = 0, "\n"
    for piece in file.characters(0, file.size, whole_words=True):
        count += len(piece.split()) + piece.count("\n")
    return count + (not piece.endswith("\n"))


SOURCES: dict[str, Callable[[str, Path | None], Source]] = {
    "sotu": _sotu,
    "enwik8": _single_file,
    "text8": _single_file,
    "wikitext-103": _wikitext,
    "wikitext-2": _wikitext,
    "text": _text,
}
