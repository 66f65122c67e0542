"""Every kind of synthetic attention against plain loops, and the properties that tell it from its usual mistakes."""

import math

import pytest
import torch
from by_hand import HEADS, LENGTH, WIDTH, block_of, hand_attention, hand_logits, random_input, random_tokens, small
from torch import Tensor

from derive import Architecture, build
from supernet import synthesizers
from supernet.costs import MIXTURE_PARTS
from supernet.masks import masked_softmax
from supernet.supernet import Supernet
from supernet.synthesizers import (
    DenseSynthesizer,
    FactorizedDenseLogits,
    FactorizedRandomLogits,
    FixedRandomLogits,
    RandomLogits,
    mix_values,
)

TIGHT = {"rtol": 1e-9, "atol": 1e-10}
LABELS = [
    "dense_synthesizer",
    "dense_synthesizer[heads=5,d_hidden=15]",
    "random_synthesizer",
    "random_synthesizer[heads=5]",
    "fixed_random_synthesizer",
    "factorized_dense_synthesizer",
    "factorized_dense_synthesizer[a=7,b=3]",
    "factorized_dense_synthesizer[a=21,b=1]",
    "factorized_random_synthesizer",
    "factorized_random_synthesizer[heads=5,rank=3]",
    "mixture_synthesizer",
    "mixture_synthesizer[parts=dense+factorized_dense+factorized_random]",
    f"mixture_synthesizer[heads=5,parts={'+'.join(MIXTURE_PARTS)}]",
]
RANDOM_KINDS = ["random_synthesizer", "fixed_random_synthesizer", "factorized_random_synthesizer"]
MASK = torch.ones(3, 13, dtype=torch.bool)
MASK[0, :4] = False
MASK[1, 9:] = False
MASK[2] = False


@pytest.mark.parametrize("task", ["causal_lm", "masked_lm"])
@pytest.mark.parametrize("mask", [None, MASK], ids=["unmasked", "masked"])
@pytest.mark.parametrize("label", LABELS)
def test_formula(label: str, task: str, mask: Tensor | None) -> None:
    block = block_of(label, small(task=task))
    x = random_input(3, 13, WIDTH)
    expected = hand_attention(block, x, causal=task == "causal_lm", mask=mask)
    torch.testing.assert_close(block(x, mask=mask), expected, **TIGHT)


@pytest.mark.parametrize(("memory_len", "filled", "length"), [(11, 5, 13), (11, 11, LENGTH), (7, 7, 2), (21, 0, 13)])
@pytest.mark.parametrize("label", LABELS)
def test_formula_with_memory(label: str, memory_len: int, filled: int, length: int) -> None:
    block = block_of(label, small(memory_len=memory_len, position="none"))
    x, memory = random_input(2, length, WIDTH), random_input(2, filled, WIDTH, seed=2)
    expected = hand_attention(block, x, causal=True, memory=memory)
    torch.testing.assert_close(block(x, memory=memory), expected, **TIGHT)
    if not filled:
        torch.testing.assert_close(block(x), expected, **TIGHT)


@pytest.mark.parametrize("filled", [0, 11])
@pytest.mark.parametrize("mask", [None, MASK], ids=["unmasked", "masked"])
@pytest.mark.parametrize("label", LABELS)
def test_maps_made_for_some_rows_at_a_time(
    label: str, mask: Tensor | None, filled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = block_of(label, small(memory_len=filled, position="none"))
    x, memory = random_input(3, 13, WIDTH).requires_grad_(), random_input(3, filled, WIDTH, seed=2) if filled else None
    found = {}
    for numbers in (1, 2**30):
        monkeypatch.setattr(synthesizers, "MAP_NUMBERS", numbers)
        y = block(x, mask=mask, memory=memory)
        found[numbers] = [y, *torch.autograd.grad(y.sin().sum(), [x, *block.parameters()], allow_unused=True)]
    for some, every in zip(*found.values(), strict=True):
        torch.testing.assert_close(some, every, **TIGHT)


# narrower and wider than the values
@pytest.mark.parametrize("options", [{}, {"d_hidden": 6}, {"heads": 5, "d_hidden": 45}])
@pytest.mark.parametrize(("task", "filled"), [("causal_lm", 0), ("causal_lm", 11), ("masked_lm", 0)])
@pytest.mark.parametrize("mask", [None, MASK], ids=["unmasked", "masked"])
def test_dense_in_the_fused_kernel(
    task: str, mask: Tensor | None, filled: int, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = block_of({"block": "dense_synthesizer", **options}, small(task=task, memory_len=filled, position="none"))
    x, memory = random_input(3, 13, WIDTH).requires_grad_(), random_input(3, filled, WIDTH, seed=2) if filled else None
    found = {}
    for fused_from in (1, 10**9):
        monkeypatch.setattr(DenseSynthesizer, "FUSED_FROM", fused_from)
        y = block(x, mask=mask, memory=memory)
        found[fused_from] = [y, *torch.autograd.grad(y.sin().sum(), [x, *block.parameters()])]
    for fused, plain in zip(*found.values(), strict=True):
        torch.testing.assert_close(fused, plain, **TIGHT)


@pytest.mark.parametrize("label", LABELS)
def test_attention_rows_are_distributions_over_the_allowed_keys(label: str) -> None:
    block = block_of(label, small())
    attention = block.attention(random_input(3, 13, WIDTH), mask=MASK).expand(3, -1, -1, -1)
    assert attention.min() >= 0
    allowed = MASK[:, None, None, :] & torch.ones(13, 13, dtype=torch.bool).tril()
    assert torch.equal(attention != 0, allowed.expand_as(attention))
    torch.testing.assert_close(attention.sum(dim=-1), allowed.any(dim=-1).expand(3, block.heads, 13).double())


@pytest.mark.parametrize("label", RANDOM_KINDS)
def test_random_kinds_ignore_the_input_and_have_no_batch_axis(label: str) -> None:
    logits = block_of(label, small()).logits
    one, other = random_input(1, 13, WIDTH), random_input(5, 13, WIDTH, seed=2)
    assert logits(other).shape == (1, HEADS, 13, 13)
    assert torch.equal(logits(one), logits(other))
    assert not torch.equal(logits(one)[0, :, 3], logits(one)[0, :, 4])


@pytest.mark.parametrize("label", ["dense_synthesizer", "factorized_dense_synthesizer"])
def test_dense_kinds_look_at_their_own_token_alone(label: str) -> None:
    logits = block_of(label, small()).logits
    x = random_input(3, 13, WIDTH)
    changed = x.clone()
    changed[1, 6] += 1.0
    moved = (logits(x) != logits(changed)).any(dim=-1).any(dim=1)  # [B, T]
    expected = torch.zeros(3, 13, dtype=torch.bool)
    expected[1, 6] = True
    assert torch.equal(moved, expected)


def test_factorized_dense_repeats_one_factor_and_tiles_the_other() -> None:
    logits = FactorizedDenseLogits(small(max_len=4, heads=1), heads=1, a=2, b=2).double()
    with torch.no_grad():
        logits.weight.zero_()
        logits.bias.copy_(torch.tensor([1.0, 2.0, 3.0, 5.0]).view(1, 1, 4))
    assert logits(random_input(1, 4, WIDTH))[0, 0].tolist() == [[3.0, 5.0, 6.0, 10.0]] * 4


@pytest.mark.parametrize(("a", "b"), [(3, 7), (7, 3)])
def test_factorized_dense_rows_have_rank_one_and_all_columns_differ(a: int, b: int) -> None:
    logits = block_of(f"factorized_dense_synthesizer[a={a},b={b}]", small()).logits
    row = logits(random_input(1, LENGTH, WIDTH))[0, 1, 5]
    assert int(torch.linalg.matrix_rank(row.view(a, b))) == 1
    assert len(set(row.tolist())) == LENGTH


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_factorized_random_has_low_rank(rank: int) -> None:
    logits = block_of(f"factorized_random_synthesizer[rank={rank}]", small()).logits
    maps = logits(random_input(1, LENGTH, WIDTH))[0]
    assert torch.linalg.matrix_rank(maps).tolist() == [rank, rank]
    torch.testing.assert_close(maps, torch.einsum("hik,hjk->hij", logits.left, logits.right), **TIGHT)


def test_initial_logit_variance_of_factorized_random_does_not_depend_on_the_rank() -> None:
    torch.manual_seed(0)
    settings = small(max_len=211)
    variances = [
        FactorizedRandomLogits(settings, 40, rank)(torch.zeros(1, 211, 10)).var().item() for rank in (1, 8, 64)
    ]
    assert all(0.9 < variance < 1.1 for variance in variances), variances


def test_trained_random_starts_almost_uniform() -> None:
    torch.manual_seed(0)
    assert RandomLogits(small(max_len=211), 5).map.std().item() == pytest.approx(0.02, rel=0.02)


def test_fixed_random_has_maps_of_its_own_by_seed_layer_and_head() -> None:
    settings = small()
    keys = [(seed, layer) for seed in (0, 1, 2**31 - 1) for layer in (0, 1, 40)]
    maps = [FixedRandomLogits(settings, 3, seed, layer).map[head] for seed, layer in keys for head in range(3)]
    assert all(not torch.equal(a, b) for index, a in enumerate(maps) for b in maps[:index])
    again = FixedRandomLogits(settings, 2, 1, 40).map
    assert torch.equal(again, torch.stack(maps[15:17]))  # neither the global seed nor the number of heads matters


def test_fixed_random_follows_default_device_and_type_with_the_same_numbers() -> None:
    expected = FixedRandomLogits(small(), 2, seed=3, layer=1).map
    with torch.device("meta"):
        assert FixedRandomLogits(small(), 2, seed=3, layer=1).map.device.type == "meta"
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(FixedRandomLogits(small(), 2, seed=3, layer=1).map, expected.double())
    finally:
        torch.set_default_dtype(torch.float32)


def test_fixed_random_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    FixedRandomLogits(small(), 2, seed=3, layer=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_fixed_random_is_far_from_averaging() -> None:
    maps = FixedRandomLogits(small(max_len=211), 2, seed=0, layer=0).map
    assert abs(maps.mean()) < 0.02 and abs(maps.std() - 1) < 0.02
    effective = 1 / torch.softmax(maps, dim=-1).square().sum(dim=-1)
    assert effective.mean() < 0.5 * 211


def test_fixed_random_layers_differ_within_a_model() -> None:
    model = build(Architecture.from_pattern("xx", model=small()))
    assert not torch.equal(model.layers[0].block.logits.map, model.layers[1].block.logits.map)
    net = Supernet({**small().to_mapping(), "layers": 2}, ["fixed_random_synthesizer", "identity"])
    assert torch.equal(net.layers[1].candidates[0].block.logits.map, model.layers[1].block.logits.map)


def test_fixed_random_is_a_buffer_that_training_does_not_touch() -> None:
    model = build(Architecture.from_pattern("x", model=small()))
    name = "layers.0.block.logits.map"
    before = model.state_dict()[name].clone()
    assert name not in dict(model.named_parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    for step in range(3):
        optimizer.zero_grad()
        model(random_tokens(3, 13, seed=step)).square().sum().backward()
        optimizer.step()
    assert torch.equal(model.state_dict()[name], before)


@pytest.mark.parametrize("length", [13, LENGTH])
def test_gradient_of_the_random_map(length: int) -> None:
    """Rows sum to 0 (the softmax ignores shifts); entries that no query may use get exactly 0; all others are alive."""
    block = block_of("random_synthesizer", small())
    block(random_input(3, length, WIDTH)).square().sum().backward()
    gradient = block.logits.map.grad
    torch.testing.assert_close(
        gradient.sum(dim=-1), torch.zeros(HEADS, LENGTH, dtype=torch.float64), rtol=0, atol=1e-12
    )
    alive = torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
    alive[:length, :length] = torch.ones(length, length, dtype=torch.bool).tril()
    alive[0, 0] = False  # a single key has weight 1, whatever its logit
    assert torch.equal(gradient != 0, alive.expand(HEADS, -1, -1))


def test_mixture_mixes_before_the_softmax() -> None:
    block = block_of("mixture_synthesizer[parts=dense+random]", small())
    x = random_input(3, 13, WIDTH)
    parts = [hand_logits(part, x, x) for part in block.logits.parts.values()]
    weights = torch.softmax(block.logits.mixing, dim=0)
    allowed = torch.ones(13, 13, dtype=torch.bool).tril()
    before = sum(w[None, :, None, None] * part for w, part in zip(weights, parts, strict=True))
    after = sum(w[None, :, None, None] * masked_softmax(part, allowed) for w, part in zip(weights, parts, strict=True))
    torch.testing.assert_close(block.attention(x), masked_softmax(before, allowed), **TIGHT)
    assert (block.attention(x) - after).abs().max() > 0.01


@pytest.mark.parametrize(
    ("part", "label"),
    [
        ("self_attention", "self_attention"),
        ("dense", "dense_synthesizer"),
        ("random", "random_synthesizer"),
        ("factorized_dense", "factorized_dense_synthesizer"),
        ("factorized_random", "factorized_random_synthesizer"),
    ],
)
def test_one_hot_mixture_is_the_pure_kind(part: str, label: str) -> None:
    mixture = block_of(f"mixture_synthesizer[parts={'+'.join(MIXTURE_PARTS)}]", small())
    pure = block_of(label, small(), seed=7)
    pure.logits.load_state_dict(mixture.logits.parts[part].state_dict())
    pure.value.load_state_dict(mixture.value.state_dict())
    pure.output.load_state_dict(mixture.output.state_dict())
    with torch.no_grad():
        mixture.logits.mixing.fill_(-1e4)
        mixture.logits.mixing[list(MIXTURE_PARTS).index(part)] = 0.0
    x = random_input(3, 13, WIDTH)
    torch.testing.assert_close(mixture(x), pure(x), **TIGHT)


def test_mixing_weights_start_equal_and_belong_to_one_head_each() -> None:
    torch.manual_seed(0)
    settings = small()
    model = build(Architecture.from_pattern("m", model=settings))
    assert torch.equal(model.layers[0].block.logits.mixing, torch.zeros(2, HEADS))
    block = block_of("mixture_synthesizer", settings)
    x = random_input(2, 13, WIDTH)
    before = block.attention(x)
    with torch.no_grad():
        block.logits.mixing[0, 1] += 1.0
    changed = (block.attention(x) != before).flatten(2).any(dim=-1)
    assert changed.tolist() == [[False, True]] * 2


def test_synthetic_logits_are_not_scaled_and_dot_products_are() -> None:
    """Queries and keys set to one vector of ones: the score is d_h / sqrt(d_h)."""
    block = block_of("self_attention", small())
    with torch.no_grad():
        block.logits.query.weight.copy_(torch.eye(WIDTH))
        block.logits.key.weight.copy_(torch.eye(WIDTH))
    ones = torch.ones(1, 3, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(block.logits(ones), torch.full((1, HEADS, 3, 3), math.sqrt(5), dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_masked_softmax_is_finite_in_every_precision(dtype: torch.dtype) -> None:
    logits = torch.tensor([[60000.0, -60000.0, 3.0], [1.0, 2.0, 3.0]], dtype=dtype).requires_grad_()
    allowed = torch.tensor([[True, True, False], [False, False, False]])
    weights = masked_softmax(logits, allowed)
    assert weights.dtype == dtype and weights.tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    weights.sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_masked_softmax_keeps_fp64() -> None:
    logits = random_input(5, 7)
    everywhere = torch.ones(5, 7, dtype=torch.bool)
    torch.testing.assert_close(
        masked_softmax(logits, everywhere).exp(), torch.softmax(logits, -1).exp(), rtol=1e-15, atol=0
    )


@pytest.mark.parametrize("length", [13, LENGTH])
@pytest.mark.parametrize("label", LABELS)
def test_what_is_added_to_the_logits_stands_in_their_sum(label: str, length: int) -> None:
    """And its gradient is that of the sum, though some kinds add in place and one while it multiplies."""
    block = block_of(label, small())
    x, added = random_input(3, length, WIDTH).requires_grad_(), random_input(length, length, seed=2)
    parameters = [x, *block.logits.parameters()]
    before, after = block.logits(x) + added, block.logits(x, None, added)
    torch.testing.assert_close(after, before, **TIGHT)
    if not after.requires_grad:  # a map that is never trained
        return
    weights = random_input(*after.shape, seed=3)
    expected, found = (
        torch.autograd.grad((logits * weights).sum(), parameters, allow_unused=True) for logits in (before, after)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **TIGHT)


def test_the_logits_stay_as_they_were() -> None:
    block = block_of("random_synthesizer", small())
    before = block.logits.map.detach().clone()
    block(random_input(3, 13, WIDTH), mask=MASK)
    assert torch.equal(block.logits.map, before)


@pytest.mark.parametrize("shared", [True, False])
def test_mix_values_is_the_sum_over_keys(shared: bool) -> None:
    attention, values = random_input(1 if shared else 3, 2, 5, 7), random_input(3, 2, 7, 11, seed=2)
    expected = torch.einsum("bhij,bhjd->bihd", attention.expand(3, -1, -1, -1), values).flatten(2)
    torch.testing.assert_close(mix_values(attention, values), expected, **TIGHT)
