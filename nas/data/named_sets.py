"""The data sets that have a name: which files they are made of, how they are split and how to tell that they are
whole."""

import importlib.resources
import lzma
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from nas.data.own_texts import nanogpt_files, own_text
from nas.data.text_formats import UNPACK, parquet_text, text_from
from nas.data.texts import DataSettings, JoinedText, PackedText, Source, TextFile, count_words
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

SPLITS = ("train", "valid", "test")
WIKITEXT_ARCHIVES = {
    "wikitext-103": "https://wikitext.smerity.com/wikitext-103-v1.zip (md5 9ddaacaf6af0710eda8c456decff7832)",
    "wikitext-2": "https://wikitext.smerity.com/wikitext-2-v1.zip (md5 542ccefacc6c27f945fb54453812b3cd)",
}
WIKITEXT_RAW_ARCHIVES = {
    "wikitext-103": "https://wikitext.smerity.com/wikitext-103-raw-v1.zip (md5 0ca3512bd7a238be4a63ce7b434f8935)",
    "wikitext-2": "https://wikitext.smerity.com/wikitext-2-raw-v1.zip (md5 f407a2d53283fc4a49bcff21bc5f3770)",
}
WIKITEXT_PARQUET = "https://huggingface.co/datasets/Salesforce/wikitext"
WIKITEXT_TOKENS = {  # words and one <eos> a line, as published
    "wikitext-103": (103_227_021, 217_646, 245_569),
    "wikitext-2": (2_088_628, 217_646, 245_569),
}
RAW_SLACK = (
    0.001  # the raw test text has exactly the published count; whether train and valid do could not be looked up
)


def find_source(data: DataSettings) -> Source:
    """The data set that `data.name` and `data.path` mean. SettingError, naming the key, where there is no such
    thing."""
    if data.name not in SOURCES:
        raise SettingError("data.name", f"unknown data set {data.name!r}{did_you_mean(data.name, SOURCES)}")
    path = None if data.path in (None, "") else Path(os.path.expanduser(data.path))
    try:
        source = SOURCES[data.name](data.name, path)
    except OSError as error:  # a folder that may not be entered, a name too long
        raise SettingError("data.path", f"cannot read {path}: {error.strerror or error}") from None
    if not source.text.size:
        raise SettingError("data.path", f"{source.text.label} is empty; expected a text file")
    return source


def _sotu(name: str, path: Path | None) -> Source:
    if path is not None:
        raise SettingError(
            "data.path", f"the data set {name!r} is built in and takes no path; for {path} use data.name text"
        )
    text = JoinedText([PackedText("sotu.txt", SOTU_BYTES, SOTU_SHA256, _unpack_sotu)])
    return Source(name, text, (SOTU_HELD_OUT, SOTU_TEST))


def _unpack_sotu() -> bytes:
    packed = importlib.resources.files("nas.data") / "sotu" / "sotu.txt.xz"
    return lzma.decompress(packed.read_bytes())


def _single_file(name: str, path: Path | None) -> Source:
    wanted = (
        f"the file {name} of exactly {HUNDRED_MILLION:,} bytes, {name}.zip or {name}.xz with it, or the folder it "
        "lies in, "
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
        raise SettingError(
            "data.path", f"{path} has {file.size:,} bytes; expected {wanted}. For another text use data.name text"
        )
    return Source(name, JoinedText([file]), WIKIPEDIA_CUTS)


def _wikitext(name: str, path: Path | None) -> Source:
    wanted = (
        f"a folder with {_wiki_names('tokens')} from {WIKITEXT_ARCHIVES[name]}, with {_wiki_names('raw')} from "
        f"{WIKITEXT_RAW_ARCHIVES[name]}, or with the Parquet files from {WIKITEXT_PARQUET}"
    )
    if path is None:
        raise SettingError("data.path", f"the data set {name!r} needs a path: expected {wanted}")
    if not path.is_dir():
        raise SettingError(
            "data.path", f"{path} is {'not a folder' if path.exists() else 'missing'}; expected {wanted}"
        )
    files, raw = _wikitext_files(path, wanted)
    slack, origin = (RAW_SLACK, WIKITEXT_RAW_ARCHIVES[name]) if raw else (0.0, WIKITEXT_ARCHIVES[name])

    def check() -> None:
        for file, expected in sorted(
            zip(files, WIKITEXT_TOKENS[name], strict=True), key=lambda pair: pair[1]
        ):  # the small ones first
            found = count_words(file)
            if abs(found - expected) > slack * expected:
                raise SettingError(
                    "data.path",
                    f"{file.place} has {found:,} tokens; expected {expected:,} words and line ends in this file of "
                    f"{name}, "
                    f"from {origin}. For another text use data.name text",
                )

    return Source(name, JoinedText(files), (files[0].size, files[0].size + files[1].size), check)


def _wikitext_files(path: Path, wanted: str) -> tuple[list[TextFile], bool]:
    """Train, valid and test of the first form that is there, and whether they may be the raw text, as Parquet does not
    say."""
    endings = [
        ending for ending in ("tokens", "raw") if any((path / f"wiki.{split}.{ending}").exists() for split in SPLITS)
    ]
    if not endings and any(path.glob("*.parquet")):
        return [_wikitext_shards(path, split, wanted) for split in ("train", "validation", "test")], True
    ending = endings[0] if endings else "tokens"
    for split in SPLITS:
        if not (path / f"wiki.{split}.{ending}").exists():
            raise SettingError("data.path", f"{path / f'wiki.{split}.{ending}'} does not exist; expected {wanted}")
    return [TextFile(path / f"wiki.{split}.{ending}") for split in SPLITS], ending == "raw"


def _wiki_names(ending: str) -> str:
    return ", ".join(f"wiki.{split}.{ending}" for split in SPLITS)


def _wikitext_shards(path: Path, split: str, wanted: str) -> TextFile:
    shards = sorted(path.glob(f"{split}-*.parquet"))
    if not shards:
        raise SettingError("data.path", f"{path / split}-*.parquet does not exist; expected {wanted}")
    # Parquet has an empty row where the files have a line of one space
    return parquet_text(shards, f"{split}.parquet", empty_row=" ")


SOURCES: dict[str, Callable[[str, Path | None], Source]] = {
    "sotu": _sotu,
    "enwik8": _single_file,
    "text8": _single_file,
    "wikitext-103": _wikitext,
    "wikitext-2": _wikitext,
    "text": own_text,
    "nanogpt": nanogpt_files,
}
STORED_SETS = ("nanogpt",)  # that hold token numbers, not text
