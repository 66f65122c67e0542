"""Dot-product self-attention against plain loops, with masks, memory and relative positions."""

import math

import pytest
import torch
from by_hand import LENGTH, block_of, hand_attention, random_input, random_tokens, shaken, small
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from derive import Architecture, build
from supernet.attention import SelfAttention, merge_heads, output_projection, split_heads
from supernet.masks import causal_bias, causal_keys

TIGHT = {"rtol": 1e-9, "atol": 1e-10}
MASK = torch.ones(3, 13, dtype=torch.bool)
MASK[0, :4] = False  # padding in front: the first queries of a causal model see nothing
MASK[1, 9:] = False
MASK[2] = False


@pytest.mark.parametrize("task", ["causal_lm", "masked_lm"])
@pytest.mark.parametrize("mask", [None, MASK], ids=["unmasked", "masked"])
@pytest.mark.parametrize("label", ["self_attention", "self_attention[heads=5]"])
def test_formula(task: str, mask: torch.Tensor | None, label: str) -> None:
    block = block_of(label, small(task=task))
    x = random_input(3, 13, 10)
    torch.testing.assert_close(
        block(x, mask=mask), hand_attention(block, x, causal=task == "causal_lm", mask=mask), **TIGHT
    )


@pytest.mark.parametrize("filled", [1, 5, 11])
@pytest.mark.parametrize("mask", [None, MASK], ids=["unmasked", "masked"])
def test_formula_with_memory(filled: int, mask: torch.Tensor | None) -> None:
    block = block_of("self_attention", small(memory_len=11, position="none"))
    x, memory = random_input(3, 13, 10), random_input(3, filled, 10, seed=2)
    expected = hand_attention(block, x, causal=True, mask=mask, memory=memory)
    torch.testing.assert_close(block(x, mask=mask, memory=memory), expected, **TIGHT)


@pytest.mark.parametrize(
    ("task", "memory_len", "lengths"),
    [
        ("causal_lm", 0, [13]),
        ("causal_lm", 11, [5, 13]),
        ("causal_lm", 11, [13, 13]),
        ("masked_lm", 0, [13]),
        ("masked_lm", 0, [1]),
    ],
)
@pytest.mark.parametrize("mask", [None, MASK], ids=["unmasked", "masked"])
@pytest.mark.parametrize("shared", [True, False])
def test_relative_positions_are_distances(
    task: str, memory_len: int, lengths: list[int], mask: torch.Tensor | None, shared: bool
) -> None:
    """Every score is (q_i + u) k_j + (q_i + v) W_R r_{i-j} with r the encoding of that very distance, for all keys."""
    settings = small(task=task, memory_len=memory_len, position="relative", share_biases=shared)
    torch.manual_seed(3)
    model = shaken(build(Architecture.from_pattern("sss", model=settings)).double())
    seen: list[tuple] = []
    block = model.layers[1].block
    hook = block.register_forward_hook(lambda _, inputs, named, y: seen.append((inputs[0], named, y)), with_kwargs=True)
    memory = None
    for index, length in enumerate(lengths):
        last = index == len(lengths) - 1
        options = {"memory": memory} if memory_len else {}
        given = mask[:, :length] if last and mask is not None else None
        result = model(random_tokens(3, length, seed=index), padding_mask=given, **options)
        memory = result[1] if memory_len else None
    hook.remove()
    x, named, y = seen[-1]
    past = named.get("memory")
    assert (0 if past is None else past.shape[1]) == min(sum(lengths[:-1]), memory_len)
    biases = (model.relative_biases if shared else block.logits.biases).detach()
    expected = hand_attention(block, x, causal=task == "causal_lm", mask=given, memory=past, biases=biases)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)  # the encodings are made in fp32


@pytest.mark.parametrize("position", ["none", "relative"])
@pytest.mark.parametrize("kernel", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_blind_queries_give_zero_and_finite_gradients(position: str, kernel: SDPBackend) -> None:
    torch.manual_seed(0)
    model = build(Architecture.from_pattern("s", model=small(position=position)))
    outputs: list[torch.Tensor] = []
    model.layers[0].block.register_forward_hook(lambda _, inputs, y: outputs.append(y))
    with sdpa_kernel([kernel, SDPBackend.MATH]):
        model(random_tokens(3, 13), padding_mask=MASK).square().sum().backward()
    blind = torch.zeros_like(MASK)
    blind[0, :4] = blind[2] = True
    assert torch.equal(outputs[0][blind], torch.zeros_like(outputs[0][blind]))
    assert outputs[0][~blind].abs().min() > 0
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_the_fused_path_equals_the_masked_one() -> None:
    block = block_of("self_attention", small()).float()
    x = random_input(3, LENGTH, 10).float()
    everything_real = torch.ones(3, LENGTH, dtype=torch.bool)
    torch.testing.assert_close(block(x), block(x, mask=everything_real))


def test_causal_mask_after_inference_mode_still_trains() -> None:
    block = block_of("self_attention", small())
    x = random_input(3, 12, 10)
    mask = torch.ones(3, 12, dtype=torch.bool)
    with torch.inference_mode():
        block(x, mask=mask)
    block(x, mask=mask).sum().backward()
    assert block.value.weight.grad.abs().sum() > 0


def test_causal_keys_count_from_the_end() -> None:
    allowed = causal_keys(3, 5, torch.device("cpu"))
    assert allowed.tolist() == [[True] * 3 + [False] * 2, [True] * 4 + [False], [True] * 5]


def test_masks_are_made_once_and_may_be_made_in_inference_mode() -> None:
    with torch.inference_mode():
        bias = causal_bias(4, 6, torch.device("cpu"), torch.float64)
    assert causal_bias(4, 6, torch.device("cpu"), torch.float64) is bias and not bias.is_inference()
    assert torch.equal(bias == 0, causal_keys(4, 6, torch.device("cpu"))) and bias.dtype == torch.float64
    assert bias.unique().tolist() == [-math.inf, 0]
    assert causal_bias(4, 6, torch.device("cpu"), torch.float32).dtype == torch.float32
    assert causal_keys(2000, 2000, torch.device("cpu")) is not causal_keys(2000, 2000, torch.device("cpu"))  # large


def test_masks_of_a_mode_of_torch_stay_in_it() -> None:
    block, x = block_of("self_attention", small(memory_len=5, position="none")), random_input(1, 3, 10)
    memory = random_input(1, 5, 10, seed=2)
    for _ in range(2):  # the real one's are there in the second
        mode = FakeTensorMode(allow_non_fake_inputs=False)
        weights, inputs, past = (
            {name: mode.from_tensor(value) for name, value in block.state_dict().items()},
            mode.from_tensor(x),
            mode.from_tensor(memory),
        )
        with mode:
            fake = torch.func.functional_call(block, weights, (inputs,), {"memory": past})
        assert fake.shape == x.shape
        torch.func.grad(lambda inputs: block(inputs, memory=memory).sum())(x)
        assert type(block(x, memory=memory)) is torch.Tensor
    assert all(
        type(causal_keys(3, 8, x.device)) is torch.Tensor
        and not torch._C._functorch.is_functorch_wrapped_tensor(causal_keys(3, 8, x.device))
        for _ in range(2)
    )


def test_heads_are_neighbouring_columns_and_merge_again() -> None:
    x = random_input(3, 7, 10)
    heads = split_heads(x, 2)
    assert torch.equal(heads[1, 1, 4], x[1, 4, 5:]) and heads.shape == (3, 2, 7, 5)
    assert torch.equal(merge_heads(heads), x)


def test_output_projection_starts_at_a_quarter() -> None:
    torch.manual_seed(0)
    weight = output_projection(101, 103, bias=False).weight
    assert 0.2 < weight.abs().max() * 101**0.5 <= 0.25


def test_no_biases_and_no_position_weights_unless_relative() -> None:
    settings = small()
    names = {name for name, _ in SelfAttention(settings, heads=2).named_parameters()}
    assert names == {"logits.query.weight", "logits.key.weight", "value.weight", "output.weight"}
    relative = {name for name, _ in SelfAttention(small(position="relative"), heads=2).named_parameters()}
    assert relative - names == {"logits.position.weight"}
