"""Attention kinds that share values: the sum of the candidates in one pass, with gradients, and weights that are really
one."""

from typing import Any

import pytest
import torch
from by_hand import shaken
from tiny_runs import tiny
from torch import Tensor

from derive import Architecture, build
from nas.training.optimizers import build_adamw
from supernet.errors import SettingError
from supernet.supernet import Supernet

LABELS = [
    "self_attention",
    "self_attention[heads=5]",
    "dense_synthesizer",
    "random_synthesizer",
    "factorized_dense_synthesizer",
    "mixture_synthesizer",
    "feed_forward",
    "identity",
]
MODEL = {"vocab_size": 23, "d_model": 10, "heads": 2, "d_inner": 14, "max_len": 21, "task": "causal_lm", "layers": 3}
CASES: dict[str, dict[str, Any]] = {
    "learned": {},
    "relative with memory": {"position": "relative", "memory_len": 7},
    "post": {"norm": "post"},
    "masked_lm": {"task": "masked_lm", "position": "sinusoidal"},
}


def supernet(**changes: Any) -> Supernet:
    torch.manual_seed(0)
    return shaken(Supernet({**MODEL, **changes}, LABELS, share_values=True).double())


def separately(net: Supernet) -> Supernet:
    """The same weights in a supernet that sums its candidates one by one."""
    for layer in net.layers:
        layer.tied = set()
    return net


def losses_and_gradients(net: Supernet, gates: Tensor, **options: Any) -> list[Tensor]:
    tokens = torch.randint(23, (5, 13), generator=torch.Generator().manual_seed(1))
    output = net(tokens, gates, **options)
    logits = output[0] if isinstance(output, tuple) else output
    parameters = net.weight_parameters()
    return [logits, *torch.autograd.grad(logits.sin().sum(), [gates, *parameters], allow_unused=True)]


@pytest.mark.parametrize("kept", [8, 4])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_one_pass_is_the_sum_of_the_candidates(case: str, recompute: bool, kept: int) -> None:
    """Also with gates that do not sum to 1 over the attention kinds."""
    net = supernet(**CASES[case])
    net.recompute = recompute
    gates = torch.rand(3, len(LABELS), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    gates[:, kept:] = 0
    gates = (gates / gates.sum(dim=1, keepdim=True)).requires_grad_()
    options: dict[str, Any] = {"skip_zeros": True}
    if "memory_len" in CASES[case]:
        options["memory"] = torch.randn(3, 5, 7, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    if case == "masked_lm":
        options["padding_mask"] = torch.rand(5, 13, generator=torch.Generator().manual_seed(4)) > 0.3
    together = losses_and_gradients(net, gates, **options)
    for ours, expected in zip(together, losses_and_gradients(separately(net), gates, **options), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-10)


def test_what_is_shared_is_one_and_trained_once() -> None:
    net = supernet()
    first, *others = [layer for layer in net.layers[0].candidates if getattr(layer, "attends", False)]
    assert len(others) == 5
    for layer in others:
        assert (
            layer.block.value is first.block.value
            and layer.block.output is first.block.output
            and layer.norm is first.norm
        )
        assert layer.block.logits is not first.block.logits
    members = [id(parameter) for group in build_adamw(net, 1e-3, 0.1).param_groups for parameter in group["params"]]
    assert len(members) == len(set(members)) == len(net.weight_parameters())
    apart = Supernet(MODEL, LABELS)
    assert sum(p.numel() for p in apart.parameters()) - sum(p.numel() for p in net.parameters()) == 3 * 5 * (
        2 * 100 + 20
    )


def test_a_network_of_shared_candidates_has_weights_of_its_own() -> None:
    net = supernet()
    labels = ["self_attention", "dense_synthesizer", "feed_forward"]
    arch = Architecture.from_pattern(
        "sdf", {key: value for key, value in MODEL.items() if key not in ("layers", "task")}
    )
    model = build(arch, weights=net).eval()
    gates = torch.zeros(3, len(LABELS), dtype=torch.float64)
    for layer, label in enumerate(labels):
        gates[layer, LABELS.index(label)] = 1
    tokens = torch.randint(23, (2, 21))
    assert torch.equal(model(tokens), net.eval()(tokens, gates))
    shared = {parameter.data_ptr() for parameter in net.parameters()}
    assert not shared & {parameter.data_ptr() for parameter in model.parameters()}


@pytest.mark.parametrize("changes", [{"search__blocks": ["self_attention", "feed_forward"]}, {"run__shard": True}])
def test_where_nothing_can_be_shared_it_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="search.share_values: nothing to share"):
        tiny(search__share_values=True, **changes).check()
