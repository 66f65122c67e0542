"""The corpus: four parts that cover the text once."""

import hashlib
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from nas.data.batches import crop_batch
from nas.data.corpus import Corpus, load_corpus
from supernet.errors import UserError

ROOT = Path(__file__).parents[3]
TEXT = "\ufeffOne line, ünïcode 日本\r\nanother\0 line\n\nand more words 🙂 of it\n"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        # token files may lie there as well
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("fallback")))
        yield folder


def settings(path: Path | None = None, **given: object) -> SimpleNamespace:
    name = "sotu" if path is None else "text"
    return SimpleNamespace(**{"name": name, "path": path and str(path), "tokens": "bytes", "seq_len": 7, **given})


def file_with(folder: Path, text: str) -> Path:
    (folder / "input.txt").write_bytes(text.encode())
    return folder / "input.txt"


def decoded(corpus: Corpus, part: str) -> str:
    if corpus.kind == "bytes":
        return corpus.part(part).tobytes().decode()
    return ("" if corpus.kind == "chars" else " ").join(corpus.symbols[number] for number in corpus.part(part))


@pytest.mark.parametrize("tokens", ["bytes", "chars", "words"])
def test_parts_follow_each_other_and_cover_the_corpus(tokens: str) -> None:
    corpus = load_corpus(settings(tokens=tokens))
    ranges = list(corpus.parts.values())
    assert list(corpus.parts) == ["weights", "alphas", "held_out", "test"]
    assert ranges[0][0] == 0 and ranges[-1][1] == len(corpus.tokens)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))
    assert all(start < end for start, end in ranges)
    assert ranges[0][1] / ranges[1][1] == pytest.approx(0.8, abs=0.002)
    assert int(corpus.tokens.max()) < corpus.vocab_size
    assert all(corpus.size(part).tokens == end - start for part, (start, end) in corpus.parts.items())


def test_data_json_is_as_the_contract_has_it(tmp_path: Path) -> None:
    path = file_with(tmp_path, "abcdefghij" * 100)
    content = load_corpus(settings(path)).to_json()
    assert json.loads(json.dumps(content)) == {
        "name": "text",
        "file": "input.txt",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "bytes": 1000,
        "vocab_size": 256,
        "parts": {
            "weights": {"tokens": 720, "range": [0, 720]},
            "alphas": {"tokens": 180, "range": [720, 900]},
            "held_out": {"tokens": 50, "range": [900, 950]},
            "test": {"tokens": 50, "range": [950, 1000]},
        },
    }


def test_chars_keep_every_character(tmp_path: Path) -> None:
    text = TEXT * 40
    corpus = load_corpus(settings(file_with(tmp_path, text), tokens="chars"))
    assert corpus.vocab_size == len(set(text)) + 1
    assert "".join(decoded(corpus, part) for part in corpus.parts) == text
    assert {"\ufeff", "\r", "\0"} <= set(corpus.symbols)
    count = len(text)
    assert corpus.parts["held_out"] == (count * 90 // 100, count * 95 // 100)
    assert corpus.parts["weights"] == (0, count * 90 // 100 * 80 // 100)


def test_bytes_take_any_file(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5
    (tmp_path / "blob").write_bytes(content)
    corpus = load_corpus(settings(tmp_path / "blob"))
    assert corpus.tokens.tobytes() == content
    with pytest.raises(UserError, match=r"data\.path: .*blob is not UTF-8 at byte 128 \(0x80"):
        load_corpus(settings(tmp_path / "blob", tokens="chars"))
    with pytest.raises(UserError, match=r"blob is not UTF-8 at byte 128"):
        load_corpus(settings(tmp_path / "blob", tokens="words"))


def test_words_are_those_of_the_text_and_no_word_is_cut(tmp_path: Path) -> None:
    text = "first second\r\nthird   \n" * 50 + "last"
    corpus = load_corpus(settings(file_with(tmp_path, text), tokens="words"))
    joined = " ".join(decoded(corpus, part) for part in corpus.parts).split()
    assert joined == ["<unk>" if word == "last" else word for word in text.replace("\n", " <eos> ").split()] + ["<eos>"]


@pytest.mark.parametrize("tokens", ["chars", "words"])
def test_the_vocabulary_is_of_the_training_text_alone(tmp_path: Path, tokens: str) -> None:
    corpus = load_corpus(settings(file_with(tmp_path, "ab ba\n" * 150 + "zz q\n" * 20), tokens=tokens))
    assert not {"z", "q", "zz"} & set(corpus.symbols)
    unknown = corpus.symbols.index("<unk>")
    assert unknown not in corpus.part("weights") and unknown not in corpus.part("alphas")
    assert "<unk>" in decoded(corpus, "test") and decoded(corpus, "test").count("a") == 0


@pytest.mark.parametrize("tokens", ["bytes", "chars", "words"])
def test_characters_and_words_of_a_part_are_counted(tmp_path: Path, tokens: str) -> None:
    line = "zwölf Boxkämpfer jagen\n"
    corpus = load_corpus(settings(file_with(tmp_path, line * 400), tokens=tokens))
    sizes = [corpus.size(part) for part in corpus.parts]
    assert sum(size.characters for size in sizes) == 400 * len(line)
    # a boundary inside a word leaves a piece of it on either side, so only words are cut exactly
    assert sum(size.words for size in sizes) == pytest.approx(400 * 4, abs=0 if tokens == "words" else 3)
    test = corpus.size("test")
    assert corpus.tokens_per_word("test") == pytest.approx(test.tokens / test.words)
    loss = 1.5
    nats_per_character = loss * test.tokens / test.characters if tokens == "words" else loss
    assert corpus.bits_per_character(loss, "test") == pytest.approx(nats_per_character / math.log(2))
    assert corpus.word_perplexity(loss, "test") == (pytest.approx(math.exp(loss)) if tokens == "words" else None)


def test_words_count_the_same_by_bytes_and_by_text() -> None:
    by_bytes, by_words = load_corpus(settings()), load_corpus(settings(tokens="words"))
    for part in ("held_out", "test"):  # their bounds are line ends in both
        assert by_bytes.size(part).words == by_words.size(part).words == by_words.size(part).tokens
        assert by_bytes.size(part).characters == by_words.size(part).characters


def test_a_tokenizer_file_covers_the_text(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the extra 'tokenizers' is not installed")
    text = "low lower lowest, new newer newest\n" * 200
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator([text], vocab_size=300)
    made.save(str(tmp_path / "bpe.json"))
    corpus = load_corpus(settings(file_with(tmp_path, text), tokens=str(tmp_path / "bpe.json")))
    assert corpus.kind == "pieces" and corpus.vocab_size == made.get_vocab_size()
    assert "".join(made.decode(corpus.part(part).tolist()) for part in corpus.parts) == text
    assert corpus.size("test").words < corpus.size("test").tokens < corpus.size("test").characters
    assert corpus.tokens_per_word("test") > 1
    words = text[-corpus.size("test").characters :].count(" ") + 2 * text[-corpus.size("test").characters :].count("\n")
    assert corpus.word_perplexity(0.7, "test") == pytest.approx(
        math.exp(0.7 * corpus.size("test").tokens / words), rel=0.01
    )


@pytest.mark.parametrize("tokens", ["bytes", "chars", "words"])
def test_tokens_are_made_once(cache: Path, tokens: str) -> None:
    first = load_corpus(settings(tokens=tokens))
    made = Path(first.tokens.filename)
    assert made.parent == cache / "par-search"
    before = made.stat().st_mtime_ns
    start = time.perf_counter()
    again = load_corpus(settings(tokens=tokens))
    assert time.perf_counter() - start < 0.5
    assert made.stat().st_mtime_ns == before
    assert again.to_json() == first.to_json() and again.vocabulary_id == first.vocabulary_id


def test_damaged_tokens_are_made_again() -> None:
    first = load_corpus(settings())
    made = Path(first.tokens.filename)
    made.write_bytes(made.read_bytes()[:-1])
    assert hashlib.sha256(load_corpus(settings()).tokens).hexdigest() == first.sha256


def test_changed_content_is_not_taken_from_the_cache(tmp_path: Path) -> None:
    path = file_with(tmp_path, "abcd " * 100)
    first = load_corpus(settings(path, tokens="chars"))
    times = path.stat()
    file_with(tmp_path, "dcbe " * 100)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    second = load_corpus(settings(path, tokens="chars"))
    assert first.sha256 != second.sha256
    assert decoded(second, "weights").startswith("dcbe ")


@pytest.mark.parametrize("tokens", ["bytes", "words"])
def test_the_data_folder_may_be_read_only(tmp_path: Path, tokens: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    path = file_with(folder, "some words here\n" * 100)
    path.chmod(0o444)
    folder.chmod(0o555)
    before = folder.stat().st_mtime_ns
    try:
        corpus = load_corpus(settings(path, tokens=tokens))
        crop_batch(corpus, "weights", seq_len=3, batch_size=2, seed=0, step=0, stream="weights")
        # the superuser may write anywhere, so look for the writing itself
        assert folder.stat().st_mtime_ns == before and os.listdir(folder) == ["input.txt"]
    finally:
        folder.chmod(0o755)


def test_too_short_a_text_names_both_keys(tmp_path: Path) -> None:
    path = file_with(tmp_path, "x" * 1000)
    assert load_corpus(settings(path, seq_len=49)).parts["test"] == (950, 1000)
    with pytest.raises(UserError, match=r"^data\.path: .*50 tokens.*data\.seq_len 50; .*data\.seq_len at most 49$"):
        load_corpus(settings(path, seq_len=50))
    with pytest.raises(UserError, match=r"^data\.seq_len: .*held_out of sotu\.txt has 565,379 tokens"):
        load_corpus(settings(seq_len=1_000_000))
    path.write_bytes(b"")
    for tokens in ("bytes", "chars", "words"):
        with pytest.raises(UserError, match=r"data\.path: input\.txt is empty"):
            load_corpus(settings(path, tokens=tokens))


def test_reading_a_corpus_needs_no_torch() -> None:
    program = "import sys, nas.data.corpus; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
