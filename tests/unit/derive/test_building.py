"""`build`: the same model as the supernet at one-hot gates, bit for bit, and the same parameters in the same order."""

import copy
import random
from pathlib import Path

import pytest
import torch
from by_hand import SIZES, random_tokens, shaken, small
from torch import Tensor, nn

from derive import Architecture, build
from supernet import Supernet
from supernet.blocks import BLOCKS, parse_candidate
from supernet.costs import MIXTURE_PARTS
from supernet.errors import UserError

CANDIDATES = [
    *BLOCKS,
    "self_attention[heads=5]",
    "fixed_random_synthesizer[seed=7]",
    "factorized_dense_synthesizer[a=7,b=3]",
    "factorized_random_synthesizer[rank=3]",
    f"mixture_synthesizer[parts={'+'.join(MIXTURE_PARTS)}]",
    "feed_forward[d_inner=29]",
    "dense_synthesizer[heads=5,d_hidden=35]",
    "random_synthesizer[heads=1]",
]
MODELS = {
    "learned": {},
    "post": {"norm": "post"},
    "sinusoidal": {"position": "sinusoidal", "dropout": 0.3},
    "relative": {"position": "relative"},
    "memory": {"position": "relative", "memory_len": 11},
    "memory none": {"position": "none", "memory_len": 11, "norm": "post"},
    "masked": {"task": "masked_lm"},
    "masked relative": {"task": "masked_lm", "position": "relative"},
    "untied": {"tie_embeddings": False},
    "adaptive": {"cutoffs": (5, 11)},
}


def supernet(candidates: list[str], layers: int, model: dict, seed: int = 0) -> Supernet:
    torch.manual_seed(seed)
    return shaken(Supernet({**SIZES, "layers": layers, **model}, candidates)).eval()


def architecture(net: Supernet, choices: list[int]) -> Architecture:
    return Architecture("test", net.settings.task, net.settings, tuple(net.candidates[choice] for choice in choices))


def random_choices(seed: int, layers: int, candidates: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(candidates) for _ in range(layers)]


def outputs(model: nn.Module, gates: list[Tensor], tokens: Tensor, mask: Tensor | None) -> list[Tensor]:
    """What a model gives, also for a second segment where it has memory."""
    if not model.settings.memory_len:
        return [model(tokens, *gates, padding_mask=mask)]
    logits, memory = model(tokens, *gates, padding_mask=mask)
    return [logits, memory, *model(tokens.flip(1), *gates, memory=memory)]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("model", MODELS)
@torch.no_grad()
def test_one_hot_supernet_equals_the_built_architecture_bitwise(model: str, seed: int) -> None:
    net = supernet(CANDIDATES, 6, MODELS[model], seed)
    choices = random_choices(seed, 6, len(CANDIDATES))
    built = build(architecture(net, choices), weights=net).eval()
    gates = torch.eye(len(CANDIDATES))[choices]
    mask = torch.ones(3, 13, dtype=torch.bool)
    mask[0, 9:] = mask[1, :4] = False
    tokens = random_tokens(3, 13)
    for given in (None, mask):
        pairs = zip(outputs(net, [gates], tokens, given), outputs(built, [], tokens, given), strict=True)
        assert all(torch.equal(expected, result) for expected, result in pairs)


@pytest.mark.parametrize("label", CANDIDATES)
@torch.no_grad()
def test_each_candidate_alone_is_bitwise_equal_with_gradient_gates_too(label: str) -> None:
    net = supernet(CANDIDATES, 2, {})
    index = CANDIDATES.index(label)
    built = build(architecture(net, [index, index]), weights=net).eval()
    gates = torch.eye(len(CANDIDATES))[[index, index]].requires_grad_()
    assert torch.equal(net(random_tokens(3, 13), gates), built(random_tokens(3, 13)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("model", MODELS)
def test_parameters_have_the_order_shapes_and_values_of_the_chosen_candidates(model: str, seed: int) -> None:
    net = supernet(CANDIDATES, 6, MODELS[model])
    choices = random_choices(seed, 6, len(CANDIDATES))
    chosen = {f"layers.{layer}.candidates.{choice}." for layer, choice in enumerate(choices)}
    restricted = {
        name: parameter
        for name, parameter in net.named_parameters()
        if name != "alphas" and (not name.startswith("layers.") or name.startswith(tuple(chosen)))
    }
    arch = architecture(net, choices)
    assert [p.shape for p in build(arch).parameters()] == [p.shape for p in restricted.values()]
    built = list(build(arch, weights=net).parameters())
    assert all(torch.equal(one, other) for one, other in zip(built, restricted.values(), strict=True))
    assert {id(p) for p in built}.isdisjoint({id(p) for p in net.parameters()})


def test_the_copy_is_independent() -> None:
    net = supernet(["self_attention", "random_synthesizer"], 2, {})
    built = build(architecture(net, [0, 1]), weights=net)
    before = copy.deepcopy(net.state_dict())
    with torch.no_grad():
        for tensor in built.state_dict().values():
            tensor.add_(1.0)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_same_seed_same_weights_and_every_block_trains() -> None:
    arch = Architecture.from_pattern("srxdeqmfi", model=small())
    torch.manual_seed(5)
    model = build(arch)
    torch.manual_seed(5)
    twin = build(arch).state_dict()
    assert all(torch.equal(value, twin[name]) for name, value in model.state_dict().items())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    tokens = random_tokens(4, 21)
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_options_reach_the_blocks() -> None:
    settings = small()
    labels = [
        "self_attention[heads=5]",
        "factorized_random_synthesizer[rank=3]",
        "feed_forward[d_inner=29]",
        "factorized_dense_synthesizer[a=7]",
        "dense_synthesizer[d_hidden=6]",
        "mixture_synthesizer[parts=dense+random]",
    ]
    layers = tuple(parse_candidate(label, settings) for label in labels)
    blocks = [layer.block for layer in build(Architecture("a", "causal_lm", settings, layers)).layers]
    assert blocks[0].heads == 5 and blocks[1].logits.left.shape == (2, 21, 3) and blocks[2].inner.out_features == 29
    assert blocks[3].logits.lengths == (7, 3) and blocks[4].logits.weight.shape == (2, 3, 21)
    assert list(blocks[5].logits.parts) == ["dense", "random"]


@pytest.mark.parametrize("change", [{"norm": "post"}, {"d_inner": 19}, {"tie_embeddings": False}, {"max_len": 15}])
def test_other_settings_are_refused(change: dict) -> None:
    net = supernet(["self_attention", "feed_forward"], 2, {})
    with pytest.raises(UserError, match="different model settings"):
        build(Architecture.from_pattern("sf", model=small(**change)), weights=net)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("sfs", "the supernet has 2 layers, the architecture 3"),
        ("sq", r"layers\[1\]: factorized_random_synthesizer is no candidate"),
    ],
)
def test_a_supernet_without_the_blocks_is_refused(pattern: str, words: str) -> None:
    net = supernet(["self_attention", "feed_forward"], 2, {})
    with pytest.raises(UserError, match=words):
        build(Architecture.from_pattern(pattern, model=small()), weights=net)


@pytest.mark.parametrize("weights", [{}, nn.Linear(2, 2), "net"], ids=lambda value: type(value).__name__)
def test_weights_that_are_no_supernet_are_refused(weights: object) -> None:
    with pytest.raises(UserError, match=f"weights must be a Supernet, got {type(weights).__name__}"):
        build(Architecture.from_pattern("sf", model=small()), weights=weights)


@torch.no_grad()
def test_follows_the_supernet_in_type_and_through_compilation() -> None:
    net = supernet(["self_attention", "random_synthesizer"], 2, {}).double()
    for weights in (net, torch.compile(net, backend="eager")):
        built = build(architecture(net, [1, 0]), weights=weights).eval()
        assert torch.equal(built(random_tokens(3, 13)), net(random_tokens(3, 13), torch.eye(2)[[1, 0]]))


def test_built_models_can_be_copied_and_saved(tmp_path: Path) -> None:
    model = build(Architecture.from_pattern("srxdeqmfi", model=small())).eval()
    tokens = random_tokens(3, 13)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other = build(Architecture.from_pattern("srxdeqmfi", model=small())).eval()
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert torch.equal(model(tokens), other(tokens)) and torch.equal(copy.deepcopy(model)(tokens), model(tokens))
