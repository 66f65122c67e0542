"""The supernet: mixed outputs, the gates' gradient, and who runs and trains."""

import copy
import itertools
import math

import pytest
import torch
from by_hand import SIZES, hand_layer, hand_norm, random_tokens, shaken, small
from torch import Tensor, nn

from supernet import Supernet
from supernet.blocks import BLOCKS, parse_candidate, parse_candidates
from supernet.errors import SettingError
from supernet.gates import RELAXATIONS, gumbel_noise, score_function_loss

ALL = list(BLOCKS)
FEW = ["self_attention", "feed_forward", "identity"]
TOKENS, TARGETS = random_tokens(2, 13), random_tokens(2, 13, seed=2)


def supernet(candidates: list, layers: int = 2, *, seed: int = 0, **changes: object) -> Supernet:
    torch.manual_seed(seed)
    net = Supernet({**SIZES, "layers": layers, **changes}, candidates)
    return shaken(net).double().eval()


def loss_of(net: Supernet, gates: Tensor) -> Tensor:
    return nn.functional.cross_entropy(net(TOKENS, gates).flatten(0, 1), TARGETS.flatten())


def noise_for(net: Supernet, seed: int = 3) -> Tensor:
    return gumbel_noise(tuple(net.alphas.shape), torch.Generator().manual_seed(seed))


def test_alphas_and_weights_are_apart_and_together_all() -> None:
    net = Supernet({**SIZES, "layers": 3}, ALL)
    weights = net.weight_parameters()
    assert net.alphas.shape == (3, 9) and isinstance(net.alphas, nn.Parameter)
    assert all(weight is not net.alphas for weight in weights)
    assert [id(p) for p in net.parameters() if p is not net.alphas] == [id(p) for p in weights]
    assert "alphas" in net.state_dict()


def test_all_candidates_are_equally_likely_at_first() -> None:
    net = Supernet({**SIZES, "layers": 3}, ALL)
    torch.testing.assert_close(net.probabilities(), torch.full((3, 9), 1 / 9))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_probabilities_are_softmax_in_fp32_or_better(dtype: torch.dtype) -> None:
    net = supernet(FEW).to(dtype)
    expected = torch.tensor([[math.exp(a) / sum(map(math.exp, row)) for a in row] for row in net.alphas.tolist()])
    probabilities = net.probabilities()
    assert probabilities.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(probabilities, expected.to(probabilities.dtype), rtol=1e-6, atol=1e-7)
    probabilities[0, 1].backward()
    p = expected[0].double()
    torch.testing.assert_close(net.alphas.grad[0].double(), p[1] * (torch.eye(3)[1] - p), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("relaxation", RELAXATIONS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_mixed_output_is_the_sum_written_by_hand(relaxation: str, norm: str) -> None:
    net = supernet(ALL, norm=norm).float()
    gates = RELAXATIONS[relaxation](net.alphas, noise_for(net), 0.7)
    x = net.embedding.weight[TOKENS] + net.positions[:13]
    for n, layer in enumerate(net.layers):
        x = sum(gates[n, c] * hand_layer(candidate, x, net.settings) for c, candidate in enumerate(layer.candidates))
    x = hand_norm(net.norm, x) if norm == "pre" else x
    torch.testing.assert_close(net(TOKENS, gates), x @ net.embedding.weight.T)


def by_differences(net: Supernet, point: Tensor, loss: object, width: float = 1e-4) -> Tensor:
    """The gradient at a point [N, C], one entry at a time, by central differences of fourth order."""
    gradient = torch.zeros_like(point)
    for n, c in itertools.product(*map(range, point.shape)):
        values = []
        for step in (-2, -1, 1, 2):
            moved = point.clone()
            moved[n, c] += step * width
            with torch.no_grad():
                values.append(float(loss(moved)))
        gradient[n, c] = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * width)
    return gradient


@pytest.mark.parametrize("temperature", [0.7, 3.0])
@pytest.mark.parametrize("relaxation", ["softmax", "gumbel"])
def test_gate_gradient_of_soft_relaxations_by_enumeration(relaxation: str, temperature: float) -> None:
    net = supernet(ALL)
    noise = noise_for(net)

    def loss(alphas: Tensor) -> Tensor:
        return loss_of(net, RELAXATIONS[relaxation](alphas, noise, temperature))

    (gradient,) = torch.autograd.grad(loss(net.alphas), [net.alphas])
    torch.testing.assert_close(gradient, by_differences(net, net.alphas.detach(), loss), rtol=0, atol=1e-6)
    assert gradient.abs().max() > 1e-3


def test_gate_gradient_of_the_straight_through_relaxation_by_enumeration() -> None:
    """d loss / d gates at the one-hot point, entry by entry, then through the soft gates: g (1[c = c'] - g') / t."""
    net, temperature = supernet(ALL), 0.7
    noise = noise_for(net)
    hard = RELAXATIONS["gumbel_hard"](net.alphas, noise, temperature)
    (gradient,) = torch.autograd.grad(loss_of(net, hard), [net.alphas])
    by_gate = by_differences(net, hard.detach(), lambda gates: loss_of(net, gates))
    soft = torch.softmax((net.alphas.detach() + noise) / temperature, dim=-1)
    expected = torch.zeros_like(soft)
    for n, c, k in itertools.product(range(2), range(9), range(9)):
        expected[n, c] += by_gate[n, k] * soft[n, k] * (int(c == k) - soft[n, c]) / temperature
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-6)
    assert gradient.abs().max() > 1e-3


def test_score_function_expects_the_gradient_of_the_expected_loss() -> None:
    """Over all 9 layouts and all 81 pairs of draws, with the supernet's own losses."""
    net = supernet(FEW)
    layouts = list(itertools.product(range(3), repeat=2))
    with torch.no_grad():
        losses = torch.stack([loss_of(net, torch.eye(3)[list(layout)]) for layout in layouts])
    p = net.probabilities()
    chances = torch.stack([p[0, a] * p[1, b] for a, b in layouts])
    (expected,) = torch.autograd.grad((chances * losses).sum(), [net.alphas])
    total = torch.zeros_like(expected)
    for one, other in itertools.product(range(9), repeat=2):
        choices = torch.tensor([layouts[one], layouts[other]])
        (gradient,) = torch.autograd.grad(score_function_loss(net.alphas, choices, losses[[one, other]]), [net.alphas])
        total += gradient * chances[one].detach() * chances[other].detach()
    torch.testing.assert_close(total, expected, rtol=0, atol=1e-6)
    assert expected.abs().max() > 1e-3


def counted_calls(net: Supernet, gates: Tensor) -> list[list[int]]:
    """How often each candidate ran, [layer][candidate]."""
    calls = [[0] * len(net.candidates) for _ in net.layers]

    def counter(n: int, c: int):
        def count(*_: object) -> None:
            calls[n][c] += 1

        return count

    hooks = [
        candidate.register_forward_hook(counter(n, c))
        for n, layer in enumerate(net.layers)
        for c, candidate in enumerate(layer.candidates)
    ]
    net(TOKENS, gates)
    for hook in hooks:
        hook.remove()
    return calls


def test_only_candidates_with_a_gate_run_and_train() -> None:
    net = supernet(ALL)
    gates = torch.zeros(2, 9)
    gates[0, 3] = 1.0
    gates[1, [1, 7]] = torch.tensor([0.25, 0.75])
    assert counted_calls(net, gates) == [[0, 0, 0, 1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 1, 0]]
    loss_of(net, gates).backward()
    active = [[bool(gate) for gate in row] for row in gates]
    for n, layer in enumerate(net.layers):
        for c, candidate in enumerate(layer.candidates):
            assert {p.grad is not None for p in candidate.parameters()} <= {active[n][c]}, (n, c)
    assert net.alphas.grad is None and net.embedding.weight.grad is not None


def test_every_candidate_runs_where_gates_need_a_gradient() -> None:
    net = supernet(ALL)
    gates = RELAXATIONS["gumbel_hard"](net.alphas, noise_for(net), 1.0)
    assert int((gates != 0).sum()) == 2 and counted_calls(net, gates) == [[1] * 9] * 2
    assert counted_calls(net, gates.detach()) == gates.long().tolist()
    with torch.no_grad():
        assert torch.equal(net(TOKENS, gates), net(TOKENS, gates.detach()))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.float64])
def test_one_hot_gates_of_any_type(dtype: torch.dtype) -> None:
    net = supernet(FEW).float()
    gates = torch.eye(3)[[1, 0]]
    assert torch.equal(net(TOKENS, gates.to(dtype)), net(TOKENS, gates))


def test_a_lone_gate_counts() -> None:
    net = supernet(FEW, layers=1, norm="post")
    full, half = (net(TOKENS, torch.tensor([[0.0, gate, 0.0]], dtype=torch.float64)) for gate in (1.0, 0.5))
    torch.testing.assert_close(half, full / 2)


@pytest.mark.parametrize(
    ("gates", "words"),
    [
        (torch.zeros(2, 3), r"gates\[0\] are all 0"),
        (torch.eye(3)[:2] * torch.tensor([[1], [0]]), r"gates\[1\] are all 0"),
        (torch.ones(3, 2) / 2, r"gates must be \(2, 3\), got \(3, 2\)"),
        (torch.ones(3) / 3, r"gates must be \(2, 3\)"),
    ],
)
def test_wrong_gates_are_refused(gates: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        supernet(FEW)(TOKENS, gates)


def test_memory_and_padding_mask_go_through() -> None:
    net = supernet(FEW, memory_len=11, position="relative")
    logits, memory = net(TOKENS, net.probabilities())
    assert logits.shape == (2, 13, 23) and memory.shape == (2, 2, 11, 10) and not memory.requires_grad
    again, memory = net(TOKENS, net.probabilities(), memory=memory)
    assert memory.shape == (2, 2, 11, 10) and not torch.allclose(again, logits)
    masked = supernet(FEW, task="masked_lm")
    mask = torch.ones(2, 13, dtype=torch.bool)
    mask[1, 9:] = False
    result = masked(TOKENS, masked.probabilities(), padding_mask=mask)
    torch.testing.assert_close(result[1:, :9], masked(TOKENS[1:, :9], masked.probabilities()))


def test_length_is_bounded() -> None:
    net = supernet(FEW, position="none")
    with pytest.raises(ValueError, match="length 22 exceeds max_len 21"):
        net(random_tokens(2, 22), net.probabilities())


def test_layers_have_weights_of_their_own() -> None:
    net = Supernet({**SIZES, "layers": 2}, FEW)
    first, second = (dict(layer.named_parameters()) for layer in net.layers)
    assert not any(
        torch.equal(first[name], second[name]) for name in first if "norm" not in name and "bias" not in name
    )
    assert {id(p) for p in first.values()}.isdisjoint({id(p) for p in second.values()})


def test_state_round_trip_and_deep_copy() -> None:
    net, other = supernet(ALL, seed=1), supernet(ALL, seed=2)
    other.load_state_dict(net.state_dict())
    gates = net.probabilities()
    assert torch.equal(other(TOKENS, gates), net(TOKENS, gates)) and torch.equal(other.alphas, net.alphas)
    assert torch.equal(copy.deepcopy(net)(TOKENS, gates), net(TOKENS, gates))


def test_same_seed_same_net() -> None:
    one, other = (supernet(ALL, seed=4).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"layers": None}, "model.layers"),
        ({"layers": 0}, "model.layers"),
        ({"layers": "3"}, "model.layers"),
        ({"heads": 3}, "model.heads"),
        ({"width": 3}, "model.width"),
        ({"task": "other"}, "task"),
        ({"memory_len": 3}, "model.memory_len"),
    ],
)
def test_wrong_models_are_refused_by_key(change: dict, path: str) -> None:
    config = {**SIZES, "layers": 2, **change}
    with pytest.raises(SettingError) as caught:
        Supernet(config, FEW)
    assert caught.value.path == path
    assert config == {**SIZES, "layers": 2, **change}  # the caller's mapping stays as it was


@pytest.mark.parametrize(
    ("candidates", "path"),
    [
        ([], "search.blocks"),
        (["identity"], "search.blocks"),
        ("identity", "search.blocks"),
        ({"block": "identity"}, "search.blocks"),
        (None, "search.blocks"),
        (["identity", "identity"], "search.blocks[1]"),
        (["identity", "self_attention[heads=3]"], "search.blocks[1].heads"),
        (["self_attention", "feed_forward", {"block": "self_attention", "heads": 2}], "search.blocks[2]"),
        (["identity", "self"], "search.blocks[1].block"),
        (["identity", None], "search.blocks[1]"),
    ],
)
def test_wrong_candidates_are_refused_by_place(candidates: object, path: str) -> None:
    with pytest.raises(SettingError) as caught:
        Supernet({**SIZES, "layers": 2}, candidates)
    assert caught.value.path == path


def test_candidates_as_labels_objects_and_candidates() -> None:
    settings = small()
    given = ["self_attention[heads=5]", {"block": "self_attention"}, parse_candidate("feed_forward", settings)]
    net = Supernet({**SIZES, "layers": 2}, tuple(given))
    assert net.labels == ["self_attention[heads=5]", "self_attention", "feed_forward"]
    assert parse_candidates(net.labels, settings) == net.candidates
