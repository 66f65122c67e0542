"""A user's block: registered, told apart from the built-in ones, and used wherever those are."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from by_hand import random_tokens, shaken, small
from conftest import Gate
from torch import Tensor, nn

from derive import Architecture, build
from supernet import Supernet, register_block
from supernet.blocks import BLOCKS, candidate_cost, candidate_to_json, parse_candidate
from supernet.errors import SettingError, UserError
from supernet.settings import ModelSettings


@contextmanager
def registered(cls: type, name: str = "mine", letter: str = "t") -> Iterator[None]:
    register_block(name, letter=letter)(cls)
    try:
        yield
    finally:
        del BLOCKS[name]


class Plain(nn.Module):
    """No options, no cost."""

    def __init__(self, config: ModelSettings):
        super().__init__()
        self.linear = nn.Linear(config.d_model, config.d_model)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return self.linear(x)


def test_the_decorator_gives_the_class_back(gate_block: str) -> None:
    assert BLOCKS[gate_block].module is Gate and BLOCKS[gate_block].letter == "g"
    assert BLOCKS[gate_block].options == ("width", "bias", "scale", "kind")


@pytest.mark.parametrize(
    ("name", "letter", "words"),
    [
        ("self_attention", "t", "name 'self_attention' is taken"),
        ("gate", "t", "name 'gate' is taken"),
        ("other", "x", "letter 'x' is taken by 'fixed_random_synthesizer'"),
        ("other", "g", "letter 'g' is taken by 'gate'"),
        ("other", "T", "one lower-case letter"),
        ("other", "tt", "one lower-case letter"),
        ("other", "", "one lower-case letter"),
        ("other", "7", "one lower-case letter"),
        ("other", "(", "one lower-case letter"),
        ("other", None, "one lower-case letter"),
        ("a b", "t", "letters, digits and underscores"),
        ("", "t", "letters, digits"),
        ("a[b]", "t", "letters, digits"),
        (None, "t", "letters, digits"),
    ],
)
def test_clashes_are_refused(gate_block: str, name: str, letter: str, words: str) -> None:
    before = dict(BLOCKS)
    with pytest.raises(UserError) as caught:
        register_block(name, letter=letter)(Plain)
    assert words in str(caught.value) and before == BLOCKS


@pytest.mark.parametrize("thing", [lambda config: nn.Identity(), int, nn.Identity()])
def test_only_module_classes_can_be_registered(thing: object) -> None:
    with pytest.raises(UserError, match="must be a class derived from torch.nn.Module"):
        register_block("mine", letter="t")(thing)
    assert "mine" not in BLOCKS


@pytest.mark.parametrize(
    "label",
    [
        "gate",
        "gate[width=7]",
        "gate[bias=true]",
        "gate[width=7,bias=true,scale=0.25]",
        "gate[scale=1e-07]",
        "gate[kind=hard]",
    ],
)
def test_labels_and_files_read_back(gate_block: str, label: str) -> None:
    settings = small()
    candidate = parse_candidate(label, settings)
    assert candidate.label == label and parse_candidate(candidate_to_json(candidate, settings), settings) == candidate


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("width", None),
        ("width", [1]),
        ("scale", float("nan")),
        ("scale", float("inf")),
        ("kind", "a,b"),
        ("kind", "a]"),
        ("kind", ""),
        ("kind", "3"),
        ("kind", "true"),
        ("kind", "1e5"),
        ("kind", " a"),
        ("depth", 3),
    ],
)
def test_options_that_no_label_could_tell_are_refused(gate_block: str, option: str, value: object) -> None:
    with pytest.raises(SettingError) as caught:
        parse_candidate({"block": "gate", option: value}, small(), "layers[3]")
    assert caught.value.path == f"layers[3].{option}"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("width", True),
        ("width", "three"),
        ("bias", 1),
        ("bias", "yes"),
        ("scale", False),
        ("scale", "half"),
        ("kind", 3),
        ("kind", True),
    ],
)
def test_options_are_of_the_kind_of_their_default(gate_block: str, option: str, value: object) -> None:
    with pytest.raises(SettingError, match=f"^block.{option}: expected .*, as its default is, got {value!r}"):
        parse_candidate({"block": "gate", option: value}, small())
    assert parse_candidate({"block": "gate", "scale": 2}, small()).label == "gate[scale=2]"


def test_options_without_a_default_are_needed_and_open_options_are_passed_on() -> None:
    class Open(Plain):
        def __init__(self, config: ModelSettings, *, width: int, **others: object):
            super().__init__(config)
            self.seen = {"width": width, **others}

    with registered(Open):
        with pytest.raises(SettingError, match=r"^block\.width: is needed"):
            parse_candidate("mine", small())
        candidate = parse_candidate("mine[width=3,colour=red]", small())
        model = build(Architecture("a", "causal_lm", small(), (candidate,)))
        assert model.layers[0].block.seen == {"width": 3, "colour": "red"}
        with pytest.raises(SettingError, match="letters, digits and underscores"):
            parse_candidate({"block": "mine", "width": 3, "a b": 1}, small())


class AsAttribute(Plain):
    flops_per_token = 123


class AsStatic(Plain):
    @staticmethod
    def flops_per_token(config: ModelSettings, seq_len: int) -> int:
        return config.d_model * seq_len


class AsClassMethod(Plain):
    @classmethod
    def flops_per_token(cls, config: ModelSettings, seq_len: int) -> int:
        return config.d_model * seq_len


class AsMethod(Plain):
    def flops_per_token(self, config: ModelSettings, seq_len: int) -> float:
        return float(self.linear.out_features * seq_len)


class ReadsItsNumbers(Plain):
    flops_per_token = 7

    def __init__(self, config: ModelSettings):
        super().__init__(config)
        self.first = self.linear.weight[0, 0].item()


@pytest.mark.parametrize(
    ("cls", "flops"),
    [
        (Plain, 0),
        (AsAttribute, 123),
        (AsStatic, 130),
        (AsClassMethod, 130),
        (AsMethod, 130),
        (ReadsItsNumbers, 7),
    ],
)
def test_costs(cls: type, flops: int) -> None:
    with registered(cls):
        torch.manual_seed(3)
        before = torch.get_rng_state()
        assert candidate_cost(parse_candidate("mine", small()), small(), 13) == (10 * 10 + 10 + 2 * 10, flops)
        assert torch.equal(torch.get_rng_state(), before)
        arch = Architecture.from_pattern("(t)x3f", model=small())
        assert arch.parameters() == sum(p.numel() for p in build(arch).parameters())
        without = Architecture.from_pattern("f", model=small()).flops_per_token(13)
        assert arch.flops_per_token(13) == without + 3 * flops


@pytest.mark.parametrize("flops", [-1, float("nan"), "many", None, True])
def test_a_cost_that_is_no_number_is_refused(flops: object) -> None:
    refused = pytest.raises(UserError, match=r"Odd\.flops_per_token: expected a number from 0 on")
    with registered(type("Odd", (Plain,), {"flops_per_token": flops})), refused:
        candidate_cost(parse_candidate("mine", small()), small(), 13)


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"norm": "post"},
        {"memory_len": 11, "position": "relative"},
        {"task": "masked_lm"},
    ],
    ids=str,
)
def test_used_in_supernet_build_and_patterns(gate_block: str, model: dict) -> None:
    settings = small(**model)
    config = {**settings.to_mapping(), "task": settings.task, "layers": 3}
    torch.manual_seed(0)
    net = shaken(Supernet(config, ["gate", "self_attention", "gate[width=7,bias=true]"])).eval()
    assert net.labels == ["gate", "self_attention", "gate[width=7,bias=true]"]
    layers = (net.candidates[2], net.candidates[1], net.candidates[0])
    built = build(Architecture("a", settings.task, settings, layers), weights=net).eval()
    assert built.layers[0].block.inner.bias is not None and built.layers[2].block.inner.weight.shape == (3, 10)
    tokens, gates = random_tokens(3, 13), torch.eye(3)[[2, 1, 0]]
    expected, result = net(tokens, gates), built(tokens)
    if settings.memory_len:
        expected, result = expected[0], result[0]
    assert torch.equal(expected, result)
    assert Architecture.from_pattern("g(sg)x1", model=settings).pattern == "gsg"


def test_gets_the_mask_and_normalised_input(gate_block: str) -> None:
    model = build(Architecture.from_pattern("g", model=small(task="masked_lm"))).eval()
    mask = torch.ones(3, 13, dtype=torch.bool)
    mask[1, 5:] = False
    seen = []
    model.layers[0].block.register_forward_hook(
        lambda _, inputs, named, y: seen.append((inputs, named, y)), with_kwargs=True
    )
    model(random_tokens(3, 13), padding_mask=mask)
    (x,), named, y = seen[0]
    assert named.keys() == {"mask"} and torch.equal(named["mask"], mask)
    torch.testing.assert_close(x.mean(dim=-1), torch.zeros(3, 13), rtol=0, atol=1e-5)
    assert torch.equal((y == 0).all(dim=-1), ~mask)


def test_a_letter_is_free_again_after_its_block_is_gone() -> None:
    for _ in range(2):
        with registered(Plain):
            assert Architecture.from_pattern("t", model=small()).layers[0].block == "mine"
    with pytest.raises(SettingError, match="'t' is no block's letter"):
        Architecture.from_pattern("t", model=small())
