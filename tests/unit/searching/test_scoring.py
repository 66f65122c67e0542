"""Layouts scored with inherited weights."""

from pathlib import Path

import pytest
import torch
from tiny_runs import Bench, bench

from derive import Architecture, build
from derive.strict_json import read_json
from nas.searching.scoring import SCORED, TOKENS, draw_layouts, write_layouts
from nas.training.evaluation import evaluate


@pytest.fixture
def made() -> Bench:
    made = bench(search__budget=0.6, model__layers=4)
    with torch.no_grad():
        made.state.model.alphas.copy_(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)))
    return made


def test_draws_are_different_keep_the_budget_and_follow_the_seed(made: Bench) -> None:
    drawn = draw_layouts(made.state.model, made.costs, 3)
    assert 5 < len(drawn) <= SCORED and len({tuple(choice) for choice in drawn}) == len(drawn)
    assert all(made.costs.share_of(choice) <= 0.6 for choice in drawn)
    assert draw_layouts(made.state.model, made.costs, 3) == drawn != draw_layouts(made.state.model, made.costs, 4)


def test_scores_are_the_losses_of_built_networks_with_the_same_weights(made: Bench, tmp_path: Path) -> None:
    write_layouts(tmp_path, made.state.model, made.setup, made.costs, 0)
    rows = read_json(tmp_path / "layouts.json")["layouts"]
    losses = [row["loss"] for row in rows]
    assert losses == sorted(losses) and len(set(losses)) > 3
    for row in (rows[0], rows[-1]):
        arch = Architecture.from_json(
            {
                "format": "par-architecture",
                "version": 1,
                "task": "causal_lm",
                "model": made.state.model.settings.to_mapping(),
                "layers": [{"block": label} for label in row["layers"]],
            }
        )
        model = build(arch, weights=made.state.model)
        assert evaluate(model, made.setup, "alphas", limit=TOKENS).loss == row["loss"]
        assert arch.relative_flops(made.config.data.seq_len) == pytest.approx(row["cost"], abs=1e-6)


def test_without_a_budget_all_layouts_may_be_drawn(made: Bench) -> None:
    unbounded = bench(search__budget=None, model__layers=4)
    assert (
        max(unbounded.costs.share_of(choice) for choice in draw_layouts(unbounded.state.model, unbounded.costs, 0))
        > 0.6
    )
