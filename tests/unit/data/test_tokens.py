"""Characters, words and tokenizer files: what each makes a token, and that the vocabulary is the training text's
alone."""

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from nas.data.tokens import (
    Characters,
    TokenizerFile,
    Words,
    build_encoder,
    restored_encoder,
    smallest_dtype,
    vocabulary_id,
)
from supernet.errors import UserError

SHARED = Path(__file__).parents[4] / "shared" / "data"


def need(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"the data {path.name} is not on this machine")
    return path


def fitted_words(text: str) -> Words:
    encoder = Words()
    encoder.fit([text])
    return encoder


def test_characters_are_numbered_by_code_point_and_the_unknown_is_last() -> None:
    encoder = Characters()
    encoder.fit(["b\r\n", "\0a🙂\ufeff"])
    assert encoder.symbols == ["\0", "\n", "\r", "a", "b", "\ufeff", "🙂", "<unk>"]
    assert encoder.vocab_size == 8
    assert encoder.encode("ab\r\nz🙂").tolist() == [3, 4, 2, 1, 7, 6]
    assert encoder.end_of_file("ab").size == 0


@pytest.mark.parametrize(
    ("kind", "text", "again"),
    [("chars", "a🙂b\n\u00e9 z", None), ("words", "the cat\n\nthe  dog", "the cat\n\nthe dog")],
)
def test_an_encoder_restored_from_its_symbols_is_the_one_that_was_fitted(
    kind: str, text: str, again: str | None
) -> None:
    fitted = build_encoder(kind)
    fitted.fit([text])
    restored = restored_encoder(kind, fitted.symbols, kind)
    assert restored.encode(text + " new").tolist() == fitted.encode(text + " new").tolist()
    assert vocabulary_id(restored) == vocabulary_id(fitted)
    assert restored.decode(fitted.encode(text)) == (again or text)
    assert restored_encoder("bytes", [], "bytes") is None


def test_words_are_numbered_by_frequency_after_the_line_end() -> None:
    encoder = fitted_words("the cat\nthe dog\n\nand the cat\n")
    assert encoder.symbols == ["<eos>", "the", "cat", "dog", "and", "<unk>"]
    assert encoder.encode("the bird\r\n\n and\tthe\u00a0cat\n").tolist() == [1, 5, 0, 0, 4, 1, 2, 0]


def test_unknown_word_of_the_text_keeps_its_rank() -> None:
    encoder = fitted_words("<unk> a <unk> b <eos>\n")
    assert encoder.symbols == ["<eos>", "<unk>", "a", "b"]
    assert encoder.encode("c <unk> <eos>").tolist() == [1, 1, 0]


def test_an_unfinished_last_line_ends_like_the_others() -> None:
    encoder = fitted_words("a\n")
    assert encoder.end_of_file("a").tolist() == [0]
    assert encoder.end_of_file("a\n").size == 0


@pytest.mark.parametrize("folder", ["wikitext-2", "wikitext-103"])
@pytest.mark.parametrize("split, expected, lines", [("valid", 217_646, 3_760), ("test", 245_569, 4_358)])
def test_wikitext_has_the_published_number_of_tokens(folder: str, split: str, expected: int, lines: int) -> None:
    text = need(SHARED / folder / f"wiki.{split}.tokens").read_text("utf-8")
    encoder = fitted_words(text)
    numbers = encoder.encode(text)
    assert len(numbers) == expected
    assert np.count_nonzero(numbers == 0) == lines
    counts = np.bincount(numbers, minlength=encoder.vocab_size)
    assert (np.diff(counts[1:]) <= 0).all()  # falling frequency, as adaptive softmax needs it
    by_hand = Counter(text.split())
    assert all(counts[number] == by_hand[word] for number, word in enumerate(encoder.symbols[1:], start=1))


def test_vocabulary_id_tells_vocabularies_apart() -> None:
    def identify(text: str) -> str:
        return vocabulary_id(fitted_words(text))

    assert identify("a b a") == identify("b a a")
    assert identify("a a b") != identify("b b a")
    assert identify("ab c c") != identify("a bc bc")
    assert vocabulary_id(None) != vocabulary_id(Characters())


@pytest.mark.parametrize("size, dtype", [(256, "uint8"), (257, "uint16"), (65_536, "uint16"), (65_537, "int32")])
def test_smallest_dtype(size: int, dtype: str) -> None:
    assert smallest_dtype(size).name == dtype


def test_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"data\.tokens: unknown kind 'word' \(did you mean 'words'\?\)"):
        build_encoder("word")
    assert build_encoder("bytes") is None


def test_a_tokenizer_file_gives_the_published_counts(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the extra 'tokenizers' is not installed")
    folder = need(SHARED / "tokenizers")
    text = need(SHARED / "tiny-shakespeare" / "input.txt").read_text("utf-8")
    gpt2 = tokenizers.ByteLevelBPETokenizer(str(folder / "gpt2-encoder.json"), str(folder / "gpt2-vocab.bpe"))
    gpt2.enable_truncation(max_length=8)  # a setting of the file that must not cut a corpus
    gpt2.save(str(tmp_path / "gpt2.json"))
    encoder = TokenizerFile(tmp_path / "gpt2.json")
    assert encoder.vocab_size == 50_257
    train, valid = text[:1_003_854], text[1_003_854:]
    assert (len(encoder.encode(train)), len(encoder.encode(valid))) == (301_966, 36_059)


def test_a_tokenizer_file_that_is_none_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="the extra 'tokenizers' is not installed")
    (tmp_path / "config.json").write_text('{"a": 1}')
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    for name in ("config.json", "binary.json"):
        with pytest.raises(UserError, match=rf"data\.tokens: .*{name} is not a tokenizers JSON file"):
            TokenizerFile(tmp_path / name)
    with pytest.raises(UserError, match=r"data\.tokens: cannot read .*absent\.json"):
        build_encoder(str(tmp_path / "absent.json"))


def test_a_tokenizer_file_whose_parts_do_not_fit_is_refused(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the extra 'tokenizers' is not installed")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="?"))
    made.save(str(tmp_path / "unknown.json"))
    with pytest.raises(UserError, match=r"data\.tokens: .*unknown\.json cannot encode the text: "):
        TokenizerFile(tmp_path / "unknown.json").encode("b")
    made = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    content = json.loads(made.to_str())
    content["model"]["continuing_subword_prefix"] = (
        "##"  # the package cuts it from "b" and panics, which is no Exception
    )
    (tmp_path / "panic.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"data\.tokens: .*panic\.json is not a tokenizers JSON file: "):
        TokenizerFile(tmp_path / "panic.json")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"pip install par-search\[tokenizers\]"):
        build_encoder(str(tmp_path / "any.json"))
