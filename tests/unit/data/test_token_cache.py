"""Token files: found again by content, made again when damaged, never seen half-written."""

import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from nas.data import token_cache
from nas.data.token_cache import PARTS, cache_folders, cache_key, find_tokens, save_tokens
from supernet.errors import UserError

NUMBERS = np.arange(12, dtype=np.uint16)


def write_numbers(file: BinaryIO) -> dict[str, Any]:
    file.write(NUMBERS.tobytes())
    sizes = {part: {"tokens": 3, "characters": 5, "words": 2} for part in PARTS}
    return {
        "dtype": "uint16",
        "tokens": 12,
        "vocab_size": 700,
        "vocabulary_id": "x",
        "symbols": ["a\0\u2028"],
        "sizes": sizes,
    }


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path


def test_what_was_saved_is_found(folders: Path) -> None:
    assert find_tokens("numbers") is None
    saved = save_tokens("numbers", write_numbers)
    found = find_tokens("numbers")
    for tokens in (saved, found):
        assert isinstance(tokens.tokens, np.memmap) and not tokens.tokens.flags.writeable
        assert tokens.tokens.tolist() == NUMBERS.tolist()
        assert (tokens.vocab_size, tokens.symbols) == (700, ["a\0\u2028"])
        assert tokens.sizes["test"].characters == 5
    assert sorted(path.name for path in (folders / "cache" / "par-search").iterdir()) == ["numbers.bin", "numbers.json"]


@pytest.mark.parametrize("suffix", [".bin", ".json"])
@pytest.mark.parametrize("damage", ["gone", "empty", "short", "long", "other"])
def test_a_damaged_file_is_not_used(folders: Path, suffix: str, damage: str) -> None:
    save_tokens("numbers", write_numbers)
    path = folders / "cache" / "par-search" / f"numbers{suffix}"
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "short": whole[:-3], "long": whole + whole, "other": b'{"tokens": 1}'}[damage])
    assert find_tokens("numbers") is None
    assert save_tokens("numbers", write_numbers).tokens.tolist() == NUMBERS.tolist()
    assert find_tokens("numbers") is not None


def test_another_version_or_content_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    key = cache_key("sha", [1, 2])
    assert key == cache_key("sha", [1, 2])
    assert len({key, cache_key("sha", [2, 1]), cache_key("sh", [1, 2])}) == 3
    monkeypatch.setattr(token_cache, "VERSION", token_cache.VERSION + 1)
    assert cache_key("sha", [1, 2]) != key


def test_a_failure_leaves_nothing_behind(folders: Path) -> None:
    def fail(file: BinaryIO) -> dict[str, Any]:
        file.write(b"half")
        raise UserError("the text is wrong")

    with pytest.raises(UserError, match="the text is wrong"):
        save_tokens("numbers", fail)
    assert list((folders / "cache" / "par-search").iterdir()) == []


def test_the_temporary_folder_serves_where_the_cache_cannot_be_written(folders: Path) -> None:
    (folders / "cache").write_text("a file where the folder should be")
    save_tokens("numbers", write_numbers)
    assert find_tokens("numbers") is not None
    assert len(list((folders / "temporary").glob("par-search-*/numbers.bin"))) == 1


def test_no_folder_at_all_is_one_line(folders: Path) -> None:
    (folders / "cache").write_text("")
    (folders / "temporary").rmdir()
    (folders / "temporary").write_text("")
    with pytest.raises(UserError, match="cannot keep tokens in .*cache.*temporary.*set XDG_CACHE_HOME"):
        save_tokens("numbers", write_numbers)


def test_a_relative_cache_home_is_ignored(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(folders / "home"))
    assert cache_folders()[0] == folders / "home" / ".cache" / "par-search"


def test_processes_that_make_the_same_file_at_once_agree(folders: Path) -> None:
    (folders / "text.txt").write_text("some words of a text\n" * 20_000)
    program = (
        "import sys, types, hashlib; from nas.data.corpus import load_corpus\n"
        "data = types.SimpleNamespace(name='text', path=sys.argv[1], tokens='words', seq_len=16)\n"
        "print(hashlib.sha256(load_corpus(data).tokens.tobytes()).hexdigest())"
    )
    command = [sys.executable, "-c", program, str(folders / "text.txt")]
    root = Path(__file__).parents[3]
    pipe = subprocess.PIPE
    running = [subprocess.Popen(command, cwd=root, stdout=pipe, stderr=pipe, text=True) for _ in range(3)]
    results = [process.communicate(timeout=60) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], results
    assert len({output for output, _ in results}) == 1
    assert len(list((folders / "cache" / "par-search").iterdir())) == 2
