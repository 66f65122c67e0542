"""Maps as one node of autograd: the values and gradients of torch's own operations, in less room, and only where it
serves."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from supernet.attention_maps import Maps, Outer, Product, in_one_node, relu_heads
from supernet.settings import ModelSettings
from supernet.synthesizers import DenseSynthesizer, FactorizedDenseSynthesizer, Synthesizer, mix_values

HEADS, ROWS, QUERIES, WIDTH = 3, 5, 7, 2
COLUMNS = {"all": slice(0, 6), "the first": slice(0, 5), "the middle": slice(1, 4)}  # of 2 * 3


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def product(keys: int) -> Callable[..., Maps]:
    return lambda offset: (Maps(Product(), (draw(HEADS, ROWS, QUERIES, WIDTH), draw(HEADS, WIDTH, keys)), offset), keys)


def outer(columns: slice) -> Callable[..., Maps]:

    def parts() -> tuple[Tensor, Tensor]:
        return draw(HEADS, ROWS, QUERIES, 2), draw(HEADS, ROWS, QUERIES, 3)

    return lambda offset: (Maps(Outer(columns), parts(), offset), columns.stop - columns.start)


MAKERS = {
    "product of 1 key": product(1),
    "product of 17 keys": product(17),
    **{f"outer, {name}": outer(at) for name, at in COLUMNS.items()},
}
OFFSETS = {
    "none": None,
    "all rows alike": (1, 1, QUERIES),
    "a head each": (HEADS, 1, 1),
    "a head and query each": (HEADS, 1, QUERIES),
}


def by_torch(maps: Maps, values: Tensor) -> Tensor:
    return mix_values(maps.logits().softmax(dim=-1), values)


@pytest.mark.parametrize("shape", OFFSETS.values(), ids=OFFSETS)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_one_node_gives_the_values_and_gradients_of_torchs_operations(
    make: Callable[..., Maps], shape: tuple[int, ...] | None
) -> None:
    torch.manual_seed(1)
    keys = make(None)[1]
    offset = None if shape is None else draw(*shape, keys)
    maps, _ = make(offset)
    values = draw(ROWS, HEADS, keys, 4)
    leaves = [values, *maps.parts, *([] if offset is None else [offset])]
    mixed, expected = maps.mix(values), by_torch(maps, values)
    torch.testing.assert_close(mixed, expected, rtol=1e-12, atol=1e-12)
    grad = torch.randn_like(mixed)
    for ours, theirs in zip(
        torch.autograd.grad(mixed, leaves, grad), torch.autograd.grad(expected, leaves, grad), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_gradients_are_the_slopes(make: Callable[..., Maps]) -> None:
    torch.manual_seed(2)
    maps, keys = make(None)
    values = draw(ROWS, HEADS, keys, 2)
    assert torch.autograd.gradcheck(
        lambda values, *parts: Maps(maps.law, parts, None).mix(values), (values, *maps.parts)
    )


def test_hidden_keys_get_no_weight_and_no_gradient() -> None:
    torch.manual_seed(3)
    hidden = torch.zeros(1, 1, QUERIES, 6, dtype=torch.float64)
    hidden[..., 4:] = float("-inf")
    maps, _ = outer(slice(0, 6))(hidden)
    values = draw(ROWS, HEADS, 6, 4)
    maps.mix(values).sum().backward()
    assert values.grad[:, :, 4:].eq(0).all() and values.grad[:, :, :4].ne(0).all()
    assert all(part.grad.isfinite().all() for part in maps.parts)


def kept_sizes(block: Synthesizer, x: Tensor) -> list[int]:
    """Numbers in each tensor that is kept for the backward pass."""
    kept: dict[int, int] = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda one: kept.setdefault(one.data_ptr(), one.numel()) and one, lambda one: one
    ):
        block(x).sum().backward()
    return list(kept.values())


SETTINGS = ModelSettings.from_mapping(
    {"vocab_size": 11, "d_model": 8, "heads": 2, "d_inner": 16, "max_len": 32, "norm": "pre"}, task="causal_lm"
)
BLOCKS = {
    "dense": lambda: DenseSynthesizer(SETTINGS, heads=2, d_hidden=8),
    "factorized dense": lambda: FactorizedDenseSynthesizer(SETTINGS, heads=2, a=4, b=8),
}


@pytest.mark.parametrize("make", BLOCKS.values(), ids=BLOCKS)
def test_a_block_keeps_one_map_and_goes_by_torch_where_the_node_does_not_serve(make: Callable[[], Synthesizer]) -> None:
    torch.manual_seed(4)
    block, x = make(), torch.randn(3, 32, 8, requires_grad=True)
    assert kept_sizes(block, x).count(3 * 2 * 32 * 32) == 1
    mixed = block(x)
    gradients = torch.autograd.grad(mixed.square().sum(), [x, *block.parameters()])
    compiled = torch.compile(block, backend="eager")(x)
    torch.testing.assert_close(compiled, mixed)
    for ours, theirs in zip(
        torch.autograd.grad(compiled.square().sum(), [x, *block.parameters()]), gradients, strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    one_by_one = torch.func.vmap(
        lambda row: torch.func.functional_call(block, dict(block.named_parameters()), (row[None],))[0]
    )(x)
    torch.testing.assert_close(one_by_one, mixed)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = block(x)
    torch.testing.assert_close(half.float(), mixed, rtol=0.1, atol=0.02)


@pytest.mark.parametrize("make", BLOCKS.values(), ids=BLOCKS)
def test_a_second_derivative_is_refused(make: Callable[[], Synthesizer]) -> None:
    x = torch.randn(3, 32, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(make()(x).square().sum(), x, create_graph=True)


@pytest.mark.parametrize("make", BLOCKS.values(), ids=BLOCKS)
def test_no_rows_give_none(make: Callable[[], Synthesizer]) -> None:
    block, x = make(), torch.randn(0, 32, 8, requires_grad=True)
    mixed = block(x)
    mixed.sum().backward()
    assert mixed.shape == x.shape and block.value.weight.grad.eq(0).all()


@pytest.mark.parametrize("make", BLOCKS.values(), ids=BLOCKS)
def test_hooks_and_classes_of_ones_own_are_heard(make: Callable[[], Synthesizer]) -> None:
    torch.manual_seed(5)
    block, x = make(), torch.randn(3, 32, 8)
    evenly = (x @ block.value.weight.T).cumsum(dim=1) / torch.arange(1, 33)[:, None] @ block.output.weight.T

    def flat(logits: Tensor) -> Tensor:
        return logits.masked_fill(logits.isfinite(), 0.0)

    handle = block.logits.register_forward_hook(lambda module, inputs, logits: flat(logits))
    torch.testing.assert_close(block(x), evenly)
    handle.remove()
    assert not block(x).allclose(evenly)
    own = type(
        "Own", (type(block.logits),), {"forward": lambda self, *given: flat(super(type(self), self).forward(*given))}
    )
    block.logits.__class__ = own
    torch.testing.assert_close(block(x), evenly)


@pytest.mark.parametrize("make", BLOCKS.values(), ids=BLOCKS)
def test_frozen_parts_get_no_gradient(make: Callable[[], Synthesizer]) -> None:
    torch.manual_seed(6)
    block, x = make(), torch.randn(3, 32, 8, requires_grad=True)
    (whole,) = torch.autograd.grad(block(x).square().sum(), x)
    block.logits.weight.requires_grad_(False)
    block(x).square().sum().backward()
    assert block.logits.weight.grad is None and x.grad.equal(whole)


def test_where_it_serves() -> None:
    x = torch.zeros(1)
    assert in_one_node(x) and in_one_node(x.double())
    assert not in_one_node(x.bfloat16()) and not in_one_node(x.to("meta"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not in_one_node(x)
    with FlopCounterMode(display=False):
        assert not in_one_node(x)
    with torch.autograd.forward_ad.dual_level():
        assert not in_one_node(x)
    assert in_one_node(x)


def test_relu_by_heads_leaves_its_input_alone() -> None:
    hidden = torch.randn(2, 3, 4)
    before = hidden.clone()
    for heads in (1, 2):
        made = relu_heads(hidden, heads)
        torch.testing.assert_close(made, before.relu().unflatten(-1, (heads, -1)).permute(2, 0, 1, 3), rtol=0, atol=0)
        assert hidden.equal(before) and made.is_contiguous()
