"""Closed-form costs against the built thing: parameters counted, FLOPs by torch's counter with the math kernel."""

import itertools

import pytest
import torch
from by_hand import random_tokens, small
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from derive import Architecture, build
from supernet import costs
from supernet.attention import Relative
from supernet.backbone import sinusoids
from supernet.blocks import BLOCKS, Candidate, candidate_cost, parse_candidate
from supernet.context import Context
from supernet.layers import build_layer
from supernet.settings import ModelSettings

LABELS = [
    *BLOCKS,
    "self_attention[heads=5]",
    "dense_synthesizer[heads=5,d_hidden=35]",
    "random_synthesizer[heads=5]",
    "factorized_dense_synthesizer[heads=5,a=7]",
    "factorized_random_synthesizer[heads=5,rank=3]",
    "feed_forward[d_inner=29]",
    f"mixture_synthesizer[heads=5,parts={'+'.join(costs.MIXTURE_PARTS)}]",
]
MODELS = {
    "learned": {},
    "sinusoidal": {"position": "sinusoidal"},
    "none": {"position": "none"},
    "relative": {"position": "relative"},
    "own biases": {"position": "relative", "share_biases": False},
    "memory": {"position": "none", "memory_len": 11},
    "relative memory": {"position": "relative", "memory_len": 23},
    "masked": {"task": "masked_lm"},
    "masked relative": {"task": "masked_lm", "position": "relative"},
    "post": {"norm": "post"},
    "untied": {"tie_embeddings": False},
    "adaptive": {"cutoffs": (5, 11)},
    "adaptive untied": {"cutoffs": (7,), "tie_embeddings": False},
}


def counted_flops(run, *inputs: object) -> int:
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run(*inputs)
    return counter.get_total_flops()


def context_of(settings: ModelSettings, length: int) -> Context:
    """A full memory and, where the model has them, relative positions."""
    memory = torch.randn(1, settings.memory_len, settings.d_model) if settings.memory_len else None
    if settings.position != "relative":
        return Context(memory=memory)
    distances = length + settings.memory_len + (0 if settings.causal else length - 1)
    encodings = sinusoids(torch.arange(distances), settings.d_model)
    return Context(memory=memory, relative=Relative(encodings, *torch.randn(2, settings.d_model)))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("label", LABELS)
def test_costs_of_a_block(label: str, model: str) -> None:
    """The counts hold at every length up to max_len, at widths large enough that the rounding of the FLOPs does not
    matter."""
    settings = small(**MODELS[model])
    candidate = parse_candidate(label, settings)
    layer = build_layer(candidate, settings, 0)
    for length in (1, 13, 21):
        parameters, flops = candidate_cost(candidate, settings, length)
        assert parameters == sum(p.numel() for p in layer.parameters())
        counted = counted_flops(layer, torch.randn(1, length, settings.d_model), context_of(settings, length))
        assert flops * length == pytest.approx(counted, rel=0.02)
        assert isinstance(parameters, int) and isinstance(flops, int)


@pytest.mark.parametrize("model", MODELS)
def test_costs_of_a_model(model: str) -> None:
    settings = small(**MODELS[model])
    arch = Architecture.from_pattern("srfdixeqm", model=settings)
    network = build(arch)
    assert arch.parameters() == sum(p.numel() for p in network.parameters())
    memory = {"memory": torch.randn(9, 1, settings.memory_len, 10)} if settings.memory_len else {}
    counted = counted_flops(lambda: network(random_tokens(1, 13), **memory))
    assert arch.flops_per_token(13) * 13 == pytest.approx(counted, rel=0.02)


@pytest.mark.parametrize("length", [0, -1, 2.0, None])
def test_a_length_that_is_none_is_refused(length: object) -> None:
    for label in ("self_attention", "identity"):
        with pytest.raises(ValueError, match="^seq_len: expected an integer"):
            candidate_cost(Candidate(label), small(), length)


def test_identity_costs_nothing() -> None:
    for values in MODELS.values():
        assert candidate_cost(Candidate("identity"), small(**values), 13) == (0, 0)


def test_fixed_random_costs_what_random_does_without_its_map() -> None:
    settings = small()
    fixed, trained = (
        candidate_cost(Candidate(f"{kind}_synthesizer"), settings, 13) for kind in ("fixed_random", "random")
    )
    assert trained[0] - fixed[0] == 2 * 21 * 21 and trained[1] == fixed[1]


def test_published_block_sizes_of_transformer_xl_base() -> None:
    """d 512, h 8, inner 2048; 64 tokens after a memory of 640."""
    settings = Architecture.preset("transformer-xl-base", model={"max_len": 64, "memory_len": 640}).model
    attention, feed_forward = (
        candidate_cost(Candidate(block), settings, 64) for block in ("self_attention", "feed_forward")
    )
    assert (attention[0], feed_forward[0]) == (1_311_744, 2_100_736)
    assert round(attention[1] * 64 / 1e9, 3) == 1.313
    assert round(feed_forward[1] * 64 / 1e9, 3) == 0.268


def test_extra_parameters_by_hand() -> None:
    """d 512, h 8, L 512, k 8, a 16, b 32: the logits' own parameters, with biases."""
    settings = ModelSettings(d_model=512, heads=8, d_inner=2048, max_len=512)
    common = 2 * 512 * 512 + 2 * 512  # value and output projections, norm
    expected = {
        "self_attention": 524_288,
        "random_synthesizer": 2_097_152,
        "factorized_random_synthesizer": 65_536,
        "dense_synthesizer": 524_288 + 4_608,
        "factorized_dense_synthesizer": 286_720 + 512 + 8 * 48,
        "fixed_random_synthesizer": 0,
    }
    for block, extra in expected.items():
        assert candidate_cost(parse_candidate(block, settings), settings, 512)[0] - common == extra, block


def test_memory_lengthens_the_first_factor_of_factorized_dense() -> None:
    settings = small(memory_len=11, position="none")
    assert costs.factor_lengths(settings, {"a": 3, "b": 7}) == (3 + 2, 7)
    assert costs.factor_lengths(settings, {"a": 21, "b": 1}) == (21 + 11, 1)
    assert costs.factor_lengths(small(), {"a": 3, "b": 7}) == (3, 7)


@pytest.mark.parametrize(
    ("position", "norm", "tied", "cutoffs"),
    list(itertools.product(("learned", "relative", "none"), ("pre", "post"), (True, False), ((), (5, 11)))),
)
def test_surroundings_by_hand(position: str, norm: str, tied: bool, cutoffs: tuple[int, ...]) -> None:
    settings = small(position=position, norm=norm, tie_embeddings=tied, cutoffs=cutoffs)
    parameters = 230 + {"learned": 210, "relative": 20, "none": 0}[position] + {"pre": 20, "post": 0}[norm]
    parameters += (0 if tied else 230) + (23 + 2 * 11 if cutoffs else 0)
    assert costs.surroundings(settings) == (parameters, 2 * 10 * (25 if cutoffs else 23))


def test_a_users_block_costs_what_it_says(gate_block: str) -> None:
    settings = small()
    parameters, flops = candidate_cost(parse_candidate("gate[bias=true,width=7]", settings), settings, 13)
    assert parameters == 10 * 7 + 7 + 7 * 10 + 10 + 20 and flops == 120
