"""The terminal view of a running search."""

import io
import threading
import time

import numpy as np
import pytest
from made_runs import build_run

from derive.strict_json import read_json, write_json
from nas.page import watch as module
from nas.page.watch import finished, time_left, view, watch
from nas.results.run_files import Run
from supernet.errors import UserError


@pytest.fixture
def folder(tmp_path):
    return build_run(tmp_path / "run", layers=4, candidates=3, steps=8, stages=("search",))


def stop_early(folder, steps=5):
    """Cut the record, as a search that still runs has left it."""
    content = read_json(folder / "probabilities.json")
    verdict = {"converged": False, "reasons": ["the search has not finished"]}
    cut = {"steps": content["steps"][:steps], "probabilities": content["probabilities"][:steps], "verdict": verdict}
    write_json(folder / "probabilities.json", {**content, **cut})
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:steps]))
    return content, lines


def test_the_view_shows_progress_losses_and_a_bar_a_layer(folder):
    stop_early(folder)
    run = Run.load(folder)
    text = view(run, color=False, width=80, now=time.time())
    left = 30 * 128 * 16 / 21000
    assert f"search: step 40 of 70 [###########.........]  57% search, 0:0{left:.0f} left" in text
    assert f"training {run.metrics['loss'][-1]:.4g}" in text and "\x1b" not in text
    rows = [line for line in text.splitlines() if line[:4].strip().isdigit()]
    assert len(rows) == 4
    for row, probabilities in zip(rows, run.search.final, strict=True):
        bar = row[5:45]
        assert len(bar) == 40
        for label, letter in zip(run.candidates, "fsi", strict=True):
            share = probabilities[run.candidates.index(label)]
            assert abs(bar.count(letter) - 40 * share) <= 1
        assert row.endswith(f"{probabilities.max():.2f}")


def test_colours_are_used_on_a_terminal_only(folder):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    plain, coloured = io.StringIO(), Terminal()
    watch(folder, once=True, stream=plain)
    watch(folder, once=True, stream=coloured)
    assert "\x1b[48;2;16;55;213" in coloured.getvalue() and "\x1b" not in plain.getvalue()


def test_it_follows_until_the_search_has_finished(folder, monkeypatch):
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.05)
    content, lines = stop_early(folder)
    assert not finished(Run.load(folder))
    out = io.StringIO()
    follower = threading.Thread(target=watch, args=(folder,), kwargs={"stream": out})
    follower.start()
    time.sleep(0.3)
    (folder / "metrics.jsonl").write_text("".join(lines))
    write_json(folder / "probabilities.json", content)
    follower.join(timeout=10)
    assert not follower.is_alive()
    assert out.getvalue().count("step 40 of 70") >= 2 and "search: finished at step 70, converged" in out.getvalue()


def test_seeds_are_told_apart(tmp_path):
    folder = build_run(tmp_path / "run", layers=4, candidates=3, steps=8, seeds=2, stages=("search",))
    text = view(Run.load(folder), color=False, width=80, now=time.time())
    assert "seed 0: finished" in text and "seed 1: finished" in text and "mean of 2 seeds" in text


def test_a_run_that_has_only_begun_can_be_watched(tmp_path):
    folder = build_run(tmp_path / "run", stages=())
    out = io.StringIO()
    watch(folder, once=True, stream=out)
    assert "nothing logged yet" in out.getvalue() and "No probabilities yet" in out.getvalue()
    with pytest.raises(UserError, match="no such folder"):
        watch(tmp_path / "nothing", once=True)


def test_time_left_needs_a_speed():
    metrics = {"step": np.array([10.0, 20.0]), "tokens_per_second": np.array([np.nan, 100.0])}
    assert time_left(metrics, 50, 10) == 3.0
    assert np.isnan(time_left({"step": np.array([1.0])}, 50, 10)) and np.isnan(time_left(metrics, np.nan, 10))
