"""Prompts as tokens and continuations as text, for each kind of tokens."""

import json
from pathlib import Path

import numpy as np
import pytest
from hostile import made_tokenizer

from nas.config.sections import DataConfig
from nas.data.corpus import Corpus, load_corpus
from nas.data.prompts import Prompt
from supernet.errors import SettingError

TEXT = "the cat sat\nthe dog sat, né\n" * 60


def corpus_of(folder: Path, tokens: str) -> tuple[Corpus, DataConfig]:
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    data = DataConfig(name="text", path=str(folder / "text.txt"), tokens=tokens, seq_len=5)
    return load_corpus(data), data


@pytest.mark.parametrize(
    ("tokens", "prompt", "more"),
    [
        ("bytes", "the né🙂", " sat"),
        ("chars", "the dog", "\nthe né"),
        ("words", "the dog", " sat,\nthe cat"),
        ("words", "the dog\n", "the"),
    ],
)
def test_a_prompt_goes_on_with_the_text_of_further_tokens(tmp_path: Path, tokens: str, prompt: str, more: str) -> None:
    made = Prompt(prompt, *corpus_of(tmp_path, tokens))
    assert made.tokens.dtype == np.int64 and made.with_more(made.tokens) == prompt
    whole = Prompt(prompt + more, *corpus_of(tmp_path, tokens)).tokens
    assert whole[: len(made.tokens)].tolist() == made.tokens.tolist()
    assert made.with_more(whole) == prompt + more


def test_tokens_are_those_of_the_training(tmp_path: Path) -> None:
    for tokens in ("bytes", "chars", "words"):
        corpus, data = corpus_of(tmp_path, tokens)
        made = Prompt(TEXT[:28], corpus, data).tokens
        assert made.tolist() == corpus.tokens[: len(made)].tolist() and len(made) > 6


def test_what_the_vocabulary_lacks_is_unknown_and_still_printed_as_given(tmp_path: Path) -> None:
    for tokens, prompt, unknown in (("chars", "the cow: z", "<unk>"), ("words", "the  cow", "<unk>")):
        corpus, data = corpus_of(tmp_path, tokens)
        made = Prompt(prompt, corpus, data)
        assert corpus.symbols.index(unknown) in made.tokens
        one = corpus.symbols.index("t" if tokens == "chars" else "cat")
        assert made.with_more(np.append(made.tokens, one)) == prompt + ("t" if tokens == "chars" else " cat")


def test_a_byte_that_begins_a_character_is_shown_as_one_that_is_none(tmp_path: Path) -> None:
    made = Prompt("né", *corpus_of(tmp_path, "bytes"))
    assert made.with_more(np.append(made.tokens, [0xC3])) == "né\ufffd"
    assert made.with_more(np.append(made.tokens, [0xC3, 0xA9])) == "néé"


def test_a_tokenizer_file(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(made_tokenizer())
    corpus, data = corpus_of(tmp_path, str(tmp_path / "t.json"))
    made = Prompt("abab", corpus, data)
    assert made.tokens.tolist() == [2, 2]
    assert (
        made.with_more(np.append(made.tokens, [0, 1])).startswith("abab")
        and "a" in made.with_more(np.append(made.tokens, [0]))[4:]
    )


def test_a_prompt_that_a_tokenizer_file_has_no_tokens_for_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "wl.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [],
                "normalizer": None,
                "pre_tokenizer": {"type": "WhitespaceSplit"},
                "post_processor": None,
                "decoder": None,
                "model": {
                    "type": "WordLevel",
                    "vocab": {word: n for n, word in enumerate(sorted(set(TEXT.split())))},
                    "unk_token": "[UNK]",
                },
            }
        )
    )
    corpus, data = corpus_of(tmp_path, str(tmp_path / "wl.json"))
    assert len(Prompt("the dog", corpus, data).tokens) == 2
    with pytest.raises(
        SettingError, match=r"^prompt: .*wl\.json cannot encode the text: .*expected text that"
    ) as error:
        Prompt("the cow", corpus, data)
    assert error.value.path == "prompt" and "data.tokens" not in str(error.value)


def test_a_prompt_whose_text_further_tokens_change_is_told_as_its_tokens_are(tmp_path: Path) -> None:
    corpus, data = corpus_of(tmp_path, "bytes")
    made = Prompt("n", corpus, data)
    made.tokens = np.array([ord("n"), 0xC3])  # half a character
    assert made.with_more(np.append(made.tokens, [0xA9, ord("s")])) == "nés"


def test_prompts_without_a_token_and_stored_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="^prompt: '  ' holds no token"):
        Prompt("  ", *corpus_of(tmp_path, "words"))
    np.arange(500, dtype="<u2").tofile(tmp_path / "train.bin")
    np.arange(100, dtype="<u2").tofile(tmp_path / "val.bin")
    data = DataConfig(name="nanogpt", path=str(tmp_path), tokens="numbers", seq_len=5)
    with pytest.raises(SettingError, match="^data.tokens: numbers have no text"):
        Prompt("1 2", load_corpus(data), data)
