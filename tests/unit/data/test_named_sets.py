"""Named data sets: whole ones are read with their official split, others are refused with what was expected."""

import csv
import hashlib
import lzma
import os
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nas.data.corpus import load_corpus
from nas.data.named_sets import SOTU_HELD_OUT, SOTU_TEST, SOURCES, find_source
from supernet.errors import UserError

SHARED = Path(__file__).parents[4] / "shared" / "data"


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def need(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"the data {path.name} is not on this machine")
    return path


def distinct_bytes(data: np.ndarray) -> set[int]:
    blocks = np.array_split(data, 64)  # a whole part at once would be counted as 8-byte numbers
    return set(np.flatnonzero(sum(np.bincount(block, minlength=256) for block in blocks)).tolist())


def settings(**given: object) -> SimpleNamespace:
    return SimpleNamespace(**{"name": "text", "path": None, "tokens": "bytes", "seq_len": 64, **given})


def test_the_built_in_corpus_is_the_one_described() -> None:
    corpus = load_corpus(settings(name="sotu"))
    content = corpus.tokens.tobytes()
    assert (corpus.bytes, len(content)) == (12_186_249, 12_186_249)
    assert corpus.sha256 == hashlib.sha256(content).hexdigest()
    assert corpus.sha256 == "8eaec349551f3d7e4d6a4ae6c91b0ee231f63c2147ba941fe4e7c8776518ad8c"
    assert len(set(content.decode())) == 106
    assert corpus.parts["held_out"] == (SOTU_HELD_OUT, SOTU_TEST)
    assert content[SOTU_HELD_OUT:].startswith(b"Mr. Speaker, Mr. President, distinguished Members of the Congress, ")
    assert content[SOTU_TEST:].startswith(b"Thank you all. Mr. Speaker, Vice President Cheney")
    assert content[SOTU_HELD_OUT - 2 : SOTU_HELD_OUT] == content[SOTU_TEST - 2 : SOTU_TEST] == b"\n\n"


def test_the_built_in_corpus_is_split_by_date() -> None:
    with need(SHARED / "sotu" / "index.tsv").open() as file:
        speeches = list(csv.DictReader(file, delimiter="\t"))
    offsets = {speech["file"][:4]: int(speech["offset"]) for speech in reversed(speeches)}  # the year's first
    assert (offsets["1986"], offsets["2006"]) == (SOTU_HELD_OUT, SOTU_TEST)


def test_the_built_in_corpus_takes_no_path(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.path: .*built in.*data\.name text"):
        find_source(settings(name="sotu", path=str(tmp_path)))


def test_enwik8_whole_packed_or_not(tmp_path: Path) -> None:
    corpus = load_corpus(settings(name="enwik8", path=str(need(SHARED / "enwik8" / "enwik8.xz").parent)))
    unpacked = Path(corpus.tokens.filename)
    os.link(unpacked, tmp_path / "enwik8")
    with zipfile.ZipFile(tmp_path / "enwik8.zip", "w") as archive:
        archive.write(unpacked, "enwik8")
    for path in (tmp_path, tmp_path / "enwik8.zip"):
        again = load_corpus(settings(name="enwik8", path=str(path)))
        assert again.to_json() == corpus.to_json()
        assert (again.tokens.filename == tmp_path / "enwik8") == (path == tmp_path)  # the file itself is mapped
    assert corpus.sha256 == "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8"
    assert corpus.parts == {
        "weights": (0, 72_000_000),
        "alphas": (72_000_000, 90_000_000),
        "held_out": (90_000_000, 95_000_000),
        "test": (95_000_000, 100_000_000),
    }
    distinct = {part: distinct_bytes(corpus.part(part)) for part in corpus.parts}
    assert len(set().union(*distinct.values())) == 205
    assert len(distinct["weights"] | distinct["alphas"]) == 205
    assert (len(distinct["held_out"]), len(distinct["test"])) == (203, 198)
    assert sum(corpus.size(part).characters for part in corpus.parts) == 99_621_832
    assert np.count_nonzero(corpus.tokens == ord("\n")) == 1_128_023


def test_text8_may_be_given_as_the_file_itself(tmp_path: Path) -> None:
    with (tmp_path / "my-text8").open("wb") as file:
        os.truncate(file.fileno(), 100_000_000)
    corpus = load_corpus(settings(name="text8", path=str(tmp_path / "my-text8")))
    assert corpus.parts["held_out"] == (90_000_000, 95_000_000)
    assert corpus.to_json()["file"] == "my-text8"


@pytest.mark.parametrize(
    "name, md5", [("enwik8", "a1fa5ffddb56f4953e226637dabbb36a"), ("text8", "3bea1919949baf155f99411df5fada7e")]
)
def test_another_size_under_a_known_name_is_refused(tmp_path: Path, name: str, md5: str) -> None:
    (tmp_path / name).write_bytes(b"a prefix")
    for path, reason in ((tmp_path, "has 8 bytes"), (tmp_path / "no", "does not exist"), (None, "needs a path")):
        with pytest.raises(UserError) as caught:
            find_source(settings(name=name, path=path and str(path)))
        for told in ("data.path: ", reason, "100,000,000 bytes", f"mattmahoney.net/dc/{name}.zip", md5):
            assert told in str(caught.value)


@pytest.mark.parametrize("form", [".zip", ".xz"])
def test_a_packed_file_of_another_size_is_refused(tmp_path: Path, form: str) -> None:
    with lzma.open(tmp_path / "text8.xz", "wb") as file:
        file.write(b"a prefix")
    with zipfile.ZipFile(tmp_path / "text8.zip", "w") as archive:
        archive.writestr("text8", b"a prefix")
    with pytest.raises(UserError, match=rf"data\.path: .*text8\{form} .*100,000,000 bytes.* from http.*md5 3bea"):
        find_source(settings(name="text8", path=str(tmp_path / f"text8{form}")))


@pytest.fixture(scope="module")
def wikitext(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """WikiText-2's own valid and test text, and a training text of the right length made of the valid text."""
    folder = tmp_path_factory.mktemp("wikitext")
    for split in ("valid", "test"):
        (folder / f"wiki.{split}.tokens").write_bytes(need(SHARED / "wikitext-2" / f"wiki.{split}.tokens").read_bytes())
    valid = (folder / "wiki.valid.tokens").read_bytes()
    missing = 2_088_628 - 9 * 217_646
    (folder / "wiki.train.tokens").write_bytes(9 * valid + b"again " * (missing - 1) + b"\n")
    return folder


def test_wikitext_is_read_as_words_in_the_order_train_valid_test(wikitext: Path) -> None:
    corpus = load_corpus(settings(name="wikitext-2", path=str(wikitext), tokens="words"))
    ranges = corpus.parts
    assert (ranges["held_out"], ranges["test"]) == ((2_088_628, 2_306_274), (2_306_274, 2_551_843))
    assert ranges["weights"][1] / 2_088_628 == pytest.approx(0.8, abs=0.01)
    assert corpus.symbols[0] == "<eos>" and corpus.symbols.count("<unk>") == 1
    valid = (wikitext / "wiki.valid.tokens").read_text("utf-8")
    assert corpus.vocab_size == len({"<eos>", "again", *valid.split()})  # of the training text alone
    assert [corpus.symbols[number] for number in corpus.part("held_out")] == valid.replace("\n", " <eos> ").split()
    test_words = (wikitext / "wiki.test.tokens").read_text("utf-8").split()
    known = set(corpus.symbols)
    unknown = sum(word == "<unk>" or word not in known for word in test_words)
    assert np.count_nonzero(corpus.part("test") == corpus.symbols.index("<unk>")) == unknown
    joined = b"".join((wikitext / f"wiki.{split}.tokens").read_bytes() for split in ("train", "valid", "test"))
    described = corpus.to_json()
    assert (described["bytes"], described["sha256"]) == (len(joined), hashlib.sha256(joined).hexdigest())


def test_wikitext_of_another_length_is_refused(wikitext: Path, tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"wiki.{split}.tokens").symlink_to(wikitext / f"wiki.{split}.tokens")
    (tmp_path / "wiki.train.tokens").unlink()
    (tmp_path / "wiki.train.tokens").write_text("too few words\n" * 99)
    for tokens in ("words", "bytes"):
        with pytest.raises(UserError, match=r"data\.path: .*wiki\.train\.tokens has 396 tokens; expected 2,088,628"):
            load_corpus(settings(name="wikitext-2", path=str(tmp_path), tokens=tokens))
    with pytest.raises(UserError, match="expected 103,227,021"):
        load_corpus(settings(name="wikitext-103", path=str(wikitext), tokens="words"))


def test_raw_wikitext_has_the_published_counts(tmp_path: Path, wikitext: Path) -> None:
    raw = need(SHARED / "wikitext-2" / "wiki.test.raw").read_bytes()
    (tmp_path / "wiki.test.raw").write_bytes(raw)
    for split in ("train", "valid"):
        (tmp_path / f"wiki.{split}.raw").symlink_to(wikitext / f"wiki.{split}.tokens")
    corpus = load_corpus(settings(name="wikitext-2", path=str(tmp_path), tokens="words"))
    assert (corpus.size("held_out").words, corpus.size("test").words) == (217_646, 245_569)
    for tokens in ("bytes", "chars"):
        corpus = load_corpus(settings(name="wikitext-2", path=str(tmp_path), tokens=tokens))
        assert corpus.size("test").words == 245_569 and corpus.size("test").characters == len(raw.decode())
    assert load_corpus(settings(name="wikitext-2", path=str(tmp_path))).part("test").tobytes() == raw
    (tmp_path / "wiki.test.raw").write_bytes(raw[:-9000])
    with pytest.raises(
        UserError, match=r"data\.path: .*wiki\.test\.raw has 24\d,\d+ tokens; expected 245,569 .*raw-v1\.zip"
    ):
        load_corpus(settings(name="wikitext-2", path=str(tmp_path)))


def test_wikitext_from_parquet_is_that_of_the_token_files_to_the_byte(tmp_path: Path, wikitext: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    for split, name in (("train", "train"), ("valid", "validation"), ("test", "test")):
        lines = (wikitext / f"wiki.{split}.tokens").read_text("utf-8").splitlines(keepends=True)
        rows = [line if line.strip() else "" for line in lines]  # as the Hugging Face hub has them
        half = len(rows) // 2 if split == "train" else len(rows)
        shards = [rows[:half], rows[half:]] if split == "train" else [rows]
        for number, shard in enumerate(shards):
            path = tmp_path / f"{name}-{number:05}-of-{len(shards):05}.parquet"
            parquet.write_table(pyarrow.table({"text": shard}), path, row_group_size=1000)
    found, expected = (load_corpus(settings(name="wikitext-2", path=str(path))) for path in (tmp_path, wikitext))
    assert (found.sha256, found.bytes, found.parts) == (expected.sha256, expected.bytes, expected.parts)
    assert found.file == "train.parquet, validation.parquet, test.parquet"
    (tmp_path / "validation-00000-of-00001.parquet").unlink()
    with pytest.raises(UserError, match=r"data\.path: .*validation-\*\.parquet does not exist"):
        find_source(settings(name="wikitext-2", path=str(tmp_path)))


@pytest.mark.parametrize(
    "name, archive", [("wikitext-103", "wikitext-103-v1.zip"), ("wikitext-2", "wikitext-2-v1.zip")]
)
def test_missing_wikitext_says_where_to_get_it(tmp_path: Path, name: str, archive: str) -> None:
    (tmp_path / "wiki.train.tokens").write_text("a\n")
    for path, reason in (
        (tmp_path, "wiki.valid.tokens does not exist"),
        (tmp_path / "no", "is missing"),
        (tmp_path / "wiki.train.tokens", "is not a folder"),
        (None, "needs a path"),
    ):
        with pytest.raises(UserError) as caught:
            find_source(settings(name=name, path=path and str(path)))
        raw = archive.replace("-v1", "-raw-v1")
        for told in (
            "data.path: ",
            reason,
            "wiki.test.tokens",
            archive,
            "md5",
            "wiki.valid.raw",
            raw,
            "datasets/Salesforce/wikitext",
        ):
            assert told in str(caught.value)


@pytest.mark.parametrize(
    "path, reason", [(None, "needs a path"), ("", "needs a path"), ("no/such.txt", "does not exist")]
)
def test_text_needs_a_file(path: str | None, reason: str) -> None:
    with pytest.raises(UserError, match=rf"data\.path: .*{reason}"):
        find_source(settings(path=path))


def test_odd_paths_are_refused_like_missing_ones(tmp_path: Path) -> None:
    for name in ("text", "enwik8", "wikitext-2", "nanogpt"):
        for path in ("x" * 5000, "~no-such-user/x", "a\0b"):
            with pytest.raises(UserError, match=r"data\.path: "):
                find_source(settings(name=name, path=path))
    with pytest.raises(UserError, match=r"data\.path: .*is a folder without"):
        find_source(settings(path=str(tmp_path)))


def test_unknown_name_is_refused_with_a_guess() -> None:
    with pytest.raises(UserError, match=r"data\.name: unknown data set 'enwiki8' \(did you mean 'enwik8'\?\)"):
        find_source(settings(name="enwiki8"))
    assert list(SOURCES) == ["sotu", "enwik8", "text8", "wikitext-103", "wikitext-2", "text", "nanogpt"]
