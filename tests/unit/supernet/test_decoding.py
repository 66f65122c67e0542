"""Generation: the logits of every token against the whole network run on all that the token may see."""

import pytest
import torch
from by_hand import random_tokens, shaken, small
from torch import Tensor, nn

from derive import Architecture, build
from supernet.blocks import BLOCKS, register_block
from supernet.costs import MIXTURE_PARTS
from supernet.decoding import Decoder, choose, window_start
from supernet.network import Network
from supernet.settings import ModelSettings
from supernet.synthesizers import DenseSynthesizer

EVERY_BLOCK = "".join(spec.letter for spec in BLOCKS.values())
KINDS = {
    "learned": {},
    "sinusoidal": {"position": "sinusoidal"},
    "none": {"position": "none"},
    "relative": {"position": "relative"},
    "own biases": {"position": "relative", "share_biases": False},
    "memory": {"position": "relative", "memory_len": 11},
    "memory without positions": {"position": "none", "memory_len": 13},
    "memory longer than a segment": {"position": "relative", "memory_len": 29},
    "post": {"norm": "post"},
    "untied": {"tie_embeddings": False},
    "adaptive": {"cutoffs": (5, 11)},
    "post with memory": {"norm": "post", "position": "relative", "memory_len": 5},
}
TEXT = random_tokens(3, 67)


class Reversed(nn.Module):
    """A user's block in which every position looks at all others, the later ones too."""

    def __init__(self, config: ModelSettings):
        super().__init__()
        self.linear = nn.Linear(config.d_model, config.d_model)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return torch.tanh(self.linear(x.flip(1)) + x.mean(dim=1, keepdim=True))


@pytest.fixture
def reversed_block() -> None:
    register_block("reversed", letter="z")(Reversed)
    yield
    del BLOCKS["reversed"]


def network(pattern: str, **changes: object) -> Network:
    torch.manual_seed(0)
    arch = Architecture.from_pattern(pattern, model=small(**changes))
    return shaken(build(arch)).eval()


@torch.no_grad()
def whole(model: Network, tokens: Tensor) -> Tensor:
    """Logits [B, V] after the tokens, without any cache."""
    if not model.settings.memory_len:
        return model(tokens[:, window_start(tokens.shape[1], model.settings.max_len) :])[:, -1]
    memory = None
    for segment in tokens.split(model.settings.max_len, dim=1):
        logits, memory = model(segment, memory=memory)
    return logits[:, -1]


@torch.no_grad()
def assert_read_alike(model: Network, first: int, text: Tensor = TEXT, **tolerance: float) -> None:
    """Token by token after a prompt of `first` tokens, past two ends of the length 21."""
    decoder, new = Decoder(model), text[:, :first]
    for length in range(first, text.shape[1]):
        torch.testing.assert_close(decoder.read(new), whole(model, text[:, :length]), **tolerance)
        new = text[:, length : length + 1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [name for name in BLOCKS])
def test_every_block_and_setting_token_by_token(block: str, kind: str) -> None:
    letter = BLOCKS[block].letter
    assert_read_alike(network(f"{letter}fi{letter}", **KINDS[kind]), 1)


@pytest.mark.parametrize("first", [1, 20, 21, 22, 43, 64])
@pytest.mark.parametrize("kind", ["learned", "memory", "memory longer than a segment"])
def test_prompts_of_every_length(kind: str, first: int) -> None:
    assert_read_alike(network(EVERY_BLOCK, **KINDS[kind]), first)


@pytest.mark.parametrize("label", ["parts=dense+random", f"parts={'+'.join(MIXTURE_PARTS)}"])
@pytest.mark.parametrize("kind", ["own biases", "memory"])
def test_mixtures_with_and_without_keys(label: str, kind: str) -> None:
    torch.manual_seed(0)
    settings = small(**KINDS[kind])
    layer = {"block": "mixture_synthesizer", "parts": label.removeprefix("parts=").split("+")}
    arch = {
        "format": "par-architecture",
        "version": 1,
        "task": "causal_lm",
        "model": settings.to_mapping(),
        "layers": [layer, layer],
    }
    model = shaken(build(Architecture.from_json(arch))).eval()
    assert_read_alike(model, 5)
    decoder = Decoder(model)
    decoder.read(TEXT[:, :5])
    assert all((past.keys is not None) == ("self_attention" in label) for past in decoder.pasts)


@pytest.mark.parametrize("letter", [spec.letter for spec in BLOCKS.values()])
def test_what_is_kept_of_a_block(letter: str) -> None:
    """Keys and values for self-attention and the default mixture, values alone for other synthesizers, nothing for the
    rest."""
    decoder = Decoder(network(letter, **KINDS["relative"]))
    decoder.read(TEXT[:, :13])
    past = decoder.pasts[0]
    if letter in "fi":
        assert past is None
    else:
        assert past.values.shape == (3, 2, 13, 5) and decoder.streaming and not decoder.others
        assert (past.keys is not None) == (past.relative is not None) == (letter in "sm")


@pytest.mark.parametrize("kind", ["learned", "memory"])
def test_dense_maps_in_the_fused_kernel_are_read_on_alike(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DenseSynthesizer, "FUSED_FROM", 7)
    for first in (4, 9):
        assert_read_alike(network("dfd", **KINDS[kind]), first)


def test_relative_positions_are_projected_once() -> None:
    model = network("sm", **KINDS["memory"])
    calls: list[int] = []
    projections = [model.layers[0].block.logits.position, model.layers[1].block.logits.parts["self_attention"].position]
    for projection in projections:  # no hooks: with those the layers are run whole
        projection.forward = lambda x, forward=projection.forward: calls.append(1) or forward(x)
    model.generate(TEXT[:, :5], 60)
    assert len(calls) == 2


@pytest.mark.parametrize("pattern", ["szs", "z", "sfzrz", "rsfz"])
@pytest.mark.parametrize("kind", ["learned", "relative", "memory", "post with memory", "memory longer than a segment"])
def test_users_blocks_see_all_of_their_window(reversed_block: None, pattern: str, kind: str) -> None:
    model = network(pattern, **KINDS[kind])
    assert_read_alike(model, 5)
    assert len(Decoder(model).streaming) == pattern.index("z")


def test_a_users_class_derived_from_a_built_in_one_and_a_hooked_layer_are_run_whole() -> None:
    model = network("ssf")

    class Louder(type(model.layers[1].block)):
        def mix(self, x: Tensor, *rest: object) -> Tensor:
            return super().mix(x, *rest) * x.shape[1]

    model.layers[1].block.__class__ = Louder
    assert len(Decoder(model).streaming) == 1
    assert_read_alike(model, 4)
    model = network("ssf")
    model.layers[2].register_forward_hook(lambda _, inputs, y: y + y.mean(dim=1, keepdim=True))
    assert len(Decoder(model).streaming) == 2
    assert_read_alike(model, 4)


@pytest.mark.parametrize("name", ["norm", "dropout", "block", "block.value", "block.logits"])
@pytest.mark.parametrize("pattern", ["rsf", "sdr"])
def test_a_hook_anywhere_in_a_layer_is_heeded(pattern: str, name: str) -> None:
    model = network(pattern)
    module = model.layers[1].get_submodule(name)
    if name == "block.logits":
        module.register_forward_pre_hook(lambda _, inputs: None)
    else:
        module.register_forward_hook(lambda _, inputs, y: y + y.mean(dim=1, keepdim=True))
    assert len(Decoder(model).streaming) == 1
    assert_read_alike(model, 4)


def test_a_layer_is_looked_through_for_hooks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    kind, property_ = type(network("s").layers[0]), type(network("s").layers[0]).streams
    monkeypatch.setattr(kind, "streams", property(lambda layer: calls.append(1) or property_.fget(layer)))
    network("sf").generate(TEXT, 30)
    assert len(calls) == 2


def test_longer_memory_and_clamped_distances_are_kept_to() -> None:
    model = network("sfs", position="relative", memory_len=11)
    model.set_span(17, 9)
    assert_read_alike(model, 7)
    model.set_span(0, None)
    assert_read_alike(model, 7)


def test_windows_begin_anew_from_the_later_half() -> None:
    assert [window_start(length, 5) for length in range(1, 13)] == [0, 0, 0, 0, 0, 3, 3, 3, 6, 6, 6, 9]
    assert [window_start(length, 4) for length in range(1, 9)] == [0, 0, 0, 0, 2, 2, 4, 4]
    assert [window_start(length, 1) for length in (1, 2, 3)] == [0, 1, 2]
    for max_len in (1, 2, 3, 7):
        model = network("sr", max_len=max_len)
        assert_read_alike(model, 1, TEXT[:, :23])


@pytest.mark.parametrize("kind", ["learned", "memory"])
@pytest.mark.parametrize("batch", [1, 5])
def test_greedy_generation_is_the_loop_without_a_cache(kind: str, batch: int) -> None:
    model, prompt = network(EVERY_BLOCK, **KINDS[kind]), random_tokens(batch, 7)
    expected = prompt
    for _ in range(50):
        expected = torch.cat((expected, whole(model, expected).argmax(dim=-1, keepdim=True)), dim=1)
    made = model.generate(prompt, 50, temperature=0)
    assert made.dtype == torch.int64 and torch.equal(made, expected)
    assert torch.equal(model.generate(model.generate(prompt, 31, temperature=0), 19, temperature=0), expected)


def test_nothing_to_generate() -> None:
    model = network("sf")
    for prompt in (TEXT, TEXT[:1], TEXT[:0]):
        assert torch.equal(model.generate(prompt, 0), prompt)
    assert model.generate(TEXT[:0, :4], 5).shape == (0, 9)


def test_draws_follow_the_generator_the_temperature_and_top_k() -> None:
    model, prompt = network("sf"), random_tokens(2, 5)

    def drawn(seed: int, **options: object) -> Tensor:
        return model.generate(prompt, 30, generator=torch.Generator().manual_seed(seed), **options)

    before = torch.get_rng_state()
    assert torch.equal(drawn(1), drawn(1)) and not torch.equal(drawn(1), drawn(2))
    assert torch.equal(torch.get_rng_state(), before)
    greedy = model.generate(prompt, 30, temperature=0)
    assert torch.equal(drawn(3, top_k=1), greedy) and torch.equal(drawn(4, temperature=1e-300), greedy)
    assert torch.equal(drawn(1, top_k=23), drawn(1)) and torch.equal(drawn(1, top_k=10**9), drawn(1))


def test_frequencies_are_those_of_the_softmax() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 2.0]]).expand(20_000, -1)
    for temperature, top_k, kept in ((1.0, None, 4), (2.0, None, 4), (0.5, 3, 3), (1.0, 1, 1)):
        numbers = choose(logits, temperature, top_k, torch.Generator().manual_seed(5)).flatten()
        scores = logits[0] / temperature
        if kept < 4:
            scores[0 if kept == 3 else [0, 1, 3]] = -torch.inf
        found = torch.bincount(numbers, minlength=4) / len(numbers)
        torch.testing.assert_close(found, torch.softmax(scores, dim=-1), atol=0.015, rtol=0)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, {"rtol": 1e-5, "atol": 1e-6}), (torch.bfloat16, {"rtol": 0.05, "atol": 0.3})],
)
@pytest.mark.parametrize("kind", ["learned", "memory"])
def test_other_precisions(kind: str, dtype: torch.dtype, tolerance: dict[str, float]) -> None:
    model = network("sdrxeqmf", **KINDS[kind]).to(dtype)
    assert_read_alike(model, 5, **tolerance)
    assert model.generate(TEXT, 3).shape == (3, 70)


def test_in_inference_mode_and_under_autocast() -> None:
    model = network("srf")
    expected = model.generate(TEXT, 9, temperature=0)
    with torch.inference_mode():
        assert torch.equal(model.generate(TEXT.clone(), 9, temperature=0), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.generate(TEXT, 9).shape == (3, 76)
    model(expected[:, :21]).sum().backward()  # nothing of the inference mode is left in the model


def test_training_goes_on_as_if_nothing_had_been_generated() -> None:
    def trained(generate: bool) -> Network:
        model = network(EVERY_BLOCK, dropout=0.2).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            torch.manual_seed(step)
            model(random_tokens(3, 21, seed=step)).square().mean().backward()
            if generate:
                model.generate(TEXT, 5, generator=torch.Generator().manual_seed(0))
            optimizer.step()
            optimizer.zero_grad()
        assert_read_alike(model.eval(), 9, TEXT[:, :13])  # with the weights as they are now
        return model

    assert all(torch.equal(a, b) for a, b in zip(trained(True).parameters(), trained(False).parameters(), strict=True))


def test_every_module_is_in_its_mode_again_after_errors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network("sf", dropout=0.5).train()
    model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    assert torch.equal(model.generate(TEXT, 5, temperature=0), model.generate(TEXT, 5, temperature=0))  # no dropout
    assert [module.training for module in model.modules()] == modes
    monkeypatch.setattr(Decoder, "read", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.generate(TEXT, 5)
    assert [module.training for module in model.modules()] == modes


def test_compiled_layers_generate_as_the_others() -> None:
    model = network("srf")
    expected = model.generate(TEXT, 9, temperature=0)
    for layer in model.layers:
        layer.compile(backend="eager")
    assert torch.equal(model.generate(TEXT, 9, temperature=0), expected)
    assert torch.equal(torch.compile(model, backend="eager").generate(TEXT, 9, temperature=0), expected)


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        (TEXT, {"count": -1}, "count must be an integer from 0 on, got -1"),
        (TEXT, {"count": 1.0}, "count must"),
        (TEXT, {"count": True}, "count must"),
        (TEXT[:, :0], {}, "prompt must hold at least one token"),
        (TEXT[0], {}, r"prompt must be a tensor \[B, T\] of torch.int64, got torch.int64 \(67,\)"),
        (TEXT.float(), {}, "torch.float32"),
        (TEXT.tolist(), {}, "got list"),
        (TEXT + 1, {}, "tokens must be from 0 to 22, got 23"),
        (TEXT - 1, {}, "tokens must be from 0 to 22, got -1"),
        (TEXT, {"temperature": float("nan")}, "^temperature: expected a finite number from 0 on, got nan$"),
        (TEXT, {"temperature": -0.1}, "temperature: expected"),
        (TEXT, {"temperature": float("inf")}, "temperature: expected"),
        (TEXT, {"temperature": True}, "temperature: expected"),
        (TEXT, {"top_k": 0}, "^top_k: expected an integer from 1 on"),
        (TEXT, {"top_k": 2.0}, "top_k: expected"),
    ],
)
def test_mistakes_are_named(prompt: object, options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        network("sf").generate(prompt, **{"count": 3, **options})


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused(value: float, temperature: float) -> None:
    model = network("sf", tie_embeddings=False).train()
    with torch.no_grad():
        model.layers[1].norm.bias[3] = value
    with pytest.raises(FloatingPointError, match="^the logits are not finite"):
        model.generate(TEXT, 3, temperature=temperature)
    assert all(module.training for module in model.modules())


def test_a_model_that_sees_the_future_cannot_generate() -> None:
    with pytest.raises(ValueError, match="only a causal_lm can generate, this model is a masked_lm"):
        network("sf", task="masked_lm").generate(TEXT, 3)
