"""Costs: the budget's fraction, and a cost term whose gradient pulls the alphas the right way."""

import dataclasses

import pytest
import torch
from tiny_runs import BLOCKS, tiny

from nas.costs.costs_table import CostTable, build_costs
from supernet.blocks import candidate_cost, parse_candidate


def table(latency: dict | None = None, **changes: object) -> CostTable:
    config = tiny(**changes)
    return build_costs(config, config.model.settings(256, config.data.seq_len), latency)


def loss(costs: CostTable, alphas: torch.Tensor) -> torch.Tensor:
    return costs.penalty(costs.expected(torch.softmax(alphas, dim=-1)))


@pytest.mark.parametrize("budget", [0.3, None])
def test_gradient_of_the_cost_term_is_the_finite_difference(budget: float | None) -> None:
    costs = table(search__budget=budget)
    costs = dataclasses.replace(costs, values=costs.values.double())
    alphas = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(costs, alphas), [alphas])
    assert gradient.abs().max() > 1e-3
    for layer in range(2):
        for candidate in range(4):
            step = torch.zeros(2, 4, dtype=torch.float64)
            step[layer, candidate] = 1e-6
            difference = (loss(costs, alphas.detach() + step) - loss(costs, alphas.detach() - step)) / 2e-6
            assert gradient[layer, candidate].item() == pytest.approx(difference.item(), abs=1e-6)


def test_a_step_down_the_cost_term_makes_the_layout_cheaper() -> None:
    costs = table(search__budget=0.1)
    alphas = torch.zeros(2, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(costs, alphas), [alphas])
    assert (gradient[:, BLOCKS.index("identity")] < 0).all()  # the free candidate grows
    assert (gradient[:, BLOCKS.index("self_attention")] > 0).all()  # the dearest shrinks
    assert loss(costs, alphas - gradient) < loss(costs, alphas)


def test_the_cost_term_is_one_sided() -> None:
    alphas = torch.zeros(2, 4, requires_grad=True)
    within = table(search__budget=1.0)
    assert loss(within, alphas).item() == 0
    (gradient,) = torch.autograd.grad(loss(within, alphas), [alphas])
    assert torch.equal(gradient, torch.zeros(2, 4))
    expected = within.expected(torch.softmax(alphas, -1)).item() / within.baseline
    assert loss(table(search__budget=0.5), alphas).item() == pytest.approx(expected / 0.5 - 1)


def test_without_a_cost_nothing_is_charged() -> None:
    alphas = torch.randn(2, 4, requires_grad=True)
    free = table(search__cost="none", search__budget=0.01)
    assert loss(free, alphas).item() == 0 and free.unit == "flops_per_token"


@pytest.mark.parametrize(("kind", "unit", "which"), [("parameters", "parameters", 0), ("flops", "flops_per_token", 1)])
def test_costs_are_those_of_the_blocks_and_the_baseline_is_half_and_half(kind: str, unit: str, which: int) -> None:
    config = tiny(search__cost=kind, model__layers=6)
    settings = config.model.settings(256, 16)
    costs = build_costs(config, settings)
    wanted = [candidate_cost(parse_candidate(label, settings), settings, 16)[which] for label in BLOCKS]
    assert costs.values.tolist() == wanted and costs.unit == unit
    assert costs.baseline == 3 * (wanted[0] + wanted[2])
    layout = torch.eye(4)[[0, 2, 3, 3, 1, 0]]
    assert costs.expected(layout).item() == wanted[0] * 2 + wanted[2] + wanted[1]


def test_the_baseline_is_priced_where_its_blocks_are_no_candidates() -> None:
    costs = table(search__blocks=["random_synthesizer", "identity"])
    assert list(costs.by_label) == ["random_synthesizer", "identity", "self_attention", "feed_forward"]
    assert (
        len(costs.values) == 2 and costs.baseline == costs.by_label["self_attention"] + costs.by_label["feed_forward"]
    )


def test_measured_latency_is_the_median_in_ms() -> None:
    measured = {"candidates": {label: {"median_ms": 0.5 + k, "spread_ms": 9.0} for k, label in enumerate(BLOCKS)}}
    costs = table(measured, search__cost="latency")
    assert costs.unit == "ms" and costs.values.tolist() == [0.5, 1.5, 2.5, 3.5] and costs.baseline == 0.5 + 2.5
