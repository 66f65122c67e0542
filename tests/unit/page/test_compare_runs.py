"""Several runs on one page: what is the same, what differs, and what cannot be compared."""

import numpy as np
import pytest
import yaml
from made_runs import build_run
from test_report import EVIL, Page

from derive.strict_json import read_json, write_json
from nas.page.compare_runs import agreement, write_comparison_page
from nas.results.run_files import Run
from supernet.errors import UserError


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    return [
        build_run(home / "first", layers=5, candidates=4, steps=6),
        build_run(home / "second", layers=5, candidates=3, steps=8, rng_seed=7, stages=("search", "derive")),
    ]


def read_page(folders, out):
    html = write_comparison_page(folders, out).read_text(encoding="utf-8")
    return html, Page(html)


def test_runs_stand_side_by_side_with_their_best_layouts_and_losses(runs, tmp_path):
    _, page = read_page(runs, tmp_path / "page.html")
    first = Run.load(runs[0])
    best = first.architectures["best"]["name"]
    loss = np.mean([row["held_out_loss"] for row in first.comparison if row["name"] == best])
    assert f"{loss:.4f}" in page.text and "not chosen yet" in page.text
    assert page.text.count("search: converged") == 2
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == 3 + 2 and all(image["src"].startswith("data:image/") for image in images)
    assert "No architecture has been retrained" in page.text


def test_only_settings_that_differ_are_listed(runs, tmp_path):
    html, _page = read_page(runs, tmp_path / "page.html")
    listed = html[html.index('id="settings"') : html.index('id="run-1"')]
    assert "search.steps" in listed and "search.blocks" in listed
    assert "search.budget" not in listed and "run.dir" not in listed
    _, twins = read_page([runs[0], runs[0]], tmp_path / "twins.html")
    assert "all runs have the same configuration" in twins.text


def test_agreement_counts_every_search_of_every_run(runs):
    loaded = [Run.load(folder) for folder in runs]
    winners = [[run.candidates[k] for k in run.search.final.argmax(axis=1)] for run in loaded]
    assert agreement(loaded) == [1.0 if one == other else 0.5 for one, other in zip(*winners, strict=True)]
    assert agreement(loaded[:1]) is None


def test_what_cannot_be_compared_is_said(runs, tmp_path):
    other = build_run(tmp_path / "other", layers=4, candidates=3, steps=4, stages=("search",))
    data = read_json(other / "data.json")
    write_json(other / "data.json", {**data, "sha256": "1" * 64})
    empty = build_run(tmp_path / "empty", stages=())
    _, page = read_page([runs[0], other, empty], tmp_path / "page.html")
    for sentence in (
        "different texts",
        "different numbers of layers",
        "cannot be compared layer by layer",
        "nothing has been searched",
    ):
        assert sentence in page.text


def test_names_and_settings_are_escaped(runs, tmp_path):
    folder = build_run(tmp_path / "run", layers=5, candidates=3, steps=4, stages=("search",))
    with open(folder / "config.yaml", "a", encoding="utf-8") as file:
        file.write(yaml.safe_dump({"extra": {"note": EVIL}}, allow_unicode=True))
    _, page = read_page([runs[0], folder], tmp_path / "page.html")
    assert len(page.scripts) == 1 and EVIL in page.text
    assert all("onerror" not in attributes for _, attributes in page.tags)


def test_fewer_than_two_runs_are_refused(runs, tmp_path):
    with pytest.raises(UserError, match="two or more runs, got 1"):
        write_comparison_page(runs[:1], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
