"""Texts of the user's own: a file, a folder of them, JSON lines, or token numbers that nanoGPT's scripts have made."""

import os
from pathlib import Path
from typing import NoReturn

from nas.data.text_formats import json_lines_text
from nas.data.texts import JoinedText, Source, TextFile
from supernet.errors import SettingError

OWN_SPLITS = ("train", "valid", "test")
ENDINGS = (".txt", ".jsonl")
FEW = 3  # files that data.json names one by one


def own_text(name: str, path: Path | None) -> Source:
    """The text of a file, or of a folder's .txt and .jsonl files; train, valid and test in it give the split."""
    wanted = "a text file of your own, JSON lines (.jsonl), or a folder with .txt or .jsonl files"
    if path is None:
        raise SettingError("data.path", f"the data set {name!r} needs a path: expected {wanted}")
    if not path.exists():
        raise SettingError("data.path", f"{path} does not exist; expected {wanted}")
    if not path.is_dir():
        return Source(name, JoinedText([_text_file(path)]))
    splits = _official_split(path)
    if splits:
        train, valid, test = map(_text_file, splits)
        return Source(name, JoinedText([train, valid, test]), (train.size, train.size + valid.size))
    found = _files_below(path)
    if not found:
        raise SettingError("data.path", f"{path} is a folder without .txt or .jsonl files; expected {wanted}")
    label = f"{path.resolve().name}: {len(found):,} files" if len(found) > FEW else ""
    return Source(name, JoinedText([_text_file(file) for file in found], label))


def nanogpt_files(name: str, path: Path | None) -> Source:
    """nanoGPT's train.bin and val.bin: uint16 numbers; val.bin is held out and test in halves, or wholly held out
    beside a test.bin."""
    wanted = (
        "a folder with train.bin and val.bin (uint16) as nanoGPT's data/*/prepare.py writes them, and test.bin where "
        "there is one"
    )
    if path is None:
        raise SettingError("data.path", f"the data set {name!r} needs a path: expected {wanted}")
    for file in ("train.bin", "val.bin"):
        if not (path / file).exists():
            raise SettingError("data.path", f"{path / file} does not exist; expected {wanted}")
    files = [TextFile(path / file) for file in ("train.bin", "val.bin", "test.bin") if (path / file).exists()]
    for file in files:
        if file.size % 2:
            raise SettingError(
                "data.path",
                f"{file.place} has {file.size:,} bytes, an odd number, so it is not of uint16; expected {wanted}",
            )
    train, valid = files[0].size, files[1].size
    test = train + (valid if len(files) == 3 else valid // 4 * 2)  # a number is two bytes
    return Source(name, JoinedText(files), (train, test))


def _text_file(path: Path) -> TextFile:
    return json_lines_text(path) if path.suffix == ".jsonl" else TextFile(path)


def _official_split(folder: Path) -> list[Path] | None:
    """The files of train, valid and test; None where there is none of them. A split that lacks some would be read as no
    split."""
    found = {
        split: [folder / f"{split}{ending}" for ending in ENDINGS if (folder / f"{split}{ending}").exists()]
        for split in OWN_SPLITS
    }
    if not any(found.values()):
        return None
    for split, files in found.items():
        if len(files) != 1:
            raise SettingError(
                "data.path",
                f"{folder} has {'both' if files else 'neither'} {split}.txt {'and' if files else 'nor'} "
                f"{split}.jsonl; expected one file each "
                "for train, valid and test, or other names where the folder has no split",
            )
    return [files[0] for files in found.values()]


def _files_below(folder: Path) -> list[Path]:
    """All .txt and .jsonl files in order of their paths."""
    found = [
        Path(where) / name
        for where, _, names in os.walk(folder, onerror=_refuse)
        for name in names
        if name.endswith(ENDINGS)
    ]
    return sorted(found, key=lambda file: file.parts)


def _refuse(error: OSError) -> NoReturn:
    raise error
