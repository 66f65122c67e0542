"""Embedding, positions, memory, heads: what stands around the layers."""

import copy
import math

import pytest
import torch
from by_hand import encoding, hand_norm, random_input, random_tokens, shaken, small
from torch import Tensor, nn

from derive import Architecture, build
from supernet.backbone import AdaptiveHead, Head, parameter_groups, sinusoids
from supernet.blocks import BLOCKS
from supernet.context import Context
from supernet.network import Network
from supernet.settings import ModelSettings

EVERY_BLOCK = "".join(spec.letter for spec in BLOCKS.values())
KINDS = {
    "learned": {},
    "sinusoidal": {"position": "sinusoidal"},
    "none": {"position": "none"},
    "relative": {"position": "relative"},
    "memory": {"position": "relative", "memory_len": 11},
    "masked": {"task": "masked_lm"},
    "masked relative": {"task": "masked_lm", "position": "relative"},
    "untied": {"tie_embeddings": False},
    "post": {"norm": "post"},
    "adaptive": {"cutoffs": (5, 11)},
}


def network(pattern: str, *, seed: int = 0, **changes: object) -> Network:
    torch.manual_seed(seed)
    return shaken(build(Architecture.from_pattern(pattern, model=small(**changes)))).double()


def logits_of(model: Network, tokens: Tensor) -> Tensor:
    result = model(tokens)
    return result[0] if model.settings.memory_len else result


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_up_to_max_len_and_no_further(kind: str) -> None:
    model = network(EVERY_BLOCK, **KINDS[kind])
    for length in (1, 20, 21):
        logits = logits_of(model, random_tokens(3, length))
        assert logits.shape == (3, length, 23) and torch.isfinite(logits).all()
    with pytest.raises(ValueError, match="length 22 exceeds max_len 21"):
        model(random_tokens(3, 22))


@pytest.mark.parametrize("kind", KINDS)
def test_prefix_of_a_causal_model(kind: str) -> None:
    model = network(EVERY_BLOCK, **KINDS[kind])
    tokens = random_tokens(3, 21)
    same = torch.isclose(logits_of(model, tokens[:, :8]), logits_of(model, tokens)[:, :8], rtol=1e-9, atol=1e-9)
    assert bool(same.all()) == model.settings.causal


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_gets_a_gradient(kind: str) -> None:
    model = network(EVERY_BLOCK, **KINDS[kind])
    (logits_of(model, random_tokens(3, 21)) * random_input(3, 21, 23)).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("kind", KINDS)
def test_state_round_trip_and_deep_copy(kind: str) -> None:
    model, other = network(EVERY_BLOCK, seed=1, **KINDS[kind]), network(EVERY_BLOCK, seed=2, **KINDS[kind])
    tokens = random_tokens(3, 13)
    assert not torch.equal(logits_of(other, tokens), logits_of(model, tokens))
    other.load_state_dict(model.state_dict())
    assert torch.equal(logits_of(other, tokens), logits_of(model, tokens))
    assert torch.equal(logits_of(copy.deepcopy(model), tokens), logits_of(model, tokens))


@pytest.mark.parametrize("kind", KINDS)
def test_on_the_meta_device(kind: str) -> None:
    with torch.device("meta"):
        model = build(Architecture.from_pattern(EVERY_BLOCK, model=small(**KINDS[kind])))
        assert logits_of(model, torch.zeros(3, 13, dtype=torch.int64)).shape == (3, 13, 23)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("position", ["learned", "sinusoidal", "none", "relative"])
@pytest.mark.parametrize("tied", [True, False])
def test_identity_layers_leave_embedding_and_head(norm: str, position: str, tied: bool) -> None:
    """Logits of a model without blocks, by hand: (Norm of) embedding + position, times the head's matrix."""
    model = network("i", norm=norm, position=position, tie_embeddings=tied)
    tokens = random_tokens(3, 13)
    x = model.embedding.weight[tokens]
    if position == "learned":
        x = x + model.positions[:13]
    if position == "sinusoidal":
        x = x + torch.stack([encoding(i, 10) for i in range(13)]).float()
    x = hand_norm(model.norm, x) if norm == "pre" else x
    head = model.embedding.weight if tied else model.head.weight
    torch.testing.assert_close(model(tokens), x @ head.T, rtol=1e-6, atol=1e-6)


def test_sinusoids_by_hand() -> None:
    expected = torch.stack([encoding(p, 10) for p in (0, 1, 7, 640, -3)])
    torch.testing.assert_close(sinusoids(torch.tensor([0, 1, 7, 640, -3]), 10).double(), expected, rtol=0, atol=5e-5)
    assert sinusoids(torch.arange(3), 7).shape == (3, 7)


def test_without_positions_order_does_not_matter_to_the_last_token() -> None:
    tokens = random_tokens(1, 13)
    shuffled = torch.cat((tokens[:, :12].flip(1), tokens[:, 12:]), dim=1)
    for position, same in (("none", True), ("learned", False), ("sinusoidal", False), ("relative", False)):
        model = network("s", position=position)
        assert torch.allclose(model(tokens)[:, -1], model(shuffled)[:, -1], rtol=1e-9) == same, position


def test_dropout_on_the_embedding_in_training_only() -> None:
    model = network("i", dropout=0.4, norm="post").train()
    torch.manual_seed(0)
    assert not torch.equal(model(random_tokens(3, 13)), model(random_tokens(3, 13)))
    model.eval()
    assert torch.equal(model(random_tokens(3, 13)), model(random_tokens(3, 13)))


def by_segments(model: Network, tokens: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor | None]:
    memory, parts = None, []
    for segment in tokens.split(lengths, dim=1):
        logits, memory = model(segment, memory=memory)
        parts.append(logits)
    return torch.cat(parts, dim=1), memory


@pytest.mark.parametrize("lengths", [[5, 7, 9], [1] * 21, [20, 1]], ids=str)
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("position", ["relative", "none"])
def test_segments_with_memory_equal_one_long_pass(position: str, norm: str, lengths: list[int]) -> None:
    model = network("sfssif", position=position, norm=norm, memory_len=21)
    tokens = random_tokens(3, 21)
    long, _ = model(tokens)
    torch.testing.assert_close(by_segments(model, tokens, lengths)[0], long, rtol=1e-9, atol=1e-9)


def test_memory_is_bounded_and_holds_the_latest_inputs() -> None:
    model = network("fs", position="none", memory_len=11, norm="post")
    tokens = random_tokens(3, 16 + 7)
    memory = None
    for start, length, filled in ((0, 5, 5), (5, 4, 9), (9, 7, 11), (16, 7, 11)):
        _, memory = model(tokens[:, start : start + length], memory=memory)
        assert memory.shape == (2, 3, filled, 10) and not memory.requires_grad
        end = start + length
        torch.testing.assert_close(memory[0], model.embedding.weight[tokens[:, end - filled : end]].detach())
        torch.testing.assert_close(memory[1], model.layers[0](memory[0], Context()).detach())


def test_memory_reaches_memory_len_back_and_no_further() -> None:
    """One layer sees 11 tokens of the past: before token 16 those are 5 to 15."""
    model = network("s", position="relative", memory_len=11)
    tokens = random_tokens(1, 18)
    base, _ = by_segments(model, tokens, [8, 8, 2])
    for changed, moved in ((4, [False, False]), (5, [True, True]), (15, [True, True])):
        other = tokens.clone()
        other[0, changed] = (other[0, changed] + 1) % 23
        result, _ = by_segments(model, other, [8, 8, 2])
        assert (result != base).any(dim=-1)[0, -2:].tolist() == moved, changed


def test_gradients_do_not_cross_segments() -> None:
    model = network("sfs", position="relative", memory_len=11, tie_embeddings=False)
    first, second = torch.tensor([[0, 1, 2, 3]]), torch.tensor([[4, 5, 6]])
    _, memory = model(first)
    logits, _ = model(second, memory=memory)
    (logits * random_input(1, 3, 23)).sum().backward()
    touched = model.embedding.weight.grad.any(dim=-1).nonzero().flatten().tolist()
    assert touched == [4, 5, 6]


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((2, 3, 12, 10), "up to memory_len 11"),
        ((2, 2, 11, 10), "3 rows"),
        ((1, 3, 11, 10), "2 layers"),
        ((2, 3, 11, 9), "10\\]"),
        ((3, 11, 10), "2 layers"),
    ],
)
def test_a_memory_that_does_not_fit_is_refused(shape: tuple[int, ...], words: str) -> None:
    model = network("sf", position="none", memory_len=11)
    with pytest.raises(ValueError, match=f"memory must be .*{words}"):
        model(random_tokens(3, 5), memory=torch.zeros(shape, dtype=torch.float64))


def test_inputs_that_do_not_fit_are_refused() -> None:
    model, tokens = network("sf"), random_tokens(3, 5)
    with pytest.raises(ValueError, match="memory_len 0, so it takes no memory"):
        model(tokens, memory=torch.zeros(2, 3, 1, 10))
    with pytest.raises(ValueError, match=r"tokens must be \[B, T\]"):
        model(tokens[0])
    masks = (
        torch.ones(3, 6, dtype=torch.bool),
        torch.ones(5, dtype=torch.bool),
        torch.ones(3, 5),
        torch.ones(3, 5).long(),
    )
    for mask in masks:
        with pytest.raises(ValueError, match=r"padding_mask must be torch.bool \(3, 5\), True = real token"):
            model(tokens, padding_mask=mask)


@pytest.mark.parametrize("kind", ["masked", "masked relative"])
def test_padded_tokens_do_not_move_real_ones(kind: str) -> None:
    model = network(EVERY_BLOCK, **KINDS[kind])
    tokens, mask = random_tokens(3, 13), torch.ones(3, 13, dtype=torch.bool)
    mask[0, 9:] = mask[1, :4] = False
    changed = torch.where(mask, tokens, (tokens + 1) % 23)
    assert torch.equal(model(tokens, padding_mask=mask)[mask], model(changed, padding_mask=mask)[mask])
    assert not torch.equal(model(tokens)[mask], model(changed)[mask])
    torch.testing.assert_close(model(tokens, padding_mask=mask)[:1, :9], model(tokens[:1, :9]), rtol=1e-9, atol=1e-9)


def adaptive_head(cutoffs: tuple[int, ...], *, tied: bool) -> tuple[AdaptiveHead, Tensor]:
    torch.manual_seed(0)
    head = shaken(AdaptiveHead(small(cutoffs=cutoffs, tie_embeddings=tied)).double())
    return head, random_input(23, 10, seed=5)


@pytest.mark.parametrize("cutoffs", [(5,), (5, 11), (1, 2, 22)])
@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_adaptive_head_by_hand(cutoffs: tuple[int, ...], tied: bool) -> None:
    """log p(word) among the first cluster's words and the clusters, or log p(cluster) + log p(word in its cluster)."""
    head, embedding = adaptive_head(cutoffs, tied=tied)
    matrix = embedding if tied else head.words.weight
    x = random_input(2, 3, 10)
    borders = [0, *cutoffs, 23]
    result = head(x, embedding)
    for b, t in ((0, 0), (1, 2)):
        scores = [float(matrix[w] @ x[b, t] + head.bias[w]) for w in range(23)]
        clusters = [float(head.cluster_weight[c] @ x[b, t] + head.cluster_bias[c]) for c in range(len(cutoffs))]
        first = math.log(sum(math.exp(score) for score in scores[: cutoffs[0]] + clusters))
        for word in range(23):
            cluster = next(c for c in range(len(borders) - 1) if borders[c] <= word < borders[c + 1])
            expected = scores[word] - first
            if cluster:
                within = math.log(sum(math.exp(score) for score in scores[borders[cluster] : borders[cluster + 1]]))
                expected = clusters[cluster - 1] - first + scores[word] - within
            assert float(result[b, t, word]) == pytest.approx(expected, abs=1e-10)
    torch.testing.assert_close(result.exp().sum(dim=-1), torch.ones(2, 3, dtype=torch.float64))
    torch.testing.assert_close(torch.log_softmax(result, dim=-1), result)


def test_adaptive_head_equals_torchs() -> None:
    head, embedding = adaptive_head((5, 11), tied=True)
    with torch.no_grad():
        head.bias[5:] = 0.0  # torch's has no biases in the tails
    reference = nn.AdaptiveLogSoftmaxWithLoss(10, 23, [5, 11], div_value=1.0, head_bias=True).double()
    with torch.no_grad():
        reference.head.weight.copy_(torch.cat((embedding[:5], head.cluster_weight)))
        reference.head.bias.copy_(torch.cat((head.bias[:5], head.cluster_bias)))
        for tail, (start, end) in zip(reference.tail, ((5, 11), (11, 23)), strict=True):
            tail[0].weight.copy_(torch.eye(10))
            tail[1].weight.copy_(embedding[start:end])
    x = random_input(7, 10)
    torch.testing.assert_close(head(x, embedding), reference.log_prob(x), rtol=1e-10, atol=1e-10)
    targets = random_tokens(1, 7)[0]
    loss = nn.functional.cross_entropy(head(x, embedding), targets)  # log-probabilities serve as logits
    torch.testing.assert_close(loss, reference(x, targets).loss)


@pytest.mark.parametrize("tied", [True, False])
def test_plain_head(tied: bool) -> None:
    head = Head(small(tie_embeddings=tied)).double()
    x, embedding = random_input(2, 3, 10), random_input(23, 10, seed=5)
    torch.testing.assert_close(head(x, embedding), x @ (embedding if tied else head.weight).T)


def test_decay_spares_vectors_embeddings_positions_and_random_maps() -> None:
    for changes in KINDS.values():
        model = network(EVERY_BLOCK, **changes)
        groups = parameter_groups(model, 0.1)
        names = {id(p): name for name, p in model.named_parameters()}
        with_decay, without, fast = ([names.pop(id(p)) for p in group["params"]] for group in groups)
        assert not names and [(group["weight_decay"], group["lr_scale"]) for group in groups] == [
            (0.1, 1.0),
            (0.0, 1.0),
            (0.0, 10.0),
        ]
        assert fast and all(name.endswith(".map") for name in fast)
        spared = ("embedding", "positions", "relative_biases", "bias", "norm", ".map", ".left", ".right", ".mixing")
        expected = [n for n in with_decay + without if not any(word in n for word in spared)]
        assert sorted(with_decay) == sorted(expected) and len(with_decay) > 20


def test_initial_logits_are_near_unit_scale() -> None:
    torch.manual_seed(0)
    for tied in (True, False):
        settings = ModelSettings(vocab_size=101, d_model=64, heads=4, max_len=32, tie_embeddings=tied)
        model = build(Architecture.from_pattern("sf", model=settings))
        assert 0.5 < model(random_tokens(5, 32, vocab=101)).std() < 2


@pytest.mark.parametrize("width", [64, 63])
def test_learned_positions_start_where_a_shift_is_linear(width: int) -> None:
    """So that attention finds the previous token early; of the embedding's scale."""
    settings = ModelSettings(vocab_size=101, d_model=width, heads=1, max_len=48)
    start = build(Architecture.from_pattern("f", model=settings)).positions.detach()
    assert start.shape == (48, width) and start.std() == pytest.approx(width**-0.5, rel=0.1)
    shift = torch.linalg.lstsq(start[:-2].double(), start[1:-1].double()).solution
    torch.testing.assert_close((start[:-1].double() @ shift).float(), start[1:], atol=1e-3, rtol=0)


def test_a_longer_memory_and_clamped_distances_are_for_networks_whose_maps_have_no_size() -> None:
    sized, free, none = (
        Architecture.from_pattern(pattern, {"max_len": 8, "memory_len": memory, "position": "relative"})
        for pattern, memory in (("sqf", 4), ("sf", 4), ("sf", 0))
    )
    network = build(free)
    network.set_span(9, None)
    memory = None
    for _ in range(3):
        _, memory = network(torch.zeros(1, 8, dtype=torch.int64), memory=memory)
    assert memory.shape[2] == 9
    network.set_span(9, 5)
    tokens = torch.arange(8)[None]
    clamped, _ = network(tokens, memory=memory)
    network.set_span(9, 16)
    assert torch.equal(network(tokens, memory=memory)[0], build_again(network, free)(tokens, memory=memory)[0])
    assert not torch.equal(network(tokens, memory=memory)[0], clamped)
    for arch, words in ((sized, "synthesizers' maps"), (none, "the model takes none")):
        with pytest.raises(ValueError, match=words):
            build(arch).set_span(9, None)


def build_again(network: Network, arch: Architecture) -> Network:
    """The same weights with a longer memory and no clamp."""
    other = build(arch)
    other.load_state_dict(network.state_dict())
    other.set_span(9, None)
    return other
