"""The verdict: planted evidence is told from none, and every failing test gives one sentence."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import bench

from nas.searching.search_steps import weight_step
from nas.searching.verdict import measure_signal, read_history, verdict_of

GOOD: dict[str, Any] = {
    "decided": 0.9,
    "flipped_layers": 0,
    "margin": 0.4,
    "entropy_share": 0.3,
    "identity_share": 0.1,
    "distance_from_start": 0.6,
    "advantage": 0.2,
    "signal": 12.0,
    "gap": 0.05,
    "most_movement": 30.0,
    "records": 40,
}
BAD = [
    ("most_movement", 0.5, "too few steps"),
    ("decided", 0.4, "40% of the layers"),
    ("entropy_share", 0.97, "97%"),
    ("signal", 0.3, "0.3 standard errors"),
    ("advantage", 0.001, "no evidence"),
    ("gap", 0.9, "0.90 nats worse"),
    ("identity_share", 0.8, "80% of the layers chose identity"),
    ("records", 3, "only 3 records"),
    ("gap", None, "was not measured"),
    ("signal", math.nan, "nan standard errors"),
    ("decided", math.nan, "of the layers have a winner"),
]


def test_good_figures_converge_with_a_reason() -> None:
    verdict = verdict_of(GOOD)
    assert verdict["converged"] is True and len(verdict["reasons"]) == 1 and verdict["figures"]["signal"] == 12.0


@pytest.mark.parametrize(("figure", "value", "words"), BAD)
def test_every_bad_figure_is_a_reason(figure: str, value: float, words: str) -> None:
    verdict = verdict_of({**GOOD, figure: value})
    assert verdict["converged"] is False and len(verdict["reasons"]) == 1 and words in verdict["reasons"][0]


def history(margin: float, noise: float, records: int = 40, flips: int = 0) -> np.ndarray:
    """[records, 4, 3]: the first candidate leads by `margin` with noise; in `flips` layers the winner changes at the
    end."""
    rng = np.random.default_rng(0)
    table = np.full((records, 4, 3), (1 - margin) / 3)
    table[:, :, 0] += margin
    table[-2:, :flips, 0], table[-2:, :flips, 1] = table[-2:, :flips, 1].copy(), table[-2:, :flips, 0].copy()
    table *= np.exp(noise * rng.normal(size=table.shape))
    return table / table.sum(axis=2, keepdims=True)


def test_a_clear_lead_is_decided_and_noise_is_not() -> None:
    blocks = ["self_attention", "feed_forward", "identity"]
    clear = read_history(history(0.6, 0.02), blocks)
    assert clear["decided"] == 1 and clear["flipped_layers"] == 0 and clear["identity_share"] == 0
    assert clear["margin"] == pytest.approx(0.6, abs=0.05)
    noise = read_history(history(0.0, 0.3), blocks)
    assert noise["decided"] == 0 and noise["entropy_share"] > 0.9
    flipped = read_history(history(0.6, 0.02, flips=3), blocks)
    assert flipped["flipped_layers"] == 3 and flipped["decided"] == 0.25


def test_figures_of_uniform_and_certain_probabilities() -> None:
    uniform = read_history(np.full((5, 2, 4), 0.25), ["identity", "feed_forward", "self_attention", "x"])
    assert (
        uniform["entropy_share"] == pytest.approx(1) and uniform["distance_from_start"] == 0 and uniform["decided"] == 0
    )
    certain = read_history(
        np.broadcast_to(np.eye(4)[[0, 0]], (5, 2, 4)), ["identity", "feed_forward", "self_attention", "x"]
    )
    assert certain["entropy_share"] == pytest.approx(0, abs=1e-9) and certain["identity_share"] == 1
    assert certain["distance_from_start"] == pytest.approx(0.75) and certain["decided"] == 1
    assert read_history(np.full((1, 2, 2), 0.5), ["a", "b"])["decided"] == 0  # a single record


def test_the_signal_is_against_uniform_layouts_on_the_alphas_text() -> None:
    """Once weights are trained and then spoilt in one candidate, a layout without it wins and one of it alone loses."""
    blocks = ["identity", "feed_forward", "self_attention"]
    made = bench(
        model__layers=3,
        search__blocks=blocks,
        search__relaxation="sampled",
        search__weight_lr=0.02,
        search__steps=80,
        search__warmup_steps=79,
    )
    for _ in range(80):
        weight_step(made.state, made.setup, 0)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for layer in made.state.model.layers:
            for parameter in layer.candidates[2].parameters():
                parameter.normal_(0, 3, generator=generator)
        made.state.model.alphas[:, 0] = 3
    good = measure_signal(made.state.model, made.setup, 0)
    assert good["advantage"] > 0.3 and good["signal"] > 5
    with torch.no_grad():
        made.state.model.alphas[:, 0] = 0
        made.state.model.alphas[:, 2] = 3
    bad = measure_signal(made.state.model, made.setup, 0)
    assert bad["advantage"] < 0 and bad["signal"] < 0


def test_no_candidate_matters_no_signal() -> None:
    """Identical weights of two equal blocks: nothing to choose, so no signal."""
    made = bench(search__blocks=["feed_forward", "feed_forward[d_inner=11]"])
    with torch.no_grad():
        for layer in made.state.model.layers:
            for candidate in layer.candidates:
                for parameter in candidate.parameters():
                    parameter.zero_()
        made.state.model.alphas[:, 0] = 2
    figures = measure_signal(made.state.model, made.setup, 0)
    assert figures["advantage"] == pytest.approx(0, abs=1e-6)
    assert not verdict_of({**GOOD, **figures})["converged"]
