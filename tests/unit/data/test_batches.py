"""Batches: the same for the same step anywhere, random or rows that go on, and evaluation that meets every target
once."""

import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_runs import ROOT

from nas.config.sections import DataConfig
from nas.data.batches import Place, crop_batch, evaluation_batches, evaluation_segments, segment_batch, training_batch
from nas.data.corpus import load_corpus
from supernet.errors import SettingError


def settings(path: Path | None = None, **given: object) -> SimpleNamespace:
    name = "sotu" if path is None else "text"
    return SimpleNamespace(**{"name": name, "path": path and str(path), "tokens": "bytes", "seq_len": 7, **given})


def test_crops_are_from_the_part_and_follow_each_other() -> None:
    corpus = load_corpus(settings())
    whole = corpus.part("alphas").tobytes()
    batch = crop_batch(corpus, "alphas", seq_len=61, batch_size=5, seed=3, step=11, stream="alphas")
    assert (batch.shape, batch.dtype) == ((5, 62), np.int64)
    assert all(row.astype(np.uint8).tobytes() in whole for row in batch)


def test_crops_reach_both_ends_of_a_part(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_bytes(bytes(range(200)))
    corpus = load_corpus(settings(tmp_path / "input.txt", seq_len=3))
    batch = crop_batch(corpus, "test", seq_len=3, batch_size=400, seed=0, step=0, stream="x")
    assert set(batch[:, 0]) == set(range(190, 197)) and batch.max() == 199
    one = crop_batch(corpus, "test", seq_len=9, batch_size=2, seed=0, step=0, stream="x")
    assert one.tolist() == [list(range(190, 200))] * 2
    with pytest.raises(ValueError, match="part test has 10 tokens"):
        crop_batch(corpus, "test", seq_len=10, batch_size=2, seed=0, step=0, stream="x")


def test_crops_depend_on_seed_step_and_stream_alone() -> None:
    corpus = load_corpus(settings())

    def crops(**changed: object) -> bytes:
        arguments = {"seq_len": 31, "batch_size": 3, "seed": 1, "step": 2, "stream": "weights", **changed}
        return crop_batch(corpus, "weights", **arguments).tobytes()

    assert crops() == crops()
    assert len({crops(), crops(seed=2), crops(step=3), crops(stream="alphas"), crops(seed=-1)}) == 5
    program = (
        "import types; from nas.data.batches import *; from nas.data.corpus import *\n"
        "corpus = load_corpus(types.SimpleNamespace(name='sotu', path=None, tokens='bytes', seq_len=7))\n"
        "print(crop_batch(corpus, 'weights', seq_len=31, batch_size=3, seed=1, step=2, "
        "stream='weights').tobytes().hex())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    printed = subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, env=environment, text=True)
    assert printed.strip() == crops().hex()


@pytest.mark.parametrize("length", [8, 9, 15, 22, 23, 210, 211])
def test_evaluation_meets_every_target_once(tmp_path: Path, length: int) -> None:
    (tmp_path / "input.txt").write_bytes(np.arange(length * 20, dtype=np.uint32).tobytes()[: length * 20])
    corpus = load_corpus(settings(tmp_path / "input.txt"))
    whole = corpus.part("held_out").astype(np.int64)
    assert len(whole) == length
    batches = list(evaluation_batches(corpus, "held_out", seq_len=7, batch_size=3))
    assert np.concatenate([batch[:, 1:].ravel() for batch in batches]).tolist() == whole[1:].tolist()
    assert np.concatenate([batch[:, :-1].ravel() for batch in batches]).tolist() == whole[:-1].tolist()
    assert all(batch.dtype == np.int64 and batch.shape[0] <= 3 and 2 <= batch.shape[1] <= 8 for batch in batches)
    assert sum(batch.shape[1] < 8 for batch in batches) == ((length - 1) % 7 > 0)


def test_a_limited_evaluation_is_spread_over_the_part() -> None:
    corpus = load_corpus(settings())
    whole = corpus.part("held_out").tobytes()
    batches = list(evaluation_batches(corpus, "held_out", seq_len=100, batch_size=4, limit=950))
    again = list(evaluation_batches(corpus, "held_out", seq_len=100, batch_size=4, limit=950))
    assert [batch.shape for batch in batches] == [(4, 101), (4, 101), (2, 101)]
    assert all((one == other).all() for one, other in zip(batches, again, strict=True))
    places = [whole.index(row.astype(np.uint8).tobytes()) for batch in batches for row in batch]
    expected = [(number + 0.5) / 10 * len(whole) for number in range(10)]
    assert places == pytest.approx(expected, abs=200)
    for limit in (len(whole), len(whole) - 1, None):
        batches = evaluation_batches(corpus, "held_out", seq_len=100, batch_size=4, limit=limit)
        assert sum(batch[:, 1:].size for batch in batches) == len(whole) - 1


def numbered(folder: Path, length: int) -> object:
    """A corpus whose held-out part is the numbers from 0 on, modulo 251."""
    (folder / "input.txt").write_bytes(
        bytes(18 * length) + bytes(number % 251 for number in range(length)) + bytes(length)
    )
    corpus = load_corpus(settings(folder / "input.txt"))
    assert corpus.part("held_out").tolist() == [number % 251 for number in range(length)]
    return corpus


def test_rows_go_on_from_segment_to_segment_and_start_anew(tmp_path: Path) -> None:
    corpus = numbered(tmp_path, 200)
    batches = [segment_batch(corpus, "held_out", seq_len=7, batch_size=5, number=number) for number in range(7)]
    # 39 tokens a row are five segments
    assert [batch.fresh for batch in batches] == [
        True,
        False,
        False,
        False,
        False,
        True,
        False,
    ]
    assert batches[0].tokens[:, 0].tolist() == [0, 39, 78, 117, 156]
    for before, after in itertools.pairwise(batches[:5]):
        assert (after.tokens[:, 0] == before.tokens[:, -1]).all() and after.tokens.dtype == np.int64
    assert np.array_equal(batches[5].tokens, batches[0].tokens)


def test_processes_share_out_the_rows(tmp_path: Path) -> None:
    corpus = numbered(tmp_path, 200)
    whole = segment_batch(corpus, "held_out", seq_len=7, batch_size=6, number=2).tokens
    parts = [
        segment_batch(corpus, "held_out", seq_len=7, batch_size=2, number=2, share=(rank, 3)).tokens
        for rank in range(3)
    ]
    assert np.array_equal(np.stack(parts, axis=1).reshape(whole.shape), whole)


def test_rows_that_do_not_fit_are_refused_by_key(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError, match="^data.batch_size: 30 rows of 7 tokens that go on need 211, and the part held_out has 200;"
    ):
        segment_batch(numbered(tmp_path, 200), "held_out", seq_len=7, batch_size=30, number=0)


@pytest.mark.parametrize(
    ("order", "memory_len", "goes_on"),
    [
        ("auto", 0, False),
        ("auto", 3, True),
        ("contiguous", 0, True),
        ("random", 0, False),
    ],
)
def test_the_order_of_the_rows(order: str, memory_len: int, goes_on: bool) -> None:
    corpus = load_corpus(settings())
    data = DataConfig(seq_len=7, batch_size=3, order=order)
    place = Place(1, "x", step=9, segment=2)
    batch = training_batch(corpus, "weights", data, place, memory_len=memory_len, share=(0, 1))
    wanted = (
        segment_batch(corpus, "weights", seq_len=7, batch_size=3, number=2).tokens
        if goes_on
        else crop_batch(corpus, "weights", seq_len=7, batch_size=3, seed=1, step=9, stream="x")
    )
    assert np.array_equal(batch.tokens, wanted) and batch.fresh is not goes_on
    other = training_batch(corpus, "weights", data, place, memory_len=memory_len, share=(1, 2))
    assert not np.array_equal(other.tokens, batch.tokens)


@pytest.mark.parametrize(("rows", "memory_len"), [(3, 2), (3, 9), (50, 2)])
@pytest.mark.parametrize("length", [8, 57, 114, 120, 201, 513, 3000])
def test_segments_meet_every_target_once_and_go_on(tmp_path: Path, length: int, rows: int, memory_len: int) -> None:
    corpus = numbered(tmp_path, length)
    whole = corpus.part("held_out").astype(np.int64)
    met, last = [], None
    for batch in evaluation_segments(corpus, "held_out", seq_len=7, rows=rows, memory_len=memory_len):
        if not batch.fresh:
            assert np.array_equal(batch.tokens[:, 0], last)
        last = batch.tokens[:, -1]
        assert 2 <= batch.tokens.shape[1] <= 8 and len(batch.tokens) <= max(1, length // (8 * max(7, memory_len)))
        met += batch.tokens[:, 1:].ravel().tolist()
    assert sorted(met) == sorted(whole[1:].tolist())


def test_limited_segments_lie_at_the_start_of_rows_that_are_spread_over_the_part() -> None:
    corpus = load_corpus(settings())
    batches = list(evaluation_segments(corpus, "held_out", seq_len=10, rows=4, memory_len=5, limit=400))
    assert (
        sum(batch.tokens[:, 1:].size for batch in batches) == 400
        and [batch.fresh for batch in batches] == [True] + [False] * 9
    )
    text = corpus.part("held_out")
    starts = [number * ((len(text) - 1) // 4) for number in range(4)]
    assert batches[0].tokens.tolist() == [text[start : start + 11].tolist() for start in starts]
