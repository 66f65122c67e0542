"""A layer around its block, the gated sum, and one suite of properties over every block."""

import copy
import json
from collections.abc import Callable

import pytest
import torch
from by_hand import LENGTH, WIDTH, hand_attention, hand_layer, hand_norm, random_input, shaken, small
from record_names import PATH as NAMES
from record_names import SETTINGS, names_of
from torch import Tensor, nn

from supernet.blocks import BLOCKS, parse_candidate
from supernet.context import Context
from supernet.layers import MixedLayer, Mixture, build_layer
from supernet.settings import ModelSettings

ALL = [*BLOCKS, "self_attention[heads=5]", "mixture_synthesizer[parts=dense+factorized_dense+factorized_random]"]
ATTENDING = [label for label in ALL if BLOCKS[label.partition("[")[0]].attention_like]
MASK = torch.ones(3, 13, dtype=torch.bool)
MASK[0, 9:] = False
MASK[1, :4] = False
EXACT = {"rtol": 0, "atol": 0}
TIGHT = {"rtol": 1e-9, "atol": 1e-10}


def layer_of(label: str, settings: ModelSettings | None = None, *, seed: int = 0) -> nn.Module:
    settings = settings or small()
    torch.manual_seed(seed)
    return shaken(build_layer(parse_candidate(label, settings), settings, 3).double())


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("label", ALL)
def test_formula(label: str, norm: str) -> None:
    settings = small(norm=norm, dropout=0.5)
    layer = layer_of(label, settings).eval()
    x = random_input(2, 13, WIDTH)
    with torch.no_grad():
        torch.testing.assert_close(layer(x, Context()), hand_layer(layer, x, settings), **TIGHT)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("label", ["self_attention", "dense_synthesizer"])
def test_memory_is_normalised_like_the_input(label: str, norm: str) -> None:
    settings = small(norm=norm, memory_len=11, position="none")
    layer = layer_of(label, settings)
    x, memory = random_input(2, 13, WIDTH), random_input(2, 5, WIDTH, seed=2) * 3 + 1
    with torch.no_grad():
        normalised = [hand_norm(layer.norm, part) if norm == "pre" else part for part in (x, memory)]
        y = x + hand_attention(layer.block, normalised[0], causal=True, memory=normalised[1])
        expected = y if norm == "pre" else hand_norm(layer.norm, y)
        torch.testing.assert_close(layer(x, Context(memory=memory)), expected, **TIGHT)


@pytest.mark.parametrize("label", ALL)
def test_the_future_does_not_move_the_past(label: str) -> None:
    layer = layer_of(label)
    x = random_input(3, 13, WIDTH)
    changed = x.clone()
    changed[:, 7] += random_input(WIDTH, seed=9)  # no constant, which the norm would take away
    before, after = layer(x, Context()), layer(changed, Context())
    torch.testing.assert_close(after[:, :7], before[:, :7], **EXACT)
    moved = (after[:, 8:] != before[:, 8:]).any(dim=-1)
    assert bool(moved.all()) == (label in ATTENDING) and (after[:, 7] != before[:, 7]).all()


@pytest.mark.parametrize("label", ATTENDING)
def test_masked_lm_sees_both_sides(label: str) -> None:
    layer = layer_of(label, small(task="masked_lm"))
    x = random_input(3, 13, WIDTH)
    changed = x.clone()
    changed[:, 7] += random_input(WIDTH, seed=9)  # no constant, which the norm would take away
    assert (layer(x, Context()) != layer(changed, Context())).any(dim=-1).all()


@pytest.mark.parametrize("label", ALL)
@pytest.mark.parametrize("length", [1, LENGTH - 1, LENGTH])
def test_prefix_of_the_output_is_the_output_of_the_prefix(label: str, length: int) -> None:
    layer = layer_of(label)
    x = random_input(3, LENGTH, WIDTH)
    torch.testing.assert_close(layer(x[:, :length], Context()), layer(x, Context())[:, :length], **TIGHT)


@pytest.mark.parametrize("task", ["causal_lm", "masked_lm"])
@pytest.mark.parametrize("label", ALL)
def test_padding_does_not_move_real_tokens(label: str, task: str) -> None:
    layer = layer_of(label, small(task=task))
    x = random_input(3, 13, WIDTH)
    changed = torch.where(MASK.unsqueeze(-1), x, random_input(3, 13, WIDTH, seed=2) * 9)
    torch.testing.assert_close(layer(changed, Context(MASK))[MASK], layer(x, Context(MASK))[MASK], **EXACT)
    if label in ATTENDING and task == "masked_lm":
        assert (layer(changed, Context())[MASK] != layer(x, Context())[MASK]).any()


@pytest.mark.parametrize("task", ["causal_lm", "masked_lm"])
@pytest.mark.parametrize("label", ALL)
def test_right_padding_equals_a_shorter_row(label: str, task: str) -> None:
    layer = layer_of(label, small(task=task))
    x = random_input(3, 13, WIDTH)
    torch.testing.assert_close(layer(x, Context(MASK))[:1, :9], layer(x[:1, :9], Context()), **TIGHT)


@pytest.mark.parametrize("label", ALL)
def test_rows_of_a_batch_do_not_meet(label: str) -> None:
    layer = layer_of(label)
    x = random_input(3, 13, WIDTH)
    x[2] = x[1]
    changed = x.clone()
    changed[0] += random_input(13, WIDTH, seed=9)
    before, after = layer(x, Context()), layer(changed, Context())
    torch.testing.assert_close(after[1:], before[1:], **EXACT)
    torch.testing.assert_close(before[2], before[1], **TIGHT)
    torch.testing.assert_close(layer(x[:1], Context()), before[:1], **TIGHT)
    larger = torch.cat((x, x, x))
    torch.testing.assert_close(layer(larger, Context()), torch.cat((before, before, before)), **TIGHT)


@pytest.mark.parametrize("task", ["causal_lm", "masked_lm"])
@pytest.mark.parametrize("label", ATTENDING)
def test_queries_without_any_key_give_zero(label: str, task: str) -> None:
    layer = layer_of(label, small(task=task))
    x = random_input(3, 13, WIDTH).requires_grad_()
    mask = MASK.clone()
    mask[2] = False
    y = layer.block(x, mask=mask)
    blind = torch.zeros_like(mask)
    blind[2] = True
    blind[1, :4] = task == "causal_lm"
    torch.testing.assert_close(y[blind], torch.zeros_like(y[blind]), **EXACT)
    assert (y[~blind] != 0).any(dim=-1).all()
    y.square().sum().backward()
    assert torch.isfinite(x.grad).all() and all(torch.isfinite(p.grad).all() for p in layer.block.parameters())


@pytest.mark.parametrize("label", ALL)
def test_every_parameter_gets_a_gradient_and_moves_twice(label: str) -> None:
    layer = layer_of(label)
    target = random_input(3, LENGTH, WIDTH, seed=5)
    for step in range(2):
        before = {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}
        layer.zero_grad()
        (layer(random_input(3, LENGTH, WIDTH, seed=step).requires_grad_(), Context()) * target).sum().backward()
        for name, parameter in layer.named_parameters():
            parameter.data -= 0.1 * parameter.grad
            assert not torch.equal(parameter, before[name]), name


@pytest.mark.parametrize("label", ALL)
def test_gradients_are_those_of_finite_differences(label: str) -> None:
    layer = layer_of(label, small(max_len=6, memory_len=0))
    x = random_input(2, 5, WIDTH).requires_grad_()
    inputs = (x, *layer.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, Context()), inputs, fast_mode=True)


@pytest.mark.parametrize("label", ALL)
def test_state_round_trip_and_deep_copy(label: str) -> None:
    settings = small()
    layer = layer_of(label, settings, seed=1)
    x = random_input(3, 13, WIDTH)
    other = layer_of(label, settings, seed=2)
    if label != "identity":
        assert not torch.equal(other(x, Context()), layer(x, Context()))
    other.load_state_dict(layer.state_dict())
    twin = copy.deepcopy(layer)
    assert torch.equal(other(x, Context()), layer(x, Context())) and torch.equal(
        twin(x, Context()), layer(x, Context())
    )
    assert {id(p) for p in twin.parameters()}.isdisjoint({id(p) for p in layer.parameters()})


@pytest.mark.parametrize("label", [label for label in ALL if label != "identity"])
def test_dropout_acts_in_training_only(label: str) -> None:
    layer = layer_of(label, small(dropout=0.4))
    x = random_input(3, 13, WIDTH)
    torch.manual_seed(0)
    one, other = layer.train()(x, Context()), layer(x, Context())
    assert not torch.equal(one, other)
    kept = (one == x).double().mean().item()  # a dropped entry of the block's output leaves the residual alone
    assert kept == pytest.approx(0.4, abs=0.08)
    assert torch.equal(layer.eval()(x, Context()), layer(x, Context()))


@pytest.mark.parametrize("label", ALL)
def test_half_precision_stays_finite(label: str) -> None:
    layer = layer_of(label).float()
    x = (random_input(3, 13, WIDTH) * 30).float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x, Context(MASK))
    y.float().square().mean().backward()
    assert torch.isfinite(y).all() and all(torch.isfinite(p.grad).all() for p in layer.parameters())


def test_mixed_layer_is_the_gated_sum_of_its_candidates() -> None:
    settings = small()
    torch.manual_seed(0)
    mixed = shaken(MixedLayer([parse_candidate(label, settings) for label in ALL], settings, 3).double())
    x = random_input(2, 13, WIDTH)
    gates = torch.softmax(random_input(len(ALL)), dim=0)
    with torch.no_grad():
        outputs = [hand_layer(layer, x, settings) for layer in mixed.candidates]
        expected = sum(float(gate) * y for gate, y in zip(gates, outputs, strict=True))
        torch.testing.assert_close(mixed(x, Context(), Mixture(gates, range(len(ALL)))), expected, **TIGHT)
        some = [1, 4, 7]
        expected = sum(float(gates[index]) * outputs[index] for index in some)
        torch.testing.assert_close(mixed(x, Context(), Mixture(gates, some)), expected, **TIGHT)
        assert torch.equal(mixed(x, Context(), Mixture(None, [4])), mixed.candidates[4](x, Context()))


class Odd(nn.Module):
    """A block that gives something else than [B, T, d]."""

    def __init__(self, make: Callable[[Tensor], object]):
        super().__init__()
        self.make = make

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> object:
        return self.make(x)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: x.mean(dim=1, keepdim=True), r"Odd made \(3, 1, 10\) of \(3, 13, 10\)"),
        (lambda x: (x, None), "Odd made tuple"),
        (lambda x: None, "Odd made NoneType"),
    ],
)
def test_a_block_that_does_not_keep_the_shape_is_refused(make: Callable[[Tensor], object], words: str) -> None:
    layer = layer_of("feed_forward")
    layer.block = Odd(make)
    with pytest.raises(ValueError, match=words):
        layer(random_input(3, 13, WIDTH), Context())


@pytest.mark.parametrize("kind", SETTINGS)
def test_names_and_shapes_of_tensors_are_those_that_files_rely_on(kind: str) -> None:
    """Weights of earlier runs load by them; `python tests/record_names.py` records a change that is meant."""
    assert names_of(SETTINGS[kind]) == json.loads(NAMES.read_text(encoding="utf-8"))[kind]
