"""Texts of one's own: a folder is read whole and in order, its split as its names say, and what is ambiguous is
refused."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nas.data.corpus import Corpus, load_corpus
from nas.data.named_sets import find_source
from supernet.errors import UserError


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def settings(path: Path, **given: object) -> SimpleNamespace:
    return SimpleNamespace(**{"name": "text", "path": str(path), "tokens": "bytes", "seq_len": 3, **given})


def write(folder: Path, contents: dict[str, str]) -> Path:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, "utf-8")
    return folder


def whole(corpus: Corpus) -> str:
    return corpus.tokens.tobytes().decode()


def test_a_folder_is_its_files_in_order(tmp_path: Path) -> None:
    contents = {
        "b.txt": "second " * 20,
        "a/z.txt": "first " * 20,
        "c/d/e.txt": "fourth " * 20,
        "b.txt.bak": "no",
        "c.jsonl": '{"text": "third"}',
    }
    corpus = load_corpus(settings(write(tmp_path / "mine", contents)))
    assert whole(corpus) == "first " * 20 + "second " * 20 + "fourth " * 20 + "third\n"
    assert corpus.file == "mine: 4 files" and corpus.to_json()["bytes"] == len(whole(corpus))
    (tmp_path / "mine" / "c.jsonl").unlink()
    assert load_corpus(settings(tmp_path / "mine")).file == "z.txt, b.txt, e.txt"


def test_words_end_with_their_file(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "one two\n" * 200 + "last", "b.txt": "first\n" * 40})
    corpus = load_corpus(settings(tmp_path, tokens="words"))
    told = " ".join(corpus.symbols[number] for part in corpus.parts for number in corpus.part(part))
    assert "last <eos> first" in told and "lastfirst" not in told


@pytest.mark.parametrize("ending", ["txt", "jsonl"])
def test_train_valid_and_test_give_the_split(tmp_path: Path, ending: str) -> None:
    texts = {"test": "ccc\n" * 5, "train": "a b\n" * 30, "valid": "bb\n" * 7}
    for split, text in texts.items():
        (tmp_path / f"{split}.{ending}").write_text(text if ending == "txt" else json.dumps({"text": text}), "utf-8")
    write(tmp_path, {"notes.txt": "not read", "more/train.txt": "not read"})
    for tokens in ("bytes", "chars", "words"):
        corpus = load_corpus(settings(tmp_path, tokens=tokens))
        assert corpus.file == f"train.{ending}, valid.{ending}, test.{ending}"
        assert [corpus.size(part).characters for part in ("held_out", "test")] == [21, 20]
        assert corpus.size("weights").characters + corpus.size("alphas").characters == 120
    assert set(corpus.symbols) == {"<eos>", "a", "b", "<unk>"}


@pytest.mark.parametrize(
    "names, reason",
    [
        (["train.txt", "test.txt"], "neither valid.txt nor valid.jsonl"),
        (["test.jsonl", "other.txt"], "neither train.txt nor train.jsonl"),
        (["train.txt", "train.jsonl", "valid.txt", "test.txt"], "both train.txt and train.jsonl"),
    ],
)
def test_half_a_split_is_refused(tmp_path: Path, names: list[str], reason: str) -> None:
    write(tmp_path, dict.fromkeys(names, '{"text": "a"}'))
    with pytest.raises(UserError, match=rf"data\.path: .*has {reason}; expected one file each") as caught:
        find_source(settings(tmp_path))
    assert "\n" not in str(caught.value)


def test_what_a_folder_cannot_give_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.path: .*is a folder without \.txt or \.jsonl files; expected"):
        find_source(settings(tmp_path))
    with pytest.raises(UserError, match=r"data\.path: a\.txt, b\.txt is empty"):
        find_source(settings(write(tmp_path, {"a.txt": "", "b.txt": ""})))
    (tmp_path / "c.txt").mkdir()
    assert len(find_source(settings(write(tmp_path, {"a.txt": "text"}))).text.files) == 2
    (tmp_path / "d.txt").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"data\.path: cannot read .*d\.txt"):
        find_source(settings(tmp_path))


def numbers(folder: Path, **parts: list[int]) -> Path:
    for name, values in parts.items():
        np.array(values, "<u2").tofile(folder / f"{name}.bin")
    return folder


def test_nanogpt_files_are_split_as_they_are_named(tmp_path: Path) -> None:
    numbers(tmp_path, train=[*range(100)], val=[*range(11)])
    nanogpt = settings(tmp_path, name="nanogpt", tokens="numbers")
    assert load_corpus(nanogpt).parts == {
        "weights": (0, 80),
        "alphas": (80, 100),
        "held_out": (100, 105),
        "test": (105, 111),
    }
    numbers(tmp_path, test=[*range(7)])
    assert load_corpus(nanogpt).parts == {
        "weights": (0, 80),
        "alphas": (80, 100),
        "held_out": (100, 111),
        "test": (111, 118),
    }


def test_nanogpt_files_that_are_none_are_refused(tmp_path: Path) -> None:
    nanogpt = settings(tmp_path, name="nanogpt", tokens="numbers")
    numbers(tmp_path, train=[1] * 99)
    for path in (tmp_path, tmp_path / "train.bin"):
        with pytest.raises(
            UserError, match=r"data\.path: .*\.bin does not exist; expected a folder with train\.bin and val\.bin"
        ):
            find_source(settings(path, name="nanogpt"))
    (tmp_path / "val.bin").write_bytes(b"odd")
    with pytest.raises(UserError, match=r"data\.path: .*val\.bin has 3 bytes, an odd number"):
        load_corpus(nanogpt)
    numbers(tmp_path, val=[1] * 4)
    with pytest.raises(UserError, match=r"data\.path: the part held_out of train\.bin, val\.bin has 2 tokens, too few"):
        load_corpus(nanogpt)
