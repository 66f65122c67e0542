"""Optimizers: every weight in one group, the schedule's exact values, and clipping of an optimizer's own parameters
only."""

import itertools
import math

import pytest
import torch
from tiny_runs import bench

from nas.training.optimizers import build_adamw, learning_rate, norm_clipped, set_learning_rate, with_gradients


def test_every_parameter_but_the_alphas_is_in_one_group() -> None:
    net = bench().state.model
    groups = build_adamw(net, 0.1, 0.25).param_groups
    held = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(held) == sorted(id(parameter) for parameter in net.weight_parameters())
    assert {group["weight_decay"] for group in groups} == {0.25, 0.0}
    decayed = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
    assert all(parameter.ndim >= 2 for parameter in net.parameters() if id(parameter) in decayed) and decayed


def test_the_schedule() -> None:
    rates = [learning_rate(step, 100, floor=0.1) for step in range(100)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])  # a twentieth of the steps
    assert rates[5] == pytest.approx(1.0) and max(rates) <= 1.0
    assert all(before > after for before, after in itertools.pairwise(rates[5:]))
    assert rates[52] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 47 / 95)))
    assert learning_rate(100, 100, floor=0.1) == pytest.approx(0.1) and learning_rate(100, 100) == pytest.approx(0)
    assert learning_rate(0, 1) == 1.0  # a single step trains


def test_clipping_scales_its_own_parameters_together() -> None:
    mine, other = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    third = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [mine]}, {"params": [third]}], lr=1.0)
    mine.grad, third.grad, other.grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0]), torch.tensor([100.0, 0.0])
    norm = norm_clipped(with_gradients(optimizer), optimizer, torch.amp.GradScaler("cpu", enabled=False), 1.0)
    assert norm.item() == pytest.approx(5) and other.grad.tolist() == [100.0, 0.0]
    assert mine.grad.tolist() == pytest.approx([0.6, 0.0], abs=1e-5) and third.grad.item() == pytest.approx(
        0.8, abs=1e-5
    )
    norm_clipped(with_gradients(optimizer), optimizer, torch.amp.GradScaler("cpu", enabled=False), 7.0)
    assert third.grad.item() == pytest.approx(0.8, abs=1e-5)  # below the limit nothing is scaled


def test_every_group_gets_the_rate_and_maps_of_logits_ten_times_it() -> None:
    net = bench().state.model
    optimizer = build_adamw(net, 0.1, 0.25)
    set_learning_rate(optimizer, 0.007)
    rates = {id(parameter): group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in net.named_parameters():
        if name != "alphas":
            assert rates[id(parameter)] == pytest.approx(0.07 if name.endswith(".map") else 0.007), name
