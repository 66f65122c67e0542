"""Files made from the user's: found again by content, written atomically; token files among them are memory-mapped."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from derive.strict_json import dumps_line, read_json, write_atomic
from supernet.errors import UserError

VERSION = 1  # of the files' format; one written by another version is not found, so it is made again
PARTS = ("weights", "alphas", "held_out", "test")
Found = TypeVar("Found")


@dataclass(frozen=True)
class PartSize:
    """How much text a part holds; a word is what stands between white space, and each line end counts as one more."""

    tokens: int
    characters: int
    words: int


@dataclass(frozen=True)
class TokenFile:
    """A memory-mapped file of tokens, [tokens] of the smallest fitting dtype, with what was learned when it was made.

    `sizes` is None for bytes, where a range of tokens is a range of the text and can be counted at any time.
    """

    tokens: np.ndarray
    vocab_size: int
    vocabulary_id: str
    symbols: list[str]
    sizes: dict[str, PartSize] | None


def cache_key(*ingredients: Any) -> str:
    """A name for what these JSON values determine; another version of the format gives another name."""
    return hashlib.sha256(json.dumps([VERSION, *ingredients]).encode()).hexdigest()[:32]


def cache_folders() -> list[Path]:
    """Where such files may lie, best first: $XDG_CACHE_HOME or ~/.cache, then this user's temporary folder."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):  # the XDG specification has a relative one ignored
        home = os.path.expanduser("~/.cache")
    folders = [Path(home) / "par-search"] if os.path.isabs(home) else []
    temporary = Path(tempfile.gettempdir()) / f"par-search-{os.getuid()}"
    if not temporary.exists() or temporary.stat().st_uid == os.getuid():  # not one that somebody else put there
        folders.append(temporary)
    return folders


def find_cached(name: str, read: Callable[[Path], Found | None]) -> Found | None:
    """What `read` makes of the cached files `name`.bin and `name`.json, or None where it finds no whole ones."""
    for folder in cache_folders():
        found = read(folder / name)
        if found:
            return found
    return None


def save_cached(name: str, write: Callable[[BinaryIO], dict[str, Any]], read: Callable[[Path], Found | None]) -> Found:
    """Make the files `name` in the first cache folder that can be written, and read them.

    `write` fills the open file and returns what `name`.json is to hold. Both appear under their names only when they
    are whole, the description last; of two processes that make the same ones, either wins. UserError where no folder
    can be written.
    """
    reasons = []
    for folder in cache_folders():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(folder / name, write)
        except OSError as error:
            reasons.append(f"{folder} ({error.strerror or error})")
            continue
        found = read(folder / name)
        if found:
            return found
        reasons.append(f"{folder} (the file changed after it was written)")
    raise UserError(
        f"cannot keep tokens in {' or '.join(reasons)}; set XDG_CACHE_HOME to a folder with room to write in"
    )


def find_tokens(name: str) -> TokenFile | None:
    """The token file of that name, or None where no whole one is found."""
    return find_cached(name, _read_tokens)


def save_tokens(name: str, write: Callable[[BinaryIO], dict[str, Any]]) -> TokenFile:
    """Make the token file `name`; `write` returns dtype, tokens (their number), vocab_size, vocabulary_id, symbols and
    sizes."""
    return save_cached(name, write, _read_tokens)


def _write(stem: Path, write: Callable[[BinaryIO], dict[str, Any]]) -> None:
    handle, temporary = tempfile.mkstemp(dir=stem.parent, prefix=f".{stem.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            description = write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, f"{stem}.bin")
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    write_atomic(f"{stem}.json", dumps_line(description).encode())


def _read_tokens(stem: Path) -> TokenFile | None:
    try:
        value = read_json(f"{stem}.json")
        sizes = value["sizes"] and {part: PartSize(**value["sizes"][part]) for part in PARTS}
        tokens = np.memmap(f"{stem}.bin", np.dtype(value["dtype"]), "r")
        if len(tokens) != value["tokens"]:
            return None
        return TokenFile(tokens, value["vocab_size"], value["vocabulary_id"], value["symbols"], sizes)
    except (OSError, UserError, KeyError, TypeError, ValueError):  # no such file, or not as this version writes it
        return None
