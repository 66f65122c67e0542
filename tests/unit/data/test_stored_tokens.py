"""Stored token numbers: taken as they stand, counted as text where a tokenizer says what they mean, and no pickle
read."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nas.data.corpus import load_corpus
from supernet.errors import UserError

SHARED = Path(__file__).parents[4] / "shared" / "data"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def settings(path: Path, tokens: str = "numbers", **given: object) -> SimpleNamespace:
    return SimpleNamespace(**{"name": "nanogpt", "path": str(path), "tokens": tokens, "seq_len": 3, **given})


def write(folder: Path, train: list[int], val: list[int]) -> Path:
    for name, values in (("train", train), ("val", val)):
        np.array(values, "<u2").tofile(folder / f"{name}.bin")
    return folder


def test_numbers_are_taken_as_they_stand(tmp_path: Path) -> None:
    train, val = [*range(3000)], [5, 0, 65535, 7] * 6
    corpus = load_corpus(settings(write(tmp_path, train, val)))
    assert isinstance(corpus.tokens, np.memmap) and corpus.tokens.dtype == np.uint16
    assert corpus.tokens.tolist() == train + val
    assert (corpus.kind, corpus.vocab_size, corpus.symbols) == ("numbers", 65536, [])
    assert (corpus.file, corpus.bytes) == ("train.bin, val.bin", 2 * len(train + val))
    assert corpus.bits_per_character(1.0, "test") is corpus.word_perplexity(1.0, "test") is None
    again = load_corpus(settings(tmp_path))
    assert (again.to_json(), again.vocabulary_id, again.tokens.filename) == (
        corpus.to_json(),
        corpus.vocabulary_id,
        corpus.tokens.filename,
    )
    other = load_corpus(settings(write(tmp_path, train, val[::-1])))
    assert other.vocab_size == corpus.vocab_size and other.vocabulary_id != corpus.vocabulary_id  # who knows


def test_a_pickle_beside_them_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, [0, 1, 2] * 40, [1, 2] * 10)
    (tmp_path / "meta.pkl").write_bytes(b"cos\nabort\n(tR.")  # reading it would end this process
    assert load_corpus(settings(tmp_path)).vocab_size == 3


@pytest.mark.parametrize("tokens", ["bytes", "chars", "words"])
def test_kinds_that_need_a_text_are_refused_and_numbers_for_a_text(tmp_path: Path, tokens: str) -> None:
    write(tmp_path, [1] * 99, [1] * 99)
    with pytest.raises(
        UserError, match=rf"data\.tokens: the files of nanogpt hold tokens already; expected numbers, .*not {tokens}"
    ):
        load_corpus(settings(tmp_path, tokens))
    with pytest.raises(UserError, match=r"data\.tokens: numbers is for data\.name nanogpt; expected bytes"):
        load_corpus(settings(tmp_path / "train.bin", name="text"))
    with pytest.raises(UserError, match=r"data\.tokens: unknown kind 'nubmers' \(did you mean 'numbers'\?\)"):
        load_corpus(settings(tmp_path, "nubmers"))


def gpt2(folder: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers", reason="the extra 'tokenizers' is not installed")
    files = [SHARED / "tokenizers" / name for name in ("gpt2-encoder.json", "gpt2-vocab.bpe")]
    if not files[0].exists():
        pytest.skip("GPT-2's vocabulary is not on this machine")
    tokenizers.ByteLevelBPETokenizer(*map(str, files)).save(str(folder / "gpt2.json"))
    return folder / "gpt2.json"


def test_tiny_shakespeare_as_nanogpt_prepares_it(tmp_path: Path) -> None:
    path = gpt2(tmp_path)
    if not (SHARED / "tiny-shakespeare" / "input.txt").exists():
        pytest.skip("tiny Shakespeare is not on this machine")
    import tokenizers

    text = (SHARED / "tiny-shakespeare" / "input.txt").read_text("utf-8")
    train, val = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    write(tmp_path, tokenizer.encode(train).ids, tokenizer.encode(val).ids)
    corpus = load_corpus(settings(tmp_path, str(path)))
    assert corpus.parts["alphas"][1] == 301_966 and len(corpus.tokens) == 301_966 + 36_059  # as nanogpt says
    assert (corpus.kind, corpus.vocab_size) == ("pieces", 50_257)
    sizes = [corpus.size(part) for part in corpus.parts]
    assert [size.tokens for size in sizes] == [241_572, 60_394, 18_029, 18_030]
    assert sum(size.characters for size in sizes) == len(text)
    # a word cut between parts
    assert sum(size.words for size in sizes) == pytest.approx(len(text.split()) + text.count("\n"), abs=3)
    size = corpus.size("test")
    assert corpus.word_perplexity(3.0, "test") == pytest.approx(math.exp(3.0 * size.tokens / size.words))
    assert corpus.bits_per_character(3.0, "test") == pytest.approx(3.0 / math.log(2) * size.tokens / size.characters)
    (tmp_path / "input.txt").write_text(text, "utf-8")
    encoded = load_corpus(SimpleNamespace(name="text", path=str(tmp_path / "input.txt"), tokens=str(path), seq_len=3))
    assert encoded.vocabulary_id == corpus.vocabulary_id


def test_characters_that_are_several_tokens_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gpt2(tmp_path)
    import tokenizers

    monkeypatch.setattr("nas.data.texts.CHUNK", 26)
    text = "日本語のテキスト 🙂🙂 naïve 𝔘nicode\n" * 20
    ids = tokenizers.Tokenizer.from_file(str(path)).encode(text).ids
    corpus = load_corpus(settings(write(tmp_path, ids, ids + ids), str(path)))
    for part in ("held_out", "test"):
        assert (corpus.size(part).characters, corpus.size(part).words) == (
            len(text),
            len(text.split()) + text.count("\n"),
        )


def test_numbers_beyond_the_tokenizer_are_refused(tmp_path: Path) -> None:
    path = gpt2(tmp_path)
    write(tmp_path, [1] * 99, [50_257] * 99)
    with pytest.raises(
        UserError, match=r"data\.tokens: train\.bin, val\.bin holds the number 50257, but the tokenizer has only 50,257"
    ):
        load_corpus(settings(tmp_path, str(path)))
