"""Gates: each relaxation's formula, its gradient by enumeration, noise, temperature and the score function."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from by_hand import random_input
from torch import Tensor

from supernet.gates import (
    RELAXATIONS,
    gumbel_gates,
    gumbel_hard_gates,
    gumbel_noise,
    keep_largest,
    mean_entropy,
    sampled_gates,
    score_function_loss,
    softmax_gates,
    temperature_at,
)

N, C = 3, 5
ALPHAS = random_input(N, C)
NOISE = random_input(N, C, seed=2)
SOFT: dict[str, Callable[[float, float], float]] = {  # what stands in the softmax's exponent, at temperature 1
    "softmax": lambda alpha, noise: alpha,
    "gumbel": lambda alpha, noise: alpha + noise,
    "gumbel_hard": lambda alpha, noise: alpha + noise,
}


def soft_by_hand(name: str, alphas: Tensor, temperature: float) -> list[list[float]]:
    rows = []
    for n in range(N):
        raw = [math.exp(SOFT[name](float(alphas[n, c]), float(NOISE[n, c])) / temperature) for c in range(C)]
        rows.append([value / sum(raw) for value in raw])
    return rows


@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("name", RELAXATIONS)
def test_rows_are_mixing_weights(name: str, temperature: float) -> None:
    gates = RELAXATIONS[name](ALPHAS, NOISE, temperature)
    assert gates.shape == (N, C) and gates.min() >= 0
    torch.testing.assert_close(gates.sum(dim=-1), torch.ones(N, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", RELAXATIONS)
def test_gates_are_computed_in_fp32_or_better(name: str, dtype: torch.dtype) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gates = RELAXATIONS[name](ALPHAS.to(dtype), NOISE.to(torch.float32), 1e-3)
    assert gates.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.isfinite(gates).all()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("name", ["softmax", "gumbel"])
def test_soft_formula(name: str, temperature: float) -> None:
    expected = torch.tensor(soft_by_hand(name, ALPHAS, temperature), dtype=torch.float64)
    torch.testing.assert_close(RELAXATIONS[name](ALPHAS, NOISE, temperature), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("temperature", [0.3, 2.0])
@pytest.mark.parametrize("name", SOFT)
def test_gradient_is_that_of_the_soft_gates_by_enumeration(name: str, temperature: float) -> None:
    """d gate_c' / d alpha_c = gate_c' (1[c = c'] - gate_c) / temperature, summed over c' one by one."""
    alphas, upstream = ALPHAS.clone().requires_grad_(), random_input(N, C, seed=3)
    (RELAXATIONS[name](alphas, NOISE, temperature) * upstream).sum().backward()
    soft = soft_by_hand(name, ALPHAS, temperature)
    for n, c in itertools.product(range(N), range(C)):
        terms = [float(upstream[n, k]) * soft[n][k] * ((c == k) - soft[n][c]) / temperature for k in range(C)]
        assert float(alphas.grad[n, c]) == pytest.approx(sum(terms), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gumbel_hard_is_exactly_one_hot_at_the_largest(dtype: torch.dtype) -> None:
    alphas, noise = random_input(20_000, C).to(dtype), random_input(20_000, C, seed=2).to(dtype)
    gates = gumbel_hard_gates(alphas, noise, 0.7)
    expected = torch.zeros_like(gates)
    expected[torch.arange(20_000), (alphas + noise).argmax(dim=-1)] = 1.0
    assert torch.equal(gates, expected)


def test_sampled_is_a_constant_and_the_others_are_not() -> None:
    alphas = ALPHAS.clone().requires_grad_()
    assert {name: RELAXATIONS[name](alphas, NOISE, 1.0).requires_grad for name in RELAXATIONS} == {
        "softmax": True,
        "gumbel": True,
        "gumbel_hard": True,
        "sampled": False,
    }
    assert torch.equal(softmax_gates(alphas, NOISE, 1.0), softmax_gates(alphas, NOISE * 9, 1.0))


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("relaxation", [gumbel_hard_gates, sampled_gates])
def test_draws_follow_the_probabilities(relaxation: Callable[..., Tensor], temperature: float) -> None:
    """Counts of 40,000 draws against softmax(alphas / t), t for `sampled` alone: chi-square, 4 degrees, p > 1e-4."""
    alphas = torch.tensor([0.0, 1.0, -1.0, 0.5, 2.0])
    draws = 40_000
    noise = gumbel_noise((draws, C), torch.Generator().manual_seed(0))
    counts = relaxation(alphas.expand(draws, C), noise, temperature).sum(dim=0)
    # a common temperature does not move the largest sum
    sharpness = temperature if relaxation is sampled_gates else 1.0
    expected = torch.softmax(alphas / sharpness, dim=-1) * draws
    assert float(((counts - expected) ** 2 / expected).sum()) < 23.5


@pytest.mark.parametrize("seed", [0, 1])
def test_noise_is_finite_over_ten_million_draws_and_gumbel(seed: int) -> None:
    noise = gumbel_noise((10, 1_000_000), torch.Generator().manual_seed(seed))
    assert noise.dtype == torch.float32 and torch.isfinite(noise).all()
    assert float(noise.mean(dtype=torch.float64)) == pytest.approx(0.5772157, abs=2e-3)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=5e-3)
    assert float((noise < 0).double().mean()) == pytest.approx(math.exp(-1), abs=1e-3)


def test_noise_comes_from_the_generator_alone() -> None:
    before = torch.get_rng_state()
    one = gumbel_noise((3, 5), torch.Generator().manual_seed(1))
    assert torch.equal(one, gumbel_noise((3, 5), torch.Generator().manual_seed(1)))
    assert not torch.equal(one, gumbel_noise((3, 5), torch.Generator().manual_seed(2)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("first", "last"), [(0, 10), (5, 50), (0, 1), (3, 4), (0, 99_999)])
@pytest.mark.parametrize(("start", "end"), [(5.0, 0.1), (1.0, 0.7), (0.3, 3.0)])
def test_temperature_is_exact_at_the_ends_and_strictly_between_inside(
    first: int, last: int, start: float, end: float
) -> None:
    def at(step: int) -> float:
        return temperature_at(step, first=first, last=last, start=start, end=end)

    assert [at(0), at(first)] == [start, start] and [at(last), at(last + 1), at(10**9)] == [end] * 3
    inside = [at(step) for step in range(first + 1, min(last, first + 200))]
    assert all(min(start, end) < value < max(start, end) for value in inside)
    assert inside == sorted(inside, reverse=start > end) and len(set(inside)) == len(inside)


def test_temperature_is_geometric() -> None:
    values = [temperature_at(step, first=2, last=6, start=8.0, end=0.5) for step in range(2, 7)]
    assert values == pytest.approx([8.0, 4.0, 2.0, 1.0, 0.5])


@pytest.mark.parametrize(
    ("step", "first", "last", "expected"),
    [
        (0, 0, 0, 0.1),  # one step in all: it is the last
        (0, 5, 4, 5.0),
        (3, 5, 4, 5.0),
        (4, 5, 4, 0.1),  # a warm-up as long as the run
    ],
)
def test_temperature_of_the_shortest_schedules(step: int, first: int, last: int, expected: float) -> None:
    assert temperature_at(step, first=first, last=last, start=5.0, end=0.1) == expected


def test_temperature_may_stay_the_same() -> None:
    assert {temperature_at(step, first=1, last=7, start=0.7, end=0.7) for step in range(9)} == {0.7}


LAYOUTS = [torch.tensor(layout) for layout in itertools.product(range(3), repeat=2)]
TABLE = random_input(len(LAYOUTS), seed=4) * 3 + 10  # a loss of each of the 9 layouts of 2 layers x 3 candidates


def expected_gradient(alphas: Tensor) -> Tensor:
    """The gradient of sum over layouts of p(layout) loss(layout)."""
    alphas = alphas.clone().requires_grad_()
    p = torch.softmax(alphas, dim=-1)
    sum(p[0, layout[0]] * p[1, layout[1]] * loss for layout, loss in zip(LAYOUTS, TABLE, strict=True)).backward()
    return alphas.grad


@pytest.mark.parametrize("draws", [2, 3])
def test_score_function_is_unbiased_with_its_leave_one_out_baseline(draws: int) -> None:
    """Its gradient, weighted with the probability of every way to draw K layouts, is the gradient of the expected
    loss."""
    start = random_input(2, 3)
    p = torch.softmax(start, dim=-1)
    total = torch.zeros(2, 3, dtype=torch.float64)
    for picks in itertools.product(range(len(LAYOUTS)), repeat=draws):
        alphas = start.clone().requires_grad_()
        choices = torch.stack([LAYOUTS[pick] for pick in picks])
        score_function_loss(alphas, choices, TABLE[list(picks)]).backward()
        total += alphas.grad * math.prod(float(p[0, LAYOUTS[pick][0]] * p[1, LAYOUTS[pick][1]]) for pick in picks)
    torch.testing.assert_close(total, expected_gradient(start), rtol=0, atol=1e-10)


def test_score_function_ignores_how_hard_a_batch_is() -> None:
    gradients = []
    for shift in (0.0, 1000.0):
        alphas = random_input(2, 3).requires_grad_()
        score_function_loss(alphas, torch.stack(LAYOUTS[:4]), TABLE[:4] + shift).backward()
        gradients.append(alphas.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-10, atol=1e-12)


def test_score_function_sends_no_gradient_into_the_losses() -> None:
    losses = TABLE[:2].clone().requires_grad_()
    score_function_loss(random_input(2, 3).requires_grad_(), torch.stack(LAYOUTS[:2]), losses).backward()
    assert losses.grad is None


def test_mean_entropy() -> None:
    rows = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.25] * 4, [0.5, 0.5, 0.0, 0.0]], dtype=torch.float64)
    assert float(mean_entropy(rows)) == pytest.approx((0 + math.log(4) + math.log(2)) / 3, abs=1e-12)


@pytest.mark.parametrize("active", [1, 2, 4])
def test_the_largest_gates_are_kept_as_a_softmax_over_them(active: int) -> None:
    alphas = ALPHAS.clone().requires_grad_(True)
    kept = keep_largest(gumbel_gates(alphas, NOISE, 0.7), active)
    by_hand = torch.zeros(N, C, dtype=torch.float64)
    for n in range(N):
        order = sorted(range(C), key=lambda c: -float(ALPHAS[n, c] + NOISE[n, c]))[:active]
        raw = {c: math.exp(float(ALPHAS[n, c] + NOISE[n, c]) / 0.7) for c in order}
        for c in order:
            by_hand[n, c] = raw[c] / sum(raw.values())
    torch.testing.assert_close(kept.detach(), by_hand)
    (gradient,) = torch.autograd.grad((kept * random_input(N, C, seed=5)).sum(), [alphas])
    assert gradient[by_hand == 0].abs().max() < 1e-15  # those that were not kept get no signal of their own
    torch.testing.assert_close(gradient.sum(dim=1), torch.zeros(N, dtype=torch.float64))


def test_keeping_all_gates_changes_nothing() -> None:
    gates = gumbel_gates(ALPHAS, NOISE, 1.0)
    assert keep_largest(gates, C) is gates
